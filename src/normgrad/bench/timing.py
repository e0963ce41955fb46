"""Timing calls by turns, so that whatever the machine does beside hits all of them alike."""

from __future__ import annotations

import gc
import math
import statistics
import time
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

Call = Callable[[], Any]

#: Rounds, in each of which every call has its turn: no fewer than MIN, and more until the medians
#: are known to PRECISE of themselves, the time is over, or there are MAX.
MIN_ROUNDS, MAX_ROUNDS = 5, 101
PRECISE = 0.01
ENOUGH_SECONDS, QUICK_SECONDS = 0.5, 0.2

#: Calls shorter than this are timed several at once, for about BATCH_SECONDS.
SHORT_SECONDS, BATCH_SECONDS = 100e-6, 500e-6

#: How long to wait before a turn on other threads than the last one's: where torch and Numba use an
#: OpenMP each, its threads spin after a parallel region, and for up to 4 ms (measured with GNU's)
#: the spinning threads of one keep the other's from the cores.
SETTLE_SECONDS = 5e-3
#: The calls that run on torch's threads, by name.
TORCHS = ("torch", "bound")

#: Below this a call made ahead of the timed ones costs little and brings the call's own memory
#: into the caches; above it no cache holds what it would bring.
WARM_BELOW_SECONDS = 5e-3


class Times(NamedTuple):
    """The figures of a case.

    Attributes:
        medians: of each call, in seconds.
        rounds: turns that each had.
        spread: the largest of the interquartile ranges, relative to its median: how quiet the
            machine was.
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


def measure(
    calls: Mapping[str, Call],
    seconds: float = ENOUGH_SECONDS,
    rounds: int | None = None,
    settle: float = 0.0,
    stopwatch: Callable[[Call, int], float] = one_by_one,
) -> Times:
    """Time calls that have been made before.

    Args:
        calls: by name; those on one pool's threads next to each other.
        seconds: after which no round begins, if there were enough.
        rounds: how many, instead.
        settle: seconds to wait before a turn on another pool's threads.
        stopwatch: seconds for one call, over so many in a row.
    """
    samples: dict[str, list[float]] = {name: [] for name in calls}
    spent, pool = 0.0, None
    collecting = gc.isenabled()
    gc.disable()
    try:
        # The first of two calls wakes the threads and makes plans.
        expected = {name: min(stopwatch(call, 1) for _ in range(2)) for name, call in calls.items()}
        batches = {name: _batch(length) for name, length in expected.items()}
        for turn in range(rounds or MAX_ROUNDS):
            enough = spent >= seconds or all(map(_known, samples.values()))
            if rounds is None and turn >= MIN_ROUNDS and enough:
                break
            # To and fro: nobody always comes after the same one, and the pool changes once a round.
            for name in list(calls)[:: 1 if turn % 2 == 0 else -1]:
                changed, pool = pool != (name in TORCHS), name in TORCHS
                if changed and settle:
                    time.sleep(settle)
                if changed or expected[name] < WARM_BELOW_SECONDS:
                    calls[name]()
                samples[name].append(stopwatch(calls[name], batches[name]))
                spent += samples[name][-1] * batches[name]
    finally:
        if collecting:
            gc.enable()
    medians = {name: statistics.median(values) for name, values in samples.items()}
    turns = max(map(len, samples.values()))
    return Times(medians, turns, max(map(spread, samples.values())))


def _batch(seconds: float) -> int:
    return 1 if seconds >= SHORT_SECONDS else math.ceil(BATCH_SECONDS / max(seconds, 1e-9))


def _known(values: list[float]) -> bool:
    """Whether a median's standard error, 0.93 interquartile ranges over √n, is small enough."""
    return 0.93 * spread(values) <= PRECISE * math.sqrt(len(values))


def spread(values: list[float]) -> float:
    """Interquartile range over median; 0 of one value."""
    if len(values) < 2:
        return 0.0
    low, middle, high = statistics.quantiles(values, n=4, method="inclusive")
    return (high - low) / middle if middle else 0.0
