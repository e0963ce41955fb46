"""What is added up and what is written for each element: all in which operations differ.

The loops of :mod:`.rows` and :mod:`.columns` are the same for all of them. A kernel is compiled for
one operation, which is the type of its first argument.
"""

from __future__ import annotations

from numba import types
from numba.core.extending import models, register_model

from .access import ALONG
from .helpers import by_types
from .lanes import as_loaded, load_part, merge_part, store_part

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


@by_types
def term(operation, dy, values, weight, k, part):
    """dy of a part of a row, from element k on, as it is summed: times the weights along it."""
    if operation.along:

        def weighted(operation, dy, values, weight, k, part):
            return values * as_loaded(dy, load_part(weight, k, part))

        return weighted
    return lambda operation, dy, values, weight, k, part: values


@by_types
def added(operation, dy, x, dx, i, j, o, mean, gain, weight, k, s, q, part, streaming):
    """Two sums with a part of a row added: of dy and dy·(x − mean), or nothing and (x − mean)².

    It is at i in dy, j in x and o in dx, and from k on in its row.
    """
    if operation.operation == "moments":

        def moments(operation, dy, x, dx, i, j, o, mean, gain, weight, k, s, q, part, streaming):
            d = load_part(x, j, part) - mean
            return s, merge_part(x, q + d * d, q, part)

        return moments

    def sums(operation, dy, x, dx, i, j, o, mean, gain, weight, k, s, q, part, streaming):
        values, xs = load_part(dy, i, part), load_part(x, j, part)
        write_early(operation, dx, o, values, gain, part, streaming)
        d = term(operation, dy, values, weight, k, part)
        return s + d, merge_part(dy, q + d * (xs - mean), q, part)

    return sums


@by_types
def write_early(operation, dx, i, values, gain, part, streaming):
    """Write dx = gain · dy where dy and x have been read, in evaluation; it may be x's memory."""
    if operation.operation == "evaluate":

        def write(operation, dx, i, values, gain, part, streaming):
            store_part(dx, i, gain * values, part, streaming)

        return write
    return lambda operation, dx, i, values, gain, part, streaming: None


@by_types
def coefficients_at(operation, dy, coefficients, weight, bias, k, part):
    """A row's coefficients for a part of it, from element k on."""
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


@by_types
def written(operation, dy, x, i, j, coefficients, part):
    """dx or y of a part of a row, from i on in dy and from j in x.

    The coefficients are lanes: mean, gain, shift, slope and scale. dx = scale · (gain·dy − (shift +
    slope·(x − mean))); in evaluation dx = gain · dy; y = gain · (x − mean) + shift.
    """
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


@by_types
def reads_dy(operation):
    """Whether what is written depends on dy."""
    found = operation.operation != "normalise"
    return lambda operation: found


@by_types
def reads_x(operation):
    """Whether what is written depends on x."""
    found = operation.operation != "scale"
    return lambda operation: found


@by_types
def writes_early(operation):
    """Whether dx is written where dy is summed."""
    found = operation.operation == "evaluate"
    return lambda operation: found
