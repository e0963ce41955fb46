"""Shared libraries in the package that hold the machine code of kernels.

A wheel for a platform has one library for each supported level of x86-64; linking.py makes them. A
library is used if this machine has its level, it was made from the installed sources, and no
environment variable tells Numba how to compile.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import re
from functools import cache
from pathlib import Path

from ...loading import loading

#: The levels of x86-64 that libraries are made for, the best first; after a plus, what a processor
#: must have beside: here an instruction that rounds to bfloat16.
LEVELS = ("x86-64-v4+avx512bf16", "x86-64-v4", "x86-64-v3")
#: The folder of the libraries.
FOLDER = Path(__file__).parent
#: The variables that tell Numba how to compile. If one is set, kernels are compiled.
SETTINGS = ("NUMBA_CPU_NAME", "NUMBA_CPU_FEATURES", "NUMBA_OPT", "NUMBA_DISABLE_JIT")

#: A library's symbols for the digest of its sources, and for whether this machine can run it.
SOURCES, RUNS_HERE = "normgrad_sources", "normgrad_runs_here"

#: Files outside this folder whose constants kernels use.
_SHARED = tuple(
    f"{name}.py" for name in ("dtypes", "entries", "layout", "memory", "native", "pages", "problem")
)


@cache
def sources() -> str:
    """A digest of everything the kernels are compiled from."""
    here = Path(__file__).parent
    digest = hashlib.sha256()
    for path in (*sorted(here.glob("*.py")), *(here.parent.parent / name for name in _SHARED)):
        digest.update(path.read_bytes())
    return digest.hexdigest()


def file_of(level: str) -> str:
    """The file of the library for a level."""
    return f"kernels-{level}.so"


def symbol(unit: str) -> str:
    """The symbol of a unit in a library."""
    return "normgrad_" + re.sub(r"\W+", "_", unit)


@cache
def library() -> tuple[str, ctypes.CDLL] | None:
    """The library in use, with its level; None if none is."""
    if any(name in os.environ for name in SETTINGS):
        return None
    digest = sources().encode()
    with loading():
        for level in LEVELS:
            try:
                found = ctypes.CDLL(str(FOLDER / file_of(level)))
            except OSError:  # there is no library, or it is for another system
                continue
            made_from = (ctypes.c_char * len(digest)).in_dll(found, SOURCES)
            if made_from.value == digest and found[RUNS_HERE]():
                return level, found
    return None


def address(unit: str) -> int | None:
    """The address of a unit's machine code; None where it has to be compiled."""
    used = library()
    if used is None:
        return None
    try:
        function = used[1][symbol(unit)]
    except AttributeError:
        return None
    return ctypes.cast(function, ctypes.c_void_p).value
