"""Who has a turn when; nothing here depends on how long anything takes."""

import gc
import itertools

import pytest

from normgrad.bench import timing


def recording(monkeypatch, seconds):
    """Calls that say when they are made, under a clock that they move."""
    now, calls = [0.0], []
    monkeypatch.setattr(timing.time, "perf_counter", lambda: now[0])
    monkeypatch.setattr(timing.time, "sleep", lambda length: calls.append("sleep"))

    def contender(name):
        def call():
            calls.append(name)
            now[0] += seconds[name]

        return call

    return {name: contender(name) for name in seconds}, calls


def test_turns_to_and_fro(monkeypatch):
    contenders, calls = recording(monkeypatch, {"a": 0.25, "b": 0.5, "torch": 1.0})
    times = timing.measure(contenders, rounds=2, settle=1.0)
    assert times.medians == {"a": 0.25, "b": 0.5, "torch": 1.0}
    assert (times.rounds, times.spread) == (2, 0.0)
    # Twice each to see how long they take; then a wait and a call ahead where the threads change.
    assert calls == [
        *("a", "a", "b", "b", "torch", "torch"),
        *("sleep", "a", "a", "b", "sleep", "torch", "torch"),
        *("torch", "sleep", "b", "b", "a"),
    ]


def test_short_calls_are_timed_in_batches(monkeypatch):
    contenders, calls = recording(monkeypatch, {"a": 2**-16, "b": 1.0})
    times = timing.measure(contenders, rounds=1)
    assert times.medians["a"] == 2**-16
    # 500 µs are 32.8 calls of 15.3 µs.
    assert calls.count("a") == 2 + 1 + 33
    assert calls.count("b") == 2 + 1
    assert "sleep" not in calls


def test_no_more_rounds_than_the_medians_need(monkeypatch):
    contenders, _ = recording(monkeypatch, {"a": 2**-6, "b": 2**-5})
    assert timing.measure(contenders, seconds=100.0).rounds == timing.MIN_ROUNDS


@pytest.mark.parametrize(("seconds", "rounds"), [(0.0, 5), (8.0, 8), (1000.0, 101)])
def test_as_many_rounds_as_fit_where_times_spread(monkeypatch, seconds, rounds):
    contenders, _ = recording(monkeypatch, {"a": 1.0})
    lengths = itertools.cycle([0.5, 1.5])
    stopwatch = lambda call, count: next(lengths)  # noqa: E731
    found = timing.measure(contenders, seconds=seconds, stopwatch=stopwatch)
    assert found.rounds == rounds


def test_the_collector_is_left_as_it_was():
    states = []
    call = lambda: states.append(gc.isenabled())  # noqa: E731
    assert gc.isenabled()
    timing.measure({"a": call}, rounds=1)
    assert gc.isenabled()
    assert set(states) == {False}


def test_spread():
    assert timing.spread([3.0]) == 0
    assert timing.spread([1.0, 2.0, 3.0, 4.0, 5.0]) == pytest.approx(2 / 3)
    assert timing.spread([0.0, 0.0]) == 0


def test_another_stopwatch(monkeypatch):
    """A device's own; every turn of every contender is on it."""
    contenders, _ = recording(monkeypatch, {"a": 1.0, "b": 1.0})
    asked = []
    lengths = {contenders["a"]: 2**-14, contenders["b"]: 2.0}

    def stopwatch(call, count):
        asked.append(count)
        return lengths[call]

    times = timing.measure(contenders, rounds=2, stopwatch=stopwatch)
    assert times.medians == {"a": 2**-14, "b": 2.0}
    # 500 µs are 8.2 calls of 61 µs.
    assert asked == [1, 1, 1, 1, 9, 1, 1, 9]
