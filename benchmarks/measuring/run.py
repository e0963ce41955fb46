"""Run the cases: make their data, time the calls, and give a row or why there is none."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch

from normgrad.backends.cpu import teams
from normgrad.bench import timing
from normgrad.support.forks import KernelError
from normgrad.support.settings import SettingError

from . import contenders
from .contenders import Ready
from .data import Data
from .device import Device
from .results import ON_GPU, Measured, Row
from .suite import Case, Part

#: A model's step takes some 100 ms, and gets this many times the seconds of other cases.
STEPS_SHARE = 6


def run(
    cases: Sequence[Case],
    device: Device,
    threads: Sequence[int],
    seconds: float,
    rounds: int | None,
    compile_: bool,
) -> Iterator[Measured]:
    """Measure the cases with each number of threads.

    Cases of one signature, which share their tensors, should be in a row. ``seconds`` and
    ``rounds`` are as in :func:`.timing.measure`, ``compile_`` as in :func:`.contenders.gather`.
    A case that fails is yielded with the reason, and the run goes on.

    Raises:
        KernelError, SettingError: no case can be computed.
    """
    signature: Case | None = None
    tensors: list[Data] = []
    for case in cases:
        for count in threads:
            if count != ON_GPU:
                torch.set_num_threads(count)  # normgrad follows
            try:
                if case.signature != signature:
                    # Free the old tensors first: two sets of the largest may not fit in memory.
                    signature, tensors = None, []
                    tensors, signature = contenders.tensors(case, device), case.signature
                ready = contenders.gather(case, tensors, device, compile_)
                yield _measured(case, ready, device, count, seconds, rounds)
            except (KernelError, SettingError):
                raise
            except Exception as error:  # normgrad fails, memory is short, or the device is lost
                yield Measured(case.id, None, {"the case": contenders.reason(error)})


def _measured(
    case: Case, ready: Ready, device: Device, threads: int, seconds: float, rounds: int | None
) -> Measured:
    if not ready.contender and case.part is not Part.ACLNN:
        return Measured(case.id, None, {**ready.failed, "the case": "nobody to compare with"})
    apart = threads > 1 and teams.of_torch() is None
    settle = timing.SETTLE_SECONDS if apart else 0.0
    seconds *= STEPS_SHARE if case.part is Part.STEPS else 1
    times = timing.measure(ready.calls, seconds, rounds, settle, device.seconds)
    us = {name: 1e6 * median for name, median in times.medians.items()}
    names = ready.contender, ready.bound, ready.path
    row = Row(case, threads, us, times.rounds, times.spread, *names)
    return Measured(case.id, row, ready.failed)
