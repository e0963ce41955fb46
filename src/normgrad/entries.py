"""Entry tables: what compiled code needs to run a plan on a call's Python objects.

Compiled code (``enter.py`` of the CPU backend) compares the signature of a call's tensors with the
table's, makes the results, checks the tensors' memory, and runs the plan on their addresses: by the
compiled driver of the CPU backend, by launches of a GPU's kernels, or by a function of Python.
"""

from __future__ import annotations

import ctypes
import mmap
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from . import devices, native, pages
from .overlap import Places, used
from .problem import PLACES, WORKSPACE, Role
from .workspaces import model

# The fields of a table, which are int64.
# What the plan consists of: the address of the compiled driver, or of CUDA's function for launches;
# its steps, or launches. Of launches also the alignment that they are for, CUDA's function for the
# current device, the objects that tell its stream, a function and its argument, and the object that
# has Triton's hooks. These fields are written at once, since any thread may read them.
# Of a compiled driver, the template of its block, and whether it wants a team of threads, or is so
# brief that it runs with the GIL.
# Of a plan that another backend computes, the addresses of the compiled function that runs it and
# of a function of Python's that does the same, and the objects that make a workspace, a function
# and its argument.
# The device, as in DLPack, and the bytes and alignment of the workspace; the number of inputs, and
# whether one of dy and x is read as both. For the alias check, the addresses of madvise(2) and
# msync(2), or 0, and the size of a page. LENGTH counts the WORDS used, of which those of results
# start at RESULTS.
(
    DRIVE, STEPS, STEP_COUNT, ALIGNED, CURRENT_DEVICE, STREAM_OF, ORDINAL, HOOKED,
    TEMPLATE, PARALLEL, BRIEF,
    RUN, FUNCTION, MAKER, MODEL,
    DEVICE, WORKSPACE_SIZE, ALIGNMENT, INPUTS, READS_DY, READS_X,
    MADVISE, MSYNC, PAGE, LENGTH, RESULTS,
    SLOTS,
) = range(27)  # fmt: skip
# SLOTS has the place of each input and result among the addresses, LIKES the input that is the
# model for each new result, MADE whether compiled code may make it by itself, and PROBED the
# addresses of the caller's outputs and workspaces that earlier calls found writable: SEATS
# addresses for each result and for the workspace, since layers of one shape share a plan. WORDS is
# the signature of all tensors. ALIASES has the fields of the alias check for each address.
ENTRIES_MAX, WORDS_MAX, SEATS = 16, 320, 16
LIKES = SLOTS + ENTRIES_MAX
MADE = LIKES + ENTRIES_MAX
PROBED = MADE + ENTRIES_MAX
WORDS = PROBED + SEATS * (ENTRIES_MAX + 1)
ALIASES = WORDS + WORDS_MAX
# The fields of the alias check: the offsets of a tensor's first byte and of one past the last from
# the address; flags, which say whether there is any byte and, from the second bit on, which outputs
# may be this input's very memory; and the bits that must be 0 in the address.
LOW, HIGH, FLAGS, ASKEW, ALIAS_FIELDS = range(5)
HAS_BYTES, MAY_BE = 1, 1
FIELDS = ALIASES + ALIAS_FIELDS * PLACES
# A launch: the driver's CUlaunchConfig, of which the first fields are the launch's and
# CONFIG_STREAM is the call's; the kernel's handle; and the parameters after the addresses.
CONFIG_STREAM, CONFIG_FIELDS = 4, 7
KERNEL, CONSTANT_COUNT, CONSTANTS = range(CONFIG_STREAM, CONFIG_STREAM + 3)
PARAMETERS_MAX = 160
LAUNCH_FIELDS = CONSTANTS + PARAMETERS_MAX
#: The number of the lowest bits of dy's, x's and dx's addresses that kernels are compiled for.
ALIGNED_BITS = 4


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
        workspace_size: int,
        alignment: int,
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
        table[WORKSPACE_SIZE], table[ALIGNMENT] = workspace_size, alignment
        table[PAGE] = mmap.PAGESIZE
        on_gpu = device != devices.CPU
        if on_gpu:  # whose memory can always be written
            table[DEVICE] = native.CUDA | devices.index_of(device) << 32
        else:
            table[DEVICE] = native.CPU
            table[MADVISE], table[MSYNC] = pages.probe_addresses()
        aliases = table[ALIASES:].reshape(PLACES, ALIAS_FIELDS)
        for place in (*inputs, *outputs):
            if place is not None and place.low < place.high:
                askew = place.spec.dtype.itemsize - 1 if on_gpu else 0
                flags = sum(
                    1 << output.slot for output in outputs if output and output.may_be(place)
                )
                aliases[place.slot] = place.low, place.high, HAS_BYTES | flags << MAY_BE, askew
        if workspace_size:
            aliases[WORKSPACE] = 0, used(workspace_size, alignment), HAS_BYTES, 0
        for field, value in fields.items():
            table[field] = value

    def learn(
        self,
        tensors: tuple[Any, ...],
        results: tuple[Any, ...],
        makers: Sequence[tuple[Callable[[Any], Any] | None, int, bool]],
    ) -> native.Ready | None:
        """Store the signature of these tensors, which compiled code then accepts.

        Args:
            tensors, results: the operator's tensors and results, with None for absent ones.
            makers: for each result a function that makes it, or None if the result is absent; the
                index of the tensor that the function takes as its argument; and whether compiled
                code may make the result by itself.

        Returns:
            The plan in the form that later calls use; None if compiled code cannot read the
            tensors.
        """
        key, of_inputs = (native.answer(None, tensors, out, ()) for out in (results, ()))
        if key is None or of_inputs is None:
            return None
        words = np.frombuffer(key, np.int64)
        self.table[WORDS : WORDS + len(words)] = words
        self.table[LENGTH], self.table[RESULTS] = len(words), len(of_inputs) // words.itemsize
        made, likes, plain = zip(*makers, strict=True)
        self.table[LIKES : LIKES + len(likes)] = likes
        self.table[MADE : MADE + len(plain)] = plain
        return self.table.ctypes.data, made, [None] * (SEATS * (len(made) + 1)), self


class PythonRunner(Entry):
    """A plan's entry table for a backend of Python's.

    Compiled code makes the launches that the table has; for all else it calls :meth:`answer`.
    """

    def __init__(
        self,
        inputs: Places,
        outputs: Places,
        device: str,
        workspace_size: int,
        alignment: int,
        compiled_run: int,
    ) -> None:
        """Make the table for tensors at these places; see RUN for ``compiled_run``."""
        self.enter = native.answer
        self._device = device
        self._function = self.answer  # the table has the addresses of these objects
        self._model: tuple[Any, Any] | None = None
        fields = {RUN: compiled_run, FUNCTION: id(self._function)}
        super().__init__(inputs, outputs, device, workspace_size, alignment, fields)

    def learn(self, *call: Any) -> native.Ready | None:
        """As :meth:`Entry.learn`; None also if nothing compiled can run the plan."""
        ready = super().learn(*call) if self.table[RUN] else None
        size = int(self.table[WORKSPACE_SIZE])
        if ready is not None and size and self._model is None:
            self._model = model(size, self._device)
            self.table[MAKER], self.table[MODEL] = map(id, self._model)
        return ready

    def run(self, addresses: Sequence[int], done: int = 0) -> None:
        """Compute on addresses in the order of :class:`.problem.Role`, from a step on."""
        raise NotImplementedError

    def answer(self, places: int, done: int) -> Exception | None:
        """Run the plan for compiled code, which has recognised and checked a call.

        Args:
            places: the address of the tensors' and the workspace's addresses.
            done: the number of steps that compiled code has run.

        Returns:
            None if the plan ran, or the exception that it raised.
        """
        addresses = (ctypes.c_int64 * PLACES).from_address(places)[:]
        try:
            self.run(addresses, done)
        except Exception as error:  # a run that failed may have written, and is not repeated
            return error
        return None
