"""The four floating-point types of the operators, and the integer types of ``count``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np

from ..support.values import represent


@dataclass(frozen=True, eq=False)
class DType:
    """An element type; there is only one object for each.

    ``code`` is its number in kernels, ``unit_roundoff`` is the relative error of rounding to
    nearest, and ``smallest_subnormal`` is the least positive value (both 0 for integers).
    """

    name: str
    itemsize: int
    code: int
    numpy: np.dtype[Any]
    unit_roundoff: float = 0.0
    smallest_subnormal: float = 0.0

    @property
    def is_half(self) -> bool:
        """Whether it is float16 or bfloat16."""
        return self in (float16, bfloat16)

    def __str__(self) -> str:
        return self.name

    def __reduce__(self) -> tuple[Any, ...]:
        return parse, (self.name,)  # copying and unpickling return the same object


float32 = DType("float32", 4, 0, np.dtype(np.float32), 2.0**-24, 2.0**-149)
float64 = DType("float64", 8, 1, np.dtype(np.float64), 2.0**-53, 2.0**-1074)
float16 = DType("float16", 2, 2, np.dtype(np.float16), 2.0**-11, 2.0**-24)
bfloat16 = DType("bfloat16", 2, 3, np.dtype(ml_dtypes.bfloat16), 2.0**-8, 2.0**-133)
int32 = DType("int32", 4, 4, np.dtype(np.int32))
int64 = DType("int64", 8, 5, np.dtype(np.int64))

#: The dtypes of tensors and per-channel vectors.
FLOATS = (float32, float16, bfloat16, float64)
#: The dtypes of ``count``.
COUNTS = (int32, int64, float16, float32)

BY_NAME = {dtype.name: dtype for dtype in (*FLOATS, int32, int64)}
_BY_NUMPY = {dtype.numpy: dtype for dtype in BY_NAME.values()}


def from_numpy(dtype: np.dtype[Any]) -> DType | None:
    """The :class:`DType` of a NumPy dtype in native byte order, or None."""
    return _BY_NUMPY.get(dtype) if dtype.isnative else None


def parse(dtype: Any) -> DType:
    """Parse any spelling of a dtype: a name, a NumPy dtype or scalar type, or a torch dtype."""
    if isinstance(dtype, DType):
        return dtype
    name = dtype if isinstance(dtype, str) else represent(dtype).removeprefix("torch.")
    match = BY_NAME.get(name)
    if match is None and dtype is not None:  # NumPy would interpret None as float64
        try:
            match = from_numpy(np.dtype(dtype))
        except Exception:  # an object that is not a dtype may raise any type of exception
            match = None
    if match is None:
        raise TypeError(
            f"dtype: {represent(dtype)} is not supported; allowed: {', '.join(BY_NAME)}"
        )
    return match


def unsupported(name: str, dtype: object, allowed: Sequence[DType]) -> TypeError:
    """The error for an argument whose dtype is not allowed."""
    return TypeError(f"{name}: dtype {dtype}; allowed: {', '.join(map(str, allowed))}")


def arithmetic(*dtypes: DType) -> DType:
    """The dtype of the arithmetic: float64 if one of the data tensors has it, otherwise float32."""
    return float64 if float64 in dtypes else float32
