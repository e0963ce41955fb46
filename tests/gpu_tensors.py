"""Run the NumPy test cases on a GPU, for tests that need one."""

from __future__ import annotations

import numpy as np
import pytest
from common import BFLOAT16, check, named

import normgrad as ng
from normgrad.tensors import devices

torch = pytest.importorskip("torch")

GPU = "cuda:0"


def _why_not():
    if not torch.cuda.is_available():
        return "no GPU"
    return devices.unusable()


only_on_a_gpu = pytest.mark.skipif(_why_not() is not None, reason=f"{_why_not()}")


def to_gpu(array, device=GPU):
    """Copy an array to the GPU with the same values and strides."""
    if array is None:
        return None
    strides = [step // array.itemsize for step in array.strides]
    kind = torch.bfloat16 if array.dtype == BFLOAT16 else getattr(torch, str(array.dtype))
    # Keep one element of an axis with stride 0.
    once = [
        slice(0, 1) if step == 0 and size > 1 else slice(None)
        for step, size in zip(strides, array.shape, strict=True)
    ]
    dense = np.ascontiguousarray(array[tuple(once)])
    bits = dense.view(np.int16) if array.dtype == BFLOAT16 else dense
    values = torch.from_numpy(bits).view(kind)
    made = torch.empty_strided(dense.shape, strides, dtype=kind, device=device)
    made.copy_(values)
    return made.expand(array.shape)


def to_cpu(tensor):
    if tensor is None:
        return None
    tensor = tensor.detach().cpu().contiguous()
    if tensor.dtype == torch.bfloat16:
        return tensor.view(torch.int16).numpy().view(BFLOAT16)
    return tensor.numpy()


def tensors_of(case, device=GPU):
    return {name: to_gpu(value, device) for name, value in case.tensors.items()}


def of_numpy(result):
    """Convert a result to NumPy arrays."""
    if isinstance(result, torch.Tensor):
        return to_cpu(result)
    return type(result)(*map(to_cpu, result))


def same(ours, theirs):
    """Whether two results have the same bits."""
    for name, value in named(ours).items():
        other = named(theirs)[name]
        assert (value is None) == (other is None)
        if value is not None:
            assert to_cpu(value).tobytes() == to_cpu(other).tobytes(), name


def compute(case, **more):
    """Compute a case on the GPU, and check that it is within the bound and changes no input."""
    tensors = tensors_of(case)
    before = {name: None if value is None else value.clone() for name, value in tensors.items()}
    result = getattr(ng, case.name)(**tensors, **case.options, **more)
    for value in named(result).values():
        assert value is None or value.device == torch.device(GPU)
    for name, value in tensors.items():
        if value is not None:
            assert to_cpu(value).tobytes() == to_cpu(before[name]).tobytes()
    check(case, of_numpy(result), normal=True)
    return result
