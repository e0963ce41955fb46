"""The library's performance targets, and how a run's figures compare with them."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable
from typing import NamedTuple

from .results import Results, Row
from .suite import Operator, Part


class Target(NamedTuple):
    """A limit on a figure: on its geometric mean, or on each case that counts.

    Attributes:
        parts: the parts whose cases count.
        figure: two names of timed calls, for the ratio of their times, or one, for microseconds.
        at_least: whether the limit is a minimum, rather than a maximum.
        mean: whether the geometric mean is compared, rather than each case.
        least, below: the smallest number of elements that counts, and the first that does not.
        operator: the only operator that counts, if there is one.
        beyond_cache: whether cases count only if their memory traffic exceeds the cache.
    """

    name: str
    parts: tuple[Part, ...]
    figure: tuple[str, ...]
    limit: float
    at_least: bool = False
    mean: bool = False
    least: int = 0
    below: float = math.inf
    operator: Operator | None = None
    beyond_cache: bool = False

    @property
    def sign(self) -> str:
        """The limit in words: ≥ 2.5."""
        return f"{'≥' if self.at_least else '≤'} {self.limit:g}"

    def counts(self, row: Row, cache: int) -> bool:
        """Whether a row's case counts, with this many bytes of cache."""
        case = row.case
        return (
            case.part in self.parts
            and self.least <= case.elements < self.below
            and self.operator in (None, case.operator)
            and (case.bytes > cache or not self.beyond_cache)
        )


_GRADIENTS, _FORWARD, _LAYERS = (Part.GRADIENTS,), (Part.FORWARD,), (Part.LAYERS,)
_CALLS, _ACLNN = (Part.CALLS,), (Part.ACLNN,)
_ROWS, _NEW = (Part.ROWS,), (Part.NEW_SIZES,)
_SPEEDUP, _SHARE = ("torch", "ours"), ("ours", "torch")

#: The elements from which on a layer, with autograd, takes longer than what calling it costs.
LARGE_LAYER = 1 << 15
#: The elements from which on an operator's own time counts more than what calling it costs.
LARGE_CALL = 1 << 12
TARGETS = (
    Target("torch / public function, geometric mean",
           _GRADIENTS + _FORWARD + _ROWS, _SPEEDUP, 2.4, True, True),
    Target("torch / public function, each of 2¹² elements or more",
           _GRADIENTS + _FORWARD + _ROWS, _SPEEDUP, 0.95, True, least=LARGE_CALL),
    Target("reduce: bound plan / time to read, each beyond L2",
           _GRADIENTS, ("plan", "bound"), 1.3, operator=Operator.REDUCE, beyond_cache=True),
    Target("calls: public function / torch's operator", _CALLS, _SHARE, 1.0),
    Target("calls: bound plan / torch's operator", _CALLS, ("plan", "torch"), 0.7),
    Target("calls: public function on NumPy arrays, µs", _CALLS, ("numpy",), 25.0),
    Target("layers: ours / torch's, each below 2¹⁵ elements",
           _LAYERS, _SHARE, 1.0, below=LARGE_LAYER),
    Target("layers: ours / torch's, each from 2¹⁵ elements on",
           _LAYERS, _SHARE, 1.0, least=LARGE_LAYER),
    Target("layers, a new size at each step: ours / torch's, each", _NEW, _SHARE, 1.3),
    Target("training steps: converted / stock, each", (Part.STEPS,), _SHARE, 1.0),
    Target("aclnn's phase 1 of a new signature, µs",
           _ACLNN, ("ours",), 80.0, operator=Operator.ACLNN_NEW),
    Target("aclnn's phase 1 of a known one, µs",
           _ACLNN, ("ours",), 8.0, operator=Operator.ACLNN_KNOWN),
)  # fmt: skip
#: The targets on a GPU, the only ones for which measurements exist to set a limit.
ON_GPUS = tuple(
    Target(f"torch / ours, each of 2¹⁶ elements or more, {part.value}",
           (part,), _SPEEDUP, 1.0, True, least=1 << 16)
    for part in (Part.GRADIENTS, Part.FORWARD, Part.ROWS, Part.LAYERS)
)  # fmt: skip


class Held(NamedTuple):
    """A target's result at one number of threads.

    ``reached`` is the geometric mean, or the worst case's figure; ``cases`` is how many count;
    ``misses`` are the cases beyond the limit of a target that was missed, the worst first. If no
    case counts, ``reached`` and ``met`` are None.
    """

    target: Target
    reached: float | None = None
    cases: int = 0
    misses: tuple[tuple[str, float], ...] = ()
    met: bool | None = None

    @property
    def verdict(self) -> str:
        """Whether it was met, in words."""
        if self.met is None:
            return "no such case"
        if self.met or self.target.mean:
            return "met" if self.met else "**missed**"
        return f"**missed** by {len(self.misses)} of {self.cases}"


def geometric_mean(values: Iterable[float]) -> float | None:
    """The geometric mean of all values that are not NaN (not measured); None if there are none."""
    known = [value for value in values if not math.isnan(value)]
    if len(known) == 1:
        return known[0]  # exactly: logarithms would round it
    return statistics.geometric_mean(known) if known else None


def hold(target: Target, rows: Iterable[Row], cache: int) -> Held:
    """Compare a target with the rows of one number of threads, given the bytes of cache."""
    counting = (
        (row.case.id, row.figure(*target.figure)) for row in rows if target.counts(row, cache)
    )
    figures = [one for one in counting if not math.isnan(one[1])]
    figures.sort(key=lambda one: one[1], reverse=not target.at_least)
    if not figures:
        return Held(target)

    def off(value: float) -> bool:
        return value < target.limit if target.at_least else value > target.limit

    mean = geometric_mean(value for _, value in figures)
    reached = mean if target.mean and mean else figures[0][1]
    misses = tuple(one for one in figures if off(one[1])) if off(reached) else ()
    return Held(target, reached, len(figures), misses, not off(reached))


def by_threads(results: Results) -> dict[int, list[Held]]:
    """The targets' results, for each number of threads that was run."""
    return {
        count: [
            hold(target, [row for row in results.rows if row.threads == count], results.cache)
            for target in (ON_GPUS if results.on_gpu else TARGETS)
        ]
        for count in results.counts
    }
