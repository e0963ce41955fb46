"""What the library wants to reach, and how far a run's figures are from it."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from .results import ON_GPU, Results, Row
from .suite import SMALL, Layout, Operator, Part, spelled

#: Times as fast as torch in the geometric mean: over all gradients, and over all layers. Forward
#: passes have no mean to reach: torch's read and write as little as ours.
SPEEDUP, SPEEDUP_LAYERS = 3.0, 2.0
#: Cases of so many elements are to be no slower than torch, each; reduce is held to its bound from
#: there on. Below it the fixed cost of a call decides, which the small tensors' targets hold.
LARGE_ELEMENTS = 1 << 16
NO_SLOWER = 1.0
#: Times the memory's own time where the data exceed the cache; more for channels-last where
#: not even a cache line's width of channels fits it.
XTRIAD, XTRIAD_STRIPED = 1.25, 1.7
#: And where they fit, in the geometric mean.
XTRIAD_CACHED = 2.0
REDUCE = 1.25
#: A gradient's call on small tensors, and a plan's run, in terms of torch's time.
SMALL_CALL, SMALL_PLAN = 2.5, 1.2

_LINE = 64

_SMALL_SHAPES = tuple(map(spelled, SMALL))


@dataclass(frozen=True)
class Target:
    """A target and how it was met.

    Attributes:
        name: what is to be reached.
        limit: in the form "≥ 3"; without a number if no case counts.
        reached: a geometric mean, or the worst case's figure; None if no case counts.
        cases: how many count.
        misses: the ids of those that are off, each with its figure, the worst first; empty for a
            mean.
        met: whether it was reached; None if no case counts.
    """

    name: str
    limit: str
    reached: float | None
    cases: int
    misses: tuple[tuple[str, float], ...]
    met: bool | None


def geometric_mean(values: Iterable[float]) -> float | None:
    """What was not measured (NaN) does not count; None of nothing."""
    logarithms = [math.log(value) for value in values if not math.isnan(value)]
    return math.exp(statistics.fmean(logarithms)) if logarithms else None


def each(
    name: str,
    rows: Sequence[Row],
    figure: Callable[[Row], float],
    limit: Callable[[Row], float],
    at_least: bool = False,
) -> Target:
    """Every case is to keep its limit."""

    def excess(row: Row) -> float:
        return limit(row) / figure(row) if at_least else figure(row) / limit(row)

    worst_first = sorted(rows, key=excess, reverse=True)
    misses = tuple((row.case, figure(row)) for row in worst_first if excess(row) > 1)
    return Target(
        name,
        f"{_sign(at_least)} {' or '.join(f'{value:g}' for value in sorted(set(map(limit, rows))))}",
        figure(worst_first[0]) if rows else None,
        len(rows),
        misses,
        not misses if rows else None,
    )


def mean(name: str, values: Sequence[float], limit: float, at_least: bool = False) -> Target:
    """The geometric mean is to keep a limit."""
    reached = geometric_mean(values)
    met = None if reached is None else reached >= limit if at_least else reached <= limit
    return Target(name, f"{_sign(at_least)} {limit:g}", reached, len(values), (), met)


def _sign(at_least: bool) -> str:
    return "≥" if at_least else "≤"


def exceeds_cache(row: Row, cache: int) -> bool:
    """Whether what goes through memory is more than the cache holds."""
    return row.bytes > cache


def stripe_bytes(row: Row) -> int:
    """What a task reads of channels-last x and dy to sum as few channels as a cache line holds."""
    channels = int(row.shape.split("x")[1])
    return 2 * _LINE * (row.elements // channels)


def xtriad_limit(row: Row, cache: int) -> float:
    """How many times the memory's own time a case larger than the cache may take."""
    if row.layout == Layout.CHANNELS_LAST.value and stripe_bytes(row) > cache:
        return XTRIAD_STRIPED
    return XTRIAD


def evaluate(rows: Sequence[Row], cache: int) -> list[Target]:
    """The targets for rows of one number of threads.

    Args:
        rows: the cases.
        cache: the bytes of cache to count on.
    """
    return [
        *_gradients([row for row in rows if row.part is Part.GRADIENTS], cache),
        _no_slower("forward pass", [row for row in rows if row.part is Part.FORWARD]),
        *_layers([row for row in rows if row.part is Part.LAYERS]),
    ]


def evaluate_on_gpu(rows: Sequence[Row]) -> list[Target]:
    """The targets on a GPU: nothing else has been measured there that a limit could be set by."""
    return [
        _no_slower(what, [row for row in rows if row.part is part])
        for what, part in (
            *(("gradient", Part.GRADIENTS), ("forward pass", Part.FORWARD)),
            ("layer", Part.LAYERS),
        )
    ]


def _no_slower(what: str, rows: Sequence[Row]) -> Target:
    return each(
        f"torch / ours, each {what} of 2¹⁶ elements or more",
        _large(rows),
        _speedup,
        lambda row: NO_SLOWER,
        True,
    )


def _layers(rows: Sequence[Row]) -> list[Target]:
    name = "torch / ours, geometric mean of all layers"
    return [mean(name, _all(rows, _speedup), SPEEDUP_LAYERS, True), _no_slower("layer", rows)]


def _gradients(rows: Sequence[Row], cache: int) -> list[Target]:
    writes = [row for row in rows if row.operator != Operator.REDUCE.value]
    beyond = [row for row in writes if exceeds_cache(row, cache)]
    within = [row for row in writes if not exceeds_cache(row, cache)]
    reduce = [row for row in _large(rows) if row.operator == Operator.REDUCE.value]
    small = [row for row in rows if row.shape in _SMALL_SHAPES]
    return [
        mean("torch / ours, geometric mean of all gradients", _all(rows, _speedup), SPEEDUP, True),
        _no_slower("gradient", rows),
        each(
            "×triad, each gradient larger than the cache",
            beyond,
            _xtriad,
            lambda r: xtriad_limit(r, cache),
        ),
        mean(
            "×triad, geometric mean of gradients that fit the cache",
            _all(within, _xtriad),
            XTRIAD_CACHED,
        ),
        each("reduce / time to read, each of 2¹⁶ elements or more", reduce, _xtriad, _reduce),
        each(
            "small tensors: a call / torch's",
            small,
            lambda row: row.t_ours_us / row.t_torch_us,
            lambda row: SMALL_CALL,
        ),
        each(
            "small tensors: a plan's run / torch's call",
            small,
            lambda row: row.t_plan_us / row.t_torch_us,
            lambda row: SMALL_PLAN,
        ),
    ]


def _large(rows: Sequence[Row]) -> list[Row]:
    return [row for row in rows if row.elements >= LARGE_ELEMENTS]


def _all(rows: Sequence[Row], figure: Callable[[Row], float]) -> list[float]:
    return [figure(row) for row in rows]


def _speedup(row: Row) -> float:
    return row.speedup


def _xtriad(row: Row) -> float:
    return row.xtriad


def _reduce(row: Row) -> float:
    return REDUCE


def by_threads(results: Results) -> dict[int, list[Target]]:
    """The targets, for each number of threads that was run."""
    if results.on_gpu:
        return {ON_GPU: evaluate_on_gpu(results.rows)}
    counts = sorted({row.threads for row in results.rows})
    return {
        count: evaluate([row for row in results.rows if row.threads == count], results.cache)
        for count in counts
    }
