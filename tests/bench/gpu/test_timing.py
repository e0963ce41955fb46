"""Who has a turn when, under a stopwatch that the calls move."""

import pytest

from normgrad.bench.gpu import timing
from normgrad.bench.gpu.timing import EVENTS, GRAPH


class Clock:
    """Launching takes a call's host seconds, the kernel its device seconds."""

    def __init__(self, captured=("ours", "theirs")):
        self.now, self.log, self.captured = 0.0, [], captured
        self.replaying = False

    def call(self, name, host, kernel, copy=0):
        def run():
            self.log.append((name, copy))
            self.now += kernel if self.replaying else max(host, kernel)
            return object()

        return run

    def seconds(self, work):
        start = self.now
        work()
        return self.now - start

    def capture(self, work):
        before = len(self.log)
        work()
        if self.log[before][0] not in self.captured:
            raise RuntimeError("operation not permitted")

        def replay():
            self.replaying = True
            work()
            self.replaying = False

        return replay


def test_events_and_graphs():
    clock = Clock()
    calls = {
        "ours": [clock.call("ours", 2**-14, 2**-17)] * 2,
        "theirs": [clock.call("theirs", 2**-16, 2**-12)] * 2,
    }
    times = timing.measure(calls, clock, rounds=3)
    medians = {key: sample.median for key, sample in times.samples.items()}
    # Launching is in the one and not in the other.
    assert medians == {
        ("ours", EVENTS): pytest.approx(2**-14),
        ("ours", GRAPH): pytest.approx(2**-17),
        ("theirs", EVENTS): pytest.approx(2**-12),
        ("theirs", GRAPH): pytest.approx(2**-12),
    }
    assert (times.rounds, dict(times.uncaptured)) == (3, {})


def test_what_cannot_be_captured_has_events_alone():
    clock = Clock(captured=("ours",))
    calls = {name: [clock.call(name, 1e-5, 1e-4)] for name in ("ours", "theirs")}
    times = timing.measure(calls, clock, rounds=1)
    assert set(times.samples) == {("ours", EVENTS), ("ours", GRAPH), ("theirs", EVENTS)}
    assert dict(times.uncaptured) == {"theirs": "RuntimeError: operation not permitted"}


def test_each_call_takes_the_next_copy():
    clock = Clock()
    calls = {"ours": [clock.call("ours", 0, 1.0, copy) for copy in range(3)]}
    timing.measure(calls, clock, rounds=2)
    found = [copy for _, copy in clock.log]
    assert found == [index % 3 for index in range(len(found))]


def test_results_are_kept_for_a_whole_turn():
    """Or each call would write where the one before did."""
    alive, most = set(), []

    class Result:
        def __init__(self):
            alive.add(id(self))
            most.append(len(alive))

        def __del__(self):
            alive.discard(id(self))

    turns = timing._Turns([Result] * 4)
    turns.run(12)
    # The next is made before the oldest goes.
    assert max(most) == 5
    assert not alive


def test_to_and_fro():
    clock = Clock(captured=())
    calls = {name: [clock.call(name, 0, 1.0)] for name in ("a", "b", "c")}
    timing.measure(calls, clock, rounds=2)
    assert [name for name, _ in clock.log[-6:]] == ["a", "b", "c", "c", "b", "a"]


@pytest.mark.parametrize(("kernel", "rounds"), [(1.0, 5), (2**-7, 32), (2**-11, 101)])
def test_as_many_rounds_as_fit(kernel, rounds):
    clock = Clock()
    calls = {"ours": [clock.call("ours", 0, kernel)]}
    assert timing.measure(calls, clock, enough=0.5).rounds == rounds
