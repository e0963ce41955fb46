"""Kernels for rows: a channel's elements are contiguous in all tensors, which have one dtype.

Sums are formed in lanes, in the arithmetic's type, in chains that are folded into float64.
"""

from __future__ import annotations

from math import isfinite

import numpy as np
from numba import types

from ...memory import LINE
from . import block as B
from .access import FETCHED
from .elements import added, coefficients_at, written
from .helpers import by_types, helper
from .intrinsics import (
    address_of,
    double,
    double_buffer,
    doubles_at,
    get,
    inlined,
    item_size,
    like,
    not_inlined,
    plain,
    real_buffer,
    real_of,
    shift,
)
from .lanes import (
    EIGHT,
    HALF,
    LANES,
    double_lanes,
    halves_added,
    load_part,
    prefetch_lanes,
    put_lanes,
    splat,
    splat_like,
    store_part,
    zero_lanes,
)
from .sums import (
    LOTS,
    add_chain,
    add_chains,
    add_deviation,
    add_kept_totals,
    add_sum,
    few_terms,
    fold_deviations,
    is_short,
    keep_totals,
    start_total,
    total_of,
)
from .target import has_many_registers
from .vectors import next_group

# mypy: disable-error-code="untyped-decorator,no-untyped-def"

#: Additions to each lane of a chain; two chains alternate, so that an addition need not wait for
#: the last. On any data the bound allows 16 roundings of one term. In a sum they are: one of x − μ,
#: one of the product, one of a weight along the row, 7 of the chain's other additions, and one each
#: where the two chains and the lanes' halves are added. In dx they are 4: of the slope, x − μ, the
#: addition and the subtraction, with which multiplications are fused. The rest is float64, and in
#: float64 arithmetic carries its errors.
CHAIN = 8
BLOCK = CHAIN * 2 * LANES
#: Elements whose moments are taken about one point: 8 KiB of float32 are still in the L1 cache when
#: they are read again.
ABOUT_ONE = 4 * BLOCK
#: The lanes of eight short rows, which are kept until they are added up together.
KEPT = EIGHT * LANES
#: The longest chain, in elements, of float32 data's moments in float64, whose roundings are as far
#: below float32's.
ONE_CHAIN = 8 * BLOCK


@helper
def fetch(tensors, steps, count):
    """Prefetch a channel's row in the next image, which the processor does not do by itself."""
    inlined()  # a call would save and restore the registers of the sums
    for k in range(0, count, LANES):
        prefetch_lanes(tensors[0], steps[0] + k)
        prefetch_lanes(tensors[1], steps[1] + k)


@helper
def further(tensors, steps, count):
    """Advance the tensors' pointers by ``count`` steps, of rows or channels."""
    return (
        shift(tensors[0], count * steps[0]), shift(tensors[1], count * steps[1]),
        shift(tensors[2], count * steps[2]),
    )  # fmt: skip


@helper
def add_whole_lanes(operation, tensors, k, end, terms, a, b, streaming):
    """Add a row's elements k to end to two chains of two sums, alternating, in whole lanes."""
    inlined()
    while k + 2 * LANES <= end:
        a = added(operation, tensors, k, terms, a, None, streaming)
        b = added(operation, tensors, k + LANES, terms, b, None, streaming)
        k += 2 * LANES
    if k < end:
        a = added(operation, tensors, k, terms, a, None, streaming)
    return a, b


@helper
def sums_of_rows(operation, tensors, steps, rows, count, terms, ahead, streaming):
    """The two sums of some rows, in registers."""
    inlined()
    zero = zero_lanes(tensors[0], tensors[1])
    totals = start_total(zero), start_total(zero)
    a, b = (zero, zero), (zero, zero)
    # By how many additions a block, or a short row, extends a chain; and the chain's length.
    longer = -(-min(count, BLOCK) // (2 * LANES))
    chain = 0
    # All rows end alike, so that masks are made once.
    whole = count // LANES * LANES
    part = count - whole
    # One loop over the blocks of all rows; a short row is one block.
    here, start, left = tensors, 0, rows if count > 0 else 0
    while left > 0:
        if ahead and start == 0 and left > 1:
            fetch(here, steps, min(count, FETCHED))
        if chain + longer > CHAIN:
            totals = add_chains(totals, a, b)
            a, b = (zero, zero), (zero, zero)
            chain = 0
        end = min(whole, start + BLOCK)
        a, b = add_whole_lanes(operation, here, start, end, terms, a, b, streaming)
        chain += longer
        start += BLOCK
        if start >= count:
            if part > 0:
                b = added(operation, here, whole, terms, b, part, False)
            here = further(here, steps, 1)
            start = 0
            left -= 1
    return add_chains(totals, a, b)


@helper
def sums_of(job):
    """The arrays of the channels' sums and their errors."""
    at = shift(job, B.J_SUMS)
    return (
        doubles_at(get(at, 0)), doubles_at(get(at, 1)), doubles_at(get(at, 2)),
        doubles_at(get(at, 3)),
    )  # fmt: skip


@helper
def three(job, field):
    """Read three strides, of dy, x and dx, from a job."""
    return get(job, field), get(job, field + 1), get(job, field + 2)


@helper
def has_whole_lines(pointer, width, step):
    """Whether rows are whole cache lines, so that streaming stores can write whole lanes."""
    size = item_size(pointer)
    return (address_of(pointer) | width * size | step * size) % LINE == 0


@by_types
def sum_whole_lanes(operation, tensors, end, terms, zero):
    """Sum a short row's elements up to ``end`` in two chains of two sums.

    Where registers do not hold two chains, one comes after the other. The additions are the same.
    """
    if has_many_registers():

        def together(operation, tensors, end, terms, zero):
            none = zero, zero
            return add_whole_lanes(operation, tensors, plain(0), end, terms, none, none, False)

        return together

    def apart(operation, tensors, end, terms, zero):
        a, b = (zero, zero), (zero, zero)
        for k in range(0, end, 2 * LANES):
            a = added(operation, tensors, k, terms, a, None, False)
        for k in range(LANES, end, 2 * LANES):
            b = added(operation, tensors, k, terms, b, None, False)
        return a, b

    return apart


@helper
def keep_short_row(operation, tensors, run, terms, kept, i):
    """Sum a short row in float32, and keep its lanes as the i-th of those added up together."""
    inlined()
    zero, whole = zero_lanes(tensors[0], tensors[1]), run // LANES * LANES
    a, b = sum_whole_lanes(operation, tensors, whole, terms, zero)
    if whole < run:
        b = added(operation, tensors, whole, terms, b, run - whole, False)
    put_lanes(kept[0], i * LANES, a[0] + b[0])
    put_lanes(kept[1], i * LANES, a[1] + b[1])


@helper
def sums_of_short_rows(operation, dy, x, dx, job):
    """Sum channels that have one short row each, entirely in float32."""
    not_inlined()
    run, apart, sums = get(job, B.J_RUN), three(job, B.J_CHANNEL_STEPS), sums_of(job)
    weight = like(get(job, B.J_WEIGHT), real_of(dy, x))
    means, gains = doubles_at(get(job, B.J_MEAN)), doubles_at(get(job, B.J_GAIN))
    first, per_group = get(job, B.J_CHANNEL), get(job, B.J_PER_GROUP)
    kept = real_buffer(KEPT, dy, x), real_buffer(KEPT, dy, x)
    group, left = first // per_group, per_group - first % per_group
    here = dy, x, dx
    for start in range(0, get(job, B.J_CHANNELS), EIGHT):
        n = min(EIGHT, get(job, B.J_CHANNELS) - start)
        for i in range(n):
            mean, gain = get(means, group), get(gains, first + start + i)
            terms = splat_like(dy, x, mean), splat_like(dy, x, gain), weight
            keep_short_row(operation, here, run, terms, kept, i)
            here = further(here, apart, 1)
            group, left = next_group(group, left, per_group)
        add_kept_totals(zero_lanes(dy, x), kept, n, sums, first + start)


@helper
def sums(operation, dy, x, dx, job):
    """Add Σdy and Σdy·(x − mean) of each channel's rows to its sums."""
    if is_short(zero_lanes(dy, x), get(job, B.J_ROWS), get(job, B.J_RUN)):
        sums_of_short_rows(operation, dy, x, dx, job)
        return
    rows, run, ahead = get(job, B.J_ROWS), get(job, B.J_RUN), get(job, B.J_AHEAD) != 0
    steps, apart, sums = three(job, B.J_ROW_STEPS), three(job, B.J_CHANNEL_STEPS), sums_of(job)
    weight = like(get(job, B.J_WEIGHT), real_of(dy, x))
    means, gains = doubles_at(get(job, B.J_MEAN)), doubles_at(get(job, B.J_GAIN))
    first, per_group = get(job, B.J_CHANNEL), get(job, B.J_PER_GROUP)
    streaming = get(job, B.J_STREAM) != 0 and has_whole_lines(dx, run, steps[2] | apart[2])
    kept = double_buffer(LOTS), double_buffer(LOTS)
    group, left = first // per_group, per_group - first % per_group
    for start in range(0, get(job, B.J_CHANNELS), EIGHT):
        n = min(EIGHT, get(job, B.J_CHANNELS) - start)
        for i in range(n):
            channel = first + start + i
            mean, gain = get(means, group), get(gains, channel)
            terms = splat_like(dy, x, mean), splat_like(dy, x, gain), weight
            here = further((dy, x, dx), apart, start + i)
            if rows * run < LANES:
                few_terms(operation, here, steps, rows, run, mean, terms, sums, channel)
            else:
                totals = sums_of_rows(operation, here, steps, rows, run, terms, ahead, streaming)
                keep_totals(kept, i, totals, sums, channel)
            group, left = next_group(group, left, per_group)
        if rows * run >= LANES:
            add_kept_totals(zero_lanes(dy, x), kept, n, sums, first + start)


@helper
def total_of_rows(x, step, rows, count):
    """The sum of some rows."""
    zero = zero_lanes(x, x)
    total = start_total(zero)
    for r in range(rows):
        for start in range(0, count, BLOCK):
            row, end = shift(x, r * step + start), min(BLOCK, count - start)
            s, s2 = zero, zero
            i = 0
            while i + 2 * LANES <= end:
                s, s2 = s + load_part(row, i, None), s2 + load_part(row, i + LANES, None)
                i += 2 * LANES
            if i + LANES <= end:
                s = s + load_part(row, i, None)
                i += LANES
            if i < end:
                s2 = s2 + load_part(row, i, end - i)
            total = add_chain(total, s + s2)
    return total_of(total)[0]


@helper
def moments_about_means(operation, x, step, rows, run, about, sums, c):
    """Add the moments of some rows of half data to channel c's, about the elements' own means.

    Squares are taken about the mean of ABOUT_ONE elements at a time, which are read twice. So
    float32 is exact enough for squares, and an outlier's effect on that mean is limited to its
    neighbours. Sums of a few numbers of 8 or 11 bits lose next to nothing in float32. In float64
    both are shifted to the channel's point.
    """
    height = max(1, ABOUT_ONE // run)
    for r in range(0, rows, height):
        n = min(height, rows - r)
        for k in range(0, run, ABOUT_ONE):
            block, count = shift(x, r * step + k), min(ABOUT_ONE, run - k)
            total, m = total_of_rows(block, step, n, count), double(n * count)
            mean = double(np.float32(total / m))
            mean = mean if isfinite(mean) else 0.0
            tensors, terms = (block, block, block), (splat_like(x, x, mean), zero_lanes(x, x), x)
            _, squares = sums_of_rows(
                operation, tensors, (step, step, step), n, count, terms, False, False
            )
            away, deviations = mean - about, total - m * mean
            moved = total_of(squares)[0] + away * (2.0 * deviations + m * away)
            add_sum(sums[0], sums[1], c, (total - m * about, 0.0))
            add_sum(sums[2], sums[3], c, (moved, 0.0))


@helper
def add_moments_of_part(zero, x, i, mean, s, q, e, part):
    """Add the moments of a part of a row to two sums in lanes of float64, the first with error."""
    value = double_lanes(load_part(x, i, part))
    d, s, e = add_deviation(zero, x, value, mean, s, e, part)
    return s, q + d * d, e


@helper
def exact_moments_of_block(zero, row, i, end, mean):
    """The moments of a row's elements i to end, in a chain of float64 lanes.

    They are the sum of deviations with its error, and the sum of squares.
    """
    none = splat(0.0)
    s, q, e = none, none, none
    while i + LANES <= end:
        s, q, e = add_moments_of_part(zero, row, i, mean, s, q, e, None)
        i += LANES
    if i < end:
        s, q, e = add_moments_of_part(zero, row, i, mean, s, q, e, end - i)
    return s, e, q


@by_types
def exact_chain(zero):
    """The elements of a chain of moments in float64.

    In float64 arithmetic it has 16 additions to a lane: with 32, squares just below half a unit in
    the last place of their sum gave an error of 1.06 of the bound.
    """
    return (lambda zero: ONE_CHAIN) if zero.real == types.float32 else (lambda zero: BLOCK)


@helper
def exact_moments_of_rows(x, x_step, rows, count, mean, sums, c):
    """Add the moments of some rows to channel c's, chain by chain."""
    not_inlined()
    zero, mu = zero_lanes(x, x), splat(mean)
    chain = exact_chain(zero)
    for r in range(rows):
        row = shift(x, r * x_step)
        for start in range(0, count, chain):
            end = min(start + chain, count)
            fold_deviations(zero, sums, c, exact_moments_of_block(zero, row, start, end, mu))


@helper
def exact_moments_of_eight(x, apart, channels, run, means, sums, first):
    """Add the moments of channels that have one short row each, eight channels at a time."""
    not_inlined()
    zero, kept = zero_lanes(x, x), (double_buffer(LOTS), double_buffer(LOTS))
    for start in range(0, channels, EIGHT):
        n = min(EIGHT, channels - start)
        for i in range(n):
            row, mu = shift(x, (start + i) * apart), splat(get(means, first + start + i))
            s, _, squares = exact_moments_of_block(zero, row, plain(0), run, mu)
            put_lanes(kept[0], i * HALF, halves_added(s))
            put_lanes(kept[1], i * HALF, halves_added(squares))
        add_kept_totals(zero, kept, n, sums, first + start)


@by_types
def moments_of_rows(operation, x, step, rows, run, about, sums, c):
    """Add the moments of some rows to channel c's, in the operation's way: exactly or not."""
    if operation.operation == "moments":
        return lambda operation, x, step, rows, run, about, sums, c: moments_about_means(
            operation, x, step, rows, run, about, sums, c
        )
    return lambda operation, x, step, rows, run, about, sums, c: exact_moments_of_rows(
        x, step, rows, run, about, sums, c
    )


@by_types
def is_exact_and_short(operation, zero, run):
    """Whether a row's moments in float64 need one chain and no errors: it is short, and float32."""
    if operation.operation != "moments" and zero.real == types.float32:
        return lambda operation, zero, run: run <= ONE_CHAIN
    return lambda operation, zero, run: False


@helper
def moments_of_channels(operation, x, job, c, end):
    """Add the moments of the rows of channels c to end, which start at x, to their sums."""
    inlined()
    sums, means = sums_of(job), doubles_at(get(job, B.J_MEAN))
    step, apart = get(job, B.J_ROW_STEPS + 1), get(job, B.J_CHANNEL_STEPS + 1)
    rows, run, per_group = get(job, B.J_ROWS), get(job, B.J_RUN), get(job, B.J_PER_GROUP)
    if per_group == 1 and rows == 1 and is_exact_and_short(operation, zero_lanes(x, x), run):
        exact_moments_of_eight(x, apart, end - c, run, means, sums, c)
        return
    row = x
    while c < end:
        # A group's adjacent channels are one row; the sums go to the first of these channels.
        n = min(per_group - c % per_group, end - c) if rows == 1 and apart == run else 1
        moments_of_rows(operation, row, step, rows, n * run, get(means, c // per_group), sums, c)
        row = shift(row, n * apart)
        c += n


@helper
def moments(operation, dy, x, dx, job):
    """Add Σ(x − mean) and Σ(x − mean)² of each channel's rows to its sums."""
    c = get(job, B.J_CHANNEL)
    moments_of_channels(operation, x, job, c, c + get(job, B.J_CHANNELS))


@helper
def lines_to_stream(pointer, count):
    """The begin and end of the part of a row that is whole lanes, from a cache line's start on."""
    size = item_size(pointer)
    address = address_of(pointer)
    head = -(address // size) % (LINE // size)
    if address % size != 0 or head >= count:
        return 0, 0
    return head, head + (count - head) // LANES * LANES


@helper
def compute_part(operation, tensors, k, coefficients, along, part):
    """Compute a part of a row of dx or y."""
    here = coefficients_at(operation, tensors[0], coefficients, along[0], along[1], k, part)
    return written(operation, tensors, k, here, part)


@helper
def write_part(operation, tensors, k, coefficients, along, part, streaming):
    """Compute and write a part of a row of dx or y."""
    found = compute_part(operation, tensors, k, coefficients, along, part)
    store_part(tensors[2], k, found, part, streaming)


@by_types
def write_row(operation, tensors, coefficients, along, count, past_caches):
    """Write a row; unless ``past_caches`` is None, its whole cache lines with streaming stores.

    The coefficients are lanes. The row's last lanes may overlap the lanes before: processors write
    whole vectors faster than parts. They are computed first, since dx may overwrite dy or x.
    """

    def write(operation, tensors, coefficients, along, count, past_caches):
        if count < LANES:
            write_part(operation, tensors, plain(0), coefficients, along, count, False)
            return
        last = compute_part(operation, tensors, count - LANES, coefficients, along, None)
        for k in range(0, count - LANES, LANES):
            write_part(operation, tensors, k, coefficients, along, None, False)
        store_part(tensors[2], count - LANES, last, None, False)

    def stream(operation, tensors, coefficients, along, count, past_caches):
        k, end = lines_to_stream(tensors[2], count)
        if k > 0:
            write_part(operation, tensors, plain(0), coefficients, along, k, False)
        while k < end:
            write_part(operation, tensors, k, coefficients, along, None, True)
            k += LANES
        while k < count:
            part = min(count - k, LANES)
            write_part(operation, tensors, k, coefficients, along, part, False)
            k += LANES

    return write if isinstance(past_caches, types.NoneType) else stream


@helper
def write_rows(operation, dy, x, dx, job, past_caches):
    """Write dx or y of each channel's rows."""
    not_inlined()
    steps, apart = three(job, B.J_ROW_STEPS), three(job, B.J_CHANNEL_STEPS)
    rows, run, real = get(job, B.J_ROWS), get(job, B.J_RUN), real_of(dy, x)
    along = like(get(job, B.J_WEIGHT), real), like(get(job, B.J_BIAS), real)
    gains, offsets = doubles_at(get(job, B.J_GAIN)), doubles_at(get(job, B.J_SHIFT))
    means = doubles_at(get(job, B.J_MEAN))
    slopes, scales = doubles_at(get(job, B.J_SLOPE)), doubles_at(get(job, B.J_SCALE))
    first, per_group = get(job, B.J_CHANNEL), get(job, B.J_PER_GROUP)
    group, left = first // per_group, per_group - first % per_group
    for c in range(get(job, B.J_CHANNELS)):
        channel = first + c
        coefficients = (
            splat_like(dy, x, get(gains, channel)), splat_like(dy, x, get(offsets, channel)),
            splat_like(dy, x, get(means, group)), splat_like(dy, x, get(slopes, group)),
            splat_like(dy, x, get(scales, group)),
        )  # fmt: skip
        here = further((dy, x, dx), apart, c)
        for _ in range(rows):
            write_row(operation, here, coefficients, along, run, past_caches)
            here = further(here, steps, 1)
        group, left = next_group(group, left, per_group)


@helper
def write(operation, dy, x, dx, job):
    """Write dx or y, with streaming stores if the job asks for them."""
    if get(job, B.J_STREAM) != 0:
        write_rows(operation, dy, x, dx, job, plain(1))
    else:
        write_rows(operation, dy, x, dx, job, None)
