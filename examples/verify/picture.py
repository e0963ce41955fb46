"""Draw docs/verify.svg: errors of normgrad and PyTorch against |mean|/std and the row's length."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from normgrad.testing import Case, Topic, cases, load, run

SVG = Path(__file__).parents[2] / "docs" / "verify.svg"
BACKENDS = {"normgrad": "#0072B2", "torch": "#D55E00"}
LENGTHS = tuple(2**power for power in range(4, 23, 2))
#: The operators' kinds, which a line is drawn for, and their names.
MEANS = {
    "forward_group_norm": "group norm",
    "forward_layer_norm": "layer norm",
    "forward": "batch norm",
}
SUMS = {
    "group_norm": "group norm's gradients",
    "layer_norm": "layer norm's",
    "train": "batch norm's",
}
_DASHES = ("solid", (0, (4, 2)), (0, (1, 1.2)))


def of_means(kind: str) -> Iterable[tuple[float, Case]]:
    """The suite's cases in float32, by |mean|/std."""
    for case in cases(kinds=(kind,)):
        if (case.topic, case.dtype, case.layout) == (Topic.MEAN, "float32", "contiguous"):
            yield case.mean, case


def of_lengths(kind: str) -> Iterable[tuple[float, Case]]:
    """The suite's case of a long sum, in rows of other lengths."""
    for length in LENGTHS:
        change = "long sums of one sign"
        yield length, Case(Topic.SPECIAL, kind, (2, 2, length), change=change)


def draw(
    axes: Axes, kinds: Mapping[str, str], find: Callable[[str], Iterable[tuple[float, Case]]]
) -> None:
    """Draw a line for each backend and kind."""
    for spec, colour in BACKENDS.items():
        runner = load(spec)
        name = "PyTorch" if spec == "torch" else spec
        for (kind, words), dashes in zip(kinds.items(), _DASHES, strict=True):
            points = [(x, run(case, runner).units or 0.0) for x, case in find(kind)]
            style = {
                "color": colour,
                "linestyle": dashes,
                "marker": ".",
                "label": f"{name}: {words}",
            }
            axes.plot(*zip(*points, strict=True), **style)
    axes.axhline(1, color="0.2", linewidth=1)
    axes.axhspan(1, 1e9, color="#D55E00", alpha=0.07, linewidth=0)
    axes.set(xscale="log", yscale="log", ylim=(1e-2, 1e9), ylabel="largest error / bound")
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(color="0.92", linewidth=0.6)
    axes.legend(loc="upper left", frameon=False, fontsize=7.5, ncols=2)


def main() -> None:
    """Measure and draw; a fixed salt gives the same file for the same errors."""
    figure = Figure(figsize=(5.4, 6.4), layout="constrained")
    above, below = figure.subplots(2)
    draw(above, MEANS, of_means)
    above.set_xlabel("|mean| / std of the input, float32")
    draw(below, SUMS, of_lengths)
    below.set_xlabel("elements in a row, float32, sums of one sign")
    with matplotlib.rc_context({"svg.hashsalt": "normgrad"}):
        figure.savefig(SVG, metadata={"Date": None})


if __name__ == "__main__":
    main()
