"""Write trials as one self-contained HTML page, with plots and explanations of cases' names."""

from __future__ import annotations

import base64
import io
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

import normgrad

from .. import dtypes, precision
from ..operators.by_name import FUNCTIONS
from . import report
from .cases import Topic
from .outcomes import EDGES, Judged, Verdict
from .tensors import FORWARD, GRADIENTS, Array, operator_of
from .trials import Trial

TOPICS: Mapping[Topic, str] = {
    Topic.PLAIN: "One ordinary call in float32, with three samples and four channels. It shows "
    "whether the operator answers at all.",
    Topic.VALUES: "Normally distributed data in every dtype and memory layout and in several "
    "shapes, also with tensors of different dtypes in one call.",
    Topic.MEAN: "The input's mean is up to a million times its standard deviation. Formulas that "
    "subtract large numbers from each other lose their digits here.",
    Topic.MASKS: "Only some of the results are asked for, in every combination.",
    Topic.ABSENT: "Tensors that may be left out, such as the weight or the saved statistics, are "
    "left out. A library is given null pointers for tensors without elements.",
    Topic.VECTORS: "Tensors with one value for each channel are not contiguous: every second "
    "element of a longer one, in reverse order, or one value for all channels.",
    Topic.OUTPUTS: "The caller gives the tensor that the result is written to: in several layouts, "
    "or in the memory of an input.",
    Topic.SHAPES: "Two to eight axes, channels second or last, one element per channel, and "
    "tensors without elements.",
    Topic.SIZES: "Sizes just above those at which kernels go other ways, as thin as can be: many "
    "channels, groups, samples, or elements in a row.",
    Topic.SPECIAL: "NaN, an infinity or 0 in one channel of one input, which must not change the "
    "other channels; negative variances; products near the ends of float32's range; and long sums "
    "whose terms all have one sign, which are wrong if they are simply added up in float32.",
    Topic.MISTAKES: "The plain call with one mistake, such as a vector that is too short. It must "
    "end in an error, and write nothing.",
    Topic.DETERMINISM: "The same call several times, with 1, 2, 3 and all threads, must give the "
    "same bits. It is made with other values in the same memory first, so that a result "
    "remembered from an earlier call shows.",
    Topic.MEMORY: "The plain call many times, after which the process must use no more memory.",
}

#: Kinds whose explanation is not the first line of their function's docstring.
_WORDS: Mapping[str, str] = {
    "train": "Batch norm's gradients in training, with the saved mean and 1/std.",
    "train_without_statistics": "The same without saved statistics: they are computed from the "
    "input.",
    "eval": "Batch norm's gradients in evaluation, with the running mean and variance.",
    "forward": "Batch norm's forward pass in training, which updates the running statistics.",
    "forward_eval": "Batch norm's forward pass in evaluation.",
    "normalise": "The output of batch norm for a given mean and 1/std.",
}

KINDS: Mapping[str, str] = {
    kind: _WORDS.get(kind) or (FUNCTIONS[operator_of(kind)].__doc__ or "").partition("\n")[0]
    for kind in (*GRADIENTS, *FORWARD)
}

LAYOUTS: Mapping[str, str] = {
    "contiguous": "Row after row, without gaps.",
    "channels_last": "The channels of one position lie next to each other.",
    "sliced": "Every second element, along each axis, of a larger tensor.",
    "transposed": "The axes lie in memory in reverse order.",
    "negative": "Every axis is reversed, so that strides are negative.",
    "expanded": "All elements of the last axis are one in memory.",
    "odd": "Three elements between one row and the next.",
}

# Plots

#: Okabe and Ito's palette, which readers with any kind of colour vision can tell apart.
_COLOURS = (
    *("#0072B2", "#D55E00", "#009E73", "#E69F00", "#CC79A7", "#56B4E9", "#000000"),
    *("#7F7F7F", "#B3B300", "#8C564B"),
)
#: The line style of each dtype.
_DASHES: Mapping[str, Any] = {
    "float32": "solid",
    "float64": (0, (4, 2)),
    "bfloat16": (0, (1, 1.2)),
    "float16": "dashdot",
}
#: Errors beyond this value are drawn at it.
_TOP = 1e7


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
    for axes in panels[:, 0]:
        axes.set_ylabel(y)
    return figure, panels


def _svg(figure: Any, handles: Iterable[Any]) -> bytes:
    """The figure as an SVG file, with a legend of these handles."""
    import matplotlib

    figure.legend(handles=list(handles), loc="outside right center", frameon=False, fontsize=8)
    # A fixed salt gives the same file for the same figure.
    with matplotlib.rc_context({"svg.hashsalt": "normgrad"}):
        file = io.BytesIO()
        figure.savefig(file, format="svg", metadata={"Date": None})
    return file.getvalue()


def _with_errors(trials: Sequence[Trial], topic: Topic) -> dict[str, list[Judged]]:
    """The cases of a topic that have a measured error, by the trials that have such cases."""
    by_trial = {
        trial.name: [e for e in trial.judged if e.case.topic is topic and e.units is not None]
        for trial in trials
    }
    return {name: judged for name, judged in by_trial.items() if judged}


def _values(measured: Mapping[str, Sequence[Judged]], attribute: str) -> list[Any]:
    """The values of an attribute of the cases, in their order."""
    every = (getattr(each.case, attribute) for judged in measured.values() for each in judged)
    return list(dict.fromkeys(every))


def _distributions(trials: Sequence[Trial]) -> bytes | None:
    """Plot shares of errors in units of the bound: a panel per trial and dtype, a line per layout.

    The plot is an SVG file; None where nothing was measured.
    """
    measured = _with_errors(trials, Topic.VALUES)
    if not measured:
        return None
    columns, layouts = _values(measured, "dtype"), _values(measured, "data_layout")
    down, across = len(measured), len(columns)
    size = (1.5 + 3.1 * across, 0.9 + 2.5 * down)
    figure, panels = _panels(size, down, across, "error / bound", "share of elements")
    middles = 10 ** ((EDGES[:-1] + EDGES[1:]) / 2)
    handles: dict[str, Any] = {}
    for line, (name, judged) in zip(panels, measured.items(), strict=True):
        for axes, dtype in zip(line, columns, strict=True):
            for layout, colour in zip(layouts, _COLOURS, strict=False):
                mine = [e for e in judged if (e.case.dtype, e.case.data_layout) == (dtype, layout)]
                counts: Array = np.sum([each.counts for each in mine], axis=0)
                if np.any(counts):
                    shares = np.where(counts > 0, counts / counts.sum(), np.nan)
                    (curve,) = axes.plot(middles, shares, color=colour, linewidth=1.1, label=layout)
                    handles.setdefault(layout, curve)
            axes.axvline(1, color="0.2", linewidth=0.9)
            axes.axvspan(1, 10 ** EDGES[-1], color="#D55E00", alpha=0.07, linewidth=0)
            axes.set_title(f"{name}: {dtype}", fontsize=9)
    return _svg(figure, handles.values())


def _large_means(trials: Sequence[Trial]) -> bytes | None:
    """Plot the largest error against |mean|/std: an operator per panel, a colour per trial.

    The plot is an SVG file; None where nothing was measured.
    """
    from matplotlib.lines import Line2D

    measured = _with_errors(trials, Topic.MEAN)
    kinds, types = _values(measured, "kind"), _values(measured, "dtype")
    if not kinds:
        return None
    across = min(4, len(kinds))
    down = -(-len(kinds) // across)
    size = (2.2 + 2.8 * across, 0.8 + 2.3 * down)
    figure, panels = _panels(size, down, across, "|mean| / std", "max error / bound")
    for axes, kind in zip(panels.flat, kinds, strict=False):
        for judged, colour in zip(measured.values(), _COLOURS, strict=False):
            for dtype in types:
                worst: dict[float, float] = {}
                for each in sorted(judged, key=lambda each: each.case.mean):
                    if (each.case.kind, each.case.dtype) == (kind, dtype):
                        highest = worst.get(each.case.mean, 0.0)
                        worst[each.case.mean] = max(highest, each.units or 0.0)
                style = {"color": colour, "linestyle": _DASHES.get(dtype, "solid")}
                errors = np.minimum(list(worst.values()), _TOP)
                axes.plot(list(worst), errors, **style, linewidth=1.3, marker=".", markersize=4)
        axes.axhline(1, color="0.2", linewidth=0.9)
        axes.set_title(kind, fontsize=9)
    for axes in panels.flat[len(kinds) :]:
        axes.set_visible(False)
    legend: list[tuple[str, dict[str, Any]]] = [
        *((name, {"color": colour}) for name, colour in zip(measured, _COLOURS, strict=False)),
        *((dtype, {"color": "0.3", "linestyle": _DASHES.get(dtype, "solid")}) for dtype in types),
        ("the bound", {"color": "0.2", "linewidth": 0.9}),
    ]
    return _svg(figure, (Line2D([], [], label=label, **style) for label, style in legend))


_CAPTIONS = (
    (
        "Errors by dtype and layout",
        _distributions,
        "The share of all elements of all outputs, by their error in units of the bound. What is "
        "to the right of 1 breaks it. Errors of 0, and below the axis, count at its left end.",
    ),
    (
        "Errors where the mean is large",
        _large_means,
        "The largest error in units of the bound, against how many standard deviations the input's "
        "mean is from 0.",
    ),
)


def page(
    trials: Sequence[Trial],
    command: str,
    when: str,
    machine: Sequence[tuple[str, Sequence[tuple[str, str]]]],
) -> str:
    """Make the page on the trials that a command has made; the first is the page's subject."""
    from jinja2 import Environment, PackageLoader, StrictUndefined

    environment = Environment(
        loader=PackageLoader("normgrad.testing", ""), autoescape=True, undefined=StrictUndefined
    )
    cases = [each.case for trial in trials for each in trial.judged]
    topics = dict.fromkeys(case.topic for case in cases)
    kinds = dict.fromkeys(case.kind for case in cases)
    layouts = dict.fromkeys(layout for case in cases for layout in case.data_layout.split("+"))
    about = [(each.name.lower(), f"({each.value}) {TOPICS[each]}") for each in topics]
    return environment.get_template("page.html.j2").render(
        trials=trials,
        command=command,
        when=when,
        machine=machine,
        report=report,
        verdicts=list(Verdict),
        bad=[index for index, verdict in enumerate(Verdict) if verdict.is_defect],
        summary=[report.row(trial.name, trial.judged) for trial in trials],
        words=(
            ("what the case is about", about),
            ("operator", [(kind, KINDS[kind]) for kind in kinds]),
            ("memory layout", [(layout, LAYOUTS[layout]) for layout in layouts]),
        ),
        version=normgrad.__version__,
        any=f"{precision.ANY_DATA[dtypes.float32]:g}",
        normal=f"{precision.NORMAL_DATA[dtypes.float32]:g}",
        half=f"{precision.ANY_DATA[dtypes.bfloat16]:g}",
        pictures=[
            (title, caption, base64.b64encode(picture).decode())
            for title, draw, caption in _CAPTIONS
            if (picture := draw(trials)) is not None
        ],
    )
