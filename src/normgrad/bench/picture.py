"""A run as a picture: how far every case is from what memory allows."""

from __future__ import annotations

import io
import math
from collections.abc import Sequence
from typing import Any

from . import targets
from .results import ON_GPU, Results, Row, spelled_bytes, spelled_threads
from .suite import Layout, Operator, Part

#: Told apart with any kind of colour vision (Okabe and Ito's palette). The forward pass has panels
#: of its own, so that its operators have the colours of what they are to the gradients.
_COLOURS = {
    Operator.TRAIN: ("batch norm, training", "#0072B2"),
    Operator.EVAL: ("batch norm, evaluation", "#56B4E9"),
    Operator.EVAL_INPUT: ("evaluation, grad_input alone", "#009E73"),
    Operator.REDUCE: ("reduce", "#E69F00"),
    Operator.ELEMT: ("elemt", "#CC79A7"),
    Operator.GROUP_NORM: ("group norm", "#D55E00"),
    Operator.FORWARD: ("batch norm, training", "#0072B2"),
    Operator.FORWARD_EVAL: ("batch norm, evaluation", "#56B4E9"),
    Operator.STATS: ("stats", "#E69F00"),
    Operator.NORMALISE: ("normalise", "#CC79A7"),
    Operator.FORWARD_GROUP_NORM: ("group norm", "#D55E00"),
}
#: The parts that the memory's own time is known of: what a panel is called, and how many tensors
#: most of its operators need.
_PARTS = {Part.GRADIENTS: ("gradients", 3), Part.FORWARD: ("forward pass", 2)}
_NUMBERS = {2: "two", 3: "three"}

#: The pictures' files.
ENDINGS = (".png", ".svg")

_MARKERS = {
    Layout.CONTIGUOUS: "o",
    Layout.CHANNELS_LAST: "s",
    Layout.X_CHANNELS_LAST: "^",
    Layout.DY_CHANNELS_LAST: "v",
    Layout.CROPPED: "D",
}
#: The memory's own time, and the targets.
_LINES: tuple[tuple[float, Any, str], ...] = (
    (1.0, "solid", "the memory's own time"),
    # These are the gradients' on CPUs.
    (targets.XTRIAD, (0, (5, 3)), f"target beyond the cache, {targets.XTRIAD:g}"),
    (
        targets.XTRIAD_CACHED,
        (0, (1.5, 2)),
        f"target within it, in the mean, {targets.XTRIAD_CACHED:g}",
    ),
)
_TICKS = (0.1, 0.2, 0.5, 1, 1.25, 2, 3, 5, 10, 20, 30, 50, 100, 200, 500, 1000)


def _tensor_bytes(row: Row) -> float:
    return row.bytes / Operator(row.operator).streams


def _beside(operator: Operator) -> float:
    """Cases of one size stand side by side, not on top of each other."""
    kinds = [kind for kind in Operator if kind.part is operator.part]
    return float(2 ** (0.15 * (kinds.index(operator) - (len(kinds) - 1) / 2)))


def _lines(rows: Sequence[Row]) -> tuple[tuple[float, Any, str], ...]:
    held = any(row.part is Part.GRADIENTS and row.threads != ON_GPU for row in rows)
    return _LINES if held else _LINES[:1]


def _panel(axes: Any, part: Part, rows: Sequence[Row], cache: int) -> None:
    for row in rows:
        operator = Operator(row.operator)
        marker = _MARKERS[Layout(row.layout)]
        x = _tensor_bytes(row) * _beside(operator)
        axes.plot(
            *(x, row.t_torch_us / row.t_triad_us, marker),
            **{"markersize": 3, "color": "0.45", "alpha": 0.4, "markeredgewidth": 0},
            zorder=2,
        )
        axes.plot(
            *(x, row.xtriad, marker),
            **{"markersize": 5, "color": _COLOURS[operator][1], "alpha": 0.85},
            **{"markeredgecolor": "white", "markeredgewidth": 0.5},
            zorder=3,
        )
    for value, dashes, _ in _lines(rows):
        axes.axhline(value, color="0.2", linewidth=0.9, linestyle=dashes, zorder=1)
    low, high = axes.get_xlim()
    tensors = _PARTS[part][1]
    full = cache / tensors
    if low < full < high:
        axes.axvline(full, color="0.2", linewidth=0.9, linestyle=":", zorder=1)
        axes.annotate(
            f"{_NUMBERS[tensors]} tensors fill the cache",
            (full, 0.97),
            **{"xycoords": ("data", "axes fraction"), "xytext": (-3, 0)},
            **{"textcoords": "offset points", "rotation": 90, "ha": "right", "va": "top"},
            **{"fontsize": 8, "color": "0.3", "bbox": {"color": "white", "pad": 1}},
        )


def _scales(axes: Any, rows: Sequence[Row]) -> None:
    """Powers of two in bytes along x, plain numbers along y."""
    from matplotlib.ticker import FixedLocator, FuncFormatter, NullFormatter

    sizes = [_tensor_bytes(row) for row in rows]
    figures = [*(row.xtriad for row in rows), *(row.t_torch_us / row.t_triad_us for row in rows)]
    axes.set_xscale("log", base=2)
    axes.set_xlim(min(sizes) / 2, max(sizes) * 2)
    axes.set_yscale("log")
    axes.set_ylim(min(0.8, *figures) / 1.15, max(4.0, *figures) * 1.15)
    first, last = (math.log2(size) for size in axes.get_xlim())
    ticks = range(math.ceil(first), math.floor(last) + 1)
    step = 2 if len(ticks) > 16 else 1
    axes.xaxis.set_major_locator(FixedLocator([2.0**power for power in ticks[::step]]))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda size, _: spelled_bytes(size)))
    axes.xaxis.set_minor_locator(FixedLocator([2.0**power for power in ticks]))
    axes.xaxis.set_minor_formatter(NullFormatter())
    axes.yaxis.set_major_locator(FixedLocator(_TICKS))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.yaxis.set_minor_formatter(NullFormatter())
    axes.grid(axis="y", color="0.92", linewidth=0.6, zorder=0)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)


def _legend(figure: Any, rows: Sequence[Row]) -> None:
    from matplotlib.lines import Line2D

    # An entry for each name and colour, whichever parts it is in.
    operators = {Operator(row.operator) for row in rows}
    looks = dict.fromkeys(look for kind, look in _COLOURS.items() if kind in operators)
    layouts = {Layout(row.layout) for row in rows}

    def dot(marker: str, colour: str, label: str, **more: Any) -> Any:
        style = {"linestyle": "none", "markersize": 5.5, **more}
        return Line2D([], [], marker=marker, color=colour, label=label, **style)

    handles = [
        *(dot("o", colour, label) for label, colour in looks),
        dot("o", "0.5", "PyTorch, same case", alpha=0.5, markersize=3.5),
        *(
            dot(_MARKERS[layout], "0.3", layout.value, markerfacecolor="none")
            for layout in Layout
            if layout in layouts
        ),
        *(
            Line2D([], [], color="0.2", linewidth=0.9, linestyle=dashes, label=label)
            for _, dashes, label in _lines(rows)
        ),
    ]
    figure.legend(handles=handles, loc="outside right center", frameon=False, fontsize=9)


def draw(results: Results) -> dict[str, bytes]:
    """The picture, by the suffix of its file; none where the memory's own time is never known.

    Raises:
        ModuleNotFoundError: matplotlib is not installed.
    """
    import matplotlib
    from matplotlib.figure import Figure

    rows = [row for row in results.rows if row.part in _PARTS]
    if not rows:
        return {}
    parts = [part for part in _PARTS if any(row.part is part for row in rows)]
    counts = sorted({row.threads for row in rows})
    size = (4.5 + 8.5 * len(parts), 0.8 + 4.6 * len(counts))
    figure = Figure(figsize=size, layout="constrained")
    panels = figure.subplots(len(counts), len(parts), sharex=True, sharey=True, squeeze=False)
    for count, line in zip(counts, panels, strict=True):
        for part, axes in zip(parts, line, strict=True):
            _scales(axes, rows)
            mine = [row for row in rows if (row.part, row.threads) == (part, count)]
            _panel(axes, part, mine, results.cache)
            axes.set_title(f"{_PARTS[part][0]}, {spelled_threads(count)}", fontsize=10)
        line[0].set_ylabel("time / memory's own time")
    for axes in panels[-1]:
        axes.set_xlabel("bytes of one tensor (cases of one size stand side by side)")
    facts = results.facts
    figure.suptitle(
        f"normgrad {facts['normgrad']} and PyTorch {facts['torch']} on {results.device}",
        fontsize=11,
    )
    _legend(figure, rows)
    files = {}
    # The same figures give the same file.
    with matplotlib.rc_context({"svg.hashsalt": "normgrad"}):
        for suffix, metadata in zip(ENDINGS, ({"Software": None}, {"Date": None}), strict=True):
            file = io.BytesIO()
            figure.savefig(file, format=suffix[1:], dpi=150, metadata=metadata)
            files[suffix] = file.getvalue()
    return files
