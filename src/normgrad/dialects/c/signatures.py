"""The exported C functions as a compiler and ctypes see them."""

from __future__ import annotations

import ctypes
import re
from dataclasses import dataclass
from typing import Any

#: The ctypes types of C types. Those that are not here are enumerations.
_TYPES: dict[str, Any] = {
    "bool": ctypes.c_bool,
    "float": ctypes.c_float,
    "double": ctypes.c_double,
    "size_t": ctypes.c_size_t,
    "ptrdiff_t": ctypes.c_ssize_t,
    **{
        f"{sign}int{bits}_t": getattr(ctypes, f"c_{sign}int{bits}")
        for sign in ("", "u")
        for bits in (8, 16, 32, 64)
    },
    "aclFloat16": ctypes.c_uint16,
    **dict.fromkeys(
        ("aclrtStream", "aclrtEvent", "aclrtContext", "aclrtCallback", "aclrtDrvMemHandle",
         "HcclComm", "infinirtStream_t", "infinirtEvent_t", "infiniopHandle_t",
         "infiniopTensorDescriptor_t", "infiniopBatchNormBackwardDescriptor_t"),
        ctypes.c_void_p,
    ),
}  # fmt: skip


def _ctype(c_type: str) -> Any:
    if "*" in c_type:
        return ctypes.c_void_p
    return _TYPES.get(c_type.removeprefix("const "), ctypes.c_int)


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
    parameter_list: str = ""

    @property
    def parameters(self) -> tuple[tuple[str, str], ...]:
        """The C types and names of the parameters."""
        pairs = re.findall(r"(\w.*?)(\w+)(?:, |$)", self.parameter_list)
        return tuple((kind.strip(), name) for kind, name in pairs if self.parameter_list != "void")

    @property
    def result(self) -> Any:
        """The ctypes type of the result."""
        return _ctype(self.returns)

    @property
    def arguments(self) -> list[Any]:
        """The ctypes types of the arguments."""
        return [_ctype(kind) for kind, _ in self.parameters]
