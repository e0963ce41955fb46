"""The exported C functions as a compiler and ctypes see them, parsed from their prototypes."""

from __future__ import annotations

import ctypes
import re
from dataclasses import dataclass, field
from enum import IntEnum
from functools import cached_property
from typing import Any, NamedTuple

from ..aclnn import Status as aclnnStatus
from ..infiniop import infiniDevice_t, infiniStatus_t
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


class Statuses(NamedTuple):
    """The statuses of one C type for wrong arguments, null pointers, unforeseen errors, stubs."""

    refusal: IntEnum
    null: IntEnum
    failure: IntEnum
    absent: IntEnum


#: The statuses, by their C type.
_STATUSES = {
    "aclError": Statuses(
        aclError.ACL_ERROR_RT_PARAM_INVALID,
        aclError.ACL_ERROR_RT_PARAM_INVALID,
        aclError.ACL_ERROR_INTERNAL_ERROR,
        aclError.ACL_ERROR_API_NOT_SUPPORT,
    ),
    "HcclResult": Statuses(
        HcclResult.HCCL_E_PARA,
        HcclResult.HCCL_E_PTR,
        HcclResult.HCCL_E_INTERNAL,
        HcclResult.HCCL_E_NOT_SUPPORT,
    ),
    "aclnnStatus": Statuses(
        aclnnStatus.ACLNN_ERR_PARAM_INVALID,
        aclnnStatus.ACLNN_ERR_PARAM_NULLPTR,
        aclnnStatus.ACLNN_ERR_INNER,
        aclnnStatus.ACLNN_ERR_INNER_FIND_KERNEL_ERROR,
    ),
    "infiniStatus_t": Statuses(
        infiniStatus_t.INFINI_STATUS_BAD_PARAM,
        infiniStatus_t.INFINI_STATUS_BAD_PARAM,
        infiniStatus_t.INFINI_STATUS_INTERNAL_ERROR,
        infiniStatus_t.INFINI_STATUS_NOT_IMPLEMENTED,
    ),
}
#: The Python module that each library's functions call, and the C type of their statuses.
_LIBRARIES = {
    "ascendcl": ("acl", "aclError"),
    "hccl": ("hccl", "HcclResult"),
    "nnopbase": ("aclnn", "aclnnStatus"),
    "opapi": ("aclnn", "aclnnStatus"),
    "infinirt": ("infini", "infiniStatus_t"),
    "infiniop": ("infini", "infiniStatus_t"),
}


def status_type(library: str) -> str:
    """The C type of a library's statuses."""
    return _LIBRARIES[library][1]


@dataclass
class Pointer:
    """A parameter that points to plain values, rather than to a tensor's memory or a C string.

    Attributes:
        is_result: whether the function writes the values rather than reads them.
        kind, size: the ctypes type of each value, and its size in bytes.
        count: the number of values, unless ``counted_by`` is the index of the parameter that
            holds it.
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
    """An exported function, or a stub, whose parameters are unknown.

    Attributes:
        library: the library that exports the function, such as "opapi".
        returns: the C type of the result.
        parameter_list: the parameters as the declaration has them.
    """

    library: str
    returns: str
    name: str
    parameter_list: str = "NORMGRAD_ANY"

    @property
    def prototype(self) -> str:
        """The declaration in C."""
        space = "" if self.returns.endswith("*") else " "
        return f"{self.returns}{space}{self.name}({self.parameter_list})"

    @property
    def parameters(self) -> tuple[tuple[str, str], ...]:
        """The C types and names of the parameters."""
        pairs = re.findall(r"(\w.*?)(\w+)(?:, |$)", self.parameter_list)
        return tuple((kind.strip(), name) for kind, name in pairs if self.parameter_list != "void")

    @property
    def module(self) -> str:
        """The Python module that implements the function."""
        return _LIBRARIES[self.library][0]

    @property
    def statuses(self) -> Statuses:
        """The statuses of the function's library."""
        return _STATUSES[status_type(self.library)]

    @property
    def failure(self) -> int | None:
        """The result if Python cannot be started, or if an error has no status.

        None for functions that return a pointer or a number: they return 0 then.
        """
        if self.is_phase_2:
            return int(aclnnStatus.ACLNN_ERR_RUNTIME_ERROR)
        return int(self.statuses.failure) if self.returns_status else None

    @property
    def returns_status(self) -> bool:
        """Whether the result is a status, rather than a pointer or a number."""
        return self.returns in _STATUSES

    @property
    def is_phase_2(self) -> bool:
        """Whether this is phase 2 of an aclnn operator."""
        return self.library == "opapi" and not self.name.endswith("GetWorkspaceSize")

    @property
    def result(self) -> Any:
        """The ctypes type of the result."""
        return _ctype(self.returns)

    @property
    def arguments(self) -> list[Any]:
        """The ctypes types of the arguments."""
        return [_ctype(kind) for kind, _ in self.parameters]

    @property
    def pointers(self) -> tuple[Pointer, ...]:
        """The parameters that point to plain values."""
        names = [name for _, name in self.parameters]
        pointers = []
        for index, (kind, name) in enumerate(self.parameters):
            target = kind.removesuffix("*").strip()
            value = target.removeprefix("const ")
            # Handles, memory and texts are excluded, since other code checks them.
            if target == kind or ("*" not in value and value not in _TYPES):
                continue
            if value == target:
                pointers.append(Pointer(index, name, True, _ctype(value), _COUNTS.get(name, 1)))
            else:
                counted_by = names.index(_COUNTED_BY[name])
                pointers.append(Pointer(index, name, False, _ctype(value), counted_by=counted_by))
        return tuple(pointers)


def _ctype(c_type: str) -> Any:
    return ctypes.c_void_p if "*" in c_type else _TYPES[c_type.removeprefix("const ")]


@dataclass
class Header:
    """A header file for host programs.

    Attributes:
        path: the path in the include folder.
        library: the library that exports the declared functions, such as "opapi".
        includes: the files that the header includes.
        types: enumerations and other definitions, in order.
        prototypes: the declarations of these functions in C, each with a semicolon. A function
            without a type returns the library's status.
        stubs: the functions that are declared although they are absent.
    """

    path: str
    library: str
    includes: str = ""
    types: list[Any] = field(default_factory=list)
    prototypes: str = ""
    stubs: list[Function] = field(default_factory=list)

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
        text = " ".join(self.prototypes.split())
        return tuple(
            Function(self.library, kind.strip() or status_type(self.library), name, parameters)
            for kind, name, parameters in re.findall(r"([^;]*?)(\w+)\(([^;]*)\);", text)
        )
