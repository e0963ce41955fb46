"""Timing contenders by turns, so that whatever the machine does beside hits all of them alike."""

from __future__ import annotations

import gc
import math
import statistics
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

from .compositions import Call
from .contenders import Contender

#: Rounds, in each of which every contender has its turn: no fewer than MIN, and as many more as fit
#: in a time.
MIN_ROUNDS, MAX_ROUNDS = 5, 101
ENOUGH_SECONDS, QUICK_SECONDS = 1.0, 0.25

#: Calls shorter than this are timed several at once, for about BATCH_SECONDS.
SHORT_SECONDS, BATCH_SECONDS = 100e-6, 500e-6

#: How long to wait before a turn on other threads than the last one's: where torch and Numba use an
#: OpenMP each, its threads spin after a parallel region, and for up to 4 ms (measured with GNU's)
#: the spinning threads of one keep the other's from the cores.
SETTLE_SECONDS = 5e-3

#: Below this a call made ahead of the timed ones costs little and brings the contender's own memory
#: into the caches; above it no cache holds what it would bring.
WARM_BELOW_SECONDS = 5e-3


@dataclass(frozen=True)
class Times:
    """The figures of a case.

    Attributes:
        medians: each contender's, in seconds for one call.
        rounds: turns that each had.
        spread: the largest of the contenders' interquartile ranges, relative to its median: how
            quiet the machine was.
    """

    medians: Mapping[str, float]
    rounds: int
    spread: float


def one_by_one(call: Call, count: int) -> float:
    """Seconds for one call, over so many in a row."""
    start = time.perf_counter()
    for _ in range(count):
        call()
    return (time.perf_counter() - start) / count


def _batch(seconds: float) -> int:
    return 1 if seconds >= SHORT_SECONDS else math.ceil(BATCH_SECONDS / max(seconds, 1e-9))


def measure(
    contenders: Mapping[str, Contender],
    enough: float = ENOUGH_SECONDS,
    rounds: int | None = None,
    settle: float = SETTLE_SECONDS,
    stopwatch: Callable[[Call, int], float] = one_by_one,
) -> Times:
    """Time contenders that have run before.

    Args:
        contenders: by name; those of one pool next to each other.
        enough: seconds for all rounds, if there are more than the least number.
        rounds: how many, instead.
        settle: seconds to wait before a turn on another pool's threads.
        stopwatch: seconds for one call, over so many in a row.
    """
    with uncollected():
        # The first of two calls wakes the threads and makes plans.
        expected = {
            name: min(stopwatch(contender.call, 1) for _ in range(2))
            for name, contender in contenders.items()
        }
        batches = {name: _batch(seconds) for name, seconds in expected.items()}
        if rounds is None:
            length = sum(expected[name] * batches[name] for name in contenders) + settle
            rounds = min(max(math.ceil(enough / length), MIN_ROUNDS), MAX_ROUNDS)
        samples = _rounds(contenders, expected, batches, rounds, settle, stopwatch)
    medians = {name: statistics.median(values) for name, values in samples.items()}
    return Times(medians, rounds, max(map(spread, samples.values())))


@contextmanager
def uncollected() -> Iterator[None]:
    """Without the collector; it is left as it was."""
    collecting = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collecting:
            gc.enable()


def _rounds(
    contenders: Mapping[str, Contender],
    expected: Mapping[str, float],
    batches: Mapping[str, int],
    rounds: int,
    settle: float,
    stopwatch: Callable[[Call, int], float],
) -> dict[str, list[float]]:
    samples: dict[str, list[float]] = {name: [] for name in contenders}
    pool = None
    for turn in range(rounds):
        # To and fro: nobody always comes after the same one, and the pool changes once a round.
        for name in list(contenders)[:: 1 if turn % 2 == 0 else -1]:
            contender = contenders[name]
            changed, pool = contender.pool != pool, contender.pool
            if changed and settle:
                time.sleep(settle)
            if changed or expected[name] < WARM_BELOW_SECONDS:
                contender.call()
            samples[name].append(stopwatch(contender.call, batches[name]))
    return samples


def spread(values: list[float]) -> float:
    """Interquartile range over median; 0 of one value."""
    if len(values) < 2:
        return 0.0
    low, middle, high = statistics.quantiles(values, n=4, method="inclusive")
    return (high - low) / middle if middle else 0.0
