"""Calls whose plan is not there yet: nested, concurrent, failing; re-imports, forks and the end."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from threading import Barrier

import pytest

torch = pytest.importorskip("torch")

import normgrad.torch as nt  # noqa: E402
from normgrad.support import torch_build  # noqa: E402
from normgrad.torch import native, native_plans  # noqa: E402

F, theirs = nt.functional, torch.nn.functional
pytestmark = pytest.mark.cpu

#: Numbers of channels that no other call has, so that each call is a first one.
_channels = count(1001)


def made(channels):
    generator = torch.Generator().manual_seed(channels)
    x = torch.randn(3, channels, generator=generator, dtype=torch.float64)
    return x.requires_grad_(), x[0].detach().cos().requires_grad_()


def results(module, channels):
    """Outputs and gradients of all norms."""
    x, w = made(channels)
    mean, var = torch.zeros_like(w), torch.ones_like(w)
    outputs = (
        module.batch_norm(x, mean, var, w, None, True),
        module.group_norm(x, 1, w),
        module.layer_norm(x, (channels,), w),
        module.rms_norm(x, (channels,), w, 1e-5),
    )
    loss = sum((value * value.detach().cos()).sum() for value in outputs)
    return [*outputs, mean, var, *torch.autograd.grad(loss, (x, w))]


def check(found, channels):
    torch.testing.assert_close(found, results(theirs, channels), rtol=1e-9, atol=1e-9)


def test_calls_in_hooks_of_first_calls():
    """A hook that packs or unpacks a tensor computes other norms, for the first time too."""
    channels, is_inside = next(_channels), False

    def hook(tensor):
        nonlocal is_inside
        if not is_inside:
            is_inside = True
            try:
                other = next(_channels)
                with torch.enable_grad():
                    check(results(F, other), other)
            finally:
                is_inside = False
        return tensor

    for _ in range(2):
        with torch.autograd.graph.saved_tensors_hooks(hook, hook):
            found = results(F, channels)
        check(found, channels)
        check(results(F, channels), channels)


@pytest.fixture
def planner():
    """A function that puts another in the place of the planner, until the test's end."""
    yield lambda plan: native.module.connect(plan)
    native.module.connect(native_plans.plan)


def test_calls_while_a_plan_is_made(planner):
    """Such as those of a finalizer that the garbage collector runs, of the same kind too."""
    channels, other, is_inside = next(_channels), next(_channels), False

    class Finalized:
        def __del__(self):
            found.extend((results(F, other), results(F, channels)))

    def plan(*question):
        nonlocal is_inside
        if not is_inside:
            is_inside = True
            cycle = Finalized()
            cycle.itself = cycle
            del cycle
            gc.collect()
        return native_plans.plan(*question)

    found = []
    planner(plan)
    outer = results(F, channels)
    assert len(found) == 2
    for values, size in ((outer, channels), (found[0], other), (found[1], channels)):
        check(values, size)
    check(results(F, channels), channels)


@pytest.mark.parametrize("error", [KeyboardInterrupt, MemoryError, SystemExit, RuntimeError])
def test_a_plan_s_error_is_the_call_s(planner, error):
    """Nothing is kept of it, nor written before; the next call computes."""
    channels = next(_channels)
    x, w = made(channels)
    mean, var = torch.zeros_like(w), torch.ones_like(w)

    def plan(name, *rest):
        if name.endswith("_backward") == backwards:
            raise error("of the planner")
        return native_plans.plan(name, *rest)

    def fails(call):
        planner(plan)
        try:
            with pytest.raises(error, match="of the planner"):
                call()
        finally:
            planner(native_plans.plan)

    backwards = False
    for _ in range(2):
        fails(lambda: F.batch_norm(x, mean, var, w, None, True))
        assert not mean.any()
    y = F.batch_norm(x, mean, var, w, None, True)
    backwards = True
    fails(lambda: torch.autograd.grad(y.sum(), (x, w), retain_graph=True))
    torch.autograd.grad(y.sum(), (x, w))
    check(results(F, channels), channels)


@pytest.mark.parametrize("answer", [b"", 3, (), {}, {"driver": "3"}])
def test_an_answer_that_is_no_plan(planner, answer):
    """It is an error, and nothing runs."""
    channels = next(_channels)
    planner(lambda *question: answer)
    with pytest.raises((RuntimeError, TypeError, KeyError)):
        F.layer_norm(made(channels)[0], (channels,))
    planner(native_plans.plan)
    check(results(F, channels), channels)


def test_first_calls_of_many_threads():
    """At once, of the same kinds and of others."""
    for _ in range(3):
        shared, barrier = next(_channels), Barrier(8)

        def call(own, shared=shared, barrier=barrier):
            barrier.wait()
            return results(F, shared), results(F, own)

        with ThreadPoolExecutor(8) as pool:
            sizes = [next(_channels) for _ in range(8)]
            for own, (of_all, of_one) in zip(sizes, pool.map(call, sizes), strict=True):
                check(of_all, shared)
                check(of_one, own)


def run(program, **environment):
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert (done.returncode, done.stderr) == (0, ""), done
    return done.stdout.split()


REIMPORTED = """
import gc, sys, torch
def go(size):
    import normgrad, normgrad.torch as nt
    from normgrad.torch import native
    assert native.module is not None
    x = torch.randn(size, 8, requires_grad=True)
    for _ in range(2):
        y = nt.functional.layer_norm(x, (8,))
        torch.testing.assert_close(y, torch.nn.functional.layer_norm(x, (8,)))
        y.sum().backward(retain_graph=True)
        normgrad.layer_norm(x.detach(), (8,))
    return y, nt.functional.layer_norm
old = [go(3)]
for size in (4, 5):
    for name in [name for name in sys.modules if name.startswith("normgrad")]:
        del sys.modules[name]
    gc.collect()
    old.append(go(size))
for size, (y, function) in enumerate(old, 8):  # what the modules made that are gone
    y.sum().backward()
    function(torch.randn(size, 8, requires_grad=True), (8,)).sum().backward()
print("done")
"""


def test_modules_that_are_imported_again():
    assert run(REIMPORTED) == ["done"]


LATE = """
import atexit, threading
def call(where):
    for size in (3, 4, 5):
        x = torch.randn(size, 16)
        y = F.layer_norm(x, (16,), w)
        torch.testing.assert_close(y, torch.nn.functional.layer_norm(x, (16,), w))
        y.sum().backward()
    print(where, flush=True)
atexit.register(call, "handler")
import torch, normgrad.torch.functional as F
w = torch.rand(16, requires_grad=True)
for _ in range(2):
    F.layer_norm(torch.randn(3, 16), (16,), w).sum().backward()
def outlive():
    threading.main_thread().join()
    call("thread")
threading.Thread(target=outlive).start()
"""


@pytest.mark.parametrize("library", ["1", pytest.param("0", marks=pytest.mark.full)])
def test_calls_at_the_end_of_the_process(library):
    """In a thread that outlives the main one, and in handlers from before PyTorch's import."""
    said = run(LATE, **{torch_build.VARIABLE: library})
    assert said == ["thread", "handler"]


FORKED = """
import os, sys, torch, normgrad.torch.functional as F
def go(*sizes):
    for size in sizes:
        x = torch.randn(size, 64, 512, requires_grad=True)
        y = F.layer_norm(x, (512,))
        torch.testing.assert_close(y, torch.nn.functional.layer_norm(x, (512,)))
        y.sum().backward()
torch.set_num_threads(2)
go(5, 50)
for _ in range(2):
    child = os.fork()
    if child == 0:
        torch.set_num_threads(1)  # PyTorch's own threads are the parent's
        go(5, 50, 6, 60)
        print("child", flush=True)
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    go(5, 7)
print("parent")
"""


def test_forked_processes():
    """Known calls and first ones, while the parent goes on."""
    assert run(FORKED) == ["child", "child", "parent"]
