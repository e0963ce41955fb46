"""What a program needs of the vendors' libraries: what is available, a stub, or missing."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path
from typing import NamedTuple

from .declarations import DIALECTS, functions_of, stubs_of

#: The names of functions of the vendors' libraries.
_NAME = re.compile(r"(?:acl(?:nn|rt|mdl|op|prof|tdt)?[A-Z]|Hccl[A-Z]|infini(?:op|rt|ccl)[A-Z])\w+")
#: The names in a program's texts that are certainly functions, even if they are unknown here.
_OPERATOR = re.compile(r"aclnn[A-Z]\w+")


class Needs(NamedTuple):
    """The functions that a program needs: available ones, stubs, and missing ones."""

    available: tuple[str, ...]
    stubs: tuple[str, ...]
    missing: tuple[str, ...]


def needs(path: Path) -> Needs:
    """What an object, a library or a program needs.

    These are its undefined symbols, and the names in its texts, which programs pass to ``dlsym``.

    Raises:
        OSError: the file cannot be read, or there is no nm.
        ValueError: the file is none that nm can read.
    """
    content = path.read_bytes()
    symbols: set[str] = set()
    for table in ([], ["-D"]):  # a stripped program has the second one alone
        command = ["nm", "-u", *table, str(path)]
        nm = subprocess.run(command, capture_output=True, text=True, check=False)
        if nm.returncode != 0:
            raise ValueError(nm.stderr.strip().splitlines()[-1])
        symbols |= {line.split()[-1].partition("@")[0] for line in nm.stdout.splitlines() if line}
    libraries = [library for dialect in DIALECTS for library in dialect.libraries]
    functions = {each.name for library in libraries for each in functions_of(library)}
    stubs = {each.name for library in libraries for each in stubs_of(library)}
    texts = {text.decode() for text in re.findall(rb"(?<!\w)[A-Za-z]\w+(?=\0)", content)}
    needed = {*filter(_NAME.fullmatch, symbols), *filter(_OPERATOR.fullmatch, texts)}
    needed |= texts & (functions | stubs)
    parts = needed & functions, needed & stubs, needed - functions - stubs
    return Needs(*map(tuple, map(sorted, parts)))
