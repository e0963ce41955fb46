"""Kernels that sum dy and dy·(x − mean) of each channel; all tensors have one dtype.

In the pattern *rows* a channel's elements are contiguous. They are summed in lanes, in the
arithmetic's type, in chains that are folded into float64.

In *columns* a position's channels are contiguous. A row is long enough to be worth a loop: where
there are few channels it has several adjacent positions (channels-last images), and where channels
are short it has all their positions (NCHW with small images). Each element of the row is summed
down the rows, in a lane of its own; then the elements of each channel are added up.
"""

from __future__ import annotations

from ....support.memory import LINE
from ..schedule import block as B
from ..schedule.layout import FETCHED, PAGE, SHORT
from ..vector.helpers import as_argument, helper
from ..vector.intrinsics import (
    address_of,
    as_int64,
    double_buffer,
    doubles_at,
    get,
    inlined,
    integers_at,
    is_double,
    item_size,
    load,
    not_inlined,
    put,
    real_buffer,
    reals_at,
    shift,
    smaller,
    store,
)
from ..vector.lanes import (
    EIGHT,
    as_loaded,
    double_lanes,
    lanes_of,
    load_lanes,
    put_chains,
    put_lanes,
    splat_doubles,
    splat_like,
    total_of,
    zero_lanes,
)
from ..vector.segments import over_row
from .accumulators import BATCH, add_batch, add_chains, fold, gather_sums, put_in_batch, start_sums
from .channel_vectors import next_group
from .elements import (
    add_terms,
    advance,
    coefficient_count,
    exact_terms,
    prefetch_bytes_ahead,
    prefetch_inputs,
)

# mypy: disable-error-code="untyped-decorator,no-untyped-def"

#: Additions to each lane of a chain; two chains alternate, so that an addition need not wait for
#: the last. On any data the bound allows 16 roundings of one term. In a sum they are: one of x − μ,
#: one of the product, one of a weight along the row, 7 of the chain's other additions, and one each
#: where the two chains and the lanes' halves are added. In dx they are 4: of the slope, x − μ, the
#: addition and the subtraction, with which multiplications are fused. The rest is float64.
CHAIN = 8
#: The chains of float64 that are added to one total; totals are then added to each other.
CHAINS_OF_TOTAL = 8
#: Columns are summed, or written, a row of each quarter of a piece at a time. A processor foresees
#: four ways through memory, though not four rows in turn. Coefficients are loaded once for four
#: rows, and if these are added in registers, so are the sums of their elements. CHAIN such
#: additions come before a fold into float64, so that a term takes part in at most 10 additions in
#: float32: in rows it is 9, and there may be a weight.
QUARTERS = 4
#: Fewer rows of columns than these are summed in float64 from the start.
FEW_ROWS = 4


@helper
def block_of(job):
    """The block of the plan that a job is a part of."""
    return integers_at(get(job, B.J_BLOCK))


@helper
def buffer(job, index):
    """The address of a buffer of this thread, which holds a row of a piece in float64.

    The last lanes may reach beyond its end.
    """
    return get(job, B.J_SCRATCH) + index * get(block_of(job), B.BUFFER)


@helper
def sums_of(job):
    """The arrays of the channels' two sums."""
    return doubles_at(get(job, B.J_SUMS)), doubles_at(get(job, B.J_SUMS + 1))


@helper
def three(job, field):
    """Read three strides, of dy, x and dx, from a job."""
    return get(job, field), get(job, field + 1), get(job, field + 2)


@helper
def streams_lines(job, pointer, width, step):
    """Whether a job asks for streaming stores, and rows are whole cache lines."""
    size = item_size(pointer)
    lines = (address_of(pointer) | width * size | step * size) % LINE == 0
    return lines and get(job, B.J_STREAM) != 0


@helper
def totals_of_rows(operation, tensors, steps, rows, count, terms, ahead, streaming):
    """The totals of the two sums of some rows."""
    inlined()
    zero, lanes = zero_lanes(tensors[1]), lanes_of(tensors[1])
    block, none = CHAIN * 2 * lanes, total_of(zero, zero)
    totals, older = (none, none), (none, none)
    a, b = (zero, zero), (zero, zero)
    # By how many additions a block, or a short row, extends a chain; and the chain's length.
    longer = -(-smaller(count, block) // (2 * lanes))
    chain, chains = 0, 0
    # All rows end alike, so that masks are made once.
    whole = count // lanes * lanes
    segment = count - whole
    # One loop over the blocks of all rows; a short row is one block.
    here, start, left = tensors, 0, rows if count > 0 else 0
    while left > 0:
        if ahead != 0 and start == 0 and left > 1:  # no processor foresees the next image's row
            for k in range(0, smaller(count, FETCHED), lanes):
                prefetch_inputs(here, steps[0] + k, steps[1] + k)
        if chain + longer > CHAIN:
            totals = add_chains(totals, a, b)
            a, b = (zero, zero), (zero, zero)
            chain, chains = 0, chains + 1
            if is_double(tensors[1]) and chains % CHAINS_OF_TOTAL == 0:
                older = older[0] + totals[0], older[1] + totals[1]
                totals = none, none
        end = smaller(whole, start + block)
        if ahead > 1:
            for k in range(start + FETCHED, smaller(whole, start + FETCHED + block), lanes):
                prefetch_inputs(here, k, k)
        k = start
        while k + 2 * lanes <= end:
            a = add_terms(operation, here, k, terms, a, None, streaming)
            b = add_terms(operation, here, k + lanes, terms, b, None, streaming)
            k += 2 * lanes
        if k < end:
            a = add_terms(operation, here, k, terms, a, None, streaming)
        chain += longer
        start += block
        if start >= count:
            if segment > 0:
                b = add_terms(operation, here, whole, terms, b, segment, False)
            here = advance(here, steps, 1)
            start = 0
            left -= 1
    totals = add_chains(totals, a, b)
    return older[0] + totals[0], older[1] + totals[1]


@helper
def exact_totals(operation, tensors, steps, rows, count, mean, terms):
    """The totals of the two sums of rows of fewer elements than lanes, with terms in float64."""
    zero, about = splat_doubles(tensors[1], 0.0), splat_doubles(tensors[1], mean)
    first, second = total_of(zero, zero), total_of(zero, zero)
    for r in range(rows):
        here = advance(tensors, steps, r)
        d, value = exact_terms(operation, here, 0, about, terms, count)
        first, second = first + total_of(d, zero), second + total_of(value, zero)
    return first, second


@helper
def put_short_row(operation, tensors, run, terms, zeros, batch, i):
    """Sum a short row in the arithmetic's type alone, and put its lanes into a batch.

    One chain comes after the other: registers may not hold the sums of two.
    """
    inlined()
    lanes = lanes_of(tensors[1])
    a, b, whole = zeros, zeros, run // lanes * lanes
    for k in range(0, whole, 2 * lanes):
        a = add_terms(operation, tensors, k, terms, a, None, False)
    for k in range(lanes, whole, 2 * lanes):
        b = add_terms(operation, tensors, k, terms, b, None, False)
    if whole < run:
        b = add_terms(operation, tensors, whole, terms, b, run - whole, False)
    put_chains(batch, i, a, b)


@helper
def reduce_rows(operation, dy, x, dx, job):
    """Add Σdy and Σdy·(x − mean) of each channel's rows to its sums, eight channels at a time.

    A single short row is summed entirely in its own type. The bound leaves 9 roundings to additions
    (see CHAIN): 256 elements take 3 in each of 64 lanes, and 6 to add the lanes up.
    """
    rows, run, ahead = get(job, B.J_ROWS), get(job, B.J_RUN), get(job, B.J_AHEAD)
    steps, apart, sums = three(job, B.J_ROW_STEPS), three(job, B.J_CHANNEL_STEPS), sums_of(job)
    weight = reals_at(get(job, B.J_WEIGHT), x)
    means, gains = doubles_at(get(job, B.J_MEAN)), doubles_at(get(job, B.J_GAIN))
    first, per_group = get(job, B.J_CHANNEL), get(block_of(job), B.PER_GROUP)
    streaming = streams_lines(job, dx, run, steps[2] | apart[2])
    batch = double_buffer(BATCH), double_buffer(BATCH)
    of_short_rows, zero = (real_buffer(BATCH, x), real_buffer(BATCH, x)), zero_lanes(x)
    is_exact = rows * run < lanes_of(x)
    is_short = rows == 1 and lanes_of(x) <= run <= SHORT
    group, left = first // per_group, per_group - first % per_group
    for start in range(0, get(job, B.J_CHANNELS), EIGHT):
        n = smaller(EIGHT, get(job, B.J_CHANNELS) - start)
        for i in range(n):
            channel = first + start + i
            mean, gain = get(means, group), get(gains, channel)
            terms = splat_like(x, mean), splat_like(x, gain), weight
            here = advance((dy, x, dx), apart, start + i)
            if is_short:
                put_short_row(operation, here, run, terms, (zero, zero), of_short_rows, i)
            else:
                if is_exact:
                    totals = exact_totals(operation, here, steps, rows, run, mean, terms)
                else:
                    totals = totals_of_rows(
                        operation, here, steps, rows, run, terms, ahead, streaming
                    )
                put_in_batch(batch, i, totals)
            group, left = next_group(group, left, per_group)
        if is_short:
            add_batch(of_short_rows, n, sums, first + start, 1)
        else:
            add_batch(batch, n, sums, first + start, 1)


@as_argument
def add_rows_to_chain(arguments, c, segment):
    """Add some rows to a chain of a segment's sums, and fold it if it is full.

    A chain is in the L1 cache, with a segment's two sums side by side: apart, they would compete
    with each other, and with what is read, for the same places.
    """
    operation, tensors, steps, rows, terms, chain, sums, ahead, is_full, streaming = arguments
    mean_and_gain = load_lanes(terms[0], c), load_lanes(terms[1], c), terms[0]
    zero = zero_lanes(tensors[1])
    if ahead:
        prefetch_bytes_ahead(tensors, PAGE, c)
    rows_sums = add_terms(operation, tensors, c, mean_and_gain, None, segment, streaming)
    for _ in range(1, rows):
        tensors = advance(tensors, steps, 1)
        if ahead:
            prefetch_bytes_ahead(tensors, PAGE, c)
        rows_sums = add_terms(operation, tensors, c, mean_and_gain, rows_sums, segment, streaming)
    first, second = shift(chain, 2 * c), shift(chain, 2 * c + lanes_of(chain))
    dy, products = load_lanes(first, 0) + rows_sums[0], load_lanes(second, 0) + rows_sums[1]
    if is_full:
        fold(sums[0], c, dy)
        fold(sums[1], c, products)
        dy, products = zero, zero
    put_lanes(first, 0, dy)
    put_lanes(second, 0, products)


@as_argument
def add_exact_row(arguments, c, segment):
    """Add a row's terms, in float64, to the sums of a segment of its elements."""
    operation, tensors, terms, sums = arguments
    here = load_lanes(terms[0], c), load_lanes(terms[1], c), terms[0]
    d, value = exact_terms(operation, tensors, c, double_lanes(here[0]), here, segment)
    fold(sums[0], c, d)
    fold(sums[1], c, value)


@helper
def shape_of(job):
    """A job's first channel, number of channels, elements per channel and positions in a row."""
    return (
        get(job, B.J_CHANNEL), get(job, B.J_CHANNELS), get(job, B.J_RUN), get(job, B.J_REPEAT)
    )  # fmt: skip


@helper
def fill_row(job, field, per, dy, row):
    """Give each element of a row its channel's coefficient, in the order in which dy is loaded.

    ``field`` is the job's field of the coefficients; ``per`` channels share one.
    """
    not_inlined()
    first, channels, run, repeat = shape_of(job)
    values = doubles_at(get(job, field))
    width = channels * run
    if run == 1 and per == 1:  # a loop that can be vectorised
        for c in range(channels):
            store(row, c, load(values, first + c))
    else:
        c, group, left = as_int64(0), first // per, per - first % per
        while c < channels:
            # Lanes beyond a group's elements are overwritten by the next group's.
            n = smaller(left, channels - c)
            value = splat_like(row, get(values, group))
            for i in range(0, n * run, lanes_of(row)):
                put_lanes(row, c * run + i, value)
            c, group, left = c + n, group + 1, per
    for i in range(width, width * repeat):
        put(row, i, get(row, i - width))
    for i in range(0, width * repeat, lanes_of(row)):
        put_lanes(row, i, as_loaded(dy, load_lanes(row, i)))


@helper
def quarters(rows, steps):
    """The number of rows in each quarter of some rows, and the tensors' steps between quarters."""
    quarter = rows // QUARTERS
    return quarter, (quarter * steps[0], quarter * steps[1], quarter * steps[2])


@helper
def add_quarters(operation, tensors, steps, rows, terms, columns, chain, width, ahead, streaming):
    """Add rows to the sums of their elements, a row of each quarter at a time.

    ``chain`` has room for two rows.
    """
    x = tensors[1]
    zero, lanes = zero_lanes(x), lanes_of(x)
    for c in range(0, width, lanes):
        put_lanes(chain, 2 * c, zero)
        put_lanes(chain, 2 * c + lanes, zero)
    quarter, far = quarters(rows, steps)
    for r in range(quarter):
        is_full, here = (r + 1) % CHAIN == 0 or r + 1 == quarter, advance(tensors, steps, r)
        arguments = (
            operation, here, far, QUARTERS, terms, chain, columns, ahead, is_full, streaming
        )  # fmt: skip
        over_row(add_rows_to_chain, arguments, x, width)
    left = rows - QUARTERS * quarter
    if left > 0:
        here = advance(tensors, steps, QUARTERS * quarter)
        arguments = operation, here, steps, left, terms, chain, columns, ahead, True, streaming
        over_row(add_rows_to_chain, arguments, x, width)


@helper
def reduce_columns(operation, dy, x, dx, job):
    """Add Σdy and Σdy·(x − mean) of each channel to its sums."""
    first, channels, run, repeat = shape_of(job)
    count, steps = get(job, B.J_ROWS), three(job, B.J_ROW_STEPS)
    apart = (repeat * steps[0], repeat * steps[1], repeat * steps[2])
    terms = reals_at(buffer(job, 0), x), reals_at(buffer(job, 1), x)
    columns = doubles_at(buffer(job, 2)), doubles_at(buffer(job, 3))
    fill_row(job, B.J_MEAN, get(block_of(job), B.PER_GROUP), dy, terms[0])
    if coefficient_count(operation) > 0:
        fill_row(job, B.J_GAIN, as_int64(1), dy, terms[1])
    width = channels * run * repeat
    ahead = get(job, B.J_AHEAD) != 0
    streaming = streams_lines(job, dx, width, apart[2])
    start_sums(columns, width, dy)
    rows = count // repeat if count >= FEW_ROWS * repeat else 0
    if rows > 0:
        add_quarters(
            operation, (dy, x, dx), apart, rows, terms, columns, reals_at(buffer(job, 4), x), width,
            ahead, streaming,
        )  # fmt: skip
    for i in range(rows * repeat, count, repeat):
        # One row, or the rest of one.
        here, m = advance((dy, x, dx), steps, i), smaller(repeat, count - i)
        over_row(add_exact_row, (operation, here, terms, columns), x, channels * run * m)
    gather_sums(columns, first, channels, run, repeat, dy, sums_of(job))
