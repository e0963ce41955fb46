"""Digests of results by the kernels that a package brings for a level, or by compiled ones.

    python bits_program.py LEVEL|compiled [FOLDER [KIND/DTYPE/LAYOUT...]]

FOLDER is where the libraries are, if not in the package. Without cases there are all dtypes,
layouts and kinds of calls. Of a level that this machine does not have, nothing more is said.
"""

from __future__ import annotations

import hashlib
import itertools
import random
import sys
from pathlib import Path

import normgrad
from normgrad.backends.cpu import packaged
from normgrad.testing import FORWARD, GRADIENTS, LAYOUTS, Call, make
from normgrad.testing.tensors import HALVES

DTYPES = ("float32", "float64", *HALVES)
SHAPES = ((3, 8), (70, 24), (2, 8, 5), (4, 24, 7, 7), (3, 8, 20, 20), (2, 40, 300))
EVERYTHING = ["/".join(each) for each in itertools.product((*GRADIENTS, *FORWARD), DTYPES, LAYOUTS)]


def call_of(case: str) -> Call:
    """A call of some shape; in a third of them grad_out and input are not alike."""
    kind, dtype, layout = case.split("/")
    rng = random.Random(case)
    other = {"x_dtype": rng.choice(DTYPES), "x_layout": rng.choice(LAYOUTS)}
    more = other if rng.random() < 1 / 3 else {}
    shape = rng.choice(SHAPES)
    return make(kind, shape, dtype=dtype, layout=layout, num_groups=4, seed=1, **more)


def main(level: str, folder: str = "", *cases: str) -> None:
    packaged.LEVELS = () if level == "compiled" else (level,)
    if folder:
        packaged.FOLDER = Path(folder)
    if level != "compiled" and packaged.library() is None:
        print("not for this machine")
        return
    normgrad.set_num_threads(1)
    for case in cases or EVERYTHING:
        result = call_of(case).call()
        results = result if isinstance(result, tuple) else (result,)
        content = b"".join(each.tobytes() for each in results if each is not None)
        print(case, hashlib.sha256(content).hexdigest())
    if level != "compiled":
        assert "numba" not in sys.modules


if __name__ == "__main__":
    main(*sys.argv[1:])
