"""Programs with the addresses of their units, ready to run."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from functools import cache
from typing import Any

import numpy as np

from ... import native
from ...overlap import Places
from . import alias_check, teams, units
from . import block as B
from .program import Program
from .teams import ALONE


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
    """The compiled function for ``native.answer`` and ``native.copies``.

    It is ``enter.function`` as a built-in function of Python, whose first argument is the address
    of native.py's table.
    """
    native.known[native.TEAM] = id(teams.ready)
    method = _Method(b"answer", units.address(units.ENTRY), _FASTCALL, None)
    make = ctypes.PYFUNCTYPE(
        ctypes.py_object, ctypes.POINTER(_Method), ctypes.py_object, ctypes.py_object
    )(("PyCFunction_NewEx", ctypes.pythonapi))
    # The definition is passed as the function's module, so that it lives as long as the function.
    made: Callable[..., Any] = make(ctypes.byref(method), native.known.ctypes.data, method)
    return made


#: The value of ``given`` that makes the driver skip the alias check.
UNCHECKED = -1


class Runner:
    """A program with its units, ready for a call's tensors or for their addresses."""

    def __init__(self, program: Program, inputs: Places, outputs: Places) -> None:
        template = program.template()
        for field, unit in units.of_program(program).items():
            template[field] = units.address(unit)
        steps = np.zeros((len(program.steps), B.STEP_FIELDS), np.int64)
        for fields, step in zip(steps, program.steps, strict=True):
            for field, value in step.fields().items():
                fields[field] = value
            for field, unit in units.of_step(program, step).items():
                fields[field] = units.address(unit)
        self._parallel = bool(steps[:, B.THREADS].any())
        driver = units.address(units.DRIVER)
        aliases = alias_check.table(inputs, outputs, program.workspace_size)
        table = np.zeros(B.ENTRY_FIELDS, np.int64)
        self._arrays = template, steps, aliases, table
        for field, value in {
            B.E_DRIVE: driver,
            B.E_TEMPLATE: template.ctypes.data,
            B.E_STEPS: steps.ctypes.data,
            B.E_STEP_COUNT: len(steps),
            B.E_ALIASES: aliases.ctypes.data,
            B.E_PARALLEL: self._parallel,
            B.E_WORKSPACE: program.workspace_size,
            B.E_INPUTS: len(inputs),
            B.E_READS_DY: program.access.problem.input_is_grad_out,
            B.E_READS_X: all(place is None or place.slot != B.DY for place in inputs),
        }.items():
            table[field] = value
        for index, place in enumerate((*inputs, *outputs)):
            table[B.E_SLOTS + index] = -1 if place is None else place.slot
        self._table = table
        native.answer = native.copies = answer()
        #: ``native.answer`` for the plan that ``learn`` returned.
        self.enter = self._enter_in_a_team if self._parallel else answer()
        self._drive = ctypes.CFUNCTYPE(ctypes.c_int64, *[ctypes.c_int64] * 6)(driver)

    def run(self, addresses: Sequence[int]) -> None:
        """Compute on the addresses, in the block's order; the GIL is released."""
        places = np.array(addresses, np.int64)
        ready = teams.ready() if self._parallel else ALONE
        with teams.made() if ready is None else nullcontext(ready) as team:
            self._drive(self._table.ctypes.data, *team, UNCHECKED, 0, places.ctypes.data)

    def learn(
        self,
        tensors: tuple[Any, ...],
        results: tuple[Any, ...],
        makers: Sequence[tuple[Callable[[Any], Any], int] | None],
    ) -> native.Ready | None:
        """Store the signature of these tensors, which compiled code then accepts.

        Args:
            tensors, results: the operator's tensors and results, with None for absent ones.
            makers: for each result a function that makes it, and the index of the tensor that the
                function takes as its argument; None for absent results.

        Returns:
            The plan in the form that later calls use; None if compiled code cannot read the
            tensors.
        """
        key = answer()(None, tensors, results, ())
        if key is None:
            return None
        words = np.frombuffer(key, np.int64)
        self._table[B.E_WORDS : B.E_WORDS + len(words)] = words
        self._table[B.E_LENGTH] = len(words)
        for index, each in enumerate(makers):
            self._table[B.E_LIKES + index] = 0 if each is None else each[1]
        made = tuple([None if each is None else each[0] for each in makers])
        return self._table.ctypes.data, made, [None] * (len(made) + 1), self._arrays

    def _enter_in_a_team(self, *call: Any) -> Any:
        """Enter with this thread's team, which is made first if there is none."""
        team = teams.ready()
        if team is not None:
            return answer()(*call, team)
        with teams.made() as made:
            return answer()(*call, made)
