"""The C and C++ compilers of this machine."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

from .settings import words

#: By language, the environment variable that names a compiler, and the usual ones.
_COMPILERS = {
    "C": ("CC", ("cc", "gcc", "clang")),
    "C++": ("CXX", ("c++", "g++", "clang++")),
}


class BuildError(Exception):
    """The error of a failed build; its text is one line with the cause and a remedy."""


def find(language: str) -> list[str]:
    """The user's compiler of a language: that of $CC or $CXX, otherwise the usual ones.

    Raises:
        BuildError: there is none.
        SettingError: the variable cannot be split into words.
    """
    variable, names = _COMPILERS[language]
    command = words(variable)
    if command:
        if shutil.which(command[0]) is None:
            reason = f"{variable}: {command[0]!r} is not found"
            raise BuildError(f"{reason}; allowed: a {language} compiler")
        return command
    for name in names:
        if shutil.which(name) is not None:
            return [name]
    raise BuildError(
        f"no {language} compiler ({', '.join(names)}, or ${variable}); install one, such as with "
        f"`apt install {'gcc' if language == 'C' else 'g++'}`"
    )


def run(command: Sequence[str], folder: Path, target: str) -> None:
    """Run a compiler in a folder to make ``target``; a BuildError has its first error."""
    process = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    if process.returncode != 0:
        lines = (process.stderr or process.stdout).strip().splitlines() or ["no message"]
        reason = next((line for line in lines if "error" in line), lines[-1])
        raise BuildError(f"{command[0]} does not compile {target}: {reason}")
