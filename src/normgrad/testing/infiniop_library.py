"""infiniop's call sequence, through a library's C functions or our own."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from ctypes import c_size_t, c_ssize_t, c_void_p
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ..infiniop import infiniDevice_t
from ..infiniop.operators import OUTPUTS
from .c_functions import Dialect, Functions, LibrarySubject, RefusedError
from .outcomes import Outcome
from .subjects import NotOfferedError
from .tensors import Array
from .watched import Watched, guarded

_CREATE = "infiniopCreateBatchNormBackwardDescriptor"
_SIZE = "infiniopGetBatchNormBackwardWorkspaceSize"
_RUN = "infiniopBatchNormBackward"

#: What is made, and the functions that make and end it.
MAKERS = {
    "handle": ("infiniopCreateHandle", "infiniopDestroyHandle"),
    "tensor": ("infiniopCreateTensorDescriptor", "infiniopDestroyTensorDescriptor"),
    "operator": (_CREATE, "infiniopDestroyBatchNormBackwardDescriptor"),
}

INFINIOP = Dialect(
    "infiniop",
    (_CREATE,),
    (*(name for pair in MAKERS.values() for name in pair), _SIZE, _RUN),
    ("libinfinirt.so",),
    ("infiniop", "infinirt"),
)


@dataclass
class Tensor:
    """A tensor: its memory, and what is said of it.

    Attributes:
        array: where its memory is.
        dims, strides: as they are described, strides in elements; None for a null pointer.
        dtype: the number of its dtype.
    """

    array: Array
    dims: tuple[int, ...]
    strides: tuple[int, ...] | None
    dtype: int


@dataclass
class Request:
    """A call of the operator, described: all that is done, and what is done wrong.

    Attributes:
        tensors: in the order of the C function.
        null: what is null: "handle", "operator", "operator when computing" or "workspace"; a
            tensor's name (its descriptor), with " memory" (its data); the name of a function that
            makes something (the pointer to its result), or that ends it (what it is to end).
        destroyed: what is destroyed before it is used: "handle", "operator", a tensor's name.
        destroyed_again: what is destroyed twice: "handle", "tensor" or "operator".
        bytes_missing: of the workspace.
        computes: whether more is done than to create the operator.
    """

    tensors: dict[str, Tensor]
    null: set[str] = field(default_factory=set)
    destroyed: set[str] = field(default_factory=set)
    destroyed_again: str = ""
    bytes_missing: int = 0
    computes: bool = True

    @property
    def inputs(self) -> list[Array]:
        """The memory of what is not written to."""
        return [each.array for name, each in self.tensors.items() if name not in OUTPUTS]


def perform(functions: Functions, request: Request) -> Outcome:
    """Do what is described."""
    watched = {name: Watched(tensor.array) for name, tensor in request.tensors.items()}
    written = [request.tensors[name].array for name in OUTPUTS]
    sequence = _Sequence(functions, request)
    error = None
    try:
        sequence.run()
    except NotOfferedError as reason:
        return Outcome(absent=str(reason))
    except RefusedError as refused:
        error = refused.status, str(refused)
        written = []
    finally:
        sequence.end()
    faults = [
        f"{name}: {fault}"
        for name, each in watched.items()
        if (fault := each.fault(any(each.value is one for one in written)))
    ]
    outputs = {} if error else {name: request.tensors[name].array.copy() for name in OUTPUTS}
    return Outcome(outputs, error, faults=(*faults, *sequence.faults))


class _Sequence:
    """One call, from the handle on."""

    def __init__(self, functions: Functions, request: Request) -> None:
        self._functions = functions
        self._request = request
        self._living: dict[int | None, str] = {}  # what is to be destroyed, and by what
        self.faults: list[str] = []

    def run(self) -> None:
        """All of it.

        Raises:
            RefusedError: a function returned another status than success.
        """
        request = self._request
        handle = self._made("handle")
        descriptors = {name: self._described(each) for name, each in request.tensors.items()}
        owner = self._given("handle", handle)
        values = [self._given(name, each) for name, each in descriptors.items()]
        operator = self._made("operator", (owner,), values)
        for each in descriptors.values():  # the operator keeps its own copies
            self._destroy("tensor", each)
        size = c_size_t()
        self._functions.call(_SIZE, self._unless_null("operator", operator), self._to(_SIZE, size))
        if request.computes:
            self._compute(operator, size.value)
        self._destroy("operator", operator)
        self._destroy("handle", handle)

    def end(self) -> None:
        """Destroy whatever is left of a call that was refused."""
        for handle, destroyer in reversed(self._living.items()):
            self._functions.ask(destroyer, handle)

    def _compute(self, operator: int | None, size: int) -> None:
        request = self._request
        if size == 0 and (request.bytes_missing or "workspace" in request.null):
            raise NotOfferedError("it needs no workspace")
        scratch = guarded(np.zeros(size, np.uint8))
        watched = Watched(scratch)
        workspace = self._unless_null("workspace", scratch.ctypes.data)
        data = [
            self._unless_null(f"{name} memory", each.array.ctypes.data)
            for name, each in request.tensors.items()
        ]
        if "operator" in request.destroyed:
            self._destroy("operator", operator)
        operator = self._unless_null("operator when computing", operator)
        given = size - request.bytes_missing
        self._functions.call(_RUN, operator, workspace, given, *data, None)
        if "infinirtDeviceSynchronize" in self._functions:
            self._functions.call("infinirtDeviceSynchronize")
        if watched.fault(written=True):
            self.faults.append("workspace: written beside")

    def _made(self, kind: str, before: Sequence[Any] = (), after: Sequence[Any] = ()) -> int | None:
        """What a creator makes; its other arguments stand before and after the result's pointer."""
        creator, destroyer = MAKERS[kind]
        made = c_void_p()
        self._functions.call(creator, *before, self._to(creator, made), *after)
        self._living[made.value] = destroyer
        return made.value

    def _described(self, tensor: Tensor) -> int | None:
        rank = len(tensor.dims)
        dims = (c_size_t * rank)(*tensor.dims)
        strides = (c_ssize_t * rank)(*tensor.strides or (0,) * rank)
        steps = None if tensor.strides is None else ctypes.addressof(strides)
        return self._made("tensor", (), (rank, ctypes.addressof(dims), steps, tensor.dtype))

    def _given(self, name: str, handle: int | None) -> int | None:
        """A handle as it is used: destroyed before, or null."""
        if name in self._request.destroyed:
            self._destroy("handle" if name == "handle" else "tensor", handle)
        return self._unless_null(name, handle)

    def _unless_null(self, name: str, value: int | None) -> int | None:
        return None if name in self._request.null else value

    def _to(self, function: str, result: Any) -> int | None:
        return self._unless_null(function, ctypes.addressof(result))

    def _destroy(self, kind: str, handle: int | None) -> None:
        """Destroy something, if that is not done yet."""
        destroyer = MAKERS[kind][1]
        if handle not in self._living:
            return
        if destroyer in self._request.null:
            self._functions.call(destroyer, None)
        del self._living[handle]
        self._functions.call(destroyer, handle)
        if self._request.destroyed_again == kind:
            self._functions.call(destroyer, handle)


class InfiniopLibrary(LibrarySubject):
    """A libinfiniop."""

    suite = "infiniop"

    def __init__(self, path: str, functions: Functions) -> None:
        facts = {"dialect": "infiniop", "operators": "BatchNormBackward", "tensors": "CPU"}
        super().__init__(path, functions, facts)

    def prepare(self) -> None:
        """See :class:`.c_functions.LibrarySubject`."""
        if "infinirtInit" in self._functions:
            self._functions.call("infinirtInit")
        if "infinirtSetDevice" in self._functions:
            self._functions.call("infinirtSetDevice", infiniDevice_t.INFINI_DEVICE_CPU, 0)

    def perform(self, request: Request) -> Outcome:
        """See :class:`.c_functions.LibrarySubject`."""
        return perform(self._functions, request)
