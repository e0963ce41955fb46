"""infiniop's call sequence, through a library's C functions or our own."""

from __future__ import annotations

import ctypes
from ctypes import c_size_t, c_ssize_t, c_void_p
from typing import Any

import numpy as np

from ..infiniop import infiniDevice_t, infiniDtype_t
from .c_functions import Dialect, Functions
from .libraries import Steps, Tensor
from .watched import Watched, guarded

_CREATE = "infiniopCreateBatchNormBackwardDescriptor"
SIZE = "infiniopGetBatchNormBackwardWorkspaceSize"
RUN = "infiniopBatchNormBackward"

#: What is made, and the functions that make and end it.
MAKERS = {
    "handle": ("infiniopCreateHandle", "infiniopDestroyHandle"),
    "tensor": ("infiniopCreateTensorDescriptor", "infiniopDestroyTensorDescriptor"),
    "operator": (_CREATE, "infiniopDestroyBatchNormBackwardDescriptor"),
}

#: infiniop's words for the dtypes that it takes and some that it does not, with the rules' names.
DTYPES = {"F16": "float16", "F32": "float32", "BF16": "bfloat16", "F64": "float64", "I32": "I32"}
_CODES = {name: infiniDtype_t[f"INFINI_DTYPE_{word}"] for word, name in DTYPES.items()}


class Descriptors(Steps):
    """One call: a handle, the tensors' descriptors, the operator's, and the computation.

    What may be done wrong is in :func:`.infiniop_suite.mistakes`.
    """

    def run(self) -> None:
        """See :class:`.libraries.Steps`."""
        request = self.request
        handle = self._made("handle")
        tensors = {name: self._described(each) for name, each in request.tensors.items()}
        owner = self.given("handle", handle)
        values = [self.given(name, each) for name, each in tensors.items()]
        operator = self._made("operator", (owner,), values)
        self.destroy(*tensors.values())  # the operator keeps its own copies
        size = c_size_t()
        self.functions.call(SIZE, self.unless("operator: null", operator), self._to(SIZE, size))
        if request.computes:
            self._compute(operator, size.value)
        self.destroy(operator, handle)

    def _compute(self, operator: int, size: int) -> None:
        request = self.request
        scratch = guarded(np.zeros(size, np.uint8))
        watched = Watched(scratch)
        data = [
            self.unless(f"{name}: null memory", each.array.ctypes.data)
            for name, each in request.tensors.items()
        ]
        self.functions.call(
            RUN,
            self.unless("operator: null when computing", self.given("operator", operator)),
            *self.workspace(size, scratch.ctypes.data),
            *data,
            None,
        )
        if "infinirtDeviceSynchronize" in self.functions:
            self.functions.call("infinirtDeviceSynchronize")
        if watched.fault(written=True):
            self.faults.append("workspace: written beside")

    def _made(self, kind: str, before: tuple[Any, ...] = (), after: Any = ()) -> int:
        """What a creator makes; its other arguments stand before and after the result's pointer."""
        creator, destroyer = MAKERS[kind]
        made = c_void_p()
        self.functions.call(creator, *before, self._to(creator, made), *after)
        return self.made(made.value or 0, destroyer)

    def _described(self, tensor: Tensor) -> int:
        rank = len(tensor.dims)
        dims, steps = (c_size_t * rank)(*tensor.dims), (c_ssize_t * rank)(*tensor.strides)
        strides = None if tensor.null_strides else ctypes.addressof(steps)
        arguments = (rank, ctypes.addressof(dims), strides, _CODES[tensor.dtype_name])
        return self._made("tensor", (), arguments)

    def _to(self, function: str, result: Any) -> Any:
        return self.unless(f"{function}: no place for the result", ctypes.addressof(result))


def _prepare(functions: Functions) -> None:
    if "infinirtInit" in functions:
        functions.call("infinirtInit")
    if "infinirtSetDevice" in functions:
        functions.call("infinirtSetDevice", infiniDevice_t.INFINI_DEVICE_CPU, 0)


INFINIOP = Dialect(
    "infiniop",
    (_CREATE,),
    (*(name for pair in MAKERS.values() for name in pair), SIZE, RUN),
    ("libinfinirt.so",),
    ("infiniop", "infinirt"),
    lambda path, functions: {"operators": "BatchNormBackward", "tensors": "CPU"},
    _prepare,
    Descriptors,
)
