"""Programs in which other code finds the objects that a call makes, as memory profilers do."""

from __future__ import annotations

import pytest

from .conftest import python

#: Calls in whose results new tensors and the caller's meet, each with the same bits every time.
_CALLS = """
import gc, sys, threading
import numpy as np
import normgrad as ng
x = np.arange(24, dtype=np.float32).reshape(2, 3, 4)
weight = np.ones(3, np.float32)
halves = x.astype(np.float16)
plan = ng.plan("batch_norm_backward", grad_out=x, input=x, weight=weight, training=True)
$MORE
def raw(result):
    return [np.asarray(each).tobytes() for each in result if each is not None]

def calls():
    yield raw(ng.batch_norm_backward(x, x, weight, training=True))
    yield raw(ng.batch_norm_backward(halves, halves, weight, training=True))
    yield raw(ng.batch_norm_backward(x, x, weight, training=True, out=(x.copy(), None, None)))
    yield raw(plan.run(x, x, weight))
    yield raw(ng.layer_norm(x, normalized_shape=4))
$CALLS

expected = [list(calls()) for _ in range(3)][0]
gc.collect()
gc.freeze()  # only objects that are made from here on are listed, which takes less time
"""
_TORCH = """
import torch
import normgrad.torch
layer, tensor = normgrad.torch.nn.BatchNorm1d(3), torch.from_numpy(x)
"""
# Not PyTorch's `backward`, which makes a tuple of an iterator: Python raises SystemError if other
# code holds that.
_TORCH_CALLS = """
    yield raw(ng.batch_norm_backward(tensor, tensor, torch.from_numpy(weight), training=True))
    yield raw([layer(tensor).detach(), layer(tensor.clone().requires_grad_()).detach()])
"""
_HOOK = """
held = []
def hook(frame, event, argument):
    held[:] = [gc.get_objects()]
sys.setprofile(hook)
try:
    for _ in range(5):  # at each step of a call, and calls are alike from the fourth on
        found = list(calls())
        assert found == expected, found
finally:
    sys.setprofile(None)
    held.clear()
    gc.unfreeze()
"""
_THREAD = """
held, stopped = [], threading.Event()
def watch():
    while not stopped.is_set():
        held[:] = [gc.get_objects()]
sys.setswitchinterval(1e-5)
thread = threading.Thread(target=watch)
thread.start()
try:
    for _ in range(300):
        found = list(calls())
        assert found == expected, found
finally:
    stopped.set()
    thread.join()
    held.clear()
    gc.unfreeze()
"""


pytestmark = pytest.mark.cpu


@pytest.mark.parametrize("framework", ["numpy", pytest.param("torch", marks=pytest.mark.full)])
@pytest.mark.parametrize("watch", [_HOOK, _THREAD], ids=["hook", "thread"])
def test_while_other_code_holds_every_object(framework, watch):
    more = calls = ""
    if framework == "torch":
        pytest.importorskip("torch")
        more, calls = _TORCH, _TORCH_CALLS
    done = python(_CALLS.replace("$MORE", more).replace("$CALLS", calls) + watch)
    assert (done.returncode, done.stderr[-2000:]) == (0, "")
