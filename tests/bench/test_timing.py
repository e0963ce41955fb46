"""Who has a turn when; nothing here depends on how long anything takes."""

import gc

import pytest

from normgrad.bench import timing
from normgrad.bench.contenders import Contender


def recording(monkeypatch, seconds):
    """Contenders that say when they are called, under a clock that they move."""
    now, calls = [0.0], []
    monkeypatch.setattr(timing.time, "perf_counter", lambda: now[0])
    monkeypatch.setattr(timing.time, "sleep", lambda length: calls.append("sleep"))

    def contender(name, pool):
        def call():
            calls.append(name)
            now[0] += seconds[name]

        return Contender(call, pool)

    pools = {"a": "one", "b": "one", "c": "two"}
    return {name: contender(name, pools[name]) for name in seconds}, calls


def test_turns_to_and_fro(monkeypatch):
    contenders, calls = recording(monkeypatch, {"a": 0.25, "b": 0.5, "c": 1.0})
    times = timing.measure(contenders, rounds=2)
    assert times.medians == {"a": 0.25, "b": 0.5, "c": 1.0}
    assert (times.rounds, times.spread) == (2, 0.0)
    # Twice each to see how long they take; then a wait and a call ahead where the threads change.
    assert calls == [
        *("a", "a", "b", "b", "c", "c"),
        *("sleep", "a", "a", "b", "sleep", "c", "c"),
        *("c", "sleep", "b", "b", "a"),
    ]


def test_short_calls_are_timed_in_batches(monkeypatch):
    contenders, calls = recording(monkeypatch, {"a": 2**-16, "b": 1.0})
    times = timing.measure(contenders, rounds=1, settle=0)
    assert times.medians["a"] == 2**-16
    # 500 µs are 32.8 calls of 15.3 µs.
    assert calls.count("a") == 2 + 1 + 33
    assert calls.count("b") == 2 + 1
    assert "sleep" not in calls


@pytest.mark.parametrize(("seconds", "rounds"), [(1.0, 5), (2**-6, 32), (2**-10, 101)])
def test_as_many_rounds_as_fit(monkeypatch, seconds, rounds):
    contenders, _ = recording(monkeypatch, {"a": seconds, "b": seconds})
    assert timing.measure(contenders, enough=1.0, settle=0).rounds == rounds


def test_the_collector_is_left_as_it_was():
    states = []
    contender = Contender(lambda: states.append(gc.isenabled()), "one")
    assert gc.isenabled()
    timing.measure({"a": contender}, rounds=1)
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
    lengths = {contenders["a"].call: 2**-14, contenders["b"].call: 2.0}

    def stopwatch(call, count):
        asked.append(count)
        return lengths[call]

    times = timing.measure(contenders, rounds=2, settle=0, stopwatch=stopwatch)
    assert times.medians == {"a": 2**-14, "b": 2.0}
    # 500 µs are 8.2 calls of 61 µs.
    assert asked == [1, 1, 1, 1, 9, 1, 1, 9]
