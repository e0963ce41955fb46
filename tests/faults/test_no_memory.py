"""Memory that runs out: errors that say for what, and right results once there is some again."""

from __future__ import annotations

import sys

import numpy as np
import pytest

from .conftest import python

pytestmark = [
    pytest.mark.skipif(sys.platform != "linux", reason="limits on addresses are Linux's"),
    pytest.mark.cpu,
]

#: Tensors that take no memory themselves, whose gradient would take 8 GiB.
START = """
import hashlib, limits, sys, numpy as np, normgrad as ng
MIB = 1 << 20
large = np.broadcast_to(np.float32(1), (32768, 64, 32, 32))
small = np.random.default_rng(0).standard_normal((16, 8, 64, 64), dtype=np.float32)
def call(x, **options):
    return ng.batch_norm_backward(x, x, training=True, **options)
def digest():
    parts = [np.ascontiguousarray(value) for value in call(small)]
    return hashlib.sha256(b"".join(part.tobytes() for part in parts)).hexdigest()
before = digest()
"""


def lines(code: str, *arguments: object, **environment: str) -> list[str]:
    done = python(START + code, *arguments, **environment)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout.splitlines()


def test_results():
    assert lines("""
with limits.addresses(64 * MIB):
    print(limits.told(call, large))
    print(digest() == before)
print(digest() == before)
""") == [
        "MemoryError: grad_input: no memory for 8589934592 bytes; allowed: what the system has "
        "left",
        "True",
        "True",
    ]  # fmt: skip


def test_an_input_that_is_copied():
    assert lines("""
record = np.zeros(1024, [("flag", np.uint8), ("value", np.float32)])
values = np.broadcast_to(record, (32768, 64, 1024))["value"]
with limits.addresses(64 * MIB):
    print(limits.told(ng.batch_norm_stats, values, eps=1e-5))
values = np.zeros((4, 3, 2), record.dtype)["value"]
print(ng.batch_norm_stats(values, eps=1.0).mean)
""") == [
        "MemoryError: input: no memory for 8589934592 bytes; allowed: what the system has left",
        "[0. 0. 0.]",
    ]  # fmt: skip


def test_kernels():
    """LLVM would end the process where it finds no memory for one."""
    assert lines("""
x = small.astype(np.float16)
with limits.addresses(32 * MIB):
    print(limits.told(call, x))
print(len(call(x)))
""") == [
        "MemoryError: compiling kernels: no memory for 67108864 bytes; allowed: what the system "
        "has left",
        "3",
    ]  # fmt: skip


def test_memory_that_may_not_become_executable():
    """As systemd's MemoryDenyWriteExecute has it; LLVM would jump to where no code is."""
    *found, right = lines("""
import ctypes
if ctypes.CDLL(None).prctl(65, 1, 0, 0, 0):
    print("this Linux has no PR_SET_MDWE")
else:
    print(limits.told(call, small.astype(np.float64)))
print(digest() == before)
""")
    if found == ["this Linux has no PR_SET_MDWE"]:
        pytest.skip(*found)
    assert found == [
        "KernelError: compiled kernels: they cannot be loaded, since the system forbids this "
        "process executable memory; allowed: a process without PR_SET_MDWE, systemd's "
        "MemoryDenyWriteExecute, or the like"
    ]
    assert right == "True"  # what was loaded before


def test_plans():
    """A plan allocates its workspace alone, or nothing where it is given one."""
    assert lines("""
x = np.ones((2, 1 << 21, 2), np.float32)
plan = ng.plan("batch_norm_backward", grad_out=x, input=x, training=True)
size = plan.workspace_size
out, scratch = (np.empty_like(x), None, None), np.empty(size, np.uint8)
wanted = ng.plan("batch_norm_backward", grad_out=x, input=x, training=True,
                 output_mask=(True, False, False))
size, scratch = wanted.workspace_size, np.empty(wanted.workspace_size, np.uint8)
print(size > 32 * MIB)
first = wanted.run(x, x, out=out, workspace=scratch)[0].copy()
with limits.addresses(8 * MIB):
    print(limits.told(wanted.run, x, x, out=out).replace(str(size), "SIZE"))
    print(limits.told(wanted.run, x, x, out=out, workspace=scratch[1:]).replace(
        str(size), "SIZE").replace(str(size - 1), "SIZE - 1"))
    out[0][...] = np.nan
    again = wanted.run(x, x, out=out, workspace=scratch)[0]
    print(again is out[0])
print(again.tobytes() == first.tobytes())
""") == [
        "True",
        "MemoryError: workspace: no memory for SIZE bytes; allowed: what the system has left",
        "ValueError: workspace: SIZE - 1 bytes; allowed: at least SIZE",
        "True",
        "True",
    ]  # fmt: skip


#: What PyTorch says of an output or a gradient.
NO_MEMORY = (
    "[enforce fail at alloc_cpu.cpp:127] err == 0. DefaultCPUAllocator: can't allocate memory: you "
    "tried to allocate 83886080 bytes. Error code 12 (Cannot allocate memory)"
)


def test_layers():
    """Their results have no room in what glibc has reserved for a thread, which is 64 MiB."""
    pytest.importorskip("torch")
    assert lines("""
import torch, normgrad.torch as nt
layer = nt.nn.BatchNorm2d(64)
x = torch.randn(320, 64, 32, 32, generator=torch.Generator().manual_seed(0), requires_grad=True)
odd = x.detach().permute(3, 1, 2, 0).contiguous().permute(3, 1, 2, 0)  # not PyTorch's order
def state():
    return {name: value.clone() for name, value in layer.state_dict().items()}
layer(odd)  # PyTorch imports sympy for it
start = state()
start["num_batches_tracked"] += 2  # PyTorch's layers count before they compute
with limits.addresses(4 * MIB):
    print(limits.told(layer, x))
    print(limits.told(layer, odd))
print(all(torch.equal(start[name], value) for name, value in state().items()))
y = layer(x)
y.backward(y.detach(), retain_graph=True)
first, x.grad = x.grad, None
with limits.addresses(4 * MIB):
    print(limits.told(y.backward, y.detach(), retain_graph=True))
print(x.grad)
y.backward(y.detach())
print(torch.equal(x.grad, first))
""") == [
        f"RuntimeError: {NO_MEMORY}",
        f"RuntimeError: {NO_MEMORY}",
        "True",
        f"RuntimeError: {NO_MEMORY}",
        "None",
        "True",
    ]  # fmt: skip


#: A thread of its own whose first call comes when there is no memory for OpenMP's threads.
THREADS = """
import threading
ng.set_num_threads(1)
call(small)  # so that what runs without threads is there
ng.set_num_threads(2)
out = call(small)
first = [value.copy() for value in out]
go, found = threading.Event(), []
def work():
    go.wait()
    found.append(limits.told(call, small, out=out))
threads = [threading.Thread(target=work) for _ in range(4)]
for thread in threads: thread.start()
for value in out: value[...] = np.nan
with limits.addresses(MIB):
    go.set()
    for thread in threads: thread.join()
print(*{each if type(each) is str else type(each).__name__ for each in found})
print(all((a == b).all() for a, b in zip(out, first)))
"""


@pytest.mark.parametrize("whose", ["numba", "torch"])
def test_threads_that_cannot_be_started(whose):
    """OpenMP would end the process; the call does without them."""
    pytest.importorskip(whose)
    assert lines(f"import {whose}" + THREADS) == ["BatchNormGradients", "True"]


#: Teams that grow when there is no memory for OpenMP's threads, or for their stacks.
TEAMS = """
import torch
if sys.argv[1] == "layers":
    import normgrad.torch as nt
    layer, x = nt.nn.BatchNorm2d(8).eval(), torch.from_numpy(small)
    def of(count, much=1 << 40):
        torch.set_num_threads(count)
        with limits.addresses(much), torch.no_grad():
            y = layer(x)
        return hashlib.sha256(y.numpy().tobytes()).hexdigest()
else:
    out = call(small)
    def of(count, much=1 << 40):
        torch.set_num_threads(count)
        with limits.addresses(much):
            call(small, out=out)
        return hashlib.sha256(b"".join(part.tobytes() for part in out)).hexdigest()
first = of(1)
sizes = [int(size) for size in sys.argv[2:]]
print(all(of(size) == first for size in sizes[:-1]))
print(of(sizes[-1], 24 * MIB) == first)
print(of(sizes[-1]) == first)
"""


@pytest.mark.parametrize(
    ("whose", "sizes", "stack"),
    [
        ("calls", (16, 2, 16), "8m"),
        pytest.param("calls", (2, 16), "8m", marks=pytest.mark.full),
        pytest.param("calls", (2, 4), "64m", marks=pytest.mark.full),
    ],
)
@pytest.mark.every_case
def test_teams_that_cannot_grow(whose, sizes, stack):
    """OpenMP ends the threads that a smaller team has no use for; it cannot start them anew."""
    pytest.importorskip("torch")
    assert lines(TEAMS, whose, *sizes, OMP_STACKSIZE=stack) == ["True"] * 3


#: `normgrad run` in forked children, each with a little more memory than the last.
COMMAND = """
import commands, contextlib, os, sys
from pathlib import Path
file, out = map(Path, sys.argv[1:])
# All that is imported and read from disk for it is there.
with contextlib.redirect_stdout(None):
    status = commands.here("run", file, "-o", out)
print(status)
right = out.read_bytes()
for mib in (0, 4, 8, 16, 32, 64, 128, 256):
    out.write_bytes(b"what was there")
    limit = limits.addresses(mib * MIB)
    status, complaint = commands.forked(limit.__enter__, "run", file, "-o", out)
    wanted = b"what was there" if status else right
    print(status, repr(complaint), out.read_bytes() == wanted)
"""


@pytest.mark.parametrize("suffix", ["npz", "safetensors"])
def test_the_command(suffix, tmp_path):
    """With however little memory: one line and what was there, or the gradients."""
    import safetensors.numpy

    rng = np.random.default_rng(0)
    x, dy = rng.standard_normal((2, 8, 8, 128, 128), dtype=np.float32)
    file, out = tmp_path / f"layer.{suffix}", tmp_path / f"out.{suffix}"
    if suffix == "npz":
        np.savez(file, operator="batch_norm_backward", training=True, grad_out=dy, input=x)
    else:
        options = {"operator": "batch_norm_backward", "training": "true"}
        safetensors.numpy.save_file({"grad_out": dy, "input": x}, file, options)
    first, *found = lines(COMMAND, file, out, NORMGRAD_NUM_THREADS="1")
    assert first == "0"
    statuses = {line.split()[0] for line in found}
    assert statuses == {"0", "2"}, found
    for line in found:
        if line.startswith("2"):
            assert line.startswith("2 'normgrad: not enough memory"), line
            assert line.endswith("\\n' True"), line
        else:
            assert line == "0 '' True"
    assert sorted(path.name for path in tmp_path.iterdir()) == [file.name, out.name]
