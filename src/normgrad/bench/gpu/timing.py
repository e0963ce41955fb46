"""Timing contenders by turns, as on the CPU, on a stopwatch that the device brings.

Each is timed in two ways. ``events``: the time between two events around some calls in a row, which
is the launching's where that takes longer than the kernels. ``graph``: the same around the replay
of a CUDA graph of some calls, which leaves the launching out. Not everything can be captured.
"""

from __future__ import annotations

import statistics
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

from ..compositions import Call
from ..timing import MAX_ROUNDS, MIN_ROUNDS, spread, uncollected
from . import rotation
from .contenders import reason

EVENTS, GRAPH = "events", "graph"

#: Seconds for all rounds of a case, if there are more than the least number.
ENOUGH_SECONDS, QUICK_SECONDS = 0.5, 0.25

#: Calls that say how long one takes, before anything is decided.
TRIAL_CALLS = 4


class Stopwatch(Protocol):
    """What a device has to be able to do."""

    def seconds(self, work: Callable[[], object]) -> float:
        """How long the device takes for what is launched, from its first to its last."""

    def capture(self, work: Callable[[], object]) -> Callable[[], object]:
        """What launches the same again, at once.

        Raises:
            Exception: it cannot be captured.
        """


@dataclass(frozen=True)
class Sample:
    """A contender's figures in one way of timing.

    Attributes:
        median: seconds for one call.
        spread: interquartile range over median.
        calls: that were timed together.
    """

    median: float
    spread: float
    calls: int


@dataclass(frozen=True)
class Times:
    """A case's figures.

    Attributes:
        samples: by contender and way of timing.
        rounds: turns that each had.
        uncaptured: why contenders have no graph, by name.
    """

    samples: Mapping[tuple[str, str], Sample]
    rounds: int
    uncaptured: Mapping[str, str]


class _Turns:
    """Calls one after the other, each on the next copy; their results stay for a whole round.

    So the memory of results is gone through as the copies are, and not the same each time.
    """

    def __init__(self, calls: Sequence[Call]) -> None:
        self._calls = calls
        self._next = 0

    def run(self, count: int) -> None:
        kept: deque[Any] = deque(maxlen=len(self._calls))
        for _ in range(count):
            kept.append(self._calls[self._next]())
            self._next = (self._next + 1) % len(self._calls)


@dataclass(frozen=True)
class _Timed:
    """What one turn is: the work, the calls in it, and how long it is expected to take."""

    work: Callable[[], object]
    calls: int
    seconds: float


def measure(
    calls: Mapping[str, Sequence[Call]],
    stopwatch: Stopwatch,
    enough: float = ENOUGH_SECONDS,
    rounds: int | None = None,
) -> Times:
    """Time contenders that have run before.

    Args:
        calls: of each contender, one for each copy of the tensors.
        stopwatch: the device's.
        enough: seconds for all rounds, if there are more than the least number.
        rounds: how many, instead.
    """
    with uncollected():
        timed, uncaptured = _prepare(calls, stopwatch)
        if rounds is None:
            length = sum(turn.seconds for turn in timed.values())
            rounds = rotation.rounds(enough, length, MIN_ROUNDS, MAX_ROUNDS)
        found: dict[tuple[str, str], list[float]] = {key: [] for key in timed}
        for index in range(rounds):
            # To and fro: nobody always comes after the same one.
            for key in list(timed)[:: 1 if index % 2 == 0 else -1]:
                turn = timed[key]
                found[key].append(stopwatch.seconds(turn.work) / turn.calls)
    samples = {
        key: Sample(statistics.median(values), spread(values), timed[key].calls)
        for key, values in found.items()
    }
    return Times(samples, rounds, uncaptured)


def _prepare(
    calls: Mapping[str, Sequence[Call]], stopwatch: Stopwatch
) -> tuple[dict[tuple[str, str], _Timed], dict[str, str]]:
    timed: dict[tuple[str, str], _Timed] = {}
    uncaptured = {}
    for name, mine in calls.items():
        turns = _Turns(mine)
        # The first wakes what sleeps.
        one = min(_one(turns, stopwatch) for _ in range(2))
        timed[name, EVENTS] = _timed(turns, rotation.calls(one), one)
        count = rotation.calls(one, len(mine))
        try:
            replay = stopwatch.capture(partial(turns.run, count))
            # Without the launching it may be much shorter than was expected.
            seconds = min(stopwatch.seconds(replay) for _ in range(2))
        except Exception as error:  # of any kind: what cannot be captured is others' too
            uncaptured[name] = reason(error)
            continue
        timed[name, GRAPH] = _Timed(replay, count, seconds)
    return timed, uncaptured


def _one(turns: _Turns, stopwatch: Stopwatch) -> float:
    return stopwatch.seconds(partial(turns.run, TRIAL_CALLS)) / TRIAL_CALLS


def _timed(turns: _Turns, count: int, one: float) -> _Timed:
    return _Timed(partial(turns.run, count), count, count * one)
