"""Kernels for rows that are statistics groups, whose elements have the parameters (layer norm).

``gradients`` sums rows, writes their dx and adds them to the parameters' sums. ``parameters`` does
so for rows whose own sums are known. ``forward`` takes some rows' moments and writes their y. A row
stays in the nearest caches from its sums or moments to its dx or y.
"""

from __future__ import annotations

from numba import types

from ..schedule import block as B
from ..schedule.layout import FETCHED, PAGE, ROWS, SHORT, SPAN
from ..target import has_many_registers
from ..vector.conversions import HalfStorage
from ..vector.helpers import as_argument, by_types, helper
from ..vector.intrinsics import (
    double_buffer,
    doubles_at,
    get,
    inlined,
    is_double,
    item_size,
    larger,
    not_inlined,
    put,
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
    in_sequence,
    lanes_of,
    load_lanes,
    put_lanes,
    splat_like,
    sum_of_lanes,
    sums_of_eight,
    zero_lanes,
)
from ..vector.segments import load_segment, over_row, store_segment
from .accumulators import BATCH, fold, gather_sums, order_sums, start_sums
from .channel_vectors import write_parameters
from .elements import advance, prefetch_inputs
from .moments import moments_of_channels
from .reductions import (
    block_of,
    buffer,
    put_short_row,
    streams_lines,
    sums_of,
    three,
    totals_of_rows,
)
from .row_groups import (
    ALWAYS,
    COEFFICIENTS,
    DISTANCE,
    NEVER,
    ROW_CHAIN,
    add_and_write,
    choose_pilots,
    compute_coefficients,
    compute_statistics,
    forward_in_tiles,
    gradients_in_tiles,
    is_written,
    keep_rests,
    read_coefficients,
    round_statistics,
    row_coefficients,
    statistics_from,
    sum_deviations,
    write_segment_of_group,
)
from .sums import add_array
from .writes import is_streamed, parameters_along, stream_row, write_row

# mypy: disable-error-code="untyped-decorator,no-untyped-def"

#: The size of buffers for the sums of some rows, which are stored in whole lanes.
TOTALS = ROWS + LANES
#: The size of buffers for a short row, beyond whose end the last lanes may reach.
ROW = SHORT + LANES
#: The elements of float64 from which on fewer rows are processed at a time.
LONG_DOUBLE = 128
#: The bytes of x in rows that are written together after their moments: they stay in the L1 cache
#: beside what is written.
NEAR = 8 << 10


@by_types
def prefetches_beside_parameters(tensor):
    """Whether rows are prefetched where dx is written, rather than where they are summed.

    Where sums fill the registers, float32 and float64 would lose by it.
    """
    beside = isinstance(tensor.dtype, HalfStorage) or has_many_registers()
    return lambda tensor: beside


@helper
def prefetch_later_rows(tensors, c, ahead, writes):
    """Prefetch what is read later, since no processor foresees so many rows at once."""
    if prefetches_beside_parameters(tensors[0]) or not is_written(writes):
        prefetch_inputs(tensors, c + ahead[0], c + ahead[1])


@helper
def add_chain(arguments, c, segment, weight, zero, first):
    """Sum every other row of a segment of their elements, from row ``first`` on."""
    operation, tensors, steps, rows, _, coefficients, _, writes, streaming, ahead = arguments
    chain, here = (zero, zero), advance(tensors, steps, first)
    for r in range(first, rows, 2):
        prefetch_later_rows(here, c, ahead, writes)
        of_row = row_coefficients(coefficients, r)
        chain = add_and_write(operation, here, c, weight, of_row, chain, segment, writes, streaming)
        here = advance(here, steps, 2)
    return chain


@as_argument
def add_rows_to_parameters(arguments, c, segment):
    """Add some rows to the sums of a segment of their elements, in two chains.

    One comes after the other: registers may not hold the sums of two.
    """
    tensors, weights, sums = arguments[1], arguments[4], arguments[6]
    weight = as_loaded(tensors[0], load_segment(weights, c, segment))
    zero = zero_lanes(tensors[1])
    a = add_chain(arguments, c, segment, weight, zero, 0)
    b = add_chain(arguments, c, segment, weight, zero, 1)
    fold(sums[0], c, a[0] + b[0])
    fold(sums[1], c, a[1] + b[1])


@by_types
def fold_in_sequence(tensor, sums, c, lanes, segment):
    """Add a segment of a chain to sums in float64, which end where the row does."""

    def some(tensor, sums, c, lanes, segment):
        row = double_buffer(LANES)
        put_lanes(row, 0, double_lanes(in_sequence(tensor, lanes)))
        add_array(shift(sums, c), row, segment)

    if isinstance(segment, types.Integer):
        return some
    return lambda tensor, sums, c, lanes, segment: fold(sums, c, in_sequence(tensor, lanes))


@by_types
def put_in_chain(tensor, chain, c, lanes, segment):
    """Put a segment of a chain back: no more of float64, where the next task's chain follows."""
    if tensor.dtype == types.float64:
        return lambda tensor, chain, c, lanes, segment: store_segment(
            chain, c, lanes, segment, False
        )
    return lambda tensor, chain, c, lanes, segment: put_lanes(chain, c, lanes)


@as_argument
def add_row_to_parameters(arguments, c, segment):
    """Add a segment of a row to a chain in the nearest caches, and write its dx if asked.

    The chain is folded if it is full.
    """
    inlined()
    operation, tensors, weights, coefficients, chain, sums, writes, streaming, is_full, ahead = (
        arguments
    )
    dy = tensors[0]
    prefetch_inputs(tensors, c + ahead[0], c + ahead[1])
    weight, of_row = (
        as_loaded(dy, load_segment(weights, c, segment)),
        row_coefficients(coefficients, 0),
    )
    lanes = load_lanes(chain[0], c), load_lanes(chain[1], c)
    first, second = add_and_write(
        operation, tensors, c, weight, of_row, lanes, segment, writes, streaming
    )
    if is_full:
        fold_in_sequence(dy, sums[0], c, first, segment)
        fold_in_sequence(dy, sums[1], c, second, segment)
        first, second = zero_lanes(dy), zero_lanes(dy)
    put_in_chain(dy, chain[0], c, first, segment)
    put_in_chain(dy, chain[1], c, second, segment)


@as_argument
def write_segment_of_rows(arguments, c, segment):
    """Write dx of a segment of some rows."""
    operation, tensors, steps, rows, weights, coefficients, _, writes, streaming, ahead = arguments
    weight = as_loaded(tensors[0], load_segment(weights, c, segment))
    for r in range(rows):
        prefetch_later_rows(tensors, c, ahead, writes)
        of_row = row_coefficients(coefficients, r)
        write_segment_of_group(operation, tensors, c, weight, of_row, segment, streaming)
        tensors = advance(tensors, steps, 1)


@helper
def parameters(operation, dy, x, dx, job):
    """Add each row's contribution to the parameter gradients, and write its dx if asked."""
    count, run, steps = get(job, B.J_CHANNELS), get(job, B.J_RUN), three(job, B.J_CHANNEL_STEPS)
    coefficients = real_buffer(COEFFICIENTS, x)
    weight, ahead = reals_at(get(job, B.J_WEIGHT), x), (FETCHED, FETCHED)
    columns = doubles_at(buffer(job, 0)), doubles_at(buffer(job, 1))
    writes = get(job, B.J_WRITES) != 0
    for k in range(0, run, SPAN):
        width, weights = smaller(SPAN, run - k), shift(weight, k)
        tensors = advance((dy, x, dx), (1, 1, 1), k)
        streaming = streams_lines(job, tensors[2], width, steps[2])
        start_sums(columns, width, dy)
        for i in range(0, count, ROWS):
            rows, here = smaller(ROWS, count - i), advance(tensors, steps, i)
            read_coefficients(job, get(job, B.J_CHANNEL) + i, rows, coefficients)
            arguments = (
                operation, here, steps, rows, weights, coefficients, columns, writes, streaming,
                ahead,
            )  # fmt: skip
            over_row(add_rows_to_parameters, arguments, dy, width)
        at, block = get(job, B.J_FIRST) + k, block_of(job)
        if get(block, B.SLOTS) != 0:
            gather_sums(columns, at, width, 1, 1, dy, sums_of(job))
        else:  # of long rows, of which a task has all
            order_sums(columns, width, dy)
            write_parameters(block, B.GRAD_BIAS, at, width, columns[0])
            write_parameters(block, B.GRAD_WEIGHT, at, width, columns[1])


@helper
def sum_short_rows(operation, tensors, steps, rows, run, means, weight, sums, ahead):
    """Sum some short rows, in float32 eight at a time; ``sums`` has room for whole lanes.

    Where ``ahead``, later rows are prefetched.
    """
    here, x, zero = tensors, tensors[1], zero_lanes(tensors[1])
    batch = real_buffer(BATCH, x), real_buffer(BATCH, x), real_buffer(BATCH, x)
    for first in range(0, rows, EIGHT):
        for r in range(first, smaller(first + EIGHT, rows)):
            terms = splat_like(x, get(means, r)), zero, weight
            if ahead:
                for c in range(0, run, lanes_of(x)):
                    prefetch_inputs(here, c + ROWS * steps[0], c + ROWS * steps[1])
            put_short_row(operation, here, run, terms, (zero, zero, zero), batch, r - first)
            here = advance(here, steps, 1)
        put_lanes(shift(sums[0], first), 0, sums_of_eight(batch[0]))
        put_lanes(shift(sums[1], first), 0, sums_of_eight(batch[1]))
        if is_double(x):
            put_lanes(shift(sums[2], first), 0, sums_of_eight(batch[2]))


@helper
def gradients_of_short_rows(operation, dy, x, dx, job):
    """The gradients of short rows, some of which are in the L1 cache from their sums to their dx.

    The parameters' sums stay in registers.
    """
    not_inlined()
    count, run, steps = get(job, B.J_CHANNELS), get(job, B.J_RUN), three(job, B.J_CHANNEL_STEPS)
    weights = reals_at(get(job, B.J_WEIGHT), x)
    columns, first = (double_buffer(ROW), double_buffer(ROW)), get(job, B.J_CHANNEL)
    writes, adds = get(job, B.J_WRITES) != 0, get(job, B.J_ADDS) != 0
    start_sums(columns, run, dy)
    streaming = streams_lines(job, dx, run, steps[2])
    coefficients = real_buffer(COEFFICIENTS, x)
    sums = double_buffer(TOTALS), double_buffer(TOTALS), double_buffer(TOTALS)
    # Sixteen longer rows of float64 do not stay in the L1 cache.
    most = ROWS // 2 if is_double(x) and run >= LONG_DOUBLE else ROWS
    ahead = most * steps[0], most * steps[1]
    prefetches = get(job, B.J_AHEAD) != 0 or steps[0] != run
    prefetches = prefetches and not prefetches_beside_parameters(dy)
    finds_means = get(block_of(job), B.MISSING_MEAN) != 0
    for i in range(0, count, most):
        rows, here = smaller(most, count - i), advance((dy, x, dx), steps, i)
        if is_double(x) and finds_means:
            choose_pilots(job, here[1], steps[1], run, first + i, rows)
            if not writes:
                means = statistics_from(job, first + i)[0]
                sum_deviations(here[1], steps[1], run, means, rows, sums[2])
                keep_rests(job, first + i, rows, sums[2])
        if writes:
            means = statistics_from(job, first + i)[0]
            sum_short_rows(operation, here, steps, rows, run, means, weights, sums, prefetches)
            if is_double(x):
                keep_rests(job, first + i, rows, sums[2])
            compute_coefficients(job, first + i, rows, sums, coefficients)
        else:
            round_statistics(job, first + i, rows, coefficients)
        arguments = (
            operation, here, steps, rows, weights, coefficients, columns, writes, streaming, ahead
        )  # fmt: skip
        if adds:
            over_row(add_rows_to_parameters, arguments, dy, run)
        else:
            over_row(write_segment_of_rows, arguments, dy, run)
    if adds:
        gather_sums(columns, get(job, B.J_FIRST), run, 1, 1, dy, sums_of(job))


@helper
def gradients_of_long_rows(operation, dy, x, dx, job, writes):
    """The gradients of longer rows, or the parameters' alone, one row after the other.

    A row is in the nearest caches from its sums to its dx, and so are the parameters' sums and
    their chains.
    """
    not_inlined()
    count, run, steps = get(job, B.J_CHANNELS), get(job, B.J_RUN), three(job, B.J_CHANNEL_STEPS)
    weights = reals_at(get(job, B.J_WEIGHT), x)
    chain = reals_at(get(job, B.J_CHAINS), x), reals_at(get(job, B.J_CHAINS + 1), x)
    first, adds = get(job, B.J_CHANNEL), get(job, B.J_ADDS) != 0
    streaming, columns = streams_lines(job, dx, run, steps[2]), sums_of(job)
    coefficients = real_buffer(COEFFICIENTS, x)
    sums = double_buffer(EIGHT), double_buffer(EIGHT)
    here, finds_means = (dy, x, dx), get(block_of(job), B.MISSING_MEAN) != 0
    later = larger(1, DISTANCE // (run * item_size(dy)))
    ahead = later * steps[0], later * steps[1]
    for i in range(count):
        if is_double(x) and finds_means:
            choose_pilots(job, here[1], steps[1], run, first + i, 1)
            sum_deviations(here[1], steps[1], run, statistics_from(job, first + i)[0], 1, sums[0])
            keep_rests(job, first + i, 1, sums[0])
        if is_written(writes):
            mean = get(statistics_from(job, first + i)[0], 0)
            terms = splat_like(x, mean), zero_lanes(x), weights
            totals = totals_of_rows(operation, here, (0, 0, 0), 1, run, terms, False, False)
            put(sums[0], 0, sum_of_lanes(totals[0]))
            put(sums[1], 0, sum_of_lanes(totals[1]))
            compute_coefficients(job, first + i, 1, sums, coefficients)
        else:
            round_statistics(job, first + i, 1, coefficients)
        if adds:
            is_full = (i + 1) % ROW_CHAIN == 0 or i + 1 == count
            arguments = (
                operation, here, weights, coefficients, chain, columns, writes, streaming, is_full,
                ahead,
            )  # fmt: skip
            over_row(add_row_to_parameters, arguments, dy, run)
        else:
            one_row = (
                operation, here, steps, 1, weights, coefficients, columns, writes, streaming,
                (0, 0),
            )  # fmt: skip
            over_row(write_segment_of_rows, one_row, dy, run)
        here = advance(here, steps, 1)


@helper
def gradients(operation, dy, x, dx, job):
    """Sum each row, write its dx, and add the row to the parameters' sums, as far as wanted."""
    run, writes = get(job, B.J_RUN), get(job, B.J_WRITES) != 0
    if run < LANES:
        gradients_in_tiles(operation, dy, x, dx, job)
        return
    # Rows a quarter of a page apart evict one another, unless their sums have just read them.
    if run <= SHORT and (writes or run * item_size(dy) < PAGE // 4):
        gradients_of_short_rows(operation, dy, x, dx, job)
    elif writes:
        gradients_of_long_rows(operation, dy, x, dx, job, ALWAYS)
    else:
        gradients_of_long_rows(operation, dy, x, dx, job, NEVER)


@helper
def forward(operation, dy, x, dx, job):
    """Normalise rows, which stay in a core's nearest cache from their moments to their y.

    The moments stay in the workspace, from which ``statistics`` computes what is returned.
    """
    if get(job, B.J_RUN) < LANES:
        forward_in_tiles(operation, dy, x, dx, job)
        return
    first, count, run = get(job, B.J_CHANNEL), get(job, B.J_CHANNELS), get(job, B.J_RUN)
    steps, streaming = three(job, B.J_CHANNEL_STEPS), is_streamed(dx, job)
    at_once = larger(1, smaller(EIGHT, NEAR // (run * item_size(x))))
    along, ahead = parameters_along(x, job), at_once * steps[1]
    means, invstds, rests = double_buffer(EIGHT), double_buffer(EIGHT), double_buffer(EIGHT)
    for start in range(0, count, at_once):
        c, rows, here = first + start, smaller(at_once, count - start), shift(x, start * steps[1])
        choose_pilots(job, here, steps[1], run, c, rows)
        moments_of_channels(operation, here, job, c, c + rows)
        compute_statistics(job, c, rows, means, invstds, rests)
        for r in range(rows):
            tensors = advance((dy, x, dx), steps, start + r)
            gain, mean = splat_like(x, get(invstds, r)), splat_like(x, get(means, r))
            coefficients = gain, gain, mean, splat_like(x, get(rests, r)), gain
            if streaming:
                stream_row(operation, tensors, coefficients, along, run, ahead)
            else:
                write_row(operation, tensors, coefficients, along, run, ahead)
