"""What the library wants to reach on a GPU, and how far a run's figures are from it."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from ..suite import FLOAT16, SMALL, SMALL_GROUP_NORM, Part, spelled
from ..targets import LARGE_ELEMENTS, Target, each, mean
from .figures import Figures
from .suite import LONG_ROWS

#: Effective bandwidth of each gradient whose tensors are larger than this, in 10¹² bytes a second.
TBS, TBS_BYTES = 3.6, 200_000_000
#: Times as fast as the best contender: in the geometric mean of all gradients, and each.
SPEEDUP, NO_SLOWER = 1.5, 1.0
#: Times its bound, for few channels with long rows.
XBOUND_LONG = 2.0
#: A call on small tensors, in terms of torch's operator.
SMALL_CALL = 1.0

#: Where what counts is the launching.
SMALL_SHAPES = tuple(map(spelled, (*SMALL, *(shape for shape, _ in SMALL_GROUP_NORM))))


def _constant(limit: float) -> Callable[[Figures], float]:
    return lambda one: limit


def _known(found: Sequence[Figures], figure: Callable[[Figures], float]) -> list[Figures]:
    """Those that have the figure: where there was nobody to compare with, nothing is said."""
    return [one for one in found if not math.isnan(figure(one))]


def _speedup(one: Figures) -> float:
    return one.speedup


def _no_slower(what: str, found: Sequence[Figures]) -> Target:
    large = _known([one for one in found if one.elements >= LARGE_ELEMENTS], _speedup)
    name = f"best contender / ours, each {what} of 2¹⁶ elements or more"
    return each(name, large, _speedup, _constant(NO_SLOWER), True)


def evaluate(found: Sequence[Figures]) -> list[Target]:
    """The targets for a run's figures."""
    gradients, forward, layers = (
        [one for one in found if one.part is part]
        for part in (Part.GRADIENTS, Part.FORWARD, Part.LAYERS)
    )
    huge = [one for one in gradients if one.tensor_bytes > TBS_BYTES]
    large = _known([one for one in gradients if one.elements >= LARGE_ELEMENTS], _speedup)
    long = [one for one in gradients if (one.shape, one.dtype) == (spelled(LONG_ROWS), FLOAT16)]
    small = [one for one in gradients if one.shape in SMALL_SHAPES]
    return [
        each(
            "effective TB/s, each gradient of tensors over 200 MB",
            huge,
            lambda one: one.tbs,
            _constant(TBS),
            True,
        ),
        mean(
            "best contender / ours, geometric mean of gradients of 2¹⁶ elements or more",
            [one.speedup for one in large],
            SPEEDUP,
            True,
        ),
        _no_slower("gradient", gradients),
        each(
            f"time / (bytes / copy's bandwidth), each gradient of {spelled(LONG_ROWS)} float16",
            long,
            lambda one: one.xbound,
            _constant(XBOUND_LONG),
        ),
        each(
            "small tensors: a call / torch's operator, launching included",
            _known(small, lambda one: one.small_call),
            lambda one: one.small_call,
            _constant(SMALL_CALL),
        ),
        _no_slower("forward pass", forward),
        _no_slower("layer", layers),
    ]
