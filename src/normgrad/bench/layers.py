"""Time normgrad's layers beside PyTorch's on inputs of usual sizes, for ``normgrad bench``."""

from __future__ import annotations

import copy
from typing import Any, NamedTuple

import torch

from ..torch import convert
from . import timing

#: The names of the two passes that are timed.
TRAINING, EVALUATION = "training", "evaluation"
#: The layouts of an input, and PyTorch's memory formats by the input's rank.
CONTIGUOUS, CHANNELS_LAST = "contiguous", "channels-last"
_FORMATS = {4: torch.channels_last, 5: torch.channels_last_3d}
#: The layers with their arguments and the shape of their input: some 25 MB in float32, as in
#: ResNet-50's first stage, a 3-D U-Net, a diffusion model's U-Net, GPT-2 and a small Llama.
_LAYERS: tuple[tuple[str, tuple[Any, ...], tuple[int, ...]], ...] = (
    ("BatchNorm1d", (512,), (12288, 512)),
    ("BatchNorm2d", (64,), (32, 64, 56, 56)),
    ("BatchNorm3d", (32,), (2, 32, 48, 48, 48)),
    ("GroupNorm", (32, 320), (4, 320, 64, 64)),
    ("InstanceNorm2d", (64, 1e-5, 0.1, True), (32, 64, 56, 56)),
    ("LayerNorm", (768,), (8, 1024, 768)),
    ("RMSNorm", (2048,), (3072, 2048)),
)


class Case(NamedTuple):
    """A layer, its arguments, its input's shape and layout, and the pass that is timed."""

    layer: str
    arguments: tuple[Any, ...]
    shape: tuple[int, ...]
    layout: str
    timed_pass: str

    @property
    def name(self) -> str:
        """The layer, and its input's layout unless that is contiguous."""
        return self.layer if self.layout == CONTIGUOUS else f"{self.layer}, {self.layout}"

    def __str__(self) -> str:
        return f"{self.name}, {self.timed_pass}"


class LayerTimes(NamedTuple):
    """A case's times in seconds, and the ratio of interquartile range to median."""

    case: Case
    torch: float
    ours: float
    spread: float

    @property
    def gain(self) -> float:
        """How many times as fast normgrad's layer is."""
        return self.torch / self.ours


def cases() -> list[Case]:
    """All cases: training steps first, each layer in the layouts that its input may have."""
    return [
        Case(*layer, layout, timed_pass)
        for timed_pass in (TRAINING, EVALUATION)
        for layer in _LAYERS
        for layout in (CONTIGUOUS, CHANNELS_LAST)
        if layout == CONTIGUOUS or len(layer[2]) in _FORMATS
    ]


def measure(case: Case, dtype: torch.dtype, seconds: float) -> LayerTimes:
    """Time a case, alternating between the layers; parameters have the dtype of the input.

    A training step is a forward and a backward pass with the gradients of the input and the
    parameters; an evaluation is a forward pass without gradients.
    """
    torch.manual_seed(0)
    theirs = getattr(torch.nn, case.layer)(*case.arguments).to(dtype)
    x = torch.randn(case.shape).to(dtype)
    if case.layout == CHANNELS_LAST:
        x = x.to(memory_format=_FORMATS[x.dim()])
    grad = torch.randn_like(x)
    calls = {
        "torch": _call(theirs, x, grad, case.timed_pass),
        "ours": _call(convert(copy.deepcopy(theirs)), x, grad, case.timed_pass),
    }
    for call in calls.values():
        call()
    times = timing.measure(calls, seconds, settle=timing.SETTLE_SECONDS)
    return LayerTimes(case, times.medians["torch"], times.medians["ours"], times.spread)


def _call(layer: Any, x: torch.Tensor, grad: torch.Tensor, timed_pass: str) -> timing.Call:
    if timed_pass == EVALUATION:
        layer.eval()

        def evaluate() -> Any:
            with torch.no_grad():
                return layer(x)

        return evaluate
    inputs = (x.clone(memory_format=torch.preserve_format).requires_grad_(), *layer.parameters())
    return lambda: torch.autograd.grad(layer(inputs[0]), inputs, grad)
