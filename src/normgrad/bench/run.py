"""Going through cases: making their data, timing, one row after the other."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from . import contenders, data, results, timing
from .results import Row
from .suite import Case


class Effort(NamedTuple):
    """How much time goes into a case: seconds, or a number of rounds that comes before them."""

    seconds: float = timing.ENOUGH_SECONDS
    rounds: int | None = None


def select(cases: Sequence[Case], pattern: str) -> tuple[Case, ...]:
    """The cases whose ids contain the pattern, or a match of it as a regular expression.

    Raises:
        re.error: it is neither part of an id nor a regular expression.
    """
    literal = [case for case in cases if pattern in case.id]
    if literal:
        return tuple(literal)
    expression = re.compile(pattern)
    return tuple(case for case in cases if expression.search(case.id))


def run(cases: Sequence[Case], threads: Sequence[int], effort: Effort) -> Iterator[Row]:
    """Measure the cases, each with every number of threads.

    Raises:
        TorchMissingError: there is no torch.
    """
    look, tensors = None, None
    for case in cases:
        if tensors is None or case.look != look:
            # The old ones go first: two sets of the largest need not fit.
            tensors = None
            look, tensors = case.look, data.make(case)
        for count in threads:
            contenders.threads(count)
            found = contenders.gather(case, tensors)
            settle = timing.SETTLE_SECONDS if count > 1 else 0.0
            times = timing.measure(found.calls, effort.seconds, effort.rounds, settle)
            yield results.row(case, count, found, times)
