"""Schedules with the addresses of their units, ready to run."""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Sequence
from functools import partial

import numpy as np

from ... import stacks
from ...problem import PLACES
from .. import NativeSchedule
from . import block as B
from . import store, teams, units
from .schedule import Schedule
from .teams import ALONE, Team

#: The type of the driver, ``drive.drive``; the GIL is released while it runs.
_Drive = ctypes.CFUNCTYPE(
    ctypes.c_int64, ctypes.c_int64, ctypes.c_int64, ctypes.c_int64, ctypes.c_char_p
)
_places = struct.Struct(f"{PLACES}Q").pack


class Runner:
    """A schedule with its units, ready to run on addresses.

    Attributes:
        driver: the address of the driver.
        template: the block without the addresses of tensors.
        steps: the steps, one after the other.
        table: the driver's table, which has the addresses of ``template`` and ``steps``.
        parallel: whether the schedule wants a team of threads.
    """

    def __init__(self, schedule: Schedule) -> None:
        addresses = store.addresses(units.needed(schedule))
        self.driver = addresses[units.DRIVER]
        self.template = schedule.template()
        for field, unit in units.of_schedule(schedule).items():
            self.template[field] = addresses[unit]
        self.template[B.STACK_KEY : B.STACK_GETTER + 1] = stacks.KEY
        self.steps = np.zeros((len(schedule.steps), B.STEP_FIELDS), np.int64)
        for fields, step in zip(self.steps, schedule.steps, strict=True):
            for field, value in step.fields().items():
                fields[field] = value
            for field, unit in units.of_step(schedule, step).items():
                fields[field] = addresses[unit]
        self.parallel = bool(self.steps[:, B.THREADS].any())
        self.table = np.zeros(B.TABLE_FIELDS, np.int64)
        self.table[B.TEMPLATE] = self.template.ctypes.data
        self.table[B.STEPS] = self.steps.ctypes.data
        self.table[B.STEP_COUNT] = len(self.steps)
        self._drive = partial(_Drive(self.driver), self.table.ctypes.data)

    def native(self, addresses: Sequence[int]) -> NativeSchedule:
        """The schedule for code that runs it without Python; it is the same for all addresses."""
        return NativeSchedule(self.template, self.steps, driver=self.driver, parallel=self.parallel)

    def run(self, addresses: Sequence[int]) -> None:
        """Compute on the addresses, in the block's order."""
        places = _places(*addresses)
        is_done = self._is_done(teams.ready() if self.parallel else ALONE, places)
        if not is_done and not stacks.elsewhere(partial(self._is_done, ALONE, places)):
            raise MemoryError("stack: no room for kernels, even on a new thread; allowed: 8 MiB")

    def _is_done(self, team: Team, places: bytes) -> bool:
        """Call the driver; the result is False, with nothing done, if the stack has no room."""
        if self._drive(*team, places) == 0:
            return True
        stacks.learn()  # perhaps it is this thread's first call
        return bool(self._drive(*team, places) == 0)
