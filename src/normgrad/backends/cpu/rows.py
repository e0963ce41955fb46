"""Kernels for rows: a channel's elements are contiguous in all tensors, which have one dtype.

Sums are formed in lanes, in the arithmetic's type, in chains that are folded into float64.
"""

from __future__ import annotations

from ...memory import LINE
from . import block as B
from .elements import added, further, prefetch_inputs
from .helpers import by_types, helper
from .intrinsics import (
    address_of,
    double_buffer,
    doubles_at,
    get,
    inlined,
    item_size,
    not_inlined,
    plain,
    real_buffer,
    reals_at,
    shift,
    smaller,
)
from .lanes import EIGHT, LANES, put_lanes, splat_like, zero_lanes
from .layout import FETCHED
from .sums import (
    LOTS,
    add_chains,
    add_kept_totals,
    few_terms,
    is_short,
    keep_few_terms,
    keep_totals,
    start_total,
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
#: The lanes of eight short rows, which are kept until they are added up together.
KEPT = EIGHT * LANES


@helper
def fetch(tensors, steps, count):
    """Prefetch a channel's row in the next image, which the processor does not do by itself."""
    inlined()  # a call would save and restore the registers of the sums
    for k in range(0, count, LANES):
        prefetch_inputs(tensors, steps[0] + k, steps[1] + k)


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
    longer = -(-smaller(count, BLOCK) // (2 * LANES))
    chain = 0
    # All rows end alike, so that masks are made once.
    whole = count // LANES * LANES
    part = count - whole
    # One loop over the blocks of all rows; a short row is one block.
    here, start, left = tensors, 0, rows if count > 0 else 0
    while left > 0:
        if ahead != 0 and start == 0 and left > 1:
            fetch(here, steps, smaller(count, FETCHED))
        if chain + longer > CHAIN:
            totals = add_chains(totals, a, b)
            a, b = (zero, zero), (zero, zero)
            chain = 0
        end = smaller(whole, start + BLOCK)
        if ahead > 1:
            for k in range(start + FETCHED, smaller(whole, start + FETCHED + BLOCK), LANES):
                prefetch_inputs(here, k, k)
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
    """The arrays of the channels' two sums, each with the array of their errors."""
    at = shift(job, B.J_SUMS)
    return (
        (doubles_at(get(at, 0)), doubles_at(get(at, 1))),
        (doubles_at(get(at, 2)), doubles_at(get(at, 3))),
    )


@helper
def three(job, field):
    """Read three strides, of dy, x and dx, from a job."""
    return get(job, field), get(job, field + 1), get(job, field + 2)


@helper
def to_next_task(job):
    """How many elements later lies what the next task sums; 0 if it is not prefetched."""
    return get(job, B.J_NEXT) * get(job, B.J_CHANNEL_STEPS)


@helper
def streams_lines(job, pointer, width, step):
    """Whether a job asks for streaming stores, and rows are whole cache lines."""
    size = item_size(pointer)
    lines = (address_of(pointer) | width * size | step * size) % LINE == 0
    return lines and get(job, B.J_STREAM) != 0


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
    weight = reals_at(get(job, B.J_WEIGHT), dy, x)
    means, gains = doubles_at(get(job, B.J_MEAN)), doubles_at(get(job, B.J_GAIN))
    first, per_group = get(job, B.J_CHANNEL), get(job, B.J_PER_GROUP)
    kept = real_buffer(KEPT, dy, x), real_buffer(KEPT, dy, x)
    group, left = first // per_group, per_group - first % per_group
    here = dy, x, dx
    for start in range(0, get(job, B.J_CHANNELS), EIGHT):
        n = smaller(EIGHT, get(job, B.J_CHANNELS) - start)
        for i in range(n):
            mean, gain = get(means, group), get(gains, first + start + i)
            terms = splat_like(dy, x, mean), splat_like(dy, x, gain), weight
            keep_short_row(operation, here, run, terms, kept, i)
            here = further(here, apart, 1)
            group, left = next_group(group, left, per_group)
        add_kept_totals(zero_lanes(dy, x), kept, n, sums, first + start, 1)


@helper
def sums(operation, dy, x, dx, job):
    """Add Σdy and Σdy·(x − mean) of each channel's rows to its sums."""
    if is_short(zero_lanes(dy, x), get(job, B.J_ROWS), get(job, B.J_RUN)):
        sums_of_short_rows(operation, dy, x, dx, job)
        return
    rows, run, ahead = get(job, B.J_ROWS), get(job, B.J_RUN), get(job, B.J_AHEAD)
    steps, apart, sums = three(job, B.J_ROW_STEPS), three(job, B.J_CHANNEL_STEPS), sums_of(job)
    weight = reals_at(get(job, B.J_WEIGHT), dy, x)
    means, gains = doubles_at(get(job, B.J_MEAN)), doubles_at(get(job, B.J_GAIN))
    first, per_group = get(job, B.J_CHANNEL), get(job, B.J_PER_GROUP)
    streaming = streams_lines(job, dx, run, steps[2] | apart[2])
    kept, few = (double_buffer(LOTS), double_buffer(LOTS)), rows * run < LANES
    one_by_one = few and rows > 1
    group, left = first // per_group, per_group - first % per_group
    for start in range(0, get(job, B.J_CHANNELS), EIGHT):
        n = smaller(EIGHT, get(job, B.J_CHANNELS) - start)
        for i in range(n):
            channel = first + start + i
            mean, gain = get(means, group), get(gains, channel)
            terms = splat_like(dy, x, mean), splat_like(dy, x, gain), weight
            here = further((dy, x, dx), apart, start + i)
            if one_by_one:
                few_terms(operation, here, steps, rows, run, mean, terms, sums, channel)
            elif few:
                keep_few_terms(operation, here, run, mean, terms, kept, i, sums, channel)
            else:
                totals = sums_of_rows(operation, here, steps, rows, run, terms, ahead, streaming)
                keep_totals(kept, i, totals, sums, channel)
            group, left = next_group(group, left, per_group)
        if not one_by_one:
            add_kept_totals(zero_lanes(dy, x), kept, n, sums, first + start, 1)
