"""Kernels for samples of few positions whose channels are contiguous, in statistics groups.

Each group takes the place of a channel, and each element of its rows has its own parameters (group
norm of channels-last images). One walk over the positions of some groups computes everything, while
they are in the L1 cache: ``gradients`` their sums, their dx and the parameters' sums, ``forward``
their moments and their y. Nothing is computed for a channel but sums over its positions.
"""

from __future__ import annotations

from ..schedule import block as B
from ..vector.helpers import as_argument, helper
from ..vector.intrinsics import (
    doubles_at,
    get,
    inlined,
    not_inlined,
    real_buffer,
    reals_at,
    shift,
    smaller,
)
from ..vector.lanes import (
    EIGHT,
    LANES,
    as_loaded,
    double_lanes,
    load_lanes,
    muladd,
    put_lanes,
    splat_eight,
    zero_lanes,
)
from ..vector.segments import load_segment, over_row, store_segment
from .accumulators import fold, gather_sums, start_sums
from .elements import advance, linear_form
from .groups import fold_in_sequence
from .moments import moments_of_columns
from .reductions import CHAIN, buffer, shape_of, streams_lines, sums_of, three
from .row_groups import (
    COEFFICIENTS,
    GAIN,
    INVSTD,
    MEAN,
    REST,
    SCALE,
    SHIFT,
    SLOPE,
    choose_pilots,
    compute_coefficients,
    compute_statistics,
    round_statistics,
)
from .writes import parameters_along

# mypy: disable-error-code="untyped-decorator,no-untyped-def"


@helper
def spread_in_rows(values, groups, run, rows, first):
    """Give each element of some groups its group's numbers, from element ``first`` of rows on."""
    not_inlined()
    c = first
    for g in range(groups):
        numbers = (
            splat_eight(get(values[0], g)), splat_eight(get(values[1], g)),
            splat_eight(get(values[2], g)), splat_eight(get(values[3], g)),
        )  # fmt: skip
        for i in range(c, c + run, EIGHT):  # lanes beyond a group are overwritten by the next
            put_lanes(rows[0], i, numbers[0])
            put_lanes(rows[1], i, numbers[1])
            put_lanes(rows[2], i, numbers[2])
            put_lanes(rows[3], i, numbers[3])
        c += run


@helper
def sum_positions(tensors, steps, positions, c, mean, segment):
    """The two sums of a segment of some groups over some positions."""
    inlined()
    zero = zero_lanes(tensors[1])
    first, second = zero, zero
    for _ in range(positions):
        dy = load_segment(tensors[0], c, segment)
        centred = load_segment(tensors[1], c, segment) - mean
        first, second = first + dy, muladd(dy, centred, second)
        tensors = advance(tensors, steps, 1)
    return first, second


@as_argument
def sum_segment(arguments, c, segment):
    """Sum a segment of some groups over some positions, and add it to the parameters' sums.

    Half of the positions come after the other half: registers may not hold the sums of both.
    """
    tensors, steps, positions, weights, means, rows, columns, is_first, gradients, adds = arguments
    dy = tensors[0]
    mean, half = as_loaded(dy, load_lanes(means, c)), positions // 2
    a = sum_positions(tensors, steps, half, c, mean, segment)
    b = sum_positions(advance(tensors, steps, half), steps, positions - half, c, mean, segment)
    total, product = a[0] + b[0], a[1] + b[1]
    weight = as_loaded(dy, load_segment(weights, c, segment))
    weight = weight + (weight - weight)  # see add_weighted of coefficients.py
    if is_first:
        put_lanes(columns[0], c, double_lanes(weight * total))
        put_lanes(columns[1], c, double_lanes(weight * product))
    else:
        fold(columns[0], c, weight * total)
        fold(columns[1], c, weight * product)
    if adds:
        invstd, rest = as_loaded(dy, load_lanes(rows[0], c)), as_loaded(dy, load_lanes(rows[1], c))
        fold_in_sequence(dy, gradients[0], c, total, segment)
        fold_in_sequence(dy, gradients[1], c, muladd(invstd, product, rest * total), segment)


@helper
def write_positions(operation, tensors, steps, positions, c, coefficients, segment, streaming):
    """Write dx or y of a segment of some groups at all positions."""
    inlined()
    for _ in range(positions):
        lanes = linear_form(operation, tensors, c, coefficients, segment)
        store_segment(tensors[2], c, lanes, segment, streaming)
        tensors = advance(tensors, steps, 1)


@as_argument
def write_segment_of_samples(arguments, c, segment):
    """Write dx of a segment of some groups at all positions."""
    operation, tensors, steps, positions, weights, means, rows, streaming = arguments
    dy = tensors[0]
    weight = as_loaded(dy, load_segment(weights, c, segment))
    coefficients = (
        as_loaded(dy, load_lanes(rows[0], c)) * weight, as_loaded(dy, load_lanes(rows[1], c)),
        as_loaded(dy, load_lanes(means, c)), as_loaded(dy, load_lanes(rows[2], c)),
        as_loaded(dy, load_lanes(rows[3], c)),
    )  # fmt: skip
    write_positions(operation, tensors, steps, positions, c, coefficients, segment, streaming)


@helper
def gradients(operation, dy, x, dx, job):
    """Sum some groups, write their dx and add them to the parameters' sums, as far as wanted."""
    first, groups, run, _ = shape_of(job)
    positions, steps, width = get(job, B.J_ROWS), three(job, B.J_ROW_STEPS), groups * run
    k, tensors, all_sums = first * run, (dy, x, dx), sums_of(job)
    weights = shift(reals_at(get(job, B.J_WEIGHT), x), k)
    of_parameters = shift(all_sums[0], k), shift(all_sums[1], k)
    coefficients, mean = real_buffer(COEFFICIENTS, x), reals_at(buffer(job, 0), x)
    rows = (
        reals_at(buffer(job, 1), x), reals_at(buffer(job, 2), x), reals_at(buffer(job, 3), x),
        reals_at(buffer(job, 4), x),
    )  # fmt: skip
    columns = doubles_at(buffer(job, 5)), doubles_at(buffer(job, 6))
    sums = doubles_at(buffer(job, 7)), doubles_at(buffer(job, 8))
    for start in range(0, groups, LANES):
        n, at = smaller(LANES, groups - start), start * run
        round_statistics(job, first + start, n, coefficients)
        rest = shift(coefficients, REST)
        values = shift(coefficients, MEAN), shift(coefficients, INVSTD), rest, rest
        spread_in_rows(values, n, run, (mean, rows[0], rows[1], rows[2]), at)
    adds = get(job, B.J_ADDS) != 0
    for i in range(0, positions, 2 * CHAIN):
        n, here = smaller(2 * CHAIN, positions - i), advance(tensors, steps, i)
        arguments = (
            here, steps, n, weights, mean, rows, columns, i == 0, of_parameters, adds
        )  # fmt: skip
        over_row(sum_segment, arguments, x, width)
    if get(job, B.J_WRITES) == 0:
        return
    start_sums(sums, groups, dy)
    gather_sums(columns, 0, groups, run, 1, dy, sums)
    for start in range(0, groups, LANES):
        n, at = smaller(LANES, groups - start), start * run
        totals = shift(sums[0], start), shift(sums[1], start)
        compute_coefficients(job, first + start, n, totals, coefficients)
        values = (
            shift(coefficients, GAIN), shift(coefficients, SHIFT), shift(coefficients, SLOPE),
            shift(coefficients, SCALE),
        )  # fmt: skip
        spread_in_rows(values, n, run, rows, at)
    streaming = streams_lines(job, dx, width, steps[2])
    writing = operation, tensors, steps, positions, weights, mean, rows, streaming
    over_row(write_segment_of_samples, writing, x, width)


@as_argument
def normalise_segment(arguments, c, segment):
    """Write y of a segment of some groups at all positions."""
    operation, tensors, steps, positions, along, rows, streaming = arguments
    x = tensors[1]
    coefficients = (
        as_loaded(x, load_lanes(rows[1], c)), as_loaded(x, load_segment(along[1], c, segment)),
        as_loaded(x, load_lanes(rows[0], c)), as_loaded(x, load_lanes(rows[2], c)),
        as_loaded(x, load_segment(along[0], c, segment)),
    )  # fmt: skip
    write_positions(operation, tensors, steps, positions, c, coefficients, segment, streaming)


@helper
def forward(operation, dy, x, dx, job):
    """Normalise some groups; their moments stay in the workspace."""
    first, groups, run, _ = shape_of(job)
    along, steps, width = parameters_along(x, job), three(job, B.J_ROW_STEPS), groups * run
    means, invstds, rests = real_buffer(LANES, x), real_buffer(LANES, x), real_buffer(LANES, x)
    choose_pilots(job, x, run, run, first, groups)
    moments_of_columns(operation, dy, x, dx, job)
    # The moments are done with their buffers.
    rows = reals_at(buffer(job, 0), x), reals_at(buffer(job, 1), x), reals_at(buffer(job, 2), x)
    for start in range(0, groups, LANES):
        n, at = smaller(LANES, groups - start), start * run
        compute_statistics(job, first + start, n, means, invstds, rests)
        values = means, invstds, rests, rests
        spread_in_rows(values, n, run, (rows[0], rows[1], rows[2], rows[2]), at)
    here = shift(along[0], first * run), shift(along[1], first * run)
    streaming = streams_lines(job, dx, width, steps[2])
    arguments = operation, (dy, x, dx), steps, get(job, B.J_ROWS), here, rows, streaming
    over_row(normalise_segment, arguments, x, width)
