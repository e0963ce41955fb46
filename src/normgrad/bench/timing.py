"""Time calls alternately, so that other load on the machine affects all of them alike."""

from __future__ import annotations

import gc
import math
import statistics
import time
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

Call = Callable[[], Any]

#: Numbers of rounds, in each of which every call has one turn: at least MIN, then more until the
#: medians' relative standard error is at most PRECISE, the time is over, or there are MAX.
MIN_ROUNDS, MAX_ROUNDS = 5, 101
PRECISE = 0.01
ENOUGH_SECONDS, QUICK_SECONDS = 0.5, 0.2

#: Calls shorter than SHORT_SECONDS are timed in batches of about BATCH_SECONDS.
SHORT_SECONDS, BATCH_SECONDS = 100e-6, 500e-6

#: How long to wait before a turn on other threads than the last one's. OpenMP's threads spin after
#: a parallel region, for up to 4 ms (measured with GNU's), and keep other threads from the cores.
SETTLE_SECONDS = 5e-3
#: The calls that run on torch's threads, by name.
TORCHS = ("torch", "bound")

#: Calls shorter than this run once untimed before the timed ones, which costs little and brings
#: their memory into the caches. The memory of longer calls fits no cache.
WARM_BELOW_SECONDS = 5e-3

#: The ratio of interquartile range to median from which the machine's other load dominates.
NOISY = 0.2


class Times(NamedTuple):
    """The figures of a case: each call's median time in seconds, and its number of turns.

    ``spread`` is the largest ratio of interquartile range to median of any call, which is large if
    the machine had other load.
    """

    medians: Mapping[str, float]
    rounds: int
    spread: float


def one_by_one(call: Call, count: int) -> float:
    """Seconds per call, over this many in a row."""
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
    """Time calls, each of which has run before; those on one pool's threads are neighbours.

    No round begins after ``seconds``, once there are MIN_ROUNDS; ``rounds`` is the exact number,
    instead. ``settle`` is for how many seconds to wait before a turn on another pool's threads, and
    ``stopwatch`` times a call this many times in a row and returns seconds per call.
    """
    samples: dict[str, list[float]] = {name: [] for name in calls}
    spent, pool = 0.0, None
    collecting = gc.isenabled()
    gc.disable()
    try:
        # Take the faster of two calls: the first wakes threads and makes plans.
        expected = {name: min(stopwatch(call, 1) for _ in range(2)) for name, call in calls.items()}
        batches = {name: _batch(length) for name, length in expected.items()}
        for turn in range(rounds or MAX_ROUNDS):
            enough = spent >= seconds or all(map(_known, samples.values()))
            if rounds is None and turn >= MIN_ROUNDS and enough:
                break
            # Alternate the direction: no call always follows the same one, and the thread pool
            # changes only once per round.
            for name in list(calls)[:: 1 if turn % 2 == 0 else -1]:
                is_switch, pool = pool != (name in TORCHS), name in TORCHS
                if is_switch and settle:
                    time.sleep(settle)
                if is_switch or expected[name] < WARM_BELOW_SECONDS:
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
    """The ratio of interquartile range to median; 0 for one value."""
    if len(values) < 2:
        return 0.0
    low, middle, high = statistics.quantiles(values, n=4, method="inclusive")
    return (high - low) / middle if middle else 0.0
