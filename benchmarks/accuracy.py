"""The largest errors of layers, normgrad's and PyTorch's, against the formula in long double.

    python benchmarks/accuracy.py [--svg FILE]

Inputs are float32, normally distributed, with means of up to 10⁶ standard deviations. An error is
given as a multiple of normgrad's bound, 16·2⁻²⁴ of the scale of the element: of its formula with
every term replaced by its absolute value, where x − μ counts as |x − μ| + Σ|x − μ|/m, since the
mean is a sum too. This program has formulas of its own, and uses nothing of normgrad's but layers.
"""

from __future__ import annotations

import argparse
import copy
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

#: Long double's 64 bits suffice: x − h is exact for the float64 number h next to the mean.
WIDE = np.longdouble
BOUND = 16 * 2.0**-24
EPS = 1e-5
SHAPE = (16, 32, 12, 12)
RATIOS = [10.0**power for power in range(7)]


class Kind(NamedTuple):
    """A layer: its arguments, the axes of its statistics, that of its parameters, and its line."""

    arguments: tuple[Any, ...]
    over: tuple[int, ...]
    along: int
    colour: str
    marker: str


LAYERS = {
    "BatchNorm2d": Kind((32,), (0, 2, 3), 1, "#0072B2", "o"),
    "InstanceNorm2d": Kind((32, EPS, 0.1, True), (2, 3), 1, "#009E73", "s"),
    "LayerNorm": Kind((12, EPS), (3,), 3, "#D55E00", "^"),
    "RMSNorm": Kind((12, EPS), (3,), 3, "#CC79A7", "D"),
}

Array = np.ndarray[Any, Any]


def exact(
    x: Array, dy: Array, w: Array, b: Array, over: tuple[int, ...], centred: bool
) -> tuple[tuple[Array, Array], tuple[Array, Array]]:
    """The output and the input's gradient, each with its scale."""
    x, dy, w, b = (each.astype(WIDE) for each in (x, dy, w, b))

    def mean(values: Array) -> Array:
        return values.mean(over, keepdims=True, dtype=WIDE)

    d = x
    if centred:
        d = x - mean(x).astype(np.float64)
        d = d - mean(d)
    width = abs(d) + (mean(abs(d)) if centred else 0)
    r = 1 / np.sqrt(mean(d * d) + WIDE(EPS))
    g = w * dy
    dx = r * (g - (mean(g) if centred else 0) - d * r * r * mean(g * d))
    scale = r * (abs(g) + (mean(abs(g)) if centred else 0) + width * r * r * mean(abs(g) * width))
    return (w * r * d + b, abs(w * r) * width + abs(b)), (dx, scale)


def errors(name: str, ratio: float) -> dict[str, tuple[float, float]]:
    """The largest errors of the output and of the input's gradient, of PyTorch and of normgrad."""
    import torch

    import normgrad.torch

    kind = LAYERS[name]
    torch.manual_seed(0)
    theirs = getattr(torch.nn, name)(*kind.arguments)
    for parameter in theirs.parameters():
        torch.nn.init.normal_(parameter)
    x, dy = torch.randn(SHAPE) + ratio, torch.randn(SHAPE)
    shape = [size if axis == kind.along else 1 for axis, size in enumerate(SHAPE)]
    w = theirs.weight.detach().numpy().reshape(shape)
    bias = getattr(theirs, "bias", None)
    b = np.zeros_like(w) if bias is None else bias.detach().numpy().reshape(shape)
    wanted = exact(x.numpy(), dy.numpy(), w, b, kind.over, name != "RMSNorm")
    found = {}
    ours = normgrad.torch.convert(copy.deepcopy(theirs))
    for who, layer in (("PyTorch", theirs), ("normgrad", ours)):
        leaf = x.clone().requires_grad_()
        y = layer(leaf)
        y.backward(dy)
        results = y.detach().numpy(), leaf.grad.numpy()
        found[who] = tuple(
            float((abs(result - value) / (BOUND * scale)).max())
            for result, (value, scale) in zip(results, wanted, strict=True)
        )
    return found


def draw(table: dict[str, dict[float, dict[str, tuple[float, float]]]], file: Path) -> None:
    """Draw the errors over the ratio: PyTorch's dashed with open markers, normgrad's solid."""
    import matplotlib
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 3.8), layout="constrained")
    panels = figure.subplots(1, 2, sharex=True, sharey=True)
    for which, (axes, title) in enumerate(zip(panels, ("output", "input's gradient"), strict=True)):
        for name, rows in table.items():
            kind = LAYERS[name]
            for who, style, fill in (("PyTorch", "--", "none"), ("normgrad", "-", "full")):
                axes.plot(
                    RATIOS, [rows[ratio][who][which] for ratio in RATIOS], style,
                    color=kind.colour, marker=kind.marker, fillstyle=fill, markersize=4.5,
                    linewidth=1.1, label=f"{name}, {who}",
                )  # fmt: skip
        axes.axhline(1, color="0.2", linewidth=0.9)
        axes.set_xscale("log")
        axes.set_yscale("log")
        axes.set_title(title, fontsize=10)
        axes.set_xlabel("|mean| / standard deviation of the input")
        axes.grid(color="0.92", linewidth=0.6, zorder=0)
        axes.spines[["top", "right"]].set_visible(False)
    panels[0].set_ylabel("largest error / bound")
    panels[0].legend(frameon=False, fontsize=7.5)
    with matplotlib.rc_context({"svg.hashsalt": "normgrad", "svg.fonttype": "none"}):
        figure.savefig(file, format="svg", metadata={"Date": None})


def main() -> None:
    """Print the table, and draw it if asked."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--svg", type=Path, help="the picture's file")
    arguments = parser.parse_args()
    table = {name: {ratio: errors(name, ratio) for ratio in RATIOS} for name in LAYERS}
    print("| mean/std | layer | output: PyTorch | normgrad | gradient: PyTorch | normgrad |")
    print("| ---: | --- | ---: | ---: | ---: | ---: |")
    for ratio in RATIOS:
        for name, rows in table.items():
            (y, dx), (our_y, our_dx) = rows[ratio]["PyTorch"], rows[ratio]["normgrad"]
            print(f"| {ratio:g} | {name} | {y:.2g} | {our_y:.2g} | {dx:.2g} | {our_dx:.2g} |")
    if arguments.svg:
        draw(table, arguments.svg)


if __name__ == "__main__":
    main()
