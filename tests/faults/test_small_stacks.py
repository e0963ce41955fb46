"""Threads with small stacks: results are those of any other thread, to the bit."""

from __future__ import annotations

import sys

import pytest

from .conftest import python

#: The bytes of stack that a call of kernels may use. Beside what a thread has anyway, it took up to
#: 25 KiB, of layer norm's gradients in float64.
NEEDED = 32 << 10

#: Two calls of every kind of access, the second of a known signature, with a digest of results.
CALLS = """
import hashlib, itertools, sys, threading
import numpy as np
if sys.argv[1] == "torch":
    import torch
import normgrad as ng
from normgrad.testing import make
SHAPES = {"train": (16, 40, 32, 32), "layer_norm": (64, 33), "group_norm": (8, 16, 4, 4)}
LAYOUTS, DTYPES = ("contiguous", "channels_last", "sliced"), ("float32", "float64")
def digest():
    found = hashlib.sha256()
    for (kind, shape), layout, dtype in itertools.product(SHAPES.items(), LAYOUTS, DTYPES):
        case = make(kind, shape, layout=layout, dtype=dtype)
        tensors = case.tensors
        if sys.argv[1] == "torch":
            tensors = {
                name: None if value is None else torch.from_numpy(value)
                for name, value in tensors.items()
            }
        for _ in range(2):
            for value in getattr(ng, case.name)(**tensors, **case.options):
                found.update(np.ascontiguousarray(value).tobytes())
    return found.hexdigest()
def of_a_thread(size):
    digests = []
    threading.stack_size(size)
    thread = threading.Thread(target=lambda: digests.append(digest()))
    thread.start()
    thread.join()
    return digests[0]
"""

#: Prints by how many bytes calls with kernels reach further down a new thread's stack than those
#: without: what nobody has used of it is zero, since it is larger than those the C library keeps.
DEPTH = """
import ctypes
from normgrad.backends.cpu import runtime
library, window = ctypes.CDLL(None), 1 << 20
library.pthread_self.restype = ctypes.c_ulong
low, size, run = ctypes.c_size_t(), ctypes.c_size_t(), runtime.Runner.run
def depth():
    attributes = ctypes.create_string_buffer(256)
    library.pthread_getattr_np(ctypes.c_ulong(library.pthread_self()), attributes)
    library.pthread_attr_getstack(attributes, ctypes.byref(low), ctypes.byref(size))
    top = low.value + size.value
    stack = (ctypes.c_uint8 * window).from_address(top - window)
    return len(bytes(stack).lstrip(b"\\0"))
def compare():
    runtime.Runner.run = lambda *arguments: None
    digest()
    before, runtime.Runner.run = depth(), run
    digest()
    print(depth() - before)
ng.set_num_threads(1)
digest()
threading.stack_size(48 << 20)
thread = threading.Thread(target=compare)
thread.start()
thread.join()
"""


@pytest.mark.skipif(sys.platform != "linux", reason="the C library does not tell where stacks are")
def test_kernels_need_little_stack():
    done = python(CALLS + DEPTH, "numpy")
    assert (done.returncode, done.stderr) == (0, "")
    assert 0 < int(done.stdout) <= NEEDED


@pytest.mark.parametrize("framework", ["numpy", pytest.param("torch", marks=pytest.mark.full)])
@pytest.mark.parametrize("size", [64, pytest.param(192, marks=pytest.mark.full)])
def test_threads_with_small_stacks(framework, size):
    """What imports and compiles, and kernels of all kinds; then a thread that finds them ready."""
    if framework == "torch":
        pytest.importorskip("torch")
    done = python(
        f"{CALLS}print(of_a_thread({size} << 10) == digest() == of_a_thread({size} << 10))",
        framework,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "True\n", "")


@pytest.mark.parametrize("framework", ["numpy", "torch"])
@pytest.mark.parametrize("size", ["64k", pytest.param("128", marks=pytest.mark.full)])
def test_openmp_s_threads_with_small_stacks(framework, size):
    if framework == "torch":
        pytest.importorskip("torch")
    code = f"{CALLS}first = digest()\nng.set_num_threads(1)\nprint(digest() == first)"
    done = python(code, framework, OMP_STACKSIZE=size)
    assert (done.returncode, done.stdout, done.stderr) == (0, "True\n", "")
