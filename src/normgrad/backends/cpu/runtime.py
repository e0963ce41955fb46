"""Programs with the addresses of their units, ready to run."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from contextlib import nullcontext, suppress
from functools import cache, partial
from typing import Any

import numpy as np
import numpy.typing as npt

from ... import devices, native, stacks
from ... import entries as E
from ...loading import KernelError
from ...overlap import Places
from . import block as B
from . import store, teams, units
from .program import ALIGNMENT, Program
from .teams import ALONE
from .tiling import is_small


class _Method(ctypes.Structure):
    """Python's PyMethodDef."""

    _fields_ = (
        ("name", ctypes.c_char_p),
        ("function", ctypes.c_void_p),
        ("flags", ctypes.c_int),
        ("doc", ctypes.c_char_p),
    )


#: METH_FASTCALL: the function takes its arguments as an array.
_FASTCALL = 0x80


@cache
def answer() -> Callable[..., Any]:
    """The compiled function for ``native.answer``, ``native.copies`` and ``native.add_one``.

    It is ``enter.function`` as a built-in function of Python, whose first argument is the address
    of native.py's table; or ``native.nothing_known`` if it could not read this Python's objects.
    """
    if not native.known[native.TUPLE]:
        return native.nothing_known
    native.known[native.TEAM] = id(teams.ready)
    address = store.addresses([units.ENTRY])[units.ENTRY]
    method = _Method(b"answer", address, _FASTCALL, None)
    make = ctypes.PYFUNCTYPE(
        ctypes.py_object, ctypes.POINTER(_Method), ctypes.py_object, ctypes.py_object
    )(("PyCFunction_NewEx", ctypes.pythonapi))
    # The definition is passed as the function's module, so that it lives as long as the function.
    made: Callable[..., Any] = make(ctypes.byref(method), native.known.ctypes.data, method)
    return made


def take_calls() -> None:
    """Have compiled code answer calls from now on, if it does not yet."""
    if native.answer is native.nothing_known:
        native.answer = native.copies = native.add_one = answer()


def launch() -> int:
    """The address of the compiled function that runs plans of other backends.

    It is 0 if nothing can be compiled; Python then reads the calls of these plans.
    """
    with suppress(KernelError):
        take_calls()
        return store.addresses([units.LAUNCH])[units.LAUNCH]
    return 0


#: The type of the driver, ``drive.drive``.
_Drive = ctypes.CFUNCTYPE(ctypes.c_int64, *[ctypes.c_int64] * 4)


class Runner(E.Entry):
    """A program with its units, ready for a call's tensors or for their addresses."""

    def __init__(self, program: Program, inputs: Places, outputs: Places) -> None:
        addresses = store.addresses(units.needed(program))
        template = program.template()
        for field, unit in units.of_program(program).items():
            template[field] = addresses[unit]
        template[B.STACK_KEY : B.STACK_GETTER + 1] = stacks.key()
        steps = np.zeros((len(program.steps), B.STEP_FIELDS), np.int64)
        for fields, step in zip(steps, program.steps, strict=True):
            for field, value in step.fields().items():
                fields[field] = value
            for field, unit in units.of_step(program, step).items():
                fields[field] = addresses[unit]
        self._parallel = bool(steps[:, B.THREADS].any())
        driver = addresses[units.DRIVER]
        described = {
            E.DRIVE: driver,
            E.TEMPLATE: template.ctypes.data,
            E.STEPS: steps.ctypes.data,
            E.STEP_COUNT: len(steps),
            E.PARALLEL: self._parallel,
            E.BRIEF: is_small(program.access) and not self._parallel,
        }
        super().__init__(
            inputs,
            outputs,
            devices.CPU,
            program.workspace_size,
            ALIGNMENT,
            described,
            kept=(template, steps),
        )
        take_calls()
        self.enter = self._enter_in_a_team if self._parallel else answer()
        self._drive = _Drive(driver)

    def run(self, addresses: Sequence[int]) -> None:
        """Compute on the addresses, in the block's order; the GIL is released."""
        places = np.array(addresses, np.int64)
        ready = teams.ready() if self._parallel else ALONE
        with teams.made() if ready is None else nullcontext(ready) as team:
            if self._drive(self.table.ctypes.data, *team, places.ctypes.data) == 0:
                return
            stacks.learn()  # perhaps it is this thread's first call
            if self._drive(self.table.ctypes.data, *team, places.ctypes.data) == 0:
                return
        stacks.elsewhere(partial(self._run_alone, places))

    def _run_alone(self, places: npt.NDArray[np.int64]) -> None:
        """Compute on a new thread, which has a large stack, and no team of its own."""
        stacks.learn()
        self._drive(self.table.ctypes.data, *ALONE, places.ctypes.data)

    def _enter_in_a_team(self, *call: Any) -> Any:
        """Enter with this thread's team, which is made first if there is none."""
        team = teams.ready()
        if team is not None:
            return answer()(*call, team)
        with teams.made() as made:
            return answer()(*call, made)
