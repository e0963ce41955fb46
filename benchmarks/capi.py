"""Time the C libraries: starting, a small call, and a large call alternating with Python's own.

    python benchmarks/capi.py [--csv FILE]

Starting is measured from the start of a C program, with nothing in its environment, to its first
result; kernels are on disk. That program also times small calls, of shape (1, 2, 4). The large call
is made through the libraries, by ctypes, alternating with normgrad.dialects.aclnn in one process.
"""

from __future__ import annotations

import argparse
import csv
import ctypes
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import numpy as np

from normgrad.bench import timing
from normgrad.dialects import aclnn
from normgrad.dialects.c import build
from normgrad.dialects.c.declarations import DIALECTS, functions_of
from normgrad.testing.c_functions import find

STARTS, SMALL_ROUNDS, LARGE_ROUNDS = 15, 2001, 41
SMALL, LARGE = (1, 2, 4), (32, 64, 56 * 56)
HERE = Path(__file__).parent


def compile_program(out: Path) -> Path:
    """The C program."""
    program = out / "capi"
    flags = build.flags(out, DIALECTS[0]).split()
    source = HERE / "capi.c"
    subprocess.run(["cc", "-O2", "-std=c11", source, *flags, "-o", program], check=True)
    return program


def start(program: Path, rounds: int = 0) -> tuple[float, list[tuple[str, float]]]:
    """Milliseconds until the first result, and the program's figures with their names."""
    begin = time.perf_counter()
    words = [str(word) for word in (program, *SMALL, rounds)]
    with subprocess.Popen(words, stdout=subprocess.PIPE, env={}, text=True, cwd="/") as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "first\n"
        first = time.perf_counter() - begin
        lines = [line.rstrip("\n").split(" ", 1) for line in process.stdout]
    return 1e3 * first, [(name, float(value)) for value, name in lines]


def functions(out: Path) -> SimpleNamespace:
    """The functions of libascendcl, libnnopbase and libopapi, by ctypes."""
    names = DIALECTS[0].libraries
    libraries = [ctypes.CDLL(str(out / "lib" / f"lib{name}.so")) for name in names]
    declared = (function for name in names for function in functions_of(name))
    return SimpleNamespace(**{function.name: find(function, libraries) for function in declared})


def large(out: Path) -> dict[str, Callable[[], None]]:
    """The same call through C, and through Python, each on memory that is theirs."""
    acl = functions(out)
    acl.aclInit(None)
    acl.aclrtSetDevice(0)

    def block(size: int) -> int:
        pointer = ctypes.c_void_p()
        assert acl.aclrtMalloc(ctypes.addressof(pointer), size, 0) == 0
        assert pointer.value
        return pointer.value

    rng = np.random.default_rng(0)
    x, dy = rng.standard_normal((2, *LARGE), dtype=np.float32)
    weight = rng.standard_normal(LARGE[1], dtype=np.float32)
    arrays = [dy, x, weight, np.empty_like(x), np.empty_like(weight), np.empty_like(weight)]
    handles = []
    for array in arrays:
        address = block(array.nbytes)
        ctypes.memmove(address, array.ctypes.data, array.nbytes)
        shape = (ctypes.c_int64 * array.ndim)(*array.shape)
        where = ctypes.addressof(shape)
        handles.append(
            acl.aclCreateTensor(where, array.ndim, 0, None, 0, 2, where, array.ndim, address)
        )
    booleans = (ctypes.c_bool * 3)(True, True, True)
    mask = acl.aclCreateBoolArray(ctypes.addressof(booleans), 3)
    size, executor = ctypes.c_uint64(), ctypes.c_void_p()
    results = ctypes.addressof(size), ctypes.addressof(executor)
    phase_1 = acl.aclnnBatchNormBackwardGetWorkspaceSize
    phase_2 = acl.aclnnBatchNormBackward
    arguments = (*handles[:3], None, None, None, None, True, 1e-5, mask, *handles[3:], *results)
    assert phase_1(*arguments) == 0
    workspace = block(size.value)

    def through_c() -> None:
        assert phase_1(*arguments) == 0
        assert phase_2(workspace, size, executor, None) == 0

    tensors = [aclnn.tensor(array) for array in arrays]
    scratch = np.empty(size.value, np.uint8)

    def through_python() -> None:
        needed, run = aclnn.aclnnBatchNormBackwardGetWorkspaceSize(
            *tensors[:3], None, None, None, None, True, 1e-5, (True, True, True), *tensors[3:]
        )
        aclnn.aclnnBatchNormBackward(scratch, needed, run, None)

    return {"C": through_c, "Python": through_python}


def main() -> None:
    """Measure, print, and write a CSV file if one is asked for."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--csv", type=Path)
    target = parser.parse_args().csv
    with tempfile.TemporaryDirectory() as work:
        out = Path(work)
        build.build(out)
        program = compile_program(out)
        start(program)  # compiles the kernels if they are not on disk
        first = statistics.median(start(program)[0] for _ in range(STARTS))
        _, small = start(program, SMALL_ROUNDS)
        times = timing.measure(large(out), rounds=LARGE_ROUNDS).medians
    through_c, through_python = (1e3 * seconds for seconds in times.values())
    rows = [
        ("program start to first result", first, "ms"),
        *((name, value, "" if "two threads" in name else "µs") for name, value in small),
        (f"both through C, {LARGE}", through_c, "ms"),
        (f"both in Python, {LARGE}", through_python, "ms"),
        ("C / Python", through_c / through_python, ""),
    ]
    for name, value, unit in rows:
        print(f"{name:50} {value:9.3f} {unit}")
    if target is not None:
        with target.open("w", newline="", encoding="utf-8") as file:
            writer = csv.writer(file)
            writer.writerow(("what", "median", "unit"))
            writer.writerows((name, f"{value:.3f}", unit) for name, value, unit in rows)


if __name__ == "__main__":
    sys.exit(main())
