"""The exported C functions as a compiler and ctypes see them, parsed from their prototypes."""

from __future__ import annotations

import ctypes
import re
from dataclasses import dataclass, field
from enum import IntEnum
from functools import cached_property
from typing import Any

from ..aclnn.status import Status as aclnnStatus
from ..infiniop import infiniDevice_t, infiniStatus_t
from .absent import Stub
from .enums import HcclResult, aclError

#: The ctypes types of C types that are not written as pointers. Headers add the types they define.
_TYPES: dict[str, Any] = {
    "bool": ctypes.c_bool,
    "int": ctypes.c_int,
    "float": ctypes.c_float,
    "double": ctypes.c_double,
    "size_t": ctypes.c_size_t,
    "ptrdiff_t": ctypes.c_ssize_t,
    "uint16_t": ctypes.c_uint16,
    "int32_t": ctypes.c_int32,
    "uint32_t": ctypes.c_uint32,
    "int64_t": ctypes.c_int64,
    "uint64_t": ctypes.c_uint64,
    "aclrtCallback": ctypes.c_void_p,
    "aclrtCallbackBlockType": ctypes.c_int,
}

#: The number of values that a pointer points to, if not 1: the name of the parameter that holds it,
#: or a constant.
_COUNTED_BY = {
    "viewDims": "viewDimsNum", "stride": "viewDimsNum", "storageDims": "storageDimsNum",
    "value": "size", "shape": "ndim", "strides": "ndim",
}  # fmt: skip
_COUNTS = {"count_array": len(infiniDevice_t)}
#: How many of a function's pointers to results may be null, if not 0.
_MOST_NULLS = {"infinirtGetDevice": 1}

#: The Python module that each library's functions call, and their status for wrong arguments.
_LIBRARIES: dict[str, tuple[str, IntEnum]] = {
    "ascendcl": ("acl", aclError.ACL_ERROR_RT_PARAM_INVALID),
    "hccl": ("hccl", HcclResult.HCCL_E_PARA),
    "nnopbase": ("aclnn", aclnnStatus.ACLNN_ERR_PARAM_INVALID),
    "opapi": ("aclnn", aclnnStatus.ACLNN_ERR_PARAM_INVALID),
    "infinirt": ("infini", infiniStatus_t.INFINI_STATUS_BAD_PARAM),
    "infiniop": ("infini", infiniStatus_t.INFINI_STATUS_BAD_PARAM),
}
#: The status for unforeseen errors, by the C type of the result.
_FAILURES = {
    "HcclResult": int(HcclResult.HCCL_E_INTERNAL),
    "aclError": int(aclError.ACL_ERROR_INTERNAL_ERROR),
    "aclnnStatus": int(aclnnStatus.ACLNN_ERR_INNER),
    "infiniStatus_t": int(infiniStatus_t.INFINI_STATUS_INTERNAL_ERROR),
}


@dataclass
class Pointer:
    """A parameter that points to plain values, rather than to a tensor's memory or a C string.

    Attributes:
        index, name: the parameter's index and name.
        is_result: whether the function writes the values rather than reads them.
        kind: the ctypes type of each value.
        count: the number of values, unless ``counted_by`` is the index of the parameter that
            holds it.
        size: the size of each value in bytes.
    """

    index: int
    name: str
    is_result: bool
    kind: Any
    count: int = 1
    counted_by: int | None = None
    size: int = field(init=False)

    def __post_init__(self) -> None:
        self.size = ctypes.sizeof(self.kind)


@dataclass(frozen=True)
class Function:
    """An exported function.

    Attributes:
        prototype: the declaration in C.
        returns: the C type of the result.
        parameters: the C types and names of the parameters.
        lib: the library that exports the function, such as "opapi".
    """

    prototype: str
    name: str
    returns: str
    parameters: tuple[tuple[str, str], ...]
    lib: str

    @property
    def module(self) -> str:
        """The Python module that implements the function."""
        return _LIBRARIES[self.lib][0]

    @property
    def refusal(self) -> IntEnum:
        """The status for wrong arguments."""
        return _LIBRARIES[self.lib][1]

    @property
    def null_refusal(self) -> IntEnum:
        """The status for null pointers."""
        return {
            "aclnn": aclnnStatus.ACLNN_ERR_PARAM_NULLPTR,
            "hccl": HcclResult.HCCL_E_PTR,
        }.get(self.module, self.refusal)

    @property
    def failure(self) -> int | None:
        """The result if Python cannot be started, or if an error has no status.

        None for functions that return a pointer or a number: they return 0 then.
        """
        if self.is_phase_2:
            return int(aclnnStatus.ACLNN_ERR_RUNTIME_ERROR)
        return _FAILURES.get(self.returns)

    @property
    def is_phase_2(self) -> bool:
        """Whether this is phase 2 of an aclnn operator."""
        return self.lib == "opapi" and not self.name.endswith("GetWorkspaceSize")

    @property
    def result(self) -> Any:
        """The ctypes type of the result."""
        return _ctype(self.returns)

    @property
    def arguments(self) -> list[Any]:
        """The ctypes types of the arguments."""
        return [_ctype(kind) for kind, _ in self.parameters]

    @property
    def most_nulls(self) -> int:
        """How many of the pointers to results may be null."""
        return _MOST_NULLS.get(self.name, 0)

    @property
    def pointers(self) -> tuple[Pointer, ...]:
        """The parameters that point to plain values."""
        names = [name for _, name in self.parameters]
        found = []
        for index, (kind, name) in enumerate(self.parameters):
            pointee = kind.removesuffix("*").strip()
            plain = pointee.removeprefix("const ")
            # Handles, memory and texts are excluded, since other code checks them.
            if pointee == kind or ("*" not in plain and plain not in _TYPES):
                continue
            is_result = plain == pointee
            count, counted_by = 1, None
            if is_result:
                count = _COUNTS.get(name, 1)
            else:
                counted_by = names.index(_COUNTED_BY[name])
            found.append(Pointer(index, name, is_result, _ctype(plain), count, counted_by))
        return tuple(found)


def _ctype(c_type: str) -> Any:
    return ctypes.c_void_p if "*" in c_type else _TYPES[c_type.removeprefix("const ")]


def _parse(prototype: str, library: str) -> Function:
    match = re.fullmatch(r"(.+?[ *])(\w+)\((.*)\)", prototype)
    assert match, prototype
    returns, name, arguments = match[1].strip(), match[2], match[3]
    parameters = []
    for argument in arguments.split(", ") if arguments != "void" else []:
        kind, argument_name = re.fullmatch(r"(.+?)(\w+)", argument).groups()  # type: ignore[union-attr]
        parameters.append((kind.strip(), argument_name))
    return Function(prototype, name, returns, tuple(parameters), library)


@dataclass(frozen=True)
class Header:
    """A header file for host programs.

    Attributes:
        path: the path in the include folder.
        includes: the files that the header includes, as written there.
        types: enumerations and other definitions, in order.
        library: the library that exports the declared functions, such as "opapi".
        prototypes: the declarations of these functions in C, each with a semicolon.
        stubs: the functions that are declared although they are absent.
    """

    path: str
    includes: tuple[str, ...]
    types: tuple[type[IntEnum] | str, ...] = ()
    library: str = ""
    prototypes: str = ""
    stubs: tuple[Stub, ...] = ()

    def __post_init__(self) -> None:
        for each in self.types:
            if not isinstance(each, str):
                _TYPES[each.__name__] = ctypes.c_int
            elif alias := re.fullmatch(r"typedef (.+?[ *])(\w+);", each):
                source = alias[1].strip()
                if "*" in source or source in _TYPES:  # otherwise it is an opaque structure
                    _TYPES[alias[2]] = _ctype(source)

    @cached_property
    def functions(self) -> tuple[Function, ...]:
        """The functions that the header declares."""
        texts = (" ".join(each.split()) for each in self.prototypes.split(";"))
        return tuple(_parse(text, self.library) for text in texts if text)
