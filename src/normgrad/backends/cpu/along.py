"""Gradients of rows that are statistics groups whose elements have the parameters (layer norm).

``gradients`` sums rows, writes their dx and adds them to the parameters' sums. ``parameters`` does
so for rows whose own sums are known. forward_along.py has the forward pass.
"""

from __future__ import annotations

from numba import types

from . import block as B
from .coefficients import NORMAL_SINGLES, holds, keep_precision
from .columns import BUFFER, gather_sums, prefetch_ahead, start_sums
from .conversions import HalfStorage
from .elements import further, prefetch_inputs
from .helpers import by_types, helper, passed
from .intrinsics import (
    bits_to_double,
    double_buffer,
    doubles_at,
    get,
    inlined,
    not_inlined,
    pairs_buffer,
    plain,
    put,
    real_buffer,
    reals_at,
    shift,
    smaller,
)
from .lanes import (
    EIGHT,
    LANES,
    as_loaded,
    double_lanes,
    in_sequence,
    load_lanes,
    put_lanes,
    splat,
    splat_like,
    sum_of_lanes,
    sums_of_eight,
    zero_lanes,
)
from .layout import FETCHED, ROWS, SHORT, SPAN
from .parts import load_part, over_row, store_part
from .rows import KEPT, keep_short_row, streams_lines, sums_of, sums_of_rows, three
from .sums import fold_lanes, total_of
from .target import has_many_registers
from .vectors import canonical

# mypy: disable-error-code="untyped-decorator,no-untyped-def"

#: Offsets of the rows' coefficients in a buffer, in the order of a job's fields.
GAIN, SHIFT, MEAN, SLOPE, SCALE, INVSTD = 0, ROWS, 2 * ROWS, 3 * ROWS, 4 * ROWS, 5 * ROWS
NUMBERS = 6 * ROWS
#: How many bytes ahead rows are prefetched while rows are summed: of short ones the next sixteen.
DISTANCE = 1 << 13
#: The size of buffers for a short row, beyond whose end the last lanes may reach.
ROW = SHORT + LANES
#: The size of buffers for the sums of some rows, which are stored in whole lanes.
TOTALS = ROWS + LANES


@helper
def read_numbers(job, row, rows, numbers):
    """Read the coefficients of some rows, rounded to the arithmetic's type."""
    for field in range(NUMBERS // ROWS):
        values = shift(doubles_at(get(job, B.J_GAIN + field)), row)
        for r in range(rows):
            put(numbers, field * ROWS + r, get(values, r))


@helper
def numbers_of(numbers, r):
    """A row's coefficients in lanes: gain, shift, mean, slope, scale and 1/std."""
    return (
        splat(get(numbers, GAIN + r)), splat(get(numbers, SHIFT + r)),
        splat(get(numbers, MEAN + r)), splat(get(numbers, SLOPE + r)),
        splat(get(numbers, SCALE + r)), splat(get(numbers, INVSTD + r)),
    )  # fmt: skip


@helper
def write_part(dx, c, weight, numbers, values, centred, part, streaming):
    """Write dx of a part of a row, from its dy and x − mean."""
    gain, offset, _, slope, scale, _ = numbers
    inner = offset + slope * centred
    store_part(dx, c, scale * (gain * weight * values - inner), part, streaming)


@by_types
def is_wanted(writes):
    """Whether dx is written: never if None, which a kernel is compiled for, or as a job says."""
    if isinstance(writes, types.NoneType):
        return lambda writes: False
    return lambda writes: writes


@helper
def add_and_write(tensors, c, weight, numbers, sums, part, writes, streaming):
    """Add dy and dy·(x − mean)/std of a part of a row to two sums; write dx if asked."""
    dy, x, dx = tensors
    values, centred = load_part(dy, c, part), load_part(x, c, part) - numbers[2]
    if is_wanted(writes):
        write_part(dx, c, weight, numbers, values, centred, part, streaming)
    return sums[0] + values, sums[1] + values * (centred * numbers[5])


@by_types
def fetches_beside_sums(tensor):
    """Whether rows are prefetched where the parameters are summed, rather than the rows before.

    Where sums fill the registers, float32 and float64 would lose by it.
    """
    beside = isinstance(tensor.dtype, HalfStorage) or has_many_registers()
    return lambda tensor: beside


@helper
def fetch_on(tensors, c, ahead):
    """Prefetch what is read later, since no processor foresees so many rows at once."""
    if fetches_beside_sums(tensors[0]):
        prefetch_inputs(tensors, c + ahead[0], c + ahead[1])


@by_types
def sums_of_some(arguments, c, part, weight, zero):
    """Sum some rows of a part of their elements, alternating between two chains.

    Where registers do not hold the sums of two chains, one comes after the other. The additions are
    the same.
    """

    def together(arguments, c, part, weight, zero):
        here, steps, rows, _, numbers, _, writes, streaming, ahead = arguments
        a, b = (zero, zero), (zero, zero)
        for r in range(0, rows - 1, 2):
            fetch_on(here, c, ahead)
            of_row = numbers_of(numbers, r)
            a = add_and_write(here, c, weight, of_row, a, part, writes, streaming)
            here = further(here, steps, 1)
            fetch_on(here, c, ahead)
            of_row = numbers_of(numbers, r + 1)
            b = add_and_write(here, c, weight, of_row, b, part, writes, streaming)
            here = further(here, steps, 1)
        if rows % 2 > 0:
            of_row = numbers_of(numbers, rows - 1)
            a = add_and_write(here, c, weight, of_row, a, part, writes, streaming)
        return a, b

    def apart(arguments, c, part, weight, zero):
        return (
            add_chain(arguments, c, part, weight, zero, 0),
            add_chain(arguments, c, part, weight, zero, 1),
        )

    return together if has_many_registers() else apart


@helper
def add_chain(arguments, c, part, weight, zero, first):
    """Sum every other row of a part of their elements, from row ``first`` on."""
    tensors, steps, rows, _, numbers, _, writes, streaming, ahead = arguments
    chain, here = (zero, zero), further(tensors, steps, first)
    for r in range(first, rows, 2):
        fetch_on(here, c, ahead)
        of_row = numbers_of(numbers, r)
        chain = add_and_write(here, c, weight, of_row, chain, part, writes, streaming)
        here = further(here, steps, 2)
    return chain


@passed
def add_rows(arguments, c, part):
    """Add some rows to the sums of a part of their elements."""
    tensors, weights, sums = arguments[0], arguments[3], arguments[5]
    weight = as_loaded(tensors[0], load_part(weights, c, part))
    zero = zero_lanes(tensors[0], tensors[1])
    a, b = sums_of_some(arguments, c, part, weight, zero)
    fold_lanes(zero, sums[0], c, a[0] + b[0])
    fold_lanes(zero, sums[1], c, a[1] + b[1])


@by_types
def load_chain(tensor, chain, c, part):
    """A part of a chain of sums, in lanes ordered as the tensor's.

    Whole lanes are kept as they are, the last elements of a row in sequence.
    """
    if isinstance(part, types.Integer):
        return lambda tensor, chain, c, part: as_loaded(tensor, load_part(chain, c, part))
    return lambda tensor, chain, c, part: load_lanes(chain, c)


@by_types
def store_chain(tensor, chain, c, lanes, part):
    """The reverse of ``load_chain``."""
    if isinstance(part, types.Integer):
        return lambda tensor, chain, c, lanes, part: store_part(
            chain, c, in_sequence(tensor, lanes), part, False
        )
    return lambda tensor, chain, c, lanes, part: put_lanes(chain, c, lanes)


@passed
def add_row(arguments, c, part):
    """Add a part of row r to a chain of sums in the nearest caches, and write its dx if asked."""
    inlined()
    tensors, r, weights, numbers, chain, writes, streaming = arguments
    dy = tensors[0]
    prefetch_ahead(tensors, DISTANCE, c)
    weight, of_row = as_loaded(dy, load_part(weights, c, part)), numbers_of(numbers, r)
    sums = load_chain(dy, chain[0], c, part), load_chain(dy, chain[1], c, part)
    sums = add_and_write(tensors, c, weight, of_row, sums, part, writes, streaming)
    store_chain(dy, chain[0], c, sums[0], part)
    store_chain(dy, chain[1], c, sums[1], part)


@passed
def write_rows(arguments, c, part):
    """Write dx of a part of some rows."""
    tensors, steps, rows, weights, numbers, streaming, ahead = arguments
    weight = as_loaded(tensors[0], load_part(weights, c, part))
    for r in range(rows):
        fetch_on(tensors, c, ahead)
        dy, x, dx = tensors
        of_row = numbers_of(numbers, r)
        values, centred = load_part(dy, c, part), load_part(x, c, part) - of_row[2]
        write_part(dx, c, weight, of_row, values, centred, part, streaming)
        tensors = further(tensors, steps, 1)


@helper
def parameters(operation, dy, x, dx, job):
    """Add each row's contribution to the parameter gradients, and write its dx if asked."""
    count, run, steps = get(job, B.J_CHANNELS), get(job, B.J_RUN), three(job, B.J_CHANNEL_STEPS)
    numbers, weight = real_buffer(NUMBERS, dy, x), reals_at(get(job, B.J_WEIGHT), dy, x)
    columns = pairs_buffer(BUFFER), pairs_buffer(BUFFER)
    zero, writes = zero_lanes(dy, x), get(job, B.J_WRITES) != 0
    for k in range(0, run, SPAN):
        width = smaller(SPAN, run - k)
        tensors = further((dy, x, dx), (1, 1, 1), k)
        streaming = streams_lines(job, tensors[2], width, steps[2])
        start_sums(columns, width, zero)
        for i in range(0, count, ROWS):
            rows = smaller(ROWS, count - i)
            read_numbers(job, get(job, B.J_CHANNEL) + i, rows, numbers)
            here, weights, ahead = further(tensors, steps, i), shift(weight, k), (FETCHED, FETCHED)
            arguments = (here, steps, rows, weights, numbers, columns, writes, streaming, ahead)
            over_row(add_rows, arguments, width)
        gather_sums(columns, get(job, B.J_FIRST) + k, width, 1, 1, dy, zero, sums_of(job))


@by_types
def rounds_terms(tensor):
    """Whether the rounding of each term to float32 would show in a sum of few: not in a half's."""
    shows = not isinstance(tensor.dtype, HalfStorage)
    return lambda tensor: shows


@helper
def sum_few_terms(tensors, steps, rows, run, means, weight, sums):
    """Sum some rows of fewer elements than lanes, with each term in float64."""
    for r in range(rows):
        dy, x, _ = further(tensors, steps, r)
        weights = double_lanes(as_loaded(dy, load_part(weight, 0, run)))
        values = double_lanes(load_part(dy, 0, run)) * weights
        centred = double_lanes(load_part(x, 0, run)) - splat(get(means, r))
        put(sums[0], r, sum_of_lanes(values))
        put(sums[1], r, sum_of_lanes(values * centred))


@helper
def sum_short_rows(operation, tensors, steps, rows, run, means, weight, sums, ahead):
    """Sum some short rows in float32, eight at a time; ``sums`` has room for whole lanes.

    Where ``ahead``, later rows are prefetched.
    """
    dy, x = tensors[0], tensors[1]
    if run < LANES and rounds_terms(dy):
        sum_few_terms(tensors, steps, rows, run, means, weight, sums)
        return
    kept = real_buffer(KEPT, dy, x), real_buffer(KEPT, dy, x)
    here = tensors
    for first in range(0, rows, EIGHT):
        for i in range(smaller(EIGHT, rows - first)):
            if ahead:
                for c in range(0, run, LANES):
                    prefetch_ahead(here, DISTANCE, c)
            terms = splat_like(dy, x, get(means, first + i)), zero_lanes(dy, x), weight
            keep_short_row(operation, here, run, terms, kept, i)
            here = further(here, steps, 1)
        put_lanes(shift(sums[0], first), 0, sums_of_eight(kept[0]))
        put_lanes(shift(sums[1], first), 0, sums_of_eight(kept[1]))


@helper
def no_sums():
    """Buffers for two sums of some rows, which are zero: they stay so where dx is not wanted."""
    inlined()
    sums = double_buffer(TOTALS), double_buffer(TOTALS)
    put_lanes(sums[0], 0, splat(0.0))
    put_lanes(sums[1], 0, splat(0.0))
    return sums


@helper
def find_numbers(job, rows, means, invstds, sums, numbers):
    """Compute some rows' coefficients (see ``numbers_of`` and coefficients.py) from their sums.

    They are rounded to float32, for which float64 is exact enough.
    """
    not_inlined()
    m, centred = bits_to_double(get(job, B.J_DIVISOR)), get(job, B.J_CENTRED) != 0
    normal, found = NORMAL_SINGLES, doubles_at(get(job, B.J_RANGE))
    least, most, one = get(found, 1), get(found, 2), 1.0 / m
    for r in range(rows):
        invstd, total, projection = get(invstds, r), get(sums[0], r), get(sums[1], r)
        several = invstd - invstd if m > 1.0 else 0.0
        t, p = total * one if centred else 0.0, (projection + several) * one * (invstd * invstd)
        gained, sloped = invstd * t, invstd * p
        fits = keep_precision(least, most, invstd, normal) & holds(invstd, invstd, 1.0, normal)
        fits &= holds(gained, invstd, t, normal) & holds(sloped, invstd, p, normal)
        put(numbers, GAIN + r, invstd if fits else 1.0)
        put(numbers, SHIFT + r, canonical(gained if fits else t))
        put(numbers, MEAN + r, get(means, r))
        put(numbers, SLOPE + r, canonical(sloped if fits else p))
        put(numbers, SCALE + r, 1.0 if fits else canonical(invstd))
        put(numbers, INVSTD + r, invstd)


@helper
def short_rows(operation, dy, x, dx, job, writes):
    """The gradients of short rows, some of which are in the L1 cache from their sums to their dx.

    The parameters' sums stay in registers.
    """
    not_inlined()
    count, run, steps = get(job, B.J_CHANNELS), get(job, B.J_RUN), three(job, B.J_CHANNEL_STEPS)
    weights = reals_at(get(job, B.J_WEIGHT), dy, x)
    columns = (double_buffer(ROW), double_buffer(1)), (double_buffer(ROW), double_buffer(1))
    first, zero, adds = get(job, B.J_CHANNEL), zero_lanes(dy, x), get(job, B.J_ADDS) != 0
    means = shift(doubles_at(get(job, B.J_MEAN)), first)
    invstds = shift(doubles_at(get(job, B.J_INVSTD)), first)
    start_sums(columns, run, zero)
    streaming = streams_lines(job, dx, run, steps[2])
    numbers, sums = real_buffer(NUMBERS, dy, x), no_sums()
    ahead = ROWS * steps[0], ROWS * steps[1]
    fetches = get(job, B.J_AHEAD) != 0 and not fetches_beside_sums(dy)
    for i in range(0, count, ROWS):
        rows, here = smaller(ROWS, count - i), further((dy, x, dx), steps, i)
        if is_wanted(writes):
            sum_short_rows(
                operation, here, steps, rows, run, shift(means, i), weights, sums, fetches
            )
        find_numbers(job, rows, shift(means, i), shift(invstds, i), sums, numbers)
        if adds:
            arguments = (here, steps, rows, weights, numbers, columns, writes, streaming, ahead)
            over_row(add_rows, arguments, run)
        else:
            over_row(write_rows, (here, steps, rows, weights, numbers, streaming, ahead), run)
    if adds:
        gather_sums(columns, get(job, B.J_FIRST), run, 1, 1, dy, zero, sums_of(job))


@helper
def sum_row(operation, tensors, run, mean, weight, sums):
    """Sum a row."""
    terms = splat_like(tensors[0], tensors[1], mean), zero_lanes(tensors[0], tensors[1]), weight
    totals = sums_of_rows(operation, tensors, (0, 0, 0), 1, run, terms, False, False)
    put(sums[0], 0, total_of(totals[0])[0])
    put(sums[1], 0, total_of(totals[1])[0])


@helper
def fold_two(tensor, total, a, b, c, part):
    """Add a part of two chains to sums in float64, and set the chains to zero."""
    inlined()
    lanes = load_chain(tensor, a, c, part) + load_chain(tensor, b, c, part)
    doubles = double_lanes(in_sequence(tensor, lanes))
    store_part(total, c, load_part(total, c, part) + doubles, part, False)
    zero = zero_lanes(a, b)
    store_part(a, c, zero, part, False)
    store_part(b, c, zero, part, False)


@passed
def fold_part(arguments, c, part):
    """Add a part of two chains of two sums to the sums in float64, and set the chains to zero."""
    tensor, sums, chains = arguments
    fold_two(tensor, sums[0][0], chains[0][0], chains[1][0], c, part)
    fold_two(tensor, sums[1][0], chains[0][1], chains[1][1], c, part)


@helper
def chains_of(job, dy, x):
    """The two chains of a task's two sums, which float32 arithmetic has in the place of errors."""
    run = get(job, B.J_RUN)
    first = reals_at(get(job, B.J_SUMS + 1), dy, x)
    second = reals_at(get(job, B.J_SUMS + 3), dy, x)
    return (first, second), (shift(first, run), shift(second, run))


@helper
def round_numbers(rows, means, invstds, numbers):
    """Round what the parameters' sums need of some rows' coefficients."""
    for r in range(rows):
        put(numbers, MEAN + r, get(means, r))
        put(numbers, INVSTD + r, get(invstds, r))


@helper
def one_by_one(operation, dy, x, dx, job, writes):
    """The gradients of longer rows, or the parameters' alone, one row after the other.

    A row is in the nearest caches from its sums to its dx, and so are the parameters' sums.
    """
    not_inlined()
    count, run, steps = get(job, B.J_CHANNELS), get(job, B.J_RUN), three(job, B.J_CHANNEL_STEPS)
    weights, chains = reals_at(get(job, B.J_WEIGHT), dy, x), chains_of(job, dy, x)
    first, adds = get(job, B.J_CHANNEL), get(job, B.J_ADDS) != 0
    means = shift(doubles_at(get(job, B.J_MEAN)), first)
    invstds = shift(doubles_at(get(job, B.J_INVSTD)), first)
    streaming = streams_lines(job, dx, run, steps[2])
    numbers, sums = real_buffer(NUMBERS, dy, x), no_sums()
    here = dy, x, dx
    for i in range(count):
        r = plain(0) if is_wanted(writes) else i % ROWS
        if is_wanted(writes):
            sum_row(operation, here, run, get(means, i), weights, sums)
            find_numbers(job, 1, shift(means, i), shift(invstds, i), sums, numbers)
        elif r == 0:
            round_numbers(smaller(ROWS, count - i), shift(means, i), shift(invstds, i), numbers)
        if adds:
            chain = chains[0] if i % 2 == 0 else chains[1]
            over_row(add_row, (here, r, weights, numbers, chain, writes, streaming), run)
            if (i + 1) % ROWS == 0 or i + 1 == count:
                over_row(fold_part, (dy, sums_of(job), chains), run)
        else:
            over_row(write_rows, (here, steps, 1, weights, numbers, streaming, (0, 0)), run)
        here = further(here, steps, 1)


@by_types
def of_some_rows(operation, dy, x, dx, job, writes):
    """The gradients of some rows.

    Without dx, short rows of float32 go one by one, with chains, which those of half types lack.
    """

    def halves(operation, dy, x, dx, job, writes):
        if get(job, B.J_RUN) <= SHORT:
            short_rows(operation, dy, x, dx, job, writes)
        elif writes:
            one_by_one(operation, dy, x, dx, job, True)
        else:
            one_by_one(operation, dy, x, dx, job, None)

    def singles(operation, dy, x, dx, job, writes):
        if not writes:
            one_by_one(operation, dy, x, dx, job, None)
        elif get(job, B.J_RUN) <= SHORT:
            short_rows(operation, dy, x, dx, job, True)
        else:
            one_by_one(operation, dy, x, dx, job, True)

    return halves if isinstance(dy.dtype, HalfStorage) else singles


@helper
def gradients(operation, dy, x, dx, job):
    """Sum each row, write its dx, and add the row to the parameters' sums, as far as wanted."""
    of_some_rows(operation, dy, x, dx, job, get(job, B.J_WRITES) != 0)
