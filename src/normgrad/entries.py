"""Entry tables: what compiled code needs to run a plan on a call's Python objects.

Compiled code (``enter.py`` of the CPU backend) compares the signature of a call's tensors with the
table's, makes the results, and calls the table's DRIVE with the tensors' addresses. For the CPU
backend that is compiled code too; for a backend that launches kernels from Python it is a function
of Python.
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

# The fields of a table, which are int64: the driver and what it runs; whether it wants a team of
# threads; the device, as in DLPack, and the bytes and alignment of the workspace; the number of
# inputs, and whether the driver reads one of dy and x as both. LENGTH counts the WORDS used.
(
    DRIVE, TEMPLATE, STEPS, STEP_COUNT, ALIASES, PARALLEL,
    DEVICE, WORKSPACE_SIZE, ALIGNMENT,
    INPUTS, READS_DY, READS_X, LENGTH,
    SLOTS,
) = range(14)  # fmt: skip
# SLOTS has the place of each input and result among the addresses, LIKES the input that is the
# model for each new result, and PROBED the addresses of the caller's outputs and of the workspace
# that the last call found writable. WORDS is the signature of all tensors.
ENTRIES_MAX, WORDS_MAX = 16, 320
LIKES = SLOTS + ENTRIES_MAX
PROBED = LIKES + ENTRIES_MAX
WORDS = PROBED + ENTRIES_MAX + 1
FIELDS = WORDS + WORDS_MAX

#: The parameters of DRIVE: the table's address, a team and its number of threads, the outputs that
#: are the caller's and those of them to be probed, both as bits, and the address of the addresses.
#: It returns 0, or 1 if it did nothing, and Python has to handle the call.
Drive = ctypes.CFUNCTYPE(ctypes.c_int64, *[ctypes.c_int64] * 6)


class Entry:
    """A plan's entry table.

    Attributes:
        table: the table.
        enter: ``native.answer`` for the plan that :meth:`learn` returned.
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
    """A plan's entry table for a backend that a function of Python runs."""

    def __init__(
        self,
        run: Callable[[Sequence[int]], None],
        inputs: Places,
        outputs: Places,
        device: str,
        workspace_size: int,
        alignment: int,
    ) -> None:
        """Make the table; ``run`` computes on addresses in the order of :class:`.problem.Role`."""
        self._run, self._interrupted = run, False
        self.enter = native.answer
        self._device, self._size, self._alignment = device, workspace_size, alignment
        self._drive = Drive(self._called)
        fields = {
            DRIVE: ctypes.cast(self._drive, ctypes.c_void_p).value or 0,
            WORKSPACE_SIZE: workspace_size,
            ALIGNMENT: alignment,
        }
        super().__init__(inputs, outputs, device, fields)
        everyone = [place for place in (*inputs, *outputs) if place and place.low < place.high]
        rows = [(place.slot, place.low, place.high) for place in everyone]
        if workspace_size:
            rows.append((WORKSPACE, 0, used(workspace_size, alignment)))
        shared = {
            output.slot: [place.slot for place in everyone if output.may_be(place)]
            for output in outputs
            if output
        }
        shared[WORKSPACE] = []
        # For all that a call may write: its first offset and one past the last, and the other
        # memory, with which it must not share a byte: its slot, its offsets, and whether it may
        # have the same address.
        self._apart = {
            slot: (low, high, [(*row, row[0] in shared[slot]) for row in rows if row[0] != slot])
            for slot, low, high in rows
            if slot in shared
        }

    def run(self, addresses: Sequence[int]) -> None:
        """Compute on the addresses, on behalf of a call that Python handles."""
        interrupted, self._interrupted = self._interrupted, False
        if interrupted:
            raise KeyboardInterrupt
        self._run(addresses)

    def _called(
        self, table: int, team: int, threads: int, given: int, unprobed: int, places: int
    ) -> int:
        """Run the plan on addresses; Python's own way raises the errors of calls refused here."""
        try:
            addresses = (ctypes.c_int64 * PLACES).from_address(places)[:]
            # A GPU's memory is always writable; the CPU's may have to be probed.
            if self._device == devices.CPU and unprobed:
                return 1
            owner = None
            if self._size and not addresses[WORKSPACE]:
                addresses[WORKSPACE], owner = scratch(
                    self._size, self._alignment, None, self._device
                )
            if given and not self._are_apart(given, addresses):
                return 1
            self._run(addresses)
            del owner
        except KeyboardInterrupt:  # ctypes would drop it
            self._interrupted = True
            return 1
        except Exception:
            return 1
        return 0

    def _are_apart(self, given: int, addresses: Sequence[int]) -> bool:
        """Whether the caller's outputs share no byte with other memory, but for allowed inputs.

        A view counts as all bytes from its first to its last.
        """
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
