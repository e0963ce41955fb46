"""What is added up and what is written for each element: all in which operations differ.

The loops of :mod:`.rows` and :mod:`.columns` are the same for all of them. A kernel is compiled for
one operation, which is the type of its first argument.
"""

from __future__ import annotations

from typing import Any

from numba import types
from numba.core.extending import models, overload, register_model

from .access import ALONG
from .intrinsics import HELPER, get
from .lanes import as_loaded, keep_part, load_part, splat_like, store_part_in_order, zero_lanes

# mypy: disable-error-code="untyped-decorator,no-untyped-def"


class Operation(types.Type):  # type: ignore[misc]
    """What a kernel does, as a type."""

    def __init__(self, name: str) -> None:
        super().__init__(f"operation {name}")
        self.operation = name.removesuffix(ALONG)
        #: Whether weight and bias are those of a row's elements, rather than a channel's own.
        self.along = name.endswith(ALONG)


@register_model(Operation)
class _OperationModel(models.OpaqueModel):  # type: ignore[misc]
    pass


def term(operation: Any, dy: Any, values: Any, weight: Any, k: Any, part: Any) -> Any:
    """dy of a part of a row, from element k on, as it is summed: times the weights along it."""
    raise NotImplementedError


@overload(term, jit_options=HELPER)
def _term(operation, dy, values, weight, k, part):
    if operation.along:

        def weighted(operation, dy, values, weight, k, part):
            return values * as_loaded(dy, load_part(weight, k, part))

        return weighted
    return lambda operation, dy, values, weight, k, part: values


def added(
    operation: Any, dy: Any, x: Any, dx: Any, i: Any, j: Any, o: Any, mean: Any, gain: Any,
    weight: Any, k: Any, part: Any,
) -> Any:  # fmt: skip
    """What a part of a row adds to two sums: dy and dy·(x − mean), or nothing and (x − mean)².

    It is at i in dy, j in x and o in dx, and from k on in its row.
    """
    raise NotImplementedError


@overload(added, jit_options=HELPER)
def _added(operation, dy, x, dx, i, j, o, mean, gain, weight, k, part):
    if operation.operation == "moments":

        def moments(operation, dy, x, dx, i, j, o, mean, gain, weight, k, part):
            d = keep_part(x, load_part(x, j, part) - mean, part)
            return zero_lanes(x, x), d * d

        return moments

    def sums(operation, dy, x, dx, i, j, o, mean, gain, weight, k, part):
        values, xs = load_part(dy, i, part), load_part(x, j, part)
        write_early(operation, dx, o, values, gain, part)
        d = term(operation, dy, values, weight, k, part)
        return d, keep_part(dy, d * (xs - mean), part)

    return sums


def deviation(
    operation: Any, dy: Any, x: Any, values: Any, mean: Any, means: Any, invstds: Any, r: Any
) -> Any:
    """x − mean of a part of row r; for parameters' sums about the row's own mean, and scaled."""
    raise NotImplementedError


@overload(deviation, jit_options=HELPER)
def _deviation(operation, dy, x, values, mean, means, invstds, r):
    if operation.operation == "parameters":

        def scaled(operation, dy, x, values, mean, means, invstds, r):
            centred = values - splat_like(dy, x, get(means, r))
            return centred * splat_like(dy, x, get(invstds, r))

        return scaled
    return lambda operation, dy, x, values, mean, means, invstds, r: values - mean


def write_early(operation: Any, dx: Any, i: Any, values: Any, gain: Any, part: Any) -> None:
    """Write dx = gain · dy where dy and x have been read, in evaluation; it may be x's memory."""
    raise NotImplementedError


@overload(write_early, jit_options=HELPER)
def _write_early(operation, dx, i, values, gain, part):
    if operation.operation == "evaluate":

        def write(operation, dx, i, values, gain, part):
            store_part_in_order(dx, i, gain * values, part)

        return write
    return lambda operation, dx, i, values, gain, part: None


def coefficients_at(
    operation: Any, dy: Any, coefficients: Any, weight: Any, bias: Any, k: Any, part: Any
) -> Any:
    """A row's coefficients for a part of it, from element k on."""
    raise NotImplementedError


@overload(coefficients_at, jit_options=HELPER)
def _coefficients_at(operation, dy, coefficients, weight, bias, k, part):
    if not operation.along:
        return lambda operation, dy, coefficients, weight, bias, k, part: coefficients
    if operation.operation == "normalise":

        def normalising(operation, dy, coefficients, weight, bias, k, part):
            mean, gain, _, slope, scale = coefficients
            gain = gain * as_loaded(dy, load_part(weight, k, part))
            return mean, gain, as_loaded(dy, load_part(bias, k, part)), slope, scale

        return normalising

    def applying(operation, dy, coefficients, weight, bias, k, part):
        mean, gain, offset, slope, scale = coefficients
        return mean, gain * as_loaded(dy, load_part(weight, k, part)), offset, slope, scale

    return applying


def written(operation: Any, dy: Any, x: Any, i: Any, j: Any, coefficients: Any, part: Any) -> Any:
    """dx or y of a part of a row, from i on in dy and from j in x.

    The coefficients are lanes: mean, gain, shift, slope and scale. dx = scale · (gain·dy − (shift +
    slope·(x − mean))); in evaluation dx = gain · dy; y = gain · (x − mean) + shift.
    """
    raise NotImplementedError


@overload(written, jit_options=HELPER)
def _written(operation, dy, x, i, j, coefficients, part):
    if operation.operation == "scale":
        return lambda operation, dy, x, i, j, coefficients, part: (
            coefficients[1] * load_part(dy, i, part)
        )
    if operation.operation == "normalise":

        def normalised(operation, dy, x, i, j, coefficients, part):
            return coefficients[1] * (load_part(x, j, part) - coefficients[0]) + coefficients[2]

        return normalised

    def applied(operation, dy, x, i, j, coefficients, part):
        inner = coefficients[2] + coefficients[3] * (load_part(x, j, part) - coefficients[0])
        return coefficients[4] * (coefficients[1] * load_part(dy, i, part) - inner)

    return applied


def reads_dy(operation: Any) -> Any:
    """Whether what is written depends on dy."""
    raise NotImplementedError


@overload(reads_dy, jit_options=HELPER)
def _reads_dy(operation):
    found = operation.operation != "normalise"
    return lambda operation: found


def reads_x(operation: Any) -> Any:
    """Whether what is written depends on x."""
    raise NotImplementedError


@overload(reads_x, jit_options=HELPER)
def _reads_x(operation):
    found = operation.operation != "scale"
    return lambda operation: found


def is_about_channels(operation: Any) -> Any:
    """Whether what columns are summed about is the channel's, not the row's."""
    raise NotImplementedError


@overload(is_about_channels, jit_options=HELPER)
def _is_about_channels(operation):
    found = operation.operation != "parameters"
    return lambda operation: found


def writes_early(operation: Any) -> Any:
    """Whether dx is written where dy is summed."""
    raise NotImplementedError


@overload(writes_early, jit_options=HELPER)
def _writes_early(operation):
    found = operation.operation == "evaluate"
    return lambda operation: found
