"""Small calls: public functions alternating with PyTorch's operators, and layers beside PyTorch's.

    python benchmarks/calls.py

One thread; float32. Functions are timed beside the operator of ``torch.ops.aten`` that computes the
same, on the same tensors; layers with autograd, forward, and forward and backward. A figure is
normgrad's median time divided by PyTorch's.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from typing import Any

import torch

import normgrad
import normgrad.torch
from normgrad.bench import timing

SHAPES = ((4, 8, 4), (2, 8, 4, 4), (16, 32, 4, 4), (8, 64, 16, 16))
SECONDS = 0.5
EPS = 1e-5


def functions(shape: tuple[int, ...]) -> Iterator[tuple[str, timing.Call, timing.Call]]:
    """Each public function's name, its call, and that of PyTorch's operator."""
    aten = torch.ops.aten
    x, dy = torch.randn(shape), torch.randn(shape)
    n, channels, row = shape[0], shape[1], shape[-1:]
    size = x[0, 0].numel()
    w, b = torch.randn(channels), torch.randn(channels)
    mean, invstd = x.transpose(0, 1).flatten(1).mean(1), torch.rand(channels) + 0.5
    var = invstd**-2
    yield (
        "batch_norm_backward",
        lambda: normgrad.batch_norm_backward(dy, x, w, mean, var, mean, invstd, training=True),
        lambda: aten.native_batch_norm_backward(
            dy, x, w, mean, var, mean, invstd, True, EPS, [True, True, True]
        ),
    )
    yield (
        "batch_norm",
        lambda: normgrad.batch_norm(x, w, b, training=True),
        lambda: aten.native_batch_norm(x, w, b, None, None, True, 0.1, EPS),
    )
    groups = x.reshape(n, 2, -1)
    of_groups, rstd = groups.mean(2), torch.rand(n, 2) + 0.5
    yield (
        "group_norm_backward",
        lambda: normgrad.group_norm_backward(dy, x, of_groups, rstd, w, num_groups=2),
        lambda: aten.native_group_norm_backward(
            dy, x, of_groups, rstd, w, n, channels, size, 2, [True, True, True]
        ),
    )
    v, c = torch.randn(row), torch.randn(row)
    yield (
        "layer_norm",
        lambda: normgrad.layer_norm(x, row, v, c),
        lambda: aten.native_layer_norm(x, row, v, c, EPS),
    )
    _, of_rows, of_row = aten.native_layer_norm(x, row, v, c, EPS)
    yield (
        "layer_norm_backward",
        lambda: normgrad.layer_norm_backward(dy, x, of_rows, of_row, v, normalized_shape=row),
        lambda: aten.native_layer_norm_backward(
            dy, x, row, of_rows, of_row, v, c, [True, True, True]
        ),
    )


def layers(shape: tuple[int, ...]) -> Iterator[tuple[str, timing.Call, timing.Call]]:
    """Each layer's name and pass, its call, and that of PyTorch's layer."""
    batch_norm = torch.nn.BatchNorm1d if len(shape) == 3 else torch.nn.BatchNorm2d
    for theirs in (
        batch_norm(shape[1]), torch.nn.GroupNorm(2, shape[1]), torch.nn.LayerNorm(shape[-1:]),
        torch.nn.RMSNorm(shape[-1:]),
    ):  # fmt: skip
        ours = normgrad.torch.convert(copy.deepcopy(theirs))
        x, dy = torch.randn(shape).requires_grad_(), torch.randn(shape)
        name = type(theirs).__name__
        yield f"{name} forward", _forward(ours, x), _forward(theirs, x)
        yield f"{name} both", _both(ours, x, dy), _both(theirs, x, dy)


def _forward(layer: Any, x: Any) -> Callable[[], Any]:
    return lambda: layer(x)


def _both(layer: Any, x: Any, dy: Any) -> Callable[[], Any]:
    leaves = (x, *layer.parameters())
    return lambda: torch.autograd.grad(layer(x), leaves, dy)


def main() -> None:
    """Print a table of ratios, a column for each shape."""
    torch.manual_seed(0)
    torch.set_num_threads(1)
    normgrad.torch.build()
    rows: dict[str, list[str]] = {}
    for shape in SHAPES:
        for kind in (functions, layers):
            for name, ours, theirs in kind(shape):
                ours(), theirs()
                medians = timing.measure({"torch": theirs, "ours": ours}, SECONDS).medians
                rows.setdefault(name, []).append(f"{medians['ours'] / medians['torch']:.2f}")
    print("| call |", *[f"{shape} |" for shape in SHAPES])
    print("| --- |", *["---: |"] * len(SHAPES))
    for name, ratios in rows.items():
        print(f"| {name} |", *[f"{ratio} |" for ratio in ratios])


if __name__ == "__main__":
    main()
