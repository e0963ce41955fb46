"""Plots of trials: the distribution of errors, and the largest error against |mean|/std."""

from __future__ import annotations

import io
from collections.abc import Sequence
from typing import Any

import numpy as np

from .cases import Topic
from .outcomes import EDGES, Judged
from .tensors import Array
from .trials import Trial

#: Okabe and Ito's palette, which readers with any kind of colour vision can tell apart.
_COLOURS = (
    *("#0072B2", "#D55E00", "#009E73", "#E69F00", "#CC79A7", "#56B4E9", "#000000"),
    *("#7F7F7F", "#B3B300", "#8C564B"),
)
#: The line style of each dtype.
_DASHES: dict[str, Any] = {
    "float32": "solid",
    "float64": (0, (4, 2)),
    "bfloat16": (0, (1, 1.2)),
    "float16": "dashdot",
}
#: Errors beyond this value are drawn at it.
_TOP = 1e7


def _svg(figure: Any, handles: Sequence[Any]) -> bytes:
    """The figure as an SVG file, with a legend of these handles."""
    import matplotlib

    figure.legend(handles=handles, loc="outside right center", frameon=False, fontsize=8)
    # A fixed salt gives the same file for the same figure.
    with matplotlib.rc_context({"svg.hashsalt": "normgrad"}):
        file = io.BytesIO()
        figure.savefig(file, format="svg", metadata={"Date": None})
    return file.getvalue()


def _panels(size: tuple[float, float], down: int, across: int, x: str, y: str) -> tuple[Any, Any]:
    """A figure of this size with a grid of panels that share logarithmic axes."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=size, layout="constrained")
    panels = figure.subplots(down, across, sharex=True, sharey=True, squeeze=False)
    for axes in panels.flat:
        axes.set(xscale="log", yscale="log")
        axes.spines[["top", "right"]].set_visible(False)
        axes.grid(color="0.92", linewidth=0.6)
    for axes in panels[-1]:
        axes.set_xlabel(x)
    for line in panels:
        line[0].set_ylabel(y)
    return figure, panels


def _measured(trials: Sequence[Trial], topic: Topic) -> list[tuple[Trial, list[Judged]]]:
    """The trials that measured errors in a topic, with the topic's cases that have one."""
    pairs = [
        (trial, [e for e in trial.judged if e.case.topic is topic and e.units is not None])
        for trial in trials
    ]
    return [(trial, judged) for trial, judged in pairs if judged]


def distributions(trials: Sequence[Trial]) -> bytes | None:
    """Plot the distribution of errors in units of the bound.

    There is a panel for each trial and dtype, and a line for each layout.

    Returns:
        An SVG file; None where nothing was measured.
    """
    measured = _measured(trials, Topic.VALUES)
    if not measured:
        return None
    everything = [each for _, judged in measured for each in judged]
    columns = list(dict.fromkeys(each.case.dtype for each in everything))
    layouts = list(dict.fromkeys(each.case.data_layout for each in everything))
    down, across = len(measured), len(columns)
    size = (1.5 + 3.1 * across, 0.9 + 2.5 * down)
    figure, panels = _panels(size, down, across, "error / bound", "share of elements")
    middles = 10 ** ((EDGES[:-1] + EDGES[1:]) / 2)
    for line, (trial, judged) in zip(panels, measured, strict=True):
        for axes, dtype in zip(line, columns, strict=True):
            for layout, colour in zip(layouts, _COLOURS, strict=False):
                mine = [e for e in judged if (e.case.dtype, e.case.data_layout) == (dtype, layout)]
                counts: Array = np.sum([each.counts for each in mine], axis=0)
                if np.any(counts):
                    shares = np.where(counts > 0, counts / counts.sum(), np.nan)
                    axes.plot(middles, shares, color=colour, linewidth=1.1, label=layout)
            axes.axvline(1, color="0.2", linewidth=0.9)
            axes.axvspan(1, 10 ** EDGES[-1], color="#D55E00", alpha=0.07, linewidth=0)
            axes.set_title(f"{trial.name}: {dtype}", fontsize=9)
    handles = {
        label: handle
        for axes in panels.flat
        for handle, label in zip(*axes.get_legend_handles_labels(), strict=True)
    }
    return _svg(figure, list(handles.values()))


def large_means(trials: Sequence[Trial]) -> bytes | None:
    """Plot the largest error against |mean|/std: an operator per panel, a colour per trial.

    Returns:
        An SVG file; None where nothing was measured.
    """
    from matplotlib.lines import Line2D

    measured = _measured(trials, Topic.MEAN)
    kinds = list(dict.fromkeys(each.case.kind for _, judged in measured for each in judged))
    if not kinds:
        return None
    across = min(4, len(kinds))
    down = -(-len(kinds) // across)
    size = (2.2 + 2.8 * across, 0.8 + 2.3 * down)
    figure, panels = _panels(size, down, across, "|mean| / std", "max error / bound")
    dtypes = list(dict.fromkeys(each.case.dtype for _, judged in measured for each in judged))
    for axes, kind in zip(panels.flat, kinds, strict=False):
        for (_, judged), colour in zip(measured, _COLOURS, strict=False):
            for dtype in dtypes:
                mine = [
                    each for each in judged if (each.case.kind, each.case.dtype) == (kind, dtype)
                ]
                worst: dict[float, float] = {}
                for each in sorted(mine, key=lambda each: each.case.mean):
                    highest = worst.get(each.case.mean, 0.0)
                    worst[each.case.mean] = max(highest, each.units or 0.0)
                axes.plot(
                    list(worst),
                    np.minimum(list(worst.values()), _TOP),
                    color=colour,
                    linestyle=_DASHES.get(dtype, "solid"),
                    linewidth=1.3,
                    marker=".",
                    markersize=4,
                )
        axes.axhline(1, color="0.2", linewidth=0.9)
        axes.set_title(kind, fontsize=9)
    for axes in panels.flat[len(kinds) :]:
        axes.set_visible(False)
    handles = [
        *(
            Line2D([], [], color=colour, label=trial.name)
            for (trial, _), colour in zip(measured, _COLOURS, strict=False)
        ),
        *(
            Line2D([], [], color="0.3", linestyle=_DASHES.get(dtype, "solid"), label=dtype)
            for dtype in dtypes
        ),
        Line2D([], [], color="0.2", linewidth=0.9, label="the bound"),
    ]
    return _svg(figure, handles)
