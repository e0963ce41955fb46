"""Going through cases on a GPU: copies of their data, timing, their rows."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from .. import data
from ..compositions import Call
from ..data import Data
from ..run import Effort
from ..suite import Case
from . import compiled, contenders, installed, results, rotation, timing
from .results import Row


class Device(timing.Stopwatch, Protocol):
    """What a case is measured on."""

    name: str
    l2: int
    facts: Mapping[str, str]

    def free(self) -> int:
        """Bytes of memory that can still be had."""

    def copy(self) -> tuple[Call, int]:
        """What copies a tensor larger than L2, and the bytes that it reads and writes."""

    def profiled(self, call: Call) -> None:
        """Make a call between the marks that profilers look for."""


@dataclass(frozen=True)
class Measured:
    """What came of a case.

    Attributes:
        case: its id.
        rows: none, if it was not measured.
        reason: why it was not; else empty.
        left_out: why contenders were not measured on it, by name.
        uncaptured: why contenders have no graph of it, by name.
    """

    case: str
    rows: Sequence[Row] = ()
    reason: str = ""
    left_out: Mapping[str, str] = field(default_factory=dict)
    uncaptured: Mapping[str, str] = field(default_factory=dict)


def absent(without: Sequence[str]) -> dict[str, str]:
    """Contenders that no case meets, and why."""
    there = installed.found()
    found = {name: "not installed" for name in installed.MODULES if name not in there}
    return {**found, **dict.fromkeys(without, "left out")}


def without(compile_: bool) -> tuple[str, ...]:
    """The contenders that are left out."""
    return () if compile_ else (compiled.NAME,)


class _Kept:
    """The tensors of a look and their copies: cases that share them come in a row."""

    def __init__(self, device: Device) -> None:
        self._device = device
        self._look: Case | None = None
        self._tensors: list[Data] = []

    def of(self, case: Case) -> tuple[list[Data], rotation.Rotation]:
        """The copies for a case.

        Raises:
            rotation.TooLargeError: there is not enough memory.
        """
        if self._look != case.look:
            # The old ones go first: two sets of the largest need not fit.
            self._look, self._tensors = None, []
            _rotation(case, self._device, 0)
            self._tensors = [data.make(case, device=self._device.name)]
            self._look = case.look
        turns = _rotation(case, self._device, len(self._tensors))
        if len(self._tensors) < turns.copies:
            more = turns.copies - len(self._tensors) + 1
            self._tensors += contenders.copies(self._tensors[0], more)[1:]
        return self._tensors[: turns.copies], turns


def _rotation(case: Case, device: Device, made: int) -> rotation.Rotation:
    """With what copies there are already counted as free memory: they are used again."""
    free = device.free() + 2 * made * case.tensor_bytes
    return rotation.rotation(case.bytes, case.tensor_bytes, device.l2, free)


def run(
    cases: Sequence[Case], device: Device, effort: Effort, leave_out: Sequence[str] = ()
) -> Iterator[Measured]:
    """Measure the cases; one that cannot be is said to be so, and the next one comes.

    Raises:
        TorchMissingError: there is no torch.
    """
    kept, copy = _Kept(device), device.copy()
    for case in cases:
        yield _measured(case, kept, copy, device, effort, leave_out)


def _measured(
    case: Case,
    kept: _Kept,
    copy: tuple[Call, int],
    device: Device,
    effort: Effort,
    leave_out: Sequence[str],
) -> Measured:
    torch = data.load_torch()
    try:
        tensors, turns = kept.of(case)
        ready = contenders.gather(torch, case, tensors, copy[0], leave_out)
        times = timing.measure(ready.calls, device, effort.seconds, effort.rounds)
    except (contenders.OursFailedError, rotation.TooLargeError) as error:
        return Measured(case.id, reason=str(error))
    except RuntimeError as error:  # the device's: no memory; or it is lost, and nothing more runs
        return Measured(case.id, reason=contenders.reason(error))
    rows = results.rows(case, turns, ready, times, copy[1])
    return Measured(case.id, rows, "", ready.failed, times.uncaptured)


def profile(cases: Sequence[Case], device: Device) -> Iterator[tuple[str, str]]:
    """Make our call once on each case, with nothing else between a profiler's marks.

    Yields:
        Each case's id, and why it could not be called; empty if it was.
    """
    for case in cases:
        yield case.id, _profiled(case, device)


def _profiled(case: Case, device: Device) -> str:
    try:
        tensors = [data.make(case, device=device.name)]
        calls, _ = contenders.ours(data.load_torch(), case, tensors)
    except contenders.OursFailedError as error:
        return str(error)
    # Each has run once, so that nothing is compiled any more.
    device.profiled(calls.get(contenders.PLAN, calls[contenders.OURS])[0])
    return ""
