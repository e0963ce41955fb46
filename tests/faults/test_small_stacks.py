"""Threads with small stacks: results are those of any other thread, to the bit."""

from __future__ import annotations

import pytest

from normgrad.backends.cpu import teams
from normgrad.stacks import ROOM

from .conftest import python

#: Two calls of every kind of access, the second of a known signature, with a digest of results.
CALLS = """
import hashlib, sys, threading
import numpy as np
if sys.argv[1] == "torch":
    import torch
import normgrad as ng
from normgrad.testing import make
def digest():
    found = hashlib.sha256()
    for layout in ("contiguous", "channels_last", "sliced"):
        for kind in ("train", "layer_norm"):
            case = make(kind, (16, 40, 32, 32), layout=layout)
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


@pytest.mark.parametrize("framework", ["numpy", "torch"])
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
@pytest.mark.parametrize("size", ["16k", pytest.param("128", marks=pytest.mark.full)])
def test_openmp_s_threads_with_small_stacks(framework, size):
    if framework == "torch":
        pytest.importorskip("torch")
    code = f"{CALLS}first = digest()\nng.set_num_threads(1)\nprint(digest() == first)"
    done = python(code, framework, OMP_STACKSIZE=size)
    assert (done.returncode, done.stdout, done.stderr) == (0, "True\n", "")


@pytest.mark.parametrize(
    ("name", "value", "enough"),
    [
        ("OMP_STACKSIZE", "16k", False),
        ("OMP_STACKSIZE", "511", False),
        ("OMP_STACKSIZE", " 512 K ", True),
        ("OMP_STACKSIZE", "1m", True),
        ("OMP_STACKSIZE", "large", True),  # the runtime ignores it too
        ("GOMP_STACKSIZE", "64", False),
        ("KMP_STACKSIZE", "65536", False),
        ("KMP_STACKSIZE", "2g", True),
    ],
)
def test_sizes_of_openmp_s_stacks(monkeypatch, name, value, enough):
    assert ROOM == 256 << 10
    for each in teams._STACK_SIZES:
        monkeypatch.delenv(each, raising=False)
    monkeypatch.setenv(name, value)
    assert teams.have_room() is enough
