"""A Python whose objects compiled code cannot read: Python code then does all that it would do."""

from __future__ import annotations

import pytest

from .conftest import python

pytestmark = pytest.mark.cpu

_PROGRAM = """
import ctypes, sys
import numpy as np, numba, ml_dtypes
$TORCH
if sys.argv[1] == "unusual":
    # As where pointers have another size; only normgrad is told so.
    sizeof = ctypes.sizeof
    ctypes.sizeof = lambda what: 4 if what is ctypes.c_void_p else sizeof(what)
    import normgrad.native
    ctypes.sizeof = sizeof
import normgrad as ng

x = np.arange(4800, dtype=np.float32).reshape(8, 3, 200) % 7
weight, half = np.ones(3, np.float32), x.astype(np.float16)
plan = ng.plan("batch_norm_backward", grad_out=x, input=x, weight=weight, training=True)
scratch, out = np.zeros(plan.workspace_size, np.uint8), (np.empty_like(x), None, None)

def calls():
    yield from ng.batch_norm_backward(x, x, weight, training=True)
    yield from ng.batch_norm_backward(half, half, None, training=True)[:1]
    yield from ng.batch_norm_backward(x, x, weight, training=True, out=out)
    yield from plan.run(x, x, weight, workspace=scratch)
    yield from ng.layer_norm(x, normalized_shape=200)
    $CALLS

first, second, third = (b"".join(np.asarray(v).tobytes() for v in calls()) for _ in range(3))
assert first == second == third
try:
    ng.batch_norm_backward(x, x, training=1)
except TypeError as error:
    print(error)
print(first.hex())
"""
_TORCH = """
import torch
tensor = torch.ones(2, 3, 4).cumsum(2)
torch.manual_seed(0)
"""
_CALLS = """
    layer = normgrad.torch.nn.BatchNorm1d(3)
    leaf = tensor.clone().requires_grad_()
    for _ in range(2):
        y = layer(leaf)
        y.square().sum().backward()
    yield from (y.detach(), leaf.grad, layer.running_mean, layer.num_batches_tracked)
    yield from ng.batch_norm_backward(tensor, tensor, torch.ones(3), training=True)
"""


@pytest.mark.parametrize("framework", ["numpy", "torch"])
def test_every_call_works_without_the_compiled_entry(framework):
    program = _PROGRAM.replace("$TORCH", "").replace("$CALLS", "")
    if framework == "torch":
        pytest.importorskip("torch")
        program = _PROGRAM.replace("$TORCH", _TORCH).replace("    $CALLS", _CALLS)
        program = program.replace("import normgrad as ng", "import normgrad as ng, normgrad.torch")
    usual, unusual = (python(program, kind) for kind in ("usual", "unusual"))
    assert (usual.returncode, usual.stderr) == (0, "")
    assert (unusual.returncode, unusual.stderr) == (0, "")
    assert unusual.stdout == usual.stdout
    assert "training: 1; allowed: True or False" in usual.stdout
