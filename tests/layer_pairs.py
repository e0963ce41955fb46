"""Layers of PyTorch's and their converted copies, for tests that compare what they do."""

from __future__ import annotations

import copy
from typing import Any

import torch

import normgrad.torch as nt

#: For each kind of layer, a function that makes one for 4 channels, and the input's shape.
LAYERS: dict[str, tuple[Any, tuple[int, ...]]] = {
    "BatchNorm1d": (lambda: torch.nn.BatchNorm1d(4), (6, 4)),
    "BatchNorm2d": (lambda: torch.nn.BatchNorm2d(4), (3, 4, 2, 5)),
    "BatchNorm2d, cumulative": (lambda: torch.nn.BatchNorm2d(4, momentum=None), (3, 4, 2, 5)),
    "BatchNorm2d, untracked": (
        lambda: torch.nn.BatchNorm2d(4, track_running_stats=False),
        (3, 4, 2, 5),
    ),
    "BatchNorm3d, not affine": (lambda: torch.nn.BatchNorm3d(4, affine=False), (3, 4, 2, 2, 3)),
    "GroupNorm": (lambda: torch.nn.GroupNorm(2, 4), (3, 4, 2, 5)),
    "LayerNorm": (lambda: torch.nn.LayerNorm((4, 5)), (3, 2, 4, 5)),
    "LayerNorm, no bias": (lambda: torch.nn.LayerNorm(4, bias=False), (3, 2, 4)),
    "RMSNorm": (lambda: torch.nn.RMSNorm(4), (3, 2, 4)),
    "RMSNorm, not affine": (lambda: torch.nn.RMSNorm(4, elementwise_affine=False), (3, 2, 4)),
    "InstanceNorm1d": (lambda: torch.nn.InstanceNorm1d(4, affine=True), (3, 4, 5)),
    "InstanceNorm2d, tracked": (
        lambda: torch.nn.InstanceNorm2d(4, affine=True, track_running_stats=True),
        (3, 4, 2, 5),
    ),
}


def pair(name: str, training: bool = True, dtype: torch.dtype = torch.float64) -> tuple[Any, Any]:
    """A layer of PyTorch's and its converted copy, with parameters and statistics that matter."""
    theirs = LAYERS[name][0]().to(dtype).train(training)
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for tensor in (*theirs.parameters(), *theirs.buffers()):
            if tensor.is_floating_point():
                tensor.copy_(torch.rand(tensor.shape, generator=generator) + 0.5)
    return theirs, nt.convert(copy.deepcopy(theirs))


def data(name: str, seed: int = 1, dtype: torch.dtype = torch.float64) -> torch.Tensor:
    """An input of a layer."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(LAYERS[name][1], generator=generator, dtype=dtype)


class InFloat64(torch.overrides.TorchFunctionMode):
    """A context in which float64 stays, where layers such as transformers' compute in float32."""

    def __torch_function__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        """Call a function, unless it narrows a tensor."""
        tensor = args[0] if args else None
        narrows = function is torch.Tensor.float or args[1:2] == (torch.float32,)
        if narrows and isinstance(tensor, torch.Tensor) and tensor.dtype is torch.float64:
            return tensor
        return function(*args, **(kwargs or {}))
