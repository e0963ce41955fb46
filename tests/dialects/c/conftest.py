"""The C libraries, and what compiles programs against them."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import c_libraries
import pytest

from normgrad.dialects.c import build
from normgrad.dialects.c.declarations import DIALECTS

#: The environment variables that say where kernels are kept: programs compile none of their own.
_CACHE = ("HOME", "XDG_CACHE_HOME", "NORMGRAD_CACHE_DIR")
STRICT = ("-Wall", "-Wextra", "-Werror", "-pedantic")
#: The compiler and language standard of the examples, by suffix.
LANGUAGES = {".c": ("gcc", "-std=c11"), ".cpp": ("g++", "-std=c++17")}


@dataclass(frozen=True)
class Libraries:
    """The built libraries' folder, and a compiler of programs that use them."""

    out: Path

    def flags(self, dialect: str) -> list[str]:
        found = next(each for each in DIALECTS if each.name == dialect)
        return shlex.split(build.flags(self.out, found))

    def compile(
        self, source: Path, target: Path, dialect: str = "aclnn", extra: Sequence[str] = ()
    ) -> Path:
        """Compile a C11 or C++17 source to an executable, with all warnings as errors."""
        compiler, standard = LANGUAGES[source.suffix]
        command = [compiler, standard, *STRICT, str(source), "-o", str(target)]
        done = subprocess.run(
            [*command, *self.flags(dialect), "-lm", *extra], capture_output=True, text=True
        )
        assert done.returncode == 0, done.stderr
        return target


@pytest.fixture(scope="session")
def libraries(tmp_path_factory):
    if shutil.which("gcc") is None or shutil.which("g++") is None:
        pytest.skip("no gcc and g++")
    return Libraries(c_libraries.built(tmp_path_factory))


@pytest.fixture(scope="session")
def compile_for(tmp_path_factory):
    """A function that compiles a program for a sanitizer, or skips the test if it does not work."""
    built: dict[str, Libraries] = {}

    def libraries_for(sanitizer: str) -> Libraries:
        folder = tmp_path_factory.mktemp(sanitizer)
        source, program = folder / "empty.c", folder / "empty"
        source.write_text("int main(void) { return 0; }\n")
        command = ["gcc", f"-fsanitize={sanitizer}", source, "-o", program]
        done = subprocess.run(command, capture_output=True, check=False)
        if done.returncode != 0 or subprocess.run([program], check=False).returncode != 0:
            pytest.skip(f"no sanitizer {sanitizer}")
        return Libraries(c_libraries.built(tmp_path_factory, sanitizer))

    def compile_one(sanitizer: str, source: Path, target: Path, dialect: str) -> Path:
        if sanitizer not in built:
            built[sanitizer] = libraries_for(sanitizer)
        compiler, standard = LANGUAGES[source.suffix]
        flags = built[sanitizer].flags(dialect)
        command = [compiler, standard, source, "-o", target, *flags, "-lm"]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        return target

    return compile_one


@pytest.fixture
def copied(libraries, monkeypatch):
    """Builds copy the library that is built already, since to compile it takes seconds."""

    def copy(command, work, target):
        if target.endswith(".so"):  # the others are objects
            shutil.copyfile(libraries.out / "lib" / target, work / target)

    monkeypatch.setattr(build.compilers, "run", copy)


def run(*command: object, env=None, cwd="/", timeout=120) -> subprocess.CompletedProcess[str]:
    """Run a program in a bare environment and ``env``, without a line on compiling."""
    cache = {name: os.environ[name] for name in _CACHE if name in os.environ}
    return subprocess.run(
        [str(word) for word in command],
        env={"NORMGRAD_QUIET": "1", **cache, **(env or {})},
        cwd=cwd,
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
    )


def python_environment(**more: str) -> dict[str, str]:
    """The environment variables that the tests' Python needs."""
    return {**os.environ, **more}
