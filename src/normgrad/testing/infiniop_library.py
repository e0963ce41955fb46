"""Run infiniop's call sequence, in a library or in normgrad."""

from __future__ import annotations

import ctypes
from ctypes import c_size_t, c_ssize_t, c_void_p
from typing import Any

import numpy as np

from ..infiniop import infiniDevice_t, infiniDtype_t
from .c_functions import Functions
from .libraries import Steps, Tensor

_CREATE = "infiniopCreateBatchNormBackwardDescriptor"
SIZE = "infiniopGetBatchNormBackwardWorkspaceSize"
RUN = "infiniopBatchNormBackward"

#: Each kind of object, with the functions that create and destroy it.
MAKERS = {
    "handle": ("infiniopCreateHandle", "infiniopDestroyHandle"),
    "tensor": ("infiniopCreateTensorDescriptor", "infiniopDestroyTensorDescriptor"),
    "operator": (_CREATE, "infiniopDestroyBatchNormBackwardDescriptor"),
}

#: The rules' names for dtypes, by infiniop's words; infiniop does not take all of them.
DTYPES = {"F16": "float16", "F32": "float32", "BF16": "bfloat16", "F64": "float64", "I32": "I32"}
_CODES = {name: infiniDtype_t[f"INFINI_DTYPE_{word}"] for word, name in DTYPES.items()}


class Descriptors(Steps):
    """One call: a handle, the tensors' descriptors, the operator's, and the computation.

    :func:`.infiniop_suite.mistakes` lists the mistakes that a request can contain.
    """

    dialect = "infiniop"
    markers = (_CREATE,)
    needed = (*(name for pair in MAKERS.values() for name in pair), SIZE, RUN)
    companions = ("libinfinirt.so",)
    libraries = ("infiniop", "infinirt")

    @staticmethod
    def facts(path: str, functions: Functions) -> dict[str, str]:
        return {"operators": "BatchNormBackward", "tensors": "CPU"}

    @staticmethod
    def prepare(functions: Functions) -> None:
        """Choose the CPU."""
        if "infinirtInit" in functions:
            functions.call("infinirtInit")
        if "infinirtSetDevice" in functions:
            functions.call("infinirtSetDevice", infiniDevice_t.INFINI_DEVICE_CPU, 0)

    def run(self) -> None:
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
        scratch = self.watch("workspace", np.zeros(size, np.uint8)).value
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

    def _made(self, kind: str, before: tuple[Any, ...] = (), after: Any = ()) -> int:
        """Create an object; the result's pointer stands between the arguments before and after."""
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
