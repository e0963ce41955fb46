"""The forward pass of rows that are statistics groups, with weights along the row (layer norm).

``forward`` takes some rows' moments and writes their y while they are in the L1 cache.
"""

from __future__ import annotations

from math import isfinite, sqrt

from . import block as B
from .elements import further
from .helpers import helper
from .intrinsics import (
    bits_to_double,
    double_buffer,
    doubles_at,
    get,
    item_size,
    larger,
    load,
    plain,
    put,
    shift,
    smaller,
)
from .lanes import EIGHT, splat_like
from .row_moments import moments_of_channels
from .row_writes import is_streamed, parameters_along, write_row
from .rows import sums_of, three
from .vectors import canonical

# mypy: disable-error-code="untyped-decorator,no-untyped-def"

#: The bytes of x in rows that are written together after their moments: they stay in the L1 cache
#: beside what is written.
NEAR = 8 << 10


@helper
def choose_points(job, x, step, first, rows):
    """Choose the points that some rows' moments are about: their first elements (see prepare)."""
    points, centred = doubles_at(get(job, B.J_MEAN)), get(job, B.J_CENTRED) != 0
    for r in range(rows):
        value = load(x, r * step) if centred else 0.0
        put(points, first + r, value if isfinite(value) else 0.0)


@helper
def find_statistics(job, first, rows, means, invstds):
    """Compute some rows' mean and 1/std from their moments, for the loop that writes y.

    It rounds them to float32, for which float64 is exact enough.
    """
    one, eps = 1.0 / bits_to_double(get(job, B.J_DIVISOR)), bits_to_double(get(job, B.J_EPS))
    points, sums = shift(doubles_at(get(job, B.J_MEAN)), first), sums_of(job)
    totals, squares = shift(sums[0][0], first), shift(sums[1][0], first)
    centred = get(job, B.J_CENTRED) != 0
    for r in range(rows):
        change = get(totals, r) * one if centred else 0.0
        variance = get(squares, r) * one - change * change
        put(means, r, canonical(get(points, r) + change))
        put(invstds, r, canonical(1.0 / sqrt((0.0 if variance < 0.0 else variance) + eps)))


@helper
def normalise(operation, tensors, steps, rows, run, means, invstds, along, past_caches):
    """Write y of some rows."""
    x = tensors[1]
    ahead = NEAR // item_size(x)
    for r in range(rows):
        gain, mean = splat_like(x, x, get(invstds, r)), splat_like(x, x, get(means, r))
        coefficients = gain, gain, mean, gain, gain
        write_row(operation, tensors, coefficients, along, run, ahead, past_caches)
        tensors = further(tensors, steps, 1)


@helper
def forward(operation, dy, x, dx, job):
    """Normalise rows, which stay in a core's nearest cache from their moments to their y.

    The moments stay in the workspace, from which ``statistics`` computes what is returned.
    """
    first, count, run = get(job, B.J_CHANNEL), get(job, B.J_CHANNELS), get(job, B.J_RUN)
    steps = three(job, B.J_CHANNEL_STEPS)
    at_once = larger(1, smaller(EIGHT, NEAR // (run * item_size(x))))
    along = parameters_along(x, x, job)
    means, invstds = double_buffer(EIGHT), double_buffer(EIGHT)
    for start in range(0, count, at_once):
        rows, here = smaller(at_once, count - start), further((dy, x, dx), steps, start)
        c = first + start
        choose_points(job, here[1], steps[1], c, rows)
        moments_of_channels(operation, here[1], job, c, c + rows)
        find_statistics(job, c, rows, means, invstds)
        if is_streamed(dx, job):
            normalise(operation, here, steps, rows, run, means, invstds, along, plain(1))
        else:
            normalise(operation, here, steps, rows, run, means, invstds, along, None)
