"""Calls other than single operators: a layer's step, a training step, aclnn's first phase."""

from __future__ import annotations

import itertools
import math
import random
import runpy
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

import normgrad.torch
from normgrad.bench.timing import Call
from normgrad.dialects import aclnn

from .data import Data
from .suite import BFLOAT16, DENSE, Case, Operator

#: The models' file, which is not in the package: in the checkout that the package belongs to, or in
#: the one that the command runs in.
MODELS = Path("benchmarks", "models.py")
_FOLDERS = (Path(normgrad.__file__).parents[2], Path())
LEARNING_RATE, LEARNING_MOMENTUM = 1e-3, 0.9


def _layer(ours: bool, case: Case, data: Data) -> Any:
    """A case's layer, with the data's parameters; ``ours`` is whether it is normgrad's."""
    kind = getattr((normgrad.torch if ours else torch).nn, case.operator.function)
    channels = case.shape[1]
    sizes = (case.groups, channels) if case.groups else (channels,)
    layer = kind(*sizes, dtype=getattr(torch, case.parameters), device=data.weight.device)
    values = {"weight": data.weight, "bias": data.bias}
    if case.operator is Operator.LAYER_EVAL:
        layer.eval()
        values |= {"running_mean": data.mean, "running_var": data.var}
    with torch.no_grad():
        for name, value in values.items():
            if hasattr(layer, name):
                getattr(layer, name).copy_(value)
    return layer


def _step(layer: Any, x: Any, grad_out: Any) -> Any:
    """A forward and a backward pass on a leaf x, without the gradients of the last ones."""
    parameters = [*layer.parameters()]
    for each in (x, *parameters):
        each.grad = None
    y = layer(x)
    y.backward(grad_out)
    return y, x.grad, *[each.grad for each in parameters]


def layer_step(ours: bool, case: Case, data: Data) -> Call:
    """A layer's forward and backward pass, as a call that returns y and all gradients."""
    # A separate autograd leaf over the same memory.
    return partial(
        _step, _layer(ours, case, data), data.input.detach().requires_grad_(), data.grad_out
    )


#: How many sizes come before one comes again; more than the plans that are kept of them all.
_SIZES = 1000


def new_sizes_step(ours: bool, case: Case, data: Data) -> Call:
    """A layer's forward and backward pass, on an input of another size at each call.

    The number of rows or samples differs, or group norm's number of positions.
    """
    layer, shape = _layer(ours, case, data), [*case.shape]
    axis = len(shape) - 1 if case.groups else 0
    middle = shape[axis]
    flat = torch.cat([data.input.flatten(), data.grad_out.flatten()])
    between = range(middle // 2, 3 * middle // 2)
    turns = itertools.cycle(random.Random(0).sample(between, min(_SIZES, len(between))))

    def call() -> Any:
        shape[axis] = next(turns)
        size = math.prod(shape)
        return _step(layer, flat[:size].view(shape).requires_grad_(), flat[-size:].view(shape))

    return call


@cache
def _models() -> dict[str, Any]:
    for folder in _FOLDERS:
        if (folder / MODELS).exists():
            return runpy.run_path(str(folder / MODELS))
    raise FileNotFoundError(f"{MODELS}: not there; allowed: in the folder of a checkout")


def model_step(ours: bool, case: Case, data: Data) -> Call:
    """A training step of a model, with torch's layers or converted to normgrad's.

    The call returns the loss. Outside a checkout, which has the models, there is a
    FileNotFoundError.
    """
    torch.manual_seed(0)
    form = torch.contiguous_format if case.layout is DENSE[0] else torch.channels_last
    device = data.input.device
    model = _models()[case.operator.function]().to(device, memory_format=form)
    if ours:
        normgrad.torch.convert(model)
    images, dtype = data.input.float(), getattr(torch, case.dtype)
    optimiser = torch.optim.SGD(model.parameters(), LEARNING_RATE, LEARNING_MOMENTUM)

    def call() -> Any:
        optimiser.zero_grad()
        with torch.autocast(device.type, torch.bfloat16, enabled=case.dtype == BFLOAT16):
            loss = model(images).float().square().mean()
        loss.backward()
        optimiser.step()
        return loss.detach().to(dtype)

    return call


#: Numbers that make signatures new, and how many calls with new signatures to prepare: more than a
#: case's rounds take.
_NEW, _READY = itertools.count(), 1000


def phase_1(case: Case, _: Data) -> Call:
    """aclnn's first phase of batch or group norm's gradients, on tensors created beforehand."""
    new, groups = case.operator is Operator.ACLNN_NEW, case.groups
    mask = aclnn.aclCreateBoolArray([True] * 3)

    def tensor(*shape: int) -> Any:
        return aclnn.tensor(np.ones(shape, np.float32))

    def arguments() -> tuple[Any, ...]:
        samples, channels, length = case.shape
        if new:  # another small shape for each call
            number = next(_NEW)
            samples, channels = samples + number % 8, channels + 4 * (number // 8 % 8)
            length += 1 + number // 64
        dy, x, dx = (tensor(samples, channels, length) for _ in range(3))
        weight, *gradients = (tensor(channels) for _ in range(3))
        if not groups:
            options = (None, None, None, None, True, 1e-5, mask)
            return dy, x, weight, *options, dx, *gradients
        statistics = (tensor(samples, groups) for _ in range(2))
        return dy, x, *statistics, weight, samples, channels, length, groups, mask, dx, *gradients

    name = "Group" if groups else "Batch"
    function = getattr(aclnn, f"aclnn{name}NormBackwardGetWorkspaceSize")
    turns = itertools.cycle([arguments() for _ in range(_READY if new else 1)])
    return lambda: function(*next(turns))
