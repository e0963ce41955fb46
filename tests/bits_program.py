"""Print digests of results by a package's kernels for a CPU level, or by compiled kernels.

    python bits_program.py LEVEL|compiled [FOLDER [KIND/DTYPE/LAYOUT...]]
    python bits_program.py compare

FOLDER is the folder of the levels' kernels, if not the package's. Without cases, all dtypes,
layouts and kinds of calls run. For a level that this machine lacks, no digests are printed.
``compare`` makes digests for all levels and for compiled kernels, and fails if they differ.
"""

from __future__ import annotations

import hashlib
import itertools
import random
import subprocess
import sys
from pathlib import Path

import normgrad
from normgrad.backends.cpu import target
from normgrad.backends.cpu.objects import store
from normgrad.testing import FORWARD, GRADIENTS, LAYOUTS, Call, make
from normgrad.testing.tensors import HALVES

DTYPES = ("float32", "float64", *HALVES)
SHAPES = ((3, 8), (70, 24), (2, 8, 5), (4, 24, 7, 7), (3, 8, 20, 20), (2, 40, 300))
EVERYTHING = ["/".join(each) for each in itertools.product((*GRADIENTS, *FORWARD), DTYPES, LAYOUTS)]

ABSENT = "not for this machine"


def call_of(case: str) -> Call:
    """A case's call; in a third of the calls, grad_out and input differ in layout or dtype."""
    kind, dtype, layout = case.split("/")
    rng = random.Random(case)
    other = {"x_dtype": rng.choice(DTYPES), "x_layout": rng.choice(LAYOUTS)}
    more = other if rng.random() < 1 / 3 else {}
    shape = rng.choice(SHAPES)
    return make(kind, shape, dtype=dtype, layout=layout, num_groups=4, seed=1, **more)


def digests(level: str, folder: str = "", *cases: str) -> None:
    target.LEVELS = {} if level == "compiled" else {level: target.LEVELS[level]}
    if folder:
        store.PACKAGED = Path(folder)
    if level != "compiled" and store.level() is None:
        print(ABSENT)
        return
    normgrad.set_num_threads(1)
    for case in cases or EVERYTHING:
        result = call_of(case).call()
        results = result if isinstance(result, tuple) else (result,)
        content = b"".join(each.tobytes() for each in results if each is not None)
        print(case, hashlib.sha256(content).hexdigest())
    assert "numba" not in sys.modules


def compare() -> None:
    found = {}
    for level in ("compiled", *target.LEVELS):
        command = [sys.executable, __file__, level]
        found[level] = subprocess.run(command, stdout=subprocess.PIPE, check=True).stdout
        if found[level] == ABSENT.encode() + b"\n":
            print(f"{level}: {ABSENT}")
            del found[level]
    if len(found) == 1:
        sys.exit("no level can be used")
    if len(set(found.values())) > 1:
        sys.exit("kernels differ")
    print(f"{len(EVERYTHING)} calls have the same bits by kernels: {', '.join(found)}")


if __name__ == "__main__":
    compare() if sys.argv[1:] == ["compare"] else digests(*sys.argv[1:])
