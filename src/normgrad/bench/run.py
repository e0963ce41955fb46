"""Going through cases: making their data, timing, a row, and what was not measured."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

import torch

from ..backends.choice import KernelError
from ..backends.cpu import openmp
from ..settings import SettingError
from . import contenders, results, timing
from .data import Data
from .device import Device
from .results import ON_GPU, Row
from .suite import Case, Part

#: How much more time than others a model's step gets, which takes some 100 ms.
STEPS_SHARE = 6
#: Cases named of each thing that was not measured.
NAMED = 2


class Measured(NamedTuple):
    """What came of a case.

    Attributes:
        case: its id.
        row: None, if it was not measured.
        missing: what was not, a contender or the case, and why.
    """

    case: str
    row: Row | None
    missing: Mapping[str, str]


def run(
    cases: Sequence[Case],
    device: Device,
    threads: Sequence[int] = (ON_GPU,),
    seconds: float = timing.ENOUGH_SECONDS,
    rounds: int | None = None,
    compile_: bool = False,
) -> Iterator[Measured]:
    """Measure the cases; one that cannot be is said to be so, and the next one comes.

    Args:
        cases: those of one look in a row, which share their tensors.
        device: on which they are measured.
        threads: with how many each is measured, one after the other.
        seconds: for the rounds of a case, where it is not said how many.
        rounds: how many.
        compile_: whether torch.compile competes, on a GPU.

    Raises:
        KernelError, SettingError: there are no kernels for any case.
    """
    look: Case | None = None
    tensors: list[Data] = []
    for case in cases:
        for count in threads:
            if count != ON_GPU:
                torch.set_num_threads(count)  # normgrad follows
            try:
                if case.look != look:
                    # The old ones go first: two sets of the largest need not fit.
                    look, tensors = None, []
                    tensors, look = contenders.tensors(case, device), case.look
                yield _measured(case, tensors, device, count, seconds, rounds, compile_)
            except (KernelError, SettingError):
                raise
            except Exception as error:  # ours fails, memory is short, or the device is lost
                yield Measured(case.id, None, {"the case": contenders.reason(error)})


def _measured(
    case: Case,
    tensors: Sequence[Data],
    device: Device,
    threads: int,
    seconds: float,
    rounds: int | None,
    compile_: bool,
) -> Measured:
    ready = contenders.gather(case, tensors, device, compile_)
    if not ready.contender and case.part is not Part.ACLNN:
        return Measured(case.id, None, {**ready.failed, "the case": "nobody to compare with"})
    apart = threads > 1 and openmp.of_torch() is None
    settle = timing.SETTLE_SECONDS if apart else 0.0
    seconds *= STEPS_SHARE if case.part is Part.STEPS else 1
    times = timing.measure(ready.calls, seconds, rounds, settle, device.seconds)
    us = {name: 1e6 * median for name, median in times.medians.items()}
    names = ready.contender, ready.bound, ready.path
    row = results.Row(case, threads, us, times.rounds, times.spread, *names)
    return Measured(case.id, row, ready.failed)


def unmeasured(found: Iterable[Measured]) -> list[tuple[str, str, str, str]]:
    """What is missing of a run, so that nobody takes what is not there for what is good.

    It is what (a contender, or the case), why, how many cases miss it for this reason, and some.
    """
    groups: dict[tuple[str, str], dict[str, None]] = {}
    for one in found:
        for missing in one.missing.items():
            groups.setdefault(missing, {})[one.case] = None
    lines = []
    for (what, why), cases in groups.items():
        more = f", and {len(cases) - NAMED} more" if len(cases) > NAMED else ""
        lines.append((what, why, str(len(cases)), ", ".join(list(cases)[:NAMED]) + more))
    return lines


def nothing(cases: Sequence[Case], why: str) -> list[Measured]:
    """What comes of a run where there is no device."""
    counts = Counter(case.part for case in cases)
    return [Measured(c.id, None, {f"{counts[c.part]} {c.part.value}": why}) for c in cases]
