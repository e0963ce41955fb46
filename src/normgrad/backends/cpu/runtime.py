"""Schedules with the addresses of their units, ready to run."""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Callable, Sequence
from functools import cached_property, partial

import numpy as np
import numpy.typing as npt

from ...declarations.problem import PLACES
from .. import NativeSchedule
from . import teams
from .objects import store, units
from .schedule import block as B
from .schedule.cuts import cost_of
from .schedule.policy import SHARED_BY_WORKERS
from .schedule.schedules import Schedule
from .teams import ALONE, Team

_Int = ctypes.c_int64
#: The types of ``driver.drive`` and ``driver.begin``; the GIL is released while they run.
_Drive = ctypes.CFUNCTYPE(None, _Int, _Int, _Int, ctypes.c_char_p)
_Begin = ctypes.CFUNCTYPE(None, _Int, _Int, ctypes.c_char_p, ctypes.c_void_p)
_Block = ctypes.c_int64 * B.BLOCK_FIELDS
_places = struct.Struct(f"{PLACES}Q").pack


def _words(schedule: Schedule) -> NativeSchedule:
    """A schedule in the form in which the driver reads it, with the addresses of its units."""
    addresses = store.addresses(units.needed(schedule))
    block = schedule.block()
    for field, unit in units.of_schedule(schedule).items():
        block[field] = addresses[unit]
    steps: list[int] = []
    for step in schedule.steps:
        words = [0] * B.STEP_FIELDS
        for field, value in step.fields().items():
            words[field] = value
        for field, unit in units.of_step(schedule, step).items():
            words[field] = addresses[unit]
        steps += words
    parallel = any(steps[B.THREADS :: B.STEP_FIELDS])
    return NativeSchedule(block, steps, len(schedule.steps), addresses[units.DRIVER], parallel)


class Runner:
    """A schedule with its units, ready to run on addresses.

    Attributes:
        words: the schedule in the form in which the driver reads it.
    """

    def __init__(self, schedule: Schedule) -> None:
        self.words = _words(schedule)
        self._for_workers = cost_of(schedule.layout) >= SHARED_BY_WORKERS

    @cached_property
    def _memory(self) -> tuple[npt.NDArray[np.int64], ...]:
        """The driver's table, and the block and the steps, whose addresses the table has."""
        block, steps = (np.array(words, np.int64) for words in self.words[:2])
        table = np.zeros(B.TABLE_FIELDS, np.int64)
        table[B.TEMPLATE], table[B.STEPS] = block.ctypes.data, steps.ctypes.data
        table[B.STEP_COUNT] = self.words.step_count
        return table, block, steps

    @cached_property
    def _drive(self) -> Callable[..., None]:
        return partial(_Drive(self.words.driver), self._memory[0].ctypes.data)

    @cached_property
    def _begin(self) -> Callable[..., None]:
        return _Begin(store.addresses([units.BEGIN])[units.BEGIN])

    def native(self, addresses: Sequence[int]) -> NativeSchedule:
        """The schedule for code that runs it without Python; it is the same for all addresses."""
        return self.words

    def team(self) -> Team:
        """The threads that share the schedule's tasks now."""
        return teams.ready(self._for_workers) if self.words.parallel else ALONE

    def run(self, addresses: Sequence[int]) -> None:
        """Compute on the addresses, in the block's order."""
        team, places = self.team(), _places(*addresses)
        if team.size > 1 and not team.address:
            self._run_steps(team.size, places)
        else:
            self._drive(*team, places)

    def _run_steps(self, threads: int, places: bytes) -> None:
        """Do as the driver, with Python's threads."""
        table, _, steps = self._memory
        block, words = _Block(), self.words.steps
        threads = min(threads, self.words.block[B.MOST_THREADS])
        self._begin(table.ctypes.data, threads, places, block)
        first = steps.ctypes.data
        for start in range(0, len(words), B.STEP_FIELDS):
            count = threads if words[start + B.THREADS] else 1
            at = first + 8 * start
            teams.run_step(ctypes.addressof(block), at, words[start + B.TASKS], count)
