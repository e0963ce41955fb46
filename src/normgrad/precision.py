"""The error bounds that hold for every output, whatever the size of the tensors."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from . import dtypes
from .dtypes import DType
from .reference import Exact

#: The bounds in unit roundoffs of the output's scale, for any finite data whose intermediate values
#: stay in float32's normal range, and for normally distributed data. CHAIN in
#: backends/cpu/reduce.py counts the roundings of a term; for the half types the last rounding, to
#: the output, dominates.
ANY_DATA = {dtypes.float32: 16.0, dtypes.float64: 16.0, dtypes.float16: 1.05, dtypes.bfloat16: 1.05}
NORMAL_DATA = {**ANY_DATA, dtypes.float32: 4.0, dtypes.float64: 4.0}


def roundoff(output: DType, arithmetic: DType) -> float:
    """The unit roundoff of the output's dtype; float32's for float64 outputs of float32 arithmetic.

    Args:
        output: the output's dtype, such as ``normgrad.dtypes.bfloat16``.
        arithmetic: the dtype of the arithmetic: ``normgrad.dtypes.float32`` or ``float64``.
    """
    return max(output.unit_roundoff, arithmetic.unit_roundoff)


def bound(
    scale: npt.NDArray[Any], output: DType, arithmetic: DType, normal: bool = False
) -> npt.NDArray[Any]:
    """The largest error that each element may have.

    Args:
        scale: the scale of each element, by :mod:`normgrad.reference`.
        output, arithmetic: as in :func:`roundoff`.
        normal: whether the data are normally distributed, for which the bound is tighter.

    Returns:
        A bound for each element: factor·u·scale, plus half of the output dtype's smallest
        subnormal number.
    """
    factor = (NORMAL_DATA if normal else ANY_DATA)[output]
    return factor * roundoff(output, arithmetic) * scale + output.smallest_subnormal / 2


def error(
    actual: npt.NDArray[Any], exact: Exact, arithmetic: DType, normal: bool = False
) -> npt.NDArray[np.float64]:
    """The error of each element in units of its bound: 1 is just allowed.

    Where the exact value is NaN or infinite, or overflows the output's dtype, the output must be
    the same: the error is 0 if it is, and infinite if not.

    Args:
        actual: an output, of any of the four floating-point dtypes.
        exact: the exact value and its scale, by :mod:`normgrad.reference`.
        arithmetic, normal: as in :func:`bound`.

    Raises:
        TypeError: an output of another dtype.
    """
    output = dtypes.from_numpy(actual.dtype)
    if output is None:
        raise TypeError(f"actual: dtype {actual.dtype}; allowed: the four floating-point types")
    value = exact.value
    with np.errstate(all="ignore"):
        got = actual.astype(value.dtype)
        difference = abs(got - value)
        units = difference / bound(exact.scale, output, arithmetic, normal)
        units = np.where(difference == 0, 0.0, units)
        rounded = value.astype(actual.dtype).astype(value.dtype)
        special = ~np.isfinite(rounded)
        same = (got == rounded) | (np.isnan(got) & np.isnan(rounded))
        units = np.where(special, np.where(same, 0.0, np.inf), units)
        # A NaN instead of a finite value counts as an infinite error.
        units = np.where(np.isnan(units), np.inf, units)
    return units.astype(np.float64)
