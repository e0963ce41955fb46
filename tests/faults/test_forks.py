"""Processes that come from one that computes, by fork and by spawn."""

from __future__ import annotations

import os

import pytest

from .conftest import python

pytestmark = [
    pytest.mark.skipif(not hasattr(os, "fork"), reason="has no fork"),
    pytest.mark.cpu,
]

#: What parents and children compute; a module of its own, since spawn imports it.
PROGRAM = """
import hashlib, multiprocessing, os, sys, threading, time, warnings
warnings.filterwarnings("ignore", ".*fork.*", DeprecationWarning)
{imports}
import numpy as np, normgrad as ng

def digest(kind="float32"):
    x = np.random.default_rng(0).standard_normal((16, 8, 64, 64)).astype(kind)
    found = [*ng.batch_norm_backward(x, x, training=True), ng.batch_norm(x, training=True)[0]]
    return hashlib.sha256(b"".join(value.tobytes() for value in found)).hexdigest()
"""

POOLS = """
if __name__ == "__main__":
    alone = digest()
    for method in ("fork", "spawn"):
        with multiprocessing.get_context(method).Pool(2) as pool:
            print(method, set(pool.map(digest, ["float32"] * 6)) == {alone})
    print(digest() == alone)
"""


@pytest.mark.parametrize("imports", ["", pytest.param("import torch", marks=pytest.mark.full)])
def test_both_start_methods(tmp_path, imports):
    if imports:
        pytest.importorskip("torch")
    program = tmp_path / "program.py"
    program.write_text(PROGRAM.format(imports=imports) + POOLS)
    done = python(f"import runpy; runpy.run_path({str(program)!r}, run_name='__main__')")
    # Spawned children need the program's own path, which runpy does not tell them.
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == "fork True\nspawn True\nTrue\n"


WHILE_OTHERS_COMPUTE = """
alone = digest()
ending = threading.Event()
def work():
    while not ending.is_set():
        if digest() != alone:
            print("wrong")
threads = [threading.Thread(target=work) for _ in range(2)]
for thread in threads: thread.start()
statuses = set()
for _ in range(8):
    child = os.fork()
    if child == 0:
        os._exit(0 if digest() == alone and digest("float64") else 3)
    statuses.add(os.waitpid(child, 0)[1])
ending.set()
for thread in threads: thread.join()
print(statuses, digest() == alone)
"""


@pytest.mark.parametrize("imports", ["", pytest.param("import torch", marks=pytest.mark.full)])
def test_forks_while_other_threads_compute(imports):
    if imports:
        pytest.importorskip("torch")
    done = python(PROGRAM.format(imports=imports) + WHILE_OTHERS_COMPUTE)
    assert (done.returncode, done.stdout, done.stderr) == (0, "{0} True\n", "")


WHILE_ANOTHER_COMPILES = """
from normgrad.backends.cpu.objects import store, units
def compile():
    for code in (0, 3):
        store.addresses([units.kernel("rows", "sums", code)])
thread = threading.Thread(target=compile)
thread.start()
statuses, forks = set(), 0
while thread.is_alive():
    child = os.fork()
    if child == 0:
        compile()
        os._exit(0)
    statuses.add(os.waitpid(child, 0)[1])
    forks += 1
thread.join()
print(statuses, forks > 0)
"""


@pytest.mark.full
def test_forks_while_another_thread_compiles(tmp_path):
    """A fork waits for the kernel that is being compiled, so that the child can compile too."""
    environment = {"NORMGRAD_CACHE_DIR": str(tmp_path)}
    done = python(PROGRAM.format(imports="") + WHILE_ANOTHER_COMPILES, **environment)
    assert (done.returncode, done.stdout, done.stderr) == (0, "{0} True\n", "")


NOT_WAITED_FOR = """
from normgrad.support import forks
forks.PATIENCE = 0.01
holding, ending = threading.Event(), threading.Event()
def hold():
    with forks.LOADING:
        holding.set()
        ending.wait()
thread = threading.Thread(target=hold)
thread.start()
holding.wait()
child = os.fork()
if child == 0:
    try:
        digest()
    except RuntimeError as error:
        print(error, flush=True)
    os._exit(4)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
ending.set()
thread.join()
print(len(digest()))
"""


def test_a_fork_that_cannot_wait():
    """A child that would wait for ever for a thread that it does not have says so."""
    done = python(PROGRAM.format(imports="") + NOT_WAITED_FOR)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines() == [
        "this process was forked while another thread was compiling kernels; allowed: a fork "
        "before or after that, or another start method, such as multiprocessing's 'spawn'",
        "4",
        "64",
    ]


LOADER = """
import normgrad.torch as nt
class Data(torch.utils.data.Dataset):
    def __len__(self):
        return 12
    def __getitem__(self, index):
        x = torch.full((4, 8, 32, 32), float(index)) + torch.arange(32.0)
        return ng.batch_norm_backward(x, x, training=True).grad_bias
layer = nt.nn.BatchNorm2d(8)
def train():
    x = torch.ones(4, 8, 32, 32, requires_grad=True)
    layer(x).sum().backward()
train()
alone = torch.stack([Data()[index] for index in range(12)])
loader = torch.utils.data.DataLoader(Data(), batch_size=3, num_workers=2,
                                     multiprocessing_context="fork")
for epoch in range(2):
    batches = []
    for batch in loader:
        batches.append(batch)
        train()
    print(torch.equal(torch.cat(batches), alone))
"""


def test_a_data_loader():
    pytest.importorskip("torch")
    done = python(PROGRAM.format(imports="import torch, torch.utils.data") + LOADER)
    assert (done.returncode, done.stdout, done.stderr) == (0, "True\nTrue\n", "")


def test_looking_at_arrays_imports_nothing():
    """An import outside of what forks wait for would leave a child with its lock held for ever."""
    done = python("""
import sys, numpy as np
from normgrad.tensors import frameworks
x = np.ones(3)
before = set(sys.modules)
frameworks.of("x", x).open("x", x, False)
print(set(sys.modules) - before)
""")
    assert (done.returncode, done.stdout, done.stderr) == (0, "set()\n", "")
