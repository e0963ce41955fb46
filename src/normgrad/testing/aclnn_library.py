"""Run aclnn's two phases, in a library or in normgrad, with tensors in device memory."""

from __future__ import annotations

import ctypes
from contextlib import suppress
from ctypes import c_bool, c_int64, c_uint64, c_void_p
from typing import Any

import numpy as np

from .. import aclnn
from ..aclnn import aclFormat, products
from ..aclnn.contracts import CONTRACTS
from ..aclnn.tensors import NUMPY
from ..capi.enums import aclError, aclrtMemcpyKind, aclrtMemMallocPolicy, aclSysParamOpt
from .c_functions import Functions, RefusedError
from .libraries import Argument, Request, Steps, Tensor
from .outcomes import Outcome
from .subjects import OTHER_BITS, NotOfferedError, SubjectError, unlike
from .tensors import Array
from .watched import Watched

OPERATORS = tuple(CONTRACTS)
PHASE_1 = "GetWorkspaceSize"

#: aclDataType by the dtypes' names.
_CODES = {dtype.name: code for code, dtype in NUMPY.items()}


class _Block:
    """Device memory: ``size`` bytes at ``address``."""

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
        """A copy of the block's bytes now."""
        values = np.empty(self.size, np.uint8)
        self._copy(values.ctypes.data, self.address, aclrtMemcpyKind.ACL_MEMCPY_DEVICE_TO_HOST)
        return values


class TwoPhases(Steps):
    """One call: its tensors' copies on the device, its handles and its two phases.

    :func:`.aclnn_suite.mistakes` lists the mistakes that a request can contain.
    """

    dialect = "aclnn"
    markers = tuple(f"{operator}{PHASE_1}" for operator in OPERATORS)
    needed = (
        *("aclCreateTensor", "aclDestroyTensor", "aclCreateBoolArray", "aclDestroyBoolArray"),
        *("aclInit", "aclrtSetDevice", "aclrtCreateStream", "aclrtSynchronizeStream"),
        *("aclrtMalloc", "aclrtFree", "aclrtMemcpy"),
    )
    companions = ("libascendcl.so", "libnnopbase.so")
    libraries = ("opapi", "nnopbase", "ascendcl")

    @staticmethod
    def facts(path: str, functions: Functions) -> dict[str, str]:
        """See :class:`.libraries.Steps`. Makes a program's first calls, since facts need them."""
        try:
            functions.call("aclInit", None)
        except RefusedError as error:
            if error.status != aclError.ACL_ERROR_REPEAT_INITIALIZE.name:
                raise SubjectError(f"{path}: {error}: {error.status}; allowed: success") from None
        chip = ""
        if "aclrtGetSocName" in functions and (address := functions.ask("aclrtGetSocName")):
            chip = ctypes.string_at(address).decode(errors="replace")
        product = products.A2  # an unknown chip's too
        with suppress(ValueError):
            product = products.find(chip).name
        try:
            with aclnn.product(products.A2):
                holds_variance = products.current().saved_variance
        except ValueError as error:
            raise SubjectError(f"{products.SAVE_INVSTD_VARIABLE}: {error}") from None
        return {
            "operators": ", ".join(name for name in OPERATORS if f"{name}{PHASE_1}" in functions),
            "product": product,
            "saveInvstd": "variance" if holds_variance else "invstd",
            "chip": chip or "not said",
        }

    @staticmethod
    def prepare(functions: Functions) -> int | None:
        """Choose device 0, and create a stream."""
        functions.call("aclrtSetDevice", 0)
        if "aclrtCtxSetSysParamOpt" in functions:  # else some devices add in any order
            functions.ask("aclrtCtxSetSysParamOpt", aclSysParamOpt.ACL_OPT_DETERMINISTIC, 1)
        stream = c_void_p()
        functions.call("aclrtCreateStream", ctypes.addressof(stream))
        return stream.value

    def __init__(self, functions: Functions, request: Request, stream: int | None) -> None:
        super().__init__(functions, request, stream)
        self._blocks: dict[Watched, _Block] = {}

    def run(self) -> None:
        request, functions = self.request, self.functions
        self._needed(f"{request.operator}{PHASE_1}", request.computed_by or request.operator)
        handles = {name: self._argument(name, value) for name, value in request.arguments.items()}
        size, executor = c_uint64(), c_void_p()
        functions.call(
            f"{request.operator}{PHASE_1}",
            *handles.values(),
            self.unless("workspaceSize: no place for it", ctypes.addressof(size)),
            self.unless("executor: no place for it", ctypes.addressof(executor)),
        )
        if request.computes:
            if request.runs > 1 or "executor: destroyed" in request.wrong:
                self._needed("aclSetAclOpExecutorRepeatable", "aclDestroyAclOpExecutor")
                functions.call("aclSetAclOpExecutorRepeatable", executor.value)
                self.given("executor", self.made(executor.value or 0, "aclDestroyAclOpExecutor"))
            between = "destroyed between the phases"
            self.destroy(
                *(h for name, h in handles.items() if f"{name}: {between}" in request.wrong)
            )
            self._compute(executor.value, size.value)
        self.destroy(*self._living)

    def now(self, name: str) -> Array:
        block = self._blocks.get(self.memory[name])
        return super().now(name) if block is None else block.bytes()

    def end(self) -> None:
        """Destroy the handles that are left, and free the device's memory."""
        super().end()
        for block in self._blocks.values():
            self.functions.ask("aclrtFree", block.address)

    def _needed(self, *names: str) -> None:
        for name in names:
            if name not in self.functions:
                raise NotOfferedError(f"no {name}")

    def _block(self, name: str) -> _Block:
        """The device's copy of a tensor's memory; tensors that share memory share the copy."""
        memory = self.memory[name]
        if memory not in self._blocks:
            self._blocks[memory] = _Block(self.functions, memory.bytes())
        return self._blocks[memory]

    def _compute(self, executor: int | None, size: int) -> None:
        request, functions = self.request, self.functions
        address = None
        if size:
            scratch = self.watch("workspace", np.full(size, 0xFF, np.uint8))
            address = self._block("workspace").address + scratch.start
        workspace = self.workspace(size, address)
        given = self.unless("executor: null", executor)
        name = request.computed_by or request.operator
        before = Outcome()
        for _ in range(2 if "executor: used again" in request.wrong else request.runs):
            functions.call(name, *workspace, given, self.stream)
            functions.call("aclrtSynchronizeStream", self.stream)
            if request.runs > 1:
                now = Outcome(self.outputs())
                other = unlike(before, now)
                self.faults += [f"{o}: {OTHER_BITS} when the executor runs again" for o in other]
                before = now

    def _argument(self, name: str, value: Argument) -> Any:
        """Convert an argument to what phase 1 takes."""
        if isinstance(value, Tensor):
            return self.given(name, self._tensor(name, value))
        if not isinstance(value, tuple):
            return value
        entries = (c_bool * len(value))(*value)
        start = ctypes.addressof(entries)
        made = self._created("aclCreateBoolArray", "aclDestroyBoolArray", start, len(value))
        return self.given(name, made)

    def _tensor(self, name: str, tensor: Tensor) -> int:
        """Create a contiguous tensor at its own address, a view at its storage's with an offset."""
        block = self._block(name)
        start, offset, storage = self.memory[name].start, 0, tensor.dims
        if not tensor.array.flags.c_contiguous:
            itemsize = tensor.array.itemsize
            offset, start = start // itemsize, 0
            storage = (block.size // itemsize,)
        rank = len(tensor.dims)
        dims, steps = (c_int64 * rank)(*tensor.dims), (c_int64 * rank)(*tensor.strides)
        sizes = (c_int64 * len(storage))(*storage)
        return self._created(
            "aclCreateTensor",
            "aclDestroyTensor",
            *(ctypes.addressof(dims), rank, _CODES[tensor.dtype_name]),
            None if tensor.null_strides else ctypes.addressof(steps),
            *(offset, aclFormat[f"ACL_FORMAT_{tensor.format_name}"]),
            *(ctypes.addressof(sizes), len(storage), block.address + start),
        )

    def _created(self, creator: str, destroyer: str, *arguments: Any) -> int:
        handle: int | None = self.functions.ask(creator, *arguments)
        if not handle:
            raise RefusedError("null", creator, self.functions.last_error())
        return self.made(handle, destroyer)
