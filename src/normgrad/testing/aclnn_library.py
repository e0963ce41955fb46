"""aclnn's two phases, through a library's C functions or our own, with tensors in device memory."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from ctypes import c_bool, c_int64, c_uint64, c_void_p
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from .. import aclnn
from ..aclnn import products
from ..capi.enums import aclError, aclrtMemcpyKind, aclrtMemMallocPolicy, aclSysParamOpt
from .c_functions import Dialect, Functions, LibrarySubject, RefusedError
from .outcomes import Outcome
from .subjects import OTHER_BITS, NotOfferedError, SubjectError
from .tensors import Array
from .watched import GUARD, Watched

OPERATORS = (products.BATCH_NORM, products.REDUCE, products.ELEMT, products.GROUP_NORM)
_PHASE_1 = "GetWorkspaceSize"

ACLNN = Dialect(
    "aclnn",
    tuple(f"{operator}{_PHASE_1}" for operator in OPERATORS),
    (
        *("aclCreateTensor", "aclDestroyTensor", "aclCreateBoolArray", "aclDestroyBoolArray"),
        *("aclInit", "aclrtSetDevice", "aclrtCreateStream", "aclrtSynchronizeStream"),
        *("aclrtMalloc", "aclrtFree", "aclrtMemcpy"),
    ),
    ("libascendcl.so", "libnnopbase.so"),
    ("opapi", "nnopbase", "ascendcl"),
)


@dataclass
class Tensor:
    """A tensor: its values, and what is said of it.

    Attributes:
        array: its values, in host memory that is copied to the device as a whole.
        dims, strides: of the view, strides in elements; None for a null pointer.
        dtype, format: the numbers of its dtype and format.
    """

    array: Array
    dims: tuple[int, ...]
    strides: tuple[int, ...] | None
    dtype: int
    format: int


#: A tensor, a mask, a number, or None for a null pointer.
Argument = Tensor | tuple[bool, ...] | bool | int | float | None


@dataclass
class Request:
    """A call of an operator, described: all that is done, and what is done wrong.

    Attributes:
        operator: without ``GetWorkspaceSize``.
        arguments: of phase 1, in its order, without the pointers to its results.
        written: the tensors that are written to.
        null: what else is null: "workspaceSize" or "executor" (phase 1's pointers to its results),
            "executor in phase 2" or "workspace".
        destroyed: what is destroyed before it is used: an argument's name, or "executor".
        destroyed_between: tensors that are, between the phases.
        bytes_missing: of the workspace.
        phase_2: whose phase 2 is called.
        computes: whether there is a phase 2.
        used_again: whether the executor is, though it is used up.
        runs: more than 1 for a repeatable executor.
    """

    operator: str
    arguments: dict[str, Argument]
    written: tuple[str, ...]
    null: set[str] = field(default_factory=set)
    destroyed: set[str] = field(default_factory=set)
    destroyed_between: set[str] = field(default_factory=set)
    bytes_missing: int = 0
    phase_2: str = ""
    computes: bool = True
    used_again: bool = False
    runs: int = 1

    @property
    def tensors(self) -> dict[str, Tensor]:
        """The tensors among the arguments."""
        return {name: each for name, each in self.arguments.items() if isinstance(each, Tensor)}

    @property
    def inputs(self) -> list[Array]:
        """The values of what is not written to."""
        return [each.array for name, each in self.tensors.items() if name not in self.written]


def names_of(operator: str) -> tuple[str, ...]:
    """Phase 1's arguments, without the pointers to its results."""
    function = ACLNN.functions[f"{operator}{_PHASE_1}"]
    return tuple(name for _, name in function.parameters[:-2])


def initialise(functions: Functions) -> None:
    """What a program does at its start.

    Raises:
        RefusedError: it cannot be done.
    """
    try:
        functions.call("aclInit", None)
    except RefusedError as error:
        if error.status != aclError.ACL_ERROR_REPEAT_INITIALIZE.name:
            raise


def started(functions: Functions) -> int | None:
    """What a program does before it computes, in the process that computes: a new stream.

    Raises:
        RefusedError: it cannot be done.
    """
    functions.call("aclrtSetDevice", 0)
    if "aclrtCtxSetSysParamOpt" in functions:  # some devices add in any order unless asked
        functions.ask("aclrtCtxSetSysParamOpt", aclSysParamOpt.ACL_OPT_DETERMINISTIC, 1)
    stream = c_void_p()
    functions.call("aclrtCreateStream", ctypes.addressof(stream))
    return stream.value


def perform(functions: Functions, stream: int | None, request: Request) -> Outcome:
    """Do what is described."""
    sequence = _Sequence(functions, request, stream)
    error = None
    try:
        sequence.run()
    except NotOfferedError as reason:
        return Outcome(absent=str(reason))
    except RefusedError as refused:
        error = refused.status, str(refused)
    finally:
        sequence.end()
    return Outcome({} if error else sequence.outputs, error, faults=tuple(sequence.faults))


class _Block:
    """Device memory; ``size`` bytes at ``address``."""

    def __init__(self, functions: Functions, values: Array) -> None:
        self._functions = functions
        self.size = values.size
        address = c_void_p()
        policy = aclrtMemMallocPolicy.ACL_MEM_MALLOC_HUGE_FIRST
        functions.call("aclrtMalloc", ctypes.addressof(address), self.size, policy)
        self.address = address.value or 0
        self._copy(self.address, values.ctypes.data, aclrtMemcpyKind.ACL_MEMCPY_HOST_TO_DEVICE)

    def _copy(self, to: int, source: int, kind: int) -> None:
        self._functions.call("aclrtMemcpy", to, self.size, source, self.size, kind)

    def bytes(self) -> Array:
        """What is in it now."""
        values = np.empty(self.size, np.uint8)
        self._copy(values.ctypes.data, self.address, aclrtMemcpyKind.ACL_MEMCPY_DEVICE_TO_HOST)
        return values

    def free(self) -> None:
        self._functions.ask("aclrtFree", self.address)


class _Sequence:
    """One call: its memory, its handles and its two phases.

    Attributes:
        outputs: once it has run, by name.
        faults: what was done that must not be.
    """

    def __init__(self, functions: Functions, request: Request, stream: int | None) -> None:
        self._functions = functions
        self._request = request
        self._stream = stream
        self._blocks: list[_Block] = []
        self._memory: dict[str, tuple[Watched, _Block]] = {}
        self._living: dict[int, str] = {}  # what is to be destroyed, and by what
        self.outputs: dict[str, Array] = {}
        self.faults: list[str] = []

    def run(self) -> None:
        """All of it.

        Raises:
            RefusedError: a function returned another status than success, or no handle.
            NotOfferedError: there is no such operator, or nothing to be wrong with.
        """
        request = self._request
        phase_2 = request.phase_2 or request.operator
        for name in (f"{request.operator}{_PHASE_1}", phase_2):
            if name not in self._functions:
                raise NotOfferedError(f"no {name}")
        self._fill()
        try:
            self._phases()
        except RefusedError:
            self._check(request.written if request.used_again else ())
            raise
        self._check(request.written)
        self.outputs = self._read()

    def end(self) -> None:
        """Destroy and free what is left."""
        for handle, destroyer in reversed(self._living.items()):
            self._functions.ask(destroyer, handle)
        for block in self._blocks:
            block.free()

    def _fill(self) -> None:
        """Each tensor's memory; those of one array share theirs."""
        made: dict[int, tuple[Watched, _Block]] = {}
        for name, tensor in self._request.tensors.items():
            key = id(tensor.array)
            if key not in made:
                memory = Watched(tensor.array)
                made[key] = memory, self._block(memory.bytes())
            self._memory[name] = made[key]

    def _block(self, values: Array) -> _Block:
        block = _Block(self._functions, values)
        self._blocks.append(block)
        return block

    def _read(self) -> dict[str, Array]:
        """The outputs as they are now."""
        found = {}
        for name in self._request.written:
            watched, block = self._memory[name]
            found[name] = watched.view(block.bytes()).copy().view(watched.value.dtype)
        return found

    def _check(self, written: Sequence[str]) -> None:
        """That nothing else was written to."""
        arrays = [self._request.tensors[name].array for name in written]
        for name, (watched, block) in self._memory.items():
            is_output = any(watched.value is each for each in arrays)
            fault = watched.fault(is_output, block.bytes())
            if fault:
                self.faults.append(f"{name}: {fault}")

    def _phases(self) -> None:
        request, functions = self._request, self._functions
        handles = {name: self._handle(name, value) for name, value in request.arguments.items()}
        size, executor = c_uint64(), c_void_p()
        functions.call(
            f"{request.operator}{_PHASE_1}",
            *handles.values(),
            None if "workspaceSize" in request.null else ctypes.addressof(size),
            None if "executor" in request.null else ctypes.addressof(executor),
        )
        if request.computes:
            if request.runs > 1 or "executor" in request.destroyed:
                self._make_repeatable(executor.value)
            for name in request.destroyed_between:
                self._destroy(handles[name])
            self._compute(executor.value, size.value)
        for handle in tuple(self._living):
            self._destroy(handle)

    def _make_repeatable(self, executor: int | None) -> None:
        for name in ("aclSetAclOpExecutorRepeatable", "aclDestroyAclOpExecutor"):
            if name not in self._functions:
                raise NotOfferedError(f"no {name}")
        self._functions.call("aclSetAclOpExecutorRepeatable", executor)
        assert executor is not None
        self._living[executor] = "aclDestroyAclOpExecutor"
        if "executor" in self._request.destroyed:
            self._destroy(executor)

    def _compute(self, executor: int | None, size: int) -> None:
        request, functions = self._request, self._functions
        if size == 0 and (request.bytes_missing or "workspace" in request.null):
            raise NotOfferedError("it needs no workspace")
        scratch, workspace = None, None
        if size:
            scratch = self._block(np.full(size + 2 * GUARD, 0xFF, np.uint8))
            workspace = None if "workspace" in request.null else scratch.address + GUARD
        given = None if "executor in phase 2" in request.null else executor
        name = request.phase_2 or request.operator
        try:
            for _ in range(2 if request.used_again else request.runs):
                functions.call(name, workspace, size - request.bytes_missing, given, self._stream)
                functions.call("aclrtSynchronizeStream", self._stream)
                if request.runs > 1:
                    self._compare()
        finally:  # refused or not
            if scratch is not None:
                now = scratch.bytes()
                if (now[:GUARD] != 0xFF).any() or (now[GUARD + size :] != 0xFF).any():
                    self.faults.append("workspace: written beside")

    def _compare(self) -> None:
        """What the executor computed with what it computed before."""
        before, self.outputs = self.outputs, self._read()
        for name, value in before.items():
            if value.tobytes() != self.outputs[name].tobytes():
                self.faults.append(f"{name}: {OTHER_BITS} when the executor runs again")

    def _handle(self, name: str, value: Argument) -> Any:
        """An argument as phase 1 takes it."""
        if isinstance(value, Tensor):
            handle = self._tensor(value, *self._memory[name])
        elif isinstance(value, tuple):
            entries = (c_bool * len(value))(*value)
            handle = self._made(
                "aclCreateBoolArray", "aclDestroyBoolArray", ctypes.addressof(entries), len(value)
            )
        else:
            return value
        if name in self._request.destroyed:
            self._destroy(handle)
        return handle

    def _tensor(self, tensor: Tensor, watched: Watched, block: _Block) -> int:
        """A contiguous tensor by its own address, a view by its storage's and an offset."""
        start, offset, storage = watched.start, 0, tensor.dims
        if not tensor.array.flags.c_contiguous:
            itemsize = tensor.array.itemsize
            offset, start = start // itemsize, 0
            storage = (block.size // itemsize,)
        dims = (c_int64 * len(tensor.dims))(*tensor.dims)
        steps = (c_int64 * len(tensor.dims))(*tensor.strides or [0] * len(tensor.dims))
        sizes = (c_int64 * len(storage))(*storage)
        return self._made(
            "aclCreateTensor",
            "aclDestroyTensor",
            ctypes.addressof(dims),
            len(tensor.dims),
            tensor.dtype,
            None if tensor.strides is None else ctypes.addressof(steps),
            offset,
            tensor.format,
            ctypes.addressof(sizes),
            len(storage),
            block.address + start,
        )

    def _made(self, creator: str, destroyer: str, *arguments: Any) -> int:
        handle: int | None = self._functions.ask(creator, *arguments)
        if not handle:
            raise RefusedError("null", creator, self._functions.last_error())
        self._living[handle] = destroyer
        return handle

    def _destroy(self, handle: int) -> None:
        self._functions.call(self._living.pop(handle), handle)


class AclnnLibrary(LibrarySubject):
    """A libopapi, with what belongs to it.

    Raises:
        SubjectError: it cannot be initialised.
    """

    suite = "aclnn"

    def __init__(self, path: str, functions: Functions) -> None:
        try:
            initialise(functions)
        except RefusedError as error:
            raise SubjectError(f"{path}: {error}: {error.status}; allowed: success") from None
        chip = b""
        if "aclrtGetSocName" in functions:
            address = functions.ask("aclrtGetSocName")
            chip = ctypes.string_at(address) if address else b""
        offered = [name for name in OPERATORS if f"{name}{_PHASE_1}" in functions]
        try:
            with aclnn.product(products.A2):
                holds_variance = products.current().saved_variance
        except ValueError as error:
            raise SubjectError(f"{products.SAVE_INVSTD_VARIABLE}: {error}") from None
        facts = {
            "dialect": "aclnn",
            "operators": ", ".join(offered),
            "product": _product(chip.decode(errors="replace")),
            "saveInvstd": "variance" if holds_variance else "invstd",
            "chip": chip.decode(errors="replace") or "not said",
        }
        super().__init__(path, functions, facts)
        self._stream: int | None = None

    def prepare(self) -> None:
        """See :class:`.c_functions.LibrarySubject`."""
        self._stream = started(self._functions)

    def perform(self, request: Request) -> Outcome:
        """See :class:`.c_functions.LibrarySubject`."""
        return perform(self._functions, self._stream, request)


def _product(chip: str) -> str:
    """The product of a chip, and the usual one of an unknown chip."""
    try:
        return products.find(chip).name
    except ValueError:
        return products.A2
