"""Entry tables: what compiled code needs to run a plan on a call's Python objects.

Compiled code (``enter.py`` of the CPU backend) compares the signature of a call's tensors with the
table's, makes the results, and runs the plan on the tensors' addresses: by the compiled driver of
the CPU backend, or by a function of Python for a backend that launches its kernels from Python.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from . import devices, native
from .overlap import Places, used
from .problem import PLACES, WORKSPACE, Role
from .workspaces import scratch

# The fields of a table, which are int64: the address of the compiled driver, and what it runs;
# whether it wants a team of threads; or the address of a function of Python's, else 0; the device,
# as in DLPack, and the bytes and alignment of the workspace; the number of inputs, and whether one
# of dy and x is read as both. LENGTH counts the WORDS used.
(
    DRIVE, TEMPLATE, STEPS, STEP_COUNT, ALIASES, PARALLEL,
    FUNCTION, DEVICE, WORKSPACE_SIZE, ALIGNMENT,
    INPUTS, READS_DY, READS_X, LENGTH,
    SLOTS,
) = range(15)  # fmt: skip
# SLOTS has the place of each input and result among the addresses, LIKES the input that is the
# model for each new result, and PROBED the addresses of the caller's outputs and of the workspace
# that the last call found writable. WORDS is the signature of all tensors.
ENTRIES_MAX, WORDS_MAX = 16, 320
LIKES = SLOTS + ENTRIES_MAX
PROBED = LIKES + ENTRIES_MAX
WORDS = PROBED + ENTRIES_MAX + 1
FIELDS = WORDS + WORDS_MAX


class Entry:
    """A plan's entry table.

    Attributes:
        table: the table.
        enter: the compiled function that :meth:`.Plan.run` calls: ``native.answer``, or one that
            prepares for it.
    """

    enter: Callable[..., Any]

    def __init__(
        self,
        inputs: Places,
        outputs: Places,
        device: str,
        fields: Mapping[int, int],
        kept: Any = None,
    ) -> None:
        """Make the table for tensors at these places; ``fields`` may point to what ``kept`` has."""
        self._kept = kept
        self.table = table = np.zeros(FIELDS, np.int64)
        slots = [-1 if place is None else place.slot for place in (*inputs, *outputs)]
        table[SLOTS : SLOTS + len(slots)] = slots
        read = slots[: len(inputs)]
        table[INPUTS] = len(inputs)
        table[READS_DY] = Role.INPUT not in read
        table[READS_X] = Role.GRAD_OUT not in read
        table[DEVICE] = native.CPU
        if device != devices.CPU:
            table[DEVICE] = native.CUDA | devices.index_of(device) << 32
        for field, value in fields.items():
            table[field] = value

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
        key = native.answer(None, tensors, results, ())
        if key is None:
            return None
        words = np.frombuffer(key, np.int64)
        self.table[WORDS : WORDS + len(words)] = words
        self.table[LENGTH] = len(words)
        for index, each in enumerate(makers):
            self.table[LIKES + index] = 0 if each is None else each[1]
        made = tuple([None if each is None else each[0] for each in makers])
        return self.table.ctypes.data, made, [None] * (len(made) + 1), self


class PythonRunner(Entry):
    """A plan's entry table for a backend that a function of Python runs.

    Attributes:
        run: computes on addresses in the order of :class:`.problem.Role`.
    """

    def __init__(
        self,
        run: Callable[[Sequence[int]], None],
        inputs: Places,
        outputs: Places,
        device: str,
        workspace_size: int,
        alignment: int,
    ) -> None:
        """Make the table for tensors at these places."""
        self.run = run
        self.enter = native.answer
        self._device, self._size, self._alignment = device, workspace_size, alignment
        self._function = self.answer  # the table has its address
        fields = {
            FUNCTION: id(self._function),
            WORKSPACE_SIZE: workspace_size,
            ALIGNMENT: alignment,
        }
        super().__init__(inputs, outputs, device, fields)
        on_gpu = device != devices.CPU
        everyone = [place for place in (*inputs, *outputs) if place and place.low < place.high]
        #: The tensors that have bytes, and what their addresses must be multiples of.
        self._units = [
            (place.slot, place.spec.dtype.itemsize if on_gpu else 1) for place in everyone
        ]
        rows = [(place.slot, place.low, place.high) for place in everyone]
        if workspace_size:
            rows.append((WORKSPACE, 0, used(workspace_size, alignment)))
        shared = {
            output.slot: [place.slot for place in everyone if output.may_be(place)]
            for output in outputs
            if output
        }
        shared[WORKSPACE] = []
        #: For all that a call may write: its first offset and one past the last, and the other
        #: memory, with which it must not share a byte: its slot, its offsets, and whether it may
        #: have the same address.
        self._apart = {
            slot: (low, high, [(*row, row[0] in shared[slot]) for row in rows if row[0] != slot])
            for slot, low, high in rows
            if slot in shared
        }

    def answer(self, places: int, given: int, unprobed: int) -> Exception | bool | None:
        """Run the plan for compiled code, which has recognised a call.

        Args:
            places: the address of the tensors' addresses.
            given: a bit for each output, and for the workspace, that is the caller's.
            unprobed: a bit for each of these that may lie in read-only memory.

        Returns:
            None if the plan ran; the exception that it raised; or False if nothing was done, and
            the call needs the exact checks in Python, which raise the errors for bad memory.
        """
        addresses = (ctypes.c_int64 * PLACES).from_address(places)[:]
        # A GPU's memory can always be written.
        if (unprobed and self._device == devices.CPU) or not self._is_usable(given, addresses):
            return False
        owner = None
        try:
            if self._size and not addresses[WORKSPACE]:
                size, alignment = self._size, self._alignment
                addresses[WORKSPACE], owner = scratch(size, alignment, None, self._device)
            self.run(addresses)
        except Exception as error:  # a run that failed may have written, and is not repeated
            return error
        del owner  # it has to live until the kernels are launched
        return None

    def _is_usable(self, given: int, addresses: Sequence[int]) -> bool:
        """Whether tensors have memory, and the caller's outputs share no byte that they must not.

        A view counts as all bytes from its first to its last.
        """
        for slot, unit in self._units:
            if addresses[slot] == 0 or addresses[slot] % unit:
                return False
        for slot, (low, high, others) in self._apart.items():
            if not given >> slot & 1:
                continue
            address = addresses[slot]
            first, end = address + low, address + high
            for other, from_, to, may_be in others:
                elsewhere = addresses[other]
                if (
                    first < elsewhere + to
                    and elsewhere + from_ < end
                    and not (may_be and address == elsewhere)
                ):
                    return False
        return True
