"""Plot a run: every case's time relative to the memory-bound call's."""

from __future__ import annotations

import io
import math
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from .results import Results, Row, spelled_bytes, spelled_threads
from .suite import Layout, Operator, Part

#: Okabe and Ito's palette, which readers with any kind of colour vision can tell apart. The forward
#: pass has separate panels, so its operators reuse the colours of the corresponding gradients.
_COLOURS = {
    **dict.fromkeys((Operator.TRAIN, Operator.FORWARD), ("batch norm, training", "#0072B2")),
    **dict.fromkeys((Operator.EVAL, Operator.FORWARD_EVAL), ("batch norm, evaluation", "#56B4E9")),
    Operator.EVAL_INPUT: ("evaluation, grad_input alone", "#009E73"),
    Operator.REDUCE: ("reduce", "#E69F00"),
    Operator.ELEMT: ("elemt", "#CC79A7"),
    Operator.STATS: ("stats", "#E69F00"),
    Operator.NORMALISE: ("normalise", "#CC79A7"),
    **dict.fromkeys((Operator.GROUP_NORM, Operator.FORWARD_GROUP_NORM), ("group norm", "#D55E00")),
    Operator.LAYER_NORM: ("layer norm", "#0072B2"),
    Operator.RMS_NORM: ("RMS norm", "#56B4E9"),
    Operator.FORWARD_LAYER_NORM: ("layer norm, forward", "#E69F00"),
    Operator.FORWARD_RMS_NORM: ("RMS norm, forward", "#CC79A7"),
}
#: The parts with a memory-bound call, and the number of tensors that most of their operators need.
_PARTS = {Part.GRADIENTS: 3, Part.FORWARD: 2, Part.ROWS: 3}
_MARKERS = dict(zip(Layout, "os^vD", strict=True))
_TICKS = (0.1, 0.2, 0.5, 1, 1.5, 2, 3, 5, 10, 20, 30, 50, 100, 200, 500, 1000)

#: The pictures' files.
ENDINGS = (".png", ".svg")


def _panel(axes: Any, part: Part, rows: Sequence[Row], cache: int) -> None:
    """Plot normgrad's and torch's times over the memory-bound call's, by the bytes of a tensor."""
    for row in rows:
        operators = [kind for kind in Operator if kind.part is part]
        # Shift operators, so that cases of one size do not cover each other.
        beside = operators.index(row.case.operator) - (len(operators) - 1) / 2
        x, marker = row.case.tensor_bytes * 2 ** (0.15 * beside), _MARKERS[row.case.layout]
        colour = _COLOURS[row.case.operator][1]
        plain = {"linestyle": "none", "markeredgewidth": 0}
        axes.plot(x, row.figure("torch", "bound"), marker, ms=3, color="0.45", alpha=0.4, **plain)
        axes.plot(x, row.figure("plan", "bound"), marker, ms=5, color=colour, alpha=0.85, **plain)
    axes.axhline(1, color="0.2", linewidth=0.9, zorder=1)
    axes.axvline(cache / _PARTS[part], color="0.2", linewidth=0.9, linestyle=":", zorder=1)


def _scales(axes: Any, rows: Sequence[Row]) -> None:
    """Powers of two in bytes along x, plain numbers along y."""
    sizes = [row.case.tensor_bytes for row in rows]
    figures = [row.figure(name, "bound") for row in rows for name in ("plan", "torch")]
    powers = range(math.ceil(math.log2(min(sizes))), math.floor(math.log2(max(sizes))) + 1)
    axes.set_xscale("log", base=2)
    axes.set_xticks([2.0**power for power in powers[:: 2 if len(powers) > 16 else 1]])
    axes.xaxis.set_major_formatter(lambda size, _: spelled_bytes(size))
    axes.set_xlim(min(sizes) / 2, max(sizes) * 2)
    axes.set_yscale("log")
    axes.set_yticks(_TICKS, map("{:g}".format, _TICKS))
    axes.set_ylim(min(0.8, *figures) / 1.15, max(4.0, *figures) * 1.15)
    axes.minorticks_off()
    axes.grid(axis="y", color="0.92", linewidth=0.6, zorder=0)
    axes.spines[["top", "right"]].set_visible(False)


def _legend(figure: Any, axes: Any, rows: Sequence[Row]) -> None:
    def entry(label: str, **style: Any) -> None:
        axes.plot([], [], label=label, **{"linestyle": "none", "markersize": 5.5, **style})

    operators = {row.case.operator for row in rows}
    layouts = {row.case.layout for row in rows}
    # One entry for each name and colour, even if it occurs in several parts.
    for label, colour in dict.fromkeys(_COLOURS[kind] for kind in Operator if kind in operators):
        entry(label, marker="o", color=colour)
    entry("PyTorch, same case", marker="o", color="0.5", alpha=0.5, markersize=3.5)
    for layout, marker in _MARKERS.items():
        if layout in layouts:
            entry(layout.value, marker=marker, color="0.3", markerfacecolor="none")
    entry("the bandwidth-bound (triad) time", color="0.2", linewidth=0.9, linestyle="solid")
    entry("L2: three tensors, or two", color="0.2", linewidth=0.9, linestyle=":")
    figure.legend(loc="outside right center", frameon=False, fontsize=9)


def draw(results: Results) -> dict[str, bytes]:
    """The picture's files, by suffix; none if no case has a memory-bound call.

    Raises:
        ModuleNotFoundError: matplotlib is not installed.
    """
    from matplotlib.figure import Figure

    rows = [row for row in results.rows if row.case.part in _PARTS]
    if not rows:
        return {}
    parts = [part for part in _PARTS if any(row.case.part is part for row in rows)]
    counts = sorted({row.threads for row in rows})
    size = (4.5 + 8.5 * len(parts), 0.8 + 4.6 * len(counts))
    figure = Figure(figsize=size, layout="constrained")
    panels = figure.subplots(len(counts), len(parts), sharex=True, sharey=True, squeeze=False)
    for count, line in zip(counts, panels, strict=True):
        for part, axes in zip(parts, line, strict=True):
            _scales(axes, rows)
            mine = [row for row in rows if (row.case.part, row.threads) == (part, count)]
            _panel(axes, part, mine, results.cache)
            axes.set_title(f"{part.value}, {spelled_threads(count)}", fontsize=10)
            axes.set_xlabel("bytes of one tensor (cases of one size stand side by side)")
        line[0].set_ylabel("time / triad time")
    versions = "normgrad {normgrad} and PyTorch {torch}".format_map(results.facts)
    figure.suptitle(f"{versions} on {results.device}", fontsize=11)
    _legend(figure, panels[0, 0], rows)
    metadata = dict(zip(ENDINGS, ({"Software": None}, {"Date": None}), strict=True))
    return {ending: _encoded(figure, ending, metadata[ending]) for ending in ENDINGS}


def _encoded(figure: Any, ending: str, metadata: dict[str, None]) -> bytes:
    """A figure's file, which is the same for the same figures."""
    import matplotlib

    file = io.BytesIO()
    with matplotlib.rc_context({"svg.hashsalt": "normgrad"}):
        figure.savefig(file, format=ending[1:], dpi=150, metadata=metadata)
    return file.getvalue()


#: The lines of a picture of gains: their names, operators and other facts of their cases.
_IMAGES = (Operator.TRAIN, Operator.EVAL, Operator.FORWARD, Operator.FORWARD_EVAL,
           Operator.GROUP_NORM, Operator.FORWARD_GROUP_NORM)  # fmt: skip
_LAYER_ROWS = (Operator.LAYER_NORM, Operator.FORWARD_LAYER_NORM)
_RMS_ROWS = (Operator.RMS_NORM, Operator.FORWARD_RMS_NORM)
_LINES: dict[str, tuple[tuple[str, tuple[Operator, ...], Layout, str], ...]] = {
    "batch and group norm": (
        ("contiguous", _IMAGES, Layout.CONTIGUOUS, "#0072B2"),
        ("channels-last", _IMAGES, Layout.CHANNELS_LAST, "#D55E00"),
    ),
    "layer and RMS norm": (
        ("layer norm", _LAYER_ROWS, Layout.CONTIGUOUS, "#009E73"),
        ("RMS norm", _RMS_ROWS, Layout.CONTIGUOUS, "#CC79A7"),
    ),
}


def gains(results: Results, models: Sequence[Mapping[str, str]] = ()) -> bytes:
    """A picture, as SVG, of the public functions' speed-up by size; empty without such cases.

    A point is a case, and a line the geometric mean of the cases of a size, with all cores. Rows of
    whole models (``benchmarks/worth.py``) add a third panel: their training steps, by the norms'
    share of them.
    """
    from matplotlib.figure import Figure

    most = max(results.counts)
    rows = [row for row in results.rows if row.threads == most and {"torch", "ours"} <= {*row.us}]
    kinds = {name: [(line, [row for row in rows if row.case.operator in line[1]
                            and row.case.layout is line[2]]) for line in lines]
             for name, lines in _LINES.items()}  # fmt: skip
    shown = [row for lines in kinds.values() for _, some in lines for row in some]
    if not shown:
        return b""
    count = len(kinds) + bool(models)
    figure = Figure(figsize=(4.5 * count, 3.4), layout="constrained")
    panels = figure.subplots(1, count, sharey=True)
    if models:
        _models(panels[-1], models)
    for axes, (name, lines) in zip(panels, kinds.items(), strict=False):
        for (label, _, _, colour), some in lines:
            points = sorted((row.case.tensor_bytes, row.figure("torch", "ours")) for row in some)
            axes.plot(*zip(*points, strict=True) if points else ([], []), "o", ms=2.5,
                      color=colour, alpha=0.35, markeredgewidth=0)  # fmt: skip
            by_size: dict[int, list[float]] = {}
            for size, value in points:
                by_size.setdefault(2 * round(math.log2(size) / 2), []).append(value)
            means = [statistics.geometric_mean(values) for values in by_size.values()]
            axes.plot([2.0**power for power in by_size], means, color=colour, label=label)
        axes.set_xscale("log", base=2)
        axes.set_xticks([2.0**power for power in range(10, 28, 4)])
        axes.xaxis.set_major_formatter(lambda size, _: spelled_bytes(size))
        axes.set_title(name, fontsize=10)
        axes.set_xlabel("size of one tensor")
    for axes in panels:
        axes.axhline(1, color="0.2", linewidth=0.9)
        axes.set_yscale("log")
        axes.grid(axis="y", color="0.92", linewidth=0.6, zorder=0)
        axes.spines[["top", "right"]].set_visible(False)
        axes.legend(frameon=False, fontsize=9)
    ticks = (0.25, 0.5, 1, 2, 4, 8, 16, 32)
    panels[0].set_yticks(ticks, map("{:g}×".format, ticks))
    values = [row.figure("torch", "ours") for row in shown]
    panels[0].set_ylim(min(0.7, *values) / 1.1, max(4.0, *values) * 1.1)
    panels[0].minorticks_off()
    panels[0].set_ylabel("times as fast as PyTorch")
    facts = results.facts
    where = [results.device, spelled_threads(most), facts["date"][:10]]
    where += [f"commit {facts['commit']}"] if "commit" in facts else []
    figure.suptitle(", ".join(where), fontsize=11)
    return _encoded(figure, ".svg", {"Date": None})


def _models(axes: Any, models: Sequence[Mapping[str, str]]) -> None:
    """Plot the speed-up of whole training steps by the norms' share of the stock step."""
    for label, has_rms_norm, colour in (
        ("models with RMS norm", "1", "#CC79A7"),
        ("other models", "0", "#0072B2"),
    ):
        rows = [row for row in models if row["has_rms_norm"] == has_rms_norm]
        shares = [100 * float(row["share"]) for row in rows]
        speedups = [float(row["measured"]) for row in rows]
        axes.plot(shares, speedups, "o", ms=4, color=colour, alpha=0.7, label=label)
    axes.set_title(f"whole training steps of {len(models)} models", fontsize=10)
    axes.set_xlabel("norms' share of PyTorch's step, %")
