"""The loops over tiles of tensors that compute sums, and those that write dx or y."""

from __future__ import annotations

from typing import Any, NamedTuple

import triton
import triton.language as tl

from . import access, config
from .access import pointers
from .pairs import (
    INTERPRETED,
    Pair,
    added,
    constant,
    exact,
    helper,
    masked,
    real,
    rounded,
    sum_along,
    two_sum,
)

# mypy: disable-error-code="untyped-decorator,no-untyped-def"

#: The source of the point for moments that need not be finite; see config.py.
ARGUMENT = constant(config.ARGUMENT)


#: The hints for the caches of the first load of an element, and of a second one. Loads without a
#: difference would be one, whose value would be held in registers, of which there are not enough.
FIRST, AGAIN = constant(""), constant("evict_first")


class Sums(NamedTuple):
    """Σdy and Σdy·(x − μ), or in the forward pass Σ(x − p) and Σ(x − p)²."""

    total: Any
    projection: Any


class Coefficients(NamedTuple):
    """The coefficients of dx or y; see `result_of_tile`."""

    mean: Any
    shift: Any
    scale: Any
    gain: Any
    slope: Any


@helper
def both(sums, others):
    """Add two sums to two others."""
    return Sums(sums.total + others.total, sums.projection + others.projection)


@helper
def over_rows(sums):
    """Reduce two sums along their first axis."""
    return Sums(tl.sum(sums.total, 0), tl.sum(sums.projection, 0))


@helper
def accumulated(sums, others, C: tl.constexpr):
    """Add a tile's two sums to those of earlier tiles; all are pairs."""
    total = added(sums.total, others.total, C.singles)
    return Sums(total, added(sums.projection, others.projection, C.singles))


@triton.jit
def _add_both(a, b, c, d):
    return a + c, b + d


@helper
def free_of_layout(value):
    """A number of one element, without the layout that it has from a reduction.

    Triton else converts whole tiles to that layout, through shared memory.
    """
    return tl.full([1], tl.sum(value, 0), value.dtype)


@helper
def none(C: tl.constexpr):
    """The sums of nothing, for each thread's positions of a tile."""
    ROWS: tl.constexpr = C.positions // (C.leading * C.adjacent)
    zero = tl.full([ROWS, C.channels], 0.0, tl.float32 if C.singles else tl.float64)
    return Sums(exact(zero), exact(zero))


@helper
def along(sums, AXIS: tl.constexpr, C: tl.constexpr):
    """Reduce sums, which are pairs, along an axis, to numbers in float64."""
    if C.singles or INTERPRETED:
        total = sum_along(sums.total, AXIS, C.singles)
        projection = sum_along(sums.projection, AXIS, C.singles)
    else:  # at once, so that the program's threads wait for each other only once
        total, projection = tl.reduce((sums.total.value, sums.projection.value), AXIS, _add_both)
    ONE: tl.constexpr = total.shape[0] == 1
    if ONE:
        return Sums(free_of_layout(total), free_of_layout(projection))
    else:
        return Sums(total, projection)


# The tuples of constants below have names, since Triton 3.6 would flatten a tuple that is passed on
# without one.


@helper
def load_both(a, s, first, p, there, HINT: tl.constexpr, C: tl.constexpr):
    """Load tiles of dy and x in the arithmetic's type, 0 outside; in the forward pass, x twice."""
    X: tl.constexpr = C.x
    at = pointers(a.at[access.X], a.x, s, first, p, a.axes, X, C)
    x = real(tl.load(at, mask=there, other=0.0, eviction_policy=HINT), C.wide)
    dy = x
    if not C.forward:
        DY: tl.constexpr = C.dy
        at = pointers(a.at[access.DY], a.dy, s, first, p, a.axes, DY, C)
        dy = real(tl.load(at, mask=there, other=0.0, eviction_policy=HINT), C.wide)
    return dy, x


@helper
def store_dx(a, s, first, p, there, value, C: tl.constexpr):
    """Store a tile of dx or y, rounded."""
    T: tl.constexpr = C.dx
    at = pointers(a.at[access.DX], a.dx, s, first, p, a.axes, T, C)
    tl.store(at, rounded(value, C.dx.code), mask=there)


# The positions of a tile that one thread has


@helper
def halves(value, SIDE_BY_SIDE: tl.constexpr):
    """Split a tile's positions into halves: alternating ones, or the first and the last."""
    B: tl.constexpr = value.shape[0] // 2
    W: tl.constexpr = value.shape[1]
    if SIDE_BY_SIDE:
        return tl.split(tl.permute(tl.reshape(value, [B, 2, W]), [0, 2, 1]))
    else:
        return tl.split(tl.permute(tl.reshape(value, [2, B, W]), [1, 2, 0]))


@helper
def halved(a, COUNT: tl.constexpr, SIDE_BY_SIDE: tl.constexpr, ERRORS: tl.constexpr):
    """Add the halves of a tile's positions to each other, repeatedly, with errors if wanted."""
    if COUNT == 1:
        return a
    else:
        first, second = halves(a.value, SIDE_BY_SIDE)
        first_error, second_error = first, second
        if ERRORS:
            first_error, second_error = halves(a.error, SIDE_BY_SIDE)
        both = added(Pair(first, first_error), Pair(second, second_error), ERRORS)
        return halved(both, COUNT // 2, SIDE_BY_SIDE, ERRORS)


@helper
def folded(a, ERRORS: tl.constexpr, C: tl.constexpr):
    """Add up each thread's positions of a tile as a tree, in registers."""
    return halved(halved(a, C.adjacent, True, ERRORS), C.leading, False, ERRORS)


@helper
def terms_of_tile(dy, x, about, there, C: tl.constexpr):
    """The terms of the sums for each element of a tile, in the arithmetic's type."""
    if C.singles and C.forward:
        xmu = two_sum(x, -about.to(x.dtype)[None, :])
        square = xmu.value * xmu.value
        error = tl.fma(xmu.value, xmu.value, -square) + 2.0 * xmu.value * xmu.error
        return Sums(masked(xmu, there), masked(Pair(square, error), there))
    elif C.forward:
        if C.about == ARGUMENT:  # which may be infinite
            d = tl.where(there, x.to(tl.float64) - about[None, :], 0.0)
        else:  # masking float32 takes half as many instructions
            x = tl.where(there, x, about.to(x.dtype)[None, :])
            d = x.to(tl.float64) - about[None, :]
        return Sums(exact(d), exact(d * d))
    else:
        # Outside dy is 0, and so is the product unless the mean is not finite, nor then the sum.
        return Sums(exact(dy), exact(dy * (x - about[None, :])))


@helper
def sums_of_terms(terms, weight, C: tl.constexpr):
    """Add up the terms of a tile for each thread, as float64 or pairs.

    In gradients of lines the terms are multiplied by the weights first.
    """
    ERRORS: tl.constexpr = C.singles and C.forward
    total, projection = terms.total, terms.projection
    if C.sharing > 0 and not C.forward:
        total = exact(total.value * weight)
        projection = exact(projection.value * weight)
    total, projection = folded(total, ERRORS, C), folded(projection, ERRORS, C)
    if ERRORS:
        return Sums(total, projection)
    elif C.singles:
        return Sums(exact(total.value), exact(projection.value))
    else:
        return Sums(exact(total.value.to(tl.float64)), exact(projection.value.to(tl.float64)))


@helper
def over_channels(sums):
    """Reduce two sums over a tile's channels, all of which are in one group."""
    total = free_of_layout(tl.sum(sums.total[:, None], 0))
    return Sums(total, free_of_layout(tl.sum(sums.projection[:, None], 0)))


@helper
def result_of_tile(dy, x, c, weight, bias, C: tl.constexpr):
    """Compute dx or y of a tile from coefficients of each channel.

    dx = scale·(gain·dy − (shift + slope·(x − μ))), or in evaluation scale·dy; and
    y = scale·(x − μ) + shift. In lines each position has a weight and a bias, which multiply dy,
    or scale and shift y.
    """
    if C.forward:
        y = tl.fma(c.scale[None, :], x - c.mean[None, :], c.shift[None, :])
        if C.sharing > 0:
            y = tl.fma(weight, y, bias)
        return y
    elif C.constant:
        return dy * c.scale[None, :]
    else:
        if C.sharing > 0:
            dy = weight * dy
        inner = tl.fma(c.slope[None, :], x - c.mean[None, :], c.shift[None, :])
        return c.scale[None, :] * tl.fma(c.gain[None, :], dy, -inner)


# Lines, in which each position has parameters


@helper
def parameters(a, s, start, C: tl.constexpr):
    """The weights and biases of a tile's positions in lines; gradients have no bias."""
    if C.sharing > 0:
        weight = access.read_along(a, s, start, access.WEIGHT, 1.0, C)
        return weight, access.read_along(a, s, start, access.BIAS, 0.0, C)
    else:
        return 1.0, 0.0


@helper
def no_columns(C: tl.constexpr):
    """Zeros to which a chain of tiles adds its terms of the parameters' gradients.

    Where each position has a parameter of its own these are of the arithmetic's type; where some
    positions share one, float64.
    """
    REAL: tl.constexpr = tl.float32 if C.sharing == 1 and not C.wide else tl.float64
    zero = tl.full([C.positions // max(1, C.sharing), C.channels], 0.0, REAL)
    return Sums(zero, zero)


@helper
def of_parameters(value, C: tl.constexpr):
    """Sum a number over the positions that share a parameter, in float64."""
    S: tl.constexpr = C.sharing
    R: tl.constexpr = C.positions // S
    W: tl.constexpr = C.channels
    if S == 1:
        return value
    else:
        return tl.sum(tl.reshape(value.to(tl.float64), [R, S, W]), 1)


@helper
def add_columns(columns, terms, r, rest, C: tl.constexpr):
    """Add the contribution of each line of a tile to the gradients of parameters.

    Terms of x minus a rounded mean are corrected for the mean's rounding error, the rest.
    """
    total = of_parameters(terms.total.value, C)
    projection = of_parameters(terms.projection.value, C)
    if C.rest:
        projection = tl.fma(total, -rest.to(total.dtype)[None, :], projection)
    r = tl.broadcast_to(r.to(total.dtype)[None, :], total.shape)
    return Sums(columns.total + total, tl.fma(projection, r, columns.projection))
