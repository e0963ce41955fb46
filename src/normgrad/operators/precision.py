"""The error bounds that hold for every output, whatever the size of the tensors."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import numpy as np
import numpy.typing as npt

from ..tensors import dtypes
from ..tensors.dtypes import DType
from .reference import Exact

#: The bounds on the error of the number that is rounded to an output, by the arithmetic's type, in
#: its unit roundoffs. CHAIN in backends/cpu/kernels/reductions.py counts the roundings of a term in
#: float32.
ARITHMETIC = {dtypes.float32: 16.0, dtypes.float64: 64.0}
#: The bounds in unit roundoffs of the output's scale, for any finite data whose intermediate values
#: stay in float32's normal range, and for normally distributed data. For the half types the last
#: rounding, to the output, dominates.
ANY_DATA = {**ARITHMETIC, dtypes.float16: 1.05, dtypes.bfloat16: 1.05}
NORMAL_DATA = {**ANY_DATA, dtypes.float32: 4.0, dtypes.float64: 16.0}


#: A dtype: its name, NumPy's or PyTorch's, or one of ``normgrad.tensors.dtypes``.
DTypeLike = Any


def roundoff(output: DTypeLike, arithmetic: DTypeLike) -> float:
    """The unit roundoff of the output's dtype; float32's for float64 outputs of float32 arithmetic.

    Args:
        output: the output's dtype, such as "bfloat16" or ``numpy.float32``.
        arithmetic: the dtype of the arithmetic: float32 or float64.

    Raises:
        TypeError: another dtype.
    """
    output = _parsed("output", output, dtypes.FLOATS)
    arithmetic = _parsed("arithmetic", arithmetic, ARITHMETIC)
    return float(max(output.unit_roundoff, arithmetic.unit_roundoff))


def bound(
    exact: Exact, output: DTypeLike, arithmetic: DTypeLike, normal: bool = False
) -> npt.NDArray[Any]:
    """The largest error that each element may have.

    Args:
        exact: the exact value and its scale, by :mod:`normgrad.operators.reference`.
        output, arithmetic: as in :func:`roundoff`.
        normal: whether the data are normally distributed, for which the bound is tighter.

    Returns:
        A bound for each element: factor·u·scale, for half types at most factor·u·|value| plus
        ``ARITHMETIC`` roundoffs of float32 of the scale; and half of the output dtype's smallest
        subnormal number.

    Raises:
        TypeError: another dtype than those of :func:`roundoff`.
    """
    output = _parsed("output", output, dtypes.FLOATS)
    unit = (NORMAL_DATA if normal else ANY_DATA)[output] * roundoff(output, arithmetic)
    most = unit * exact.scale
    if output.is_half:
        computed = ARITHMETIC[dtypes.float32] * dtypes.float32.unit_roundoff * exact.scale
        most = np.minimum(most, unit * abs(exact.value) + computed)
    return most + most.dtype.type(output.smallest_subnormal) / 2


def error(
    actual: npt.NDArray[Any], exact: Exact, arithmetic: DTypeLike, normal: bool = False
) -> npt.NDArray[np.float64]:
    """The error of each element in units of its bound: 1 is just allowed.

    Where the exact value is infinite or NaN, the output may be either, since the order of
    evaluation decides which. Where it is finite, an output may be infinite only if the exact value,
    or a number within ``ARITHMETIC`` roundoffs of the scale from it, is rounded to the same
    infinity, and must be if all these numbers are. Such an output has the error 0, and one that may
    not be what it is has an infinite error.

    Args:
        actual: an output, of the exact value's shape and any of the four floating-point dtypes.
        exact: the exact value and its scale, by :mod:`normgrad.operators.reference`.
        arithmetic, normal: as in :func:`bound`.

    Raises:
        TypeError: an output of another dtype, or another arithmetic.
        ValueError: an output of another shape.
    """
    output = _dtype_of(actual, exact)
    arithmetic = _parsed("arithmetic", arithmetic, ARITHMETIC)
    reach = ARITHMETIC[arithmetic] * arithmetic.unit_roundoff * exact.scale
    return _units(actual, exact.value, bound(exact, output, arithmetic, normal), reach)


def plain_error(
    actual: npt.NDArray[Any],
    exact: Exact,
    arithmetic: DTypeLike,
    data: DTypeLike,
    terms: int,
    one_way: bool = False,
) -> npt.NDArray[np.float64]:
    """The error of each element in units of what plain code keeps: beyond 1 it is wrong.

    Plain code takes two passes in the arithmetic's type and adds up terms in any order. That costs
    16 + 2·√n roundoffs of the plain scale for n terms, as errors of roundings are independent, and
    16 + n if the data are made so that all go one way. To a less precise output, or to data of a
    half type, it may round four times.

    Args:
        actual, exact, arithmetic: as in :func:`error`.
        data: the least precise dtype of the data tensors.
        terms: at least the number n of terms of the longest sum.
        one_way: whether all roundings of a sum may go one way.

    Raises:
        TypeError, ValueError: as in :func:`error`.
    """
    output = _dtype_of(actual, exact)
    arithmetic = _parsed("arithmetic", arithmetic, ARITHMETIC)
    data = _parsed("data", data, dtypes.FLOATS)
    roundings = 16 + (terms if one_way else 2 * math.sqrt(terms))
    most = roundings * arithmetic.unit_roundoff * exact.widest
    coarsest = max(output.unit_roundoff, data.unit_roundoff if data.is_half else 0)
    if coarsest > arithmetic.unit_roundoff:
        most = most + 4 * coarsest * exact.scale
    most = np.where(np.isnan(most), np.inf, most) + output.smallest_subnormal
    return _units(actual, exact.value, most, most)


def _parsed(name: str, dtype: DTypeLike, allowed: Iterable[DType]) -> DType:
    try:
        found = dtypes.parse(dtype)
    except TypeError:
        found = None
    if found is None or found not in allowed:
        raise dtypes.unsupported(name, dtype, tuple(allowed))
    return found


def _dtype_of(actual: npt.NDArray[Any], exact: Exact) -> DType:
    """An output's dtype, if it has that of an output and the exact value's shape."""
    if actual.shape != exact.value.shape:  # which NumPy might broadcast
        raise ValueError(f"actual: shape {actual.shape}; allowed: {exact.value.shape}")
    return _parsed("actual", actual.dtype, dtypes.FLOATS)


def _units(
    actual: npt.NDArray[Any], value: npt.NDArray[Any], most: npt.NDArray[Any], reach: Any
) -> npt.NDArray[np.float64]:
    """Errors in units of the most allowed; within ``reach`` a value may be rounded to infinity."""
    with np.errstate(all="ignore"):
        got = actual.astype(value.dtype)
        difference = abs(got - value)
        units = np.where(difference == 0, 0.0, difference / most)
        reach = np.where(np.isfinite(reach), reach, 0.0)
        low, high = (
            number.astype(actual.dtype).astype(value.dtype)
            for number in (value - reach, value + reach)
        )
        finite = np.isfinite(value)
        special = ~np.isfinite(got) | ~finite | (np.isinf(low) & (low == high))
        right = np.where(finite, (got == low) | (got == high), ~np.isfinite(got))
        units = np.where(special, np.where(right, 0.0, np.inf), units)
        # A NaN instead of a finite value counts as an infinite error.
        units = np.where(np.isnan(units), np.inf, units)
    return units.astype(np.float64)
