"""What a C function is, to a compiler and to ctypes; read from its prototype."""

from __future__ import annotations

import ctypes
import re
from dataclasses import dataclass, replace
from enum import IntEnum
from functools import cached_property
from typing import Any

from ..aclnn import aclDataType, aclFormat
from ..aclnn.status import Status as aclnnStatus
from ..infiniop import infiniDevice_t, infiniDtype_t, infiniStatus_t
from .enums import (
    aclError,
    aclrtEventRecordedStatus,
    aclrtMemAttr,
    aclrtMemcpyKind,
    aclrtMemMallocPolicy,
    aclrtRunMode,
    aclSysParamOpt,
    infinirtEventStatus_t,
    infinirtMemcpyKind_t,
)

#: Types that are no pointers, as ctypes has them. Enumerations are ints.
_PLAIN: dict[str, Any] = {
    "bool": ctypes.c_bool,
    "int": ctypes.c_int,
    "float": ctypes.c_float,
    "double": ctypes.c_double,
    "size_t": ctypes.c_size_t,
    "ptrdiff_t": ctypes.c_ssize_t,
    "int32_t": ctypes.c_int32,
    "uint32_t": ctypes.c_uint32,
    "int64_t": ctypes.c_int64,
    "uint64_t": ctypes.c_uint64,
    "aclError": ctypes.c_int,
    "aclnnStatus": ctypes.c_int32,
    "aclFloat16": ctypes.c_uint16,
    **{
        kind.__name__: ctypes.c_int
        for kind in (
            aclDataType, aclFormat, aclrtEventRecordedStatus, aclrtMemAttr, aclrtMemcpyKind,
            aclrtMemMallocPolicy, aclrtRunMode, aclSysParamOpt, infiniDevice_t, infiniDtype_t,
            infiniStatus_t, infinirtEventStatus_t, infinirtMemcpyKind_t,
        )
    },
}  # fmt: skip

#: Types whose names do not show that they are pointers.
_HANDLES = {
    "aclrtStream", "aclrtEvent", "aclrtContext", "infinirtStream_t", "infinirtEvent_t",
    "infiniopHandle_t", "infiniopTensorDescriptor_t", "infiniopBatchNormBackwardDescriptor_t",
}  # fmt: skip

#: What a pointer leads to that is looked up, or read in a way of its own: handles, memory, texts.
_LOOKED_UP = {
    "aclTensor", "aclScalar", "aclIntArray", "aclFloatArray", "aclBoolArray", "aclTensorList",
    "aclScalarList", "aclOpExecutor", "struct InfiniopDescriptor", "void", "char",
}  # fmt: skip

#: How many values a pointer leads to, if more than one: as many as another parameter says, or
#: always so many.
_COUNTED_BY = {
    "viewDims": "viewDimsNum", "stride": "viewDimsNum", "storageDims": "storageDimsNum",
    "value": "size", "shape": "ndim", "strides": "ndim",
}  # fmt: skip
_COUNTS = {"count_array": len(infiniDevice_t)}


@dataclass(frozen=True)
class Pointer:
    """A parameter that points to plain values of the program's.

    It is no tensor's memory, no C string and no handle.

    Attributes:
        index, name: among the function's parameters.
        is_result: whether it is written through, else it is read.
        size: of each value, in bytes.
        count: how many there are, unless ``counted_by`` is the index of the parameter that says it.
    """

    index: int
    name: str
    is_result: bool
    size: int
    count: int = 1
    counted_by: int | None = None


@dataclass(frozen=True)
class Function:
    """An exported function.

    Attributes:
        prototype: its declaration in C.
        returns: the C type of its result.
        parameters: the C types and names of its arguments.
        lib: the library that exports it, such as "opapi".
        module: the Python module with the function that it calls.
        failure: what it returns where nothing better is known, in C.
    """

    prototype: str
    name: str
    returns: str
    parameters: tuple[tuple[str, str], ...]
    lib: str
    module: str
    failure: int | None

    @property
    def result(self) -> Any:
        """Its result's type for ctypes."""
        return _ctype(self.returns)

    @property
    def arguments(self) -> list[Any]:
        """Its arguments' types for ctypes."""
        return [_ctype(kind) for kind, _ in self.parameters]

    @property
    def pointers(self) -> tuple[Pointer, ...]:
        """Those of its arguments that it reads or writes plain values through."""
        names = [name for _, name in self.parameters]
        found = []
        for index, (kind, name) in enumerate(self.parameters):
            pointee = kind.removesuffix("*").strip()
            plain = pointee.removeprefix("const ")
            if pointee == kind or plain in _LOOKED_UP:
                continue
            is_result = plain == pointee
            each = Pointer(index, name, is_result, ctypes.sizeof(_ctype(plain)))
            if is_result:
                each = replace(each, count=_COUNTS.get(name, 1))
            else:
                each = replace(each, counted_by=names.index(_COUNTED_BY[name]))
            found.append(each)
        return tuple(found)

    @property
    def callback(self) -> Any:
        """The type of its callback for ctypes: the first argument says where the result goes."""
        return ctypes.CFUNCTYPE(None, ctypes.c_void_p, *self.arguments)


def _ctype(c_type: str) -> Any:
    plain = c_type.removeprefix("const ")
    if "*" in c_type or plain in _HANDLES:
        return ctypes.c_void_p
    return _PLAIN[plain]


#: What is returned by functions of a type where Python cannot be started, or an error has no
#: status. Functions that return a pointer or a number then return 0.
_FAILURES = {
    "aclError": int(aclError.ACL_ERROR_INTERNAL_ERROR),
    "aclnnStatus": int(aclnnStatus.ACLNN_ERR_INNER),
    "infiniStatus_t": int(infiniStatus_t.INFINI_STATUS_INTERNAL_ERROR),
}
_PHASE_2_FAILURE = int(aclnnStatus.ACLNN_ERR_RUNTIME_ERROR)


def _parse(prototype: str, library: str) -> Function:
    match = re.fullmatch(r"(.+?[ *])(\w+)\((.*)\)", prototype)
    assert match, prototype
    returns, name, arguments = match[1].strip(), match[2], match[3]
    parameters = []
    for argument in arguments.split(", ") if arguments != "void" else []:
        kind, argument_name = re.fullmatch(r"(.+?)(\w+)", argument).groups()  # type: ignore[union-attr]
        parameters.append((kind.strip(), argument_name))
    failure = _FAILURES.get(returns)
    if parameters and parameters[0] == ("void *", "workspace") and returns == "aclnnStatus":
        failure = _PHASE_2_FAILURE
    return Function(
        prototype, name, returns, tuple(parameters), library, _MODULES[library], failure
    )


#: The Python module that each library's functions call.
_MODULES = {
    "ascendcl": "acl", "nnopbase": "aclnn", "opapi": "aclnn",
    "infinirt": "infini", "infiniop": "infini",
}  # fmt: skip


@dataclass(frozen=True)
class Header:
    """A file that host programs include.

    Attributes:
        path: below the include folder.
        includes: what it includes, as written there.
        types: enumerations and other definitions, in order.
        library: what exports the functions that it declares, such as "opapi".
        prototypes: those functions in C, each with a semicolon.
    """

    path: str
    includes: tuple[str, ...]
    types: tuple[type[IntEnum] | str, ...] = ()
    library: str = ""
    prototypes: str = ""

    @cached_property
    def functions(self) -> tuple[Function, ...]:
        """What it declares."""
        texts = (" ".join(each.split()) for each in self.prototypes.split(";"))
        return tuple(_parse(text, self.library) for text in texts if text)
