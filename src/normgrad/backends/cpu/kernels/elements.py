"""The operations on elements, in which kernels differ: the terms of sums, and dx or y.

The loops of :mod:`.reduce` and :mod:`.write` are the same for all operations. A kernel is compiled
for one operation, which is the type of its first argument. ``tensors`` are dy, x and dx from a
row's first element on; a segment of a row starts at its element k, and is in lanes (see lanes.py).
"""

from __future__ import annotations

from numba import types
from numba.core.extending import models, register_model

from ..schedule.layout import ALONG
from ..schedule.steps import EXACT
from ..vector.helpers import by_types, helper, instruction
from ..vector.intrinsics import inlined, item_size, shift
from ..vector.lanes import (
    as_loaded,
    double_lanes,
    muladd,
    mulsub,
    prefetch_lanes,
    splat_doubles,
    zero_lanes,
)
from ..vector.segments import load_segment, merge_segment, store_segment, store_segment_by_words

# mypy: disable-error-code="untyped-decorator,no-untyped-def"


class Operation(types.Type):  # type: ignore[misc]
    """The type that stands for a kernel's operation on an access pattern."""

    def __init__(self, name: str, pattern: str) -> None:
        super().__init__(f"operation {name} of {pattern}")
        self.operation, self.columns = name.removesuffix(ALONG), pattern == "columns"
        #: Whether weight and bias belong to a row's elements, rather than to a channel.
        self.along = name.endswith(ALONG)
        self.normalises = self.operation in ("normalise", "forward")


@register_model(Operation)
class _OperationModel(models.OpaqueModel):  # type: ignore[misc]
    pass


@helper
def advance(tensors, steps, count):
    """Advance the tensors' pointers by ``count`` steps, of rows or channels."""
    return (
        shift(tensors[0], count * steps[0]), shift(tensors[1], count * steps[1]),
        shift(tensors[2], count * steps[2]),
    )  # fmt: skip


@by_types
def add_terms(operation, tensors, k, terms, sums, segment, streaming):
    """Add a segment of a row to two sums: dy and dy·(x − mean), or x − mean and (x − mean)².

    ``terms`` are the mean and gain in lanes, and the weights along the row. Products start the sums
    if ``sums`` is None. In evaluation dx = gain · dy is written here too, after dy and x are read:
    dx may be x's memory.
    """
    alone = operation.operation == "deviations"
    if alone or operation.operation in ("moments", EXACT, "forward"):

        def moments(operation, tensors, k, terms, sums, segment, streaming):
            x = tensors[1]
            d = merge_segment(x, load_segment(x, k, segment) - terms[0], zero_lanes(x), segment)
            if alone:
                return sums[0] + d, sums[1]
            return add_products(sums, x, d, d, segment)

        return moments
    evaluates, along = operation.operation == "evaluate", operation.along
    # Beside four rows' sums, tests for subnormal numbers take longer than they save.
    write = store_segment_by_words if operation.columns else store_segment

    def products(operation, tensors, k, terms, sums, segment, streaming):
        dy, x, dx = tensors
        d, centred = load_segment(dy, k, segment), load_segment(x, k, segment) - terms[0]
        if evaluates:
            write(dx, k, terms[1] * d, segment, streaming)
        if along:
            d = d * as_loaded(dy, load_segment(terms[2], k, segment))
        return add_products(sums, x, d, centred, segment)

    return products


@instruction(lambda: Operation("deviations", "rows")())
def deviations_alone(emit):
    """The operation of sums of x − mean alone."""


@by_types
def add_products(sums, x, d, centred, segment):
    """Add d and d·centred to two sums, or start these if ``sums`` is None.

    A third sum is that of centred.
    """
    if isinstance(sums, types.NoneType):
        return lambda sums, x, d, centred, segment: (
            d, merge_segment(x, d * centred, zero_lanes(x), segment)
        )  # fmt: skip
    if len(sums) == 3:
        return lambda sums, x, d, centred, segment: (
            sums[0] + d, merge_segment(x, muladd(d, centred, sums[1]), sums[1], segment),
            merge_segment(x, sums[2] + centred, sums[2], segment),
        )  # fmt: skip
    return lambda sums, x, d, centred, segment: (
        sums[0] + d, merge_segment(x, muladd(d, centred, sums[1]), sums[1], segment)
    )  # fmt: skip


@by_types
def exact_terms(operation, tensors, k, mean, terms, segment):
    """The terms of two sums of a segment of a row in float64.

    In a sum of few terms the rounding of each term to float32 would show. ``terms`` are as in
    ``add_terms``, and dx is written as there.
    """
    evaluates, along = operation.operation == "evaluate", operation.along

    def exact(operation, tensors, k, mean, terms, segment):
        dy, x, dx = tensors
        values = load_segment(dy, k, segment)
        d, centred = double_lanes(values), double_lanes(load_segment(x, k, segment)) - mean
        if evaluates:
            store_segment(dx, k, terms[1] * values, segment, False)
        if along:
            d = d * double_lanes(as_loaded(dy, load_segment(terms[2], k, segment)))
        return d, merge_segment(dy, d * centred, splat_doubles(dy, 0.0), segment)

    return exact


@by_types
def coefficients_at(operation, dy, coefficients, weight, bias, k, segment):
    """The coefficients of a segment of a row, with the weights and biases along the row, if any."""
    if not operation.along:
        return lambda operation, dy, coefficients, weight, bias, k, segment: coefficients

    def normalising(operation, dy, coefficients, weight, bias, k, segment):
        invstd, _, mean, offset, _ = coefficients
        w, b = (
            as_loaded(dy, load_segment(weight, k, segment)),
            as_loaded(dy, load_segment(bias, k, segment)),
        )
        return invstd, b, mean, offset, w

    def weighted(operation, dy, coefficients, weight, bias, k, segment):
        gain, offset, mean, slope, scale = coefficients
        return gain * as_loaded(dy, load_segment(weight, k, segment)), offset, mean, slope, scale

    return normalising if operation.normalises else weighted


@by_types
def linear_form(operation, tensors, k, coefficients, segment):
    """Compute dx or y of a segment of a row.

    The coefficients are lanes: gain, shift, mean, slope and scale.
    dx = scale · (gain·dy − (shift + slope·(x − mean))), or in evaluation dx = gain · dy;
    y = gain · (x − mean) + shift, or with parameters along the row
    y = scale · (gain · (x − mean) + slope) + shift, where the scale is the weight.
    """
    if operation.operation == "scale":
        return lambda operation, tensors, k, coefficients, segment: (
            coefficients[0] * load_segment(tensors[0], k, segment)
        )
    if operation.normalises:
        along = operation.along

        def normalised(operation, tensors, k, coefficients, segment):
            gain, offset, mean, slope, scale = coefficients
            centred = load_segment(tensors[1], k, segment) - mean
            if along:
                return muladd(scale, muladd(gain, centred, slope), offset)
            return muladd(gain, centred, offset)

        return normalised

    def gradient(operation, tensors, k, coefficients, segment):
        gain, offset, mean, slope, scale = coefficients
        inner = muladd(slope, load_segment(tensors[1], k, segment) - mean, offset)
        return scale * mulsub(gain, load_segment(tensors[0], k, segment), inner)

    return gradient


@by_types
def coefficient_count(operation):
    """How many of the coefficients an operation takes, from the first on."""
    count = {"scale": 1, "evaluate": 1, "normalise": 3, "apply": 5}.get(operation.operation, 0)
    return lambda operation: count


@helper
def prefetch_inputs(tensors, dy, x):
    """Prefetch a segment of dy and a segment of x, from these elements on."""
    inlined()  # a call would save and restore the registers of the sums
    prefetch_lanes(tensors[0], dy)
    prefetch_lanes(tensors[1], x)


@helper
def prefetch_bytes_ahead(tensors, distance, k):
    """Prefetch what is so many bytes after a segment of dy and x."""
    at = k + distance // item_size(tensors[0])
    prefetch_inputs(tensors, at, at)


@by_types
def prefetch_beside_write(operation, tensors, k, ahead):
    """Prefetch what lies ``ahead`` elements after a segment of a row, if an operation gains."""
    if operation.operation == "forward":
        return lambda operation, tensors, k, ahead: prefetch_lanes(tensors[1], k + ahead)
    if operation.operation != "apply":
        return lambda operation, tensors, k, ahead: None

    def both(operation, tensors, k, ahead):
        if ahead != 0:
            prefetch_inputs(tensors, k + ahead, k + ahead)

    return both
