"""The kernels; schedule.py chooses which ones are launched, and in which order."""

from __future__ import annotations

import triton
import triton.language as tl

from . import access, channels, tiles
from .pairs import added, exact, helper, number, settled

# mypy: disable-error-code="untyped-decorator,no-untyped-def"


@helper
def blocks_of(a):
    """The number of tiles along a set's channels."""
    step = a.sizes.step.to(tl.int32)
    return (a.sizes.channels.to(tl.int32) + step - 1) // step


@helper
def task_of(task, a, C: tl.constexpr):
    """A task's channels, the index of the first, its part, and the part's start and end."""
    parts = a.sizes.parts.to(tl.int32)
    blocks = blocks_of(a)
    part = task % parts
    unit = task // parts
    at, first = access.channels_of(unit // blocks, unit % blocks, a, C)
    if C.long_positions:
        size = a.sizes.part.to(tl.int64)
        positions = a.sizes.positions.to(tl.int64)
    else:
        size = a.sizes.part.to(tl.int32)
        positions = a.sizes.positions.to(tl.int32)
    start = part * size
    # start + size may exceed 32 bits.
    return at, first, part, start, start + tl.minimum(size, positions - start)


@helper
def sum_tile(
    a, at, first, start, end, centre, c, weight, totals, WHOLE: tl.constexpr, C: tl.constexpr
):
    """Add a tile's sums to those found before; in evaluation also write the tile of dx."""
    p, there = access.positions_from(a, start, end, at, WHOLE, C)
    dy, x = tiles.load_both(a, at.set, first, p, there, C)
    terms = tiles.terms_of_tile(dy, x, centre, there, C)
    totals = tiles.both(totals, tiles.sums_of_terms(terms, weight, C), C.wide or C.singles)
    if C.constant and C.writes:
        tiles.store_dx(a, at.set, first, p, there, tiles.result_of_tile(dy, x, c, weight, c, C), C)
    return totals


@triton.jit
def sums(a, C: tl.constexpr):
    """Sum each part of each tile into the workspace, with one program per part.

    If there is only one part, its sums may go directly to the outputs. In evaluation the same loop
    writes dx, which does not depend on the sums.
    """
    at, first, part, start, end = task_of(tl.program_id(0), a, C)
    centre = channels.about(a, at, C)
    c = centre
    if C.constant:
        c = channels.coefficients_in_evaluation(a, at, C)
    totals = tiles.none(C)
    whole = start + (end - start) // C.positions * C.positions
    for here in range(start, whole, C.positions):
        totals = sum_tile(a, at, first, here, end, centre, c, c, totals, True, C)
    if whole < end:
        totals = sum_tile(a, at, first, whole, end, centre, c, c, totals, False, C)
    totals = tiles.along(totals, 0, C)
    if C.outputs:
        channels.finish(a, at, centre, totals, 0, C)
    else:
        channels.put_sums(a, part, at, centre, totals, C)


@helper
def write_tile(a, at, first, start, end, c, weight, bias, C: tl.constexpr):
    """Write a tile of dx or y from coefficients, and in lines from the positions' parameters."""
    p, there = access.positions_from(a, start, end, at, False, C)
    # In evaluation dx does not depend on x, and the compiler leaves out that load.
    dy, x = tiles.load_both(a, at.set, first, p, there, C)
    tiles.store_dx(a, at.set, first, p, there, tiles.result_of_tile(dy, x, c, weight, bias, C), C)


@helper
def write_part(a, task, C: tl.constexpr):
    """Write dx or y of a part of a tile."""
    at, first, part, start, end = task_of(task, a, C)
    if C.coefficients:
        c = channels.load_coefficients(a, at, C)
    elif C.from_sums:
        centre = channels.about_sums(a, at, C)
        c = channels.finish(a, at, centre, sums_of_parts(a, at, C), part, C)
    else:
        c = channels.from_arguments(a, at, C)
    for here in range(start, end, C.positions):
        weight, bias = tiles.parameters(a, at.set, here, C)
        write_tile(a, at, first, here, end, c, weight, bias, C)


@triton.jit
def write(a, C: tl.constexpr):
    """Write dx or y of each part of each tile, from coefficients, sums or given statistics.

    The last programs may combine the lines' terms of the parameters' gradients.
    """
    task = tl.program_id(0)
    tasks = tl.num_programs(0)
    if C.parameters > 0:
        tasks = a.sizes.sets.to(tl.int32) * blocks_of(a) * a.sizes.parts.to(tl.int32)
    if C.coefficients or C.from_sums:
        # The sums have left the last tiles in the L2 cache, so these come first.
        task = tasks - 1 - task
    if C.parameters > 0:
        if task < 0:
            over_lines(a, -1 - task, C)
        else:
            write_part(a, task, C)
    else:
        write_part(a, task, C)


# Whole groups


@helper
def read_twice(a, s, group, end, C: tl.constexpr):
    """Sum and write a group that is read twice: the second time from the L2 cache, if it fits."""
    per_group = a.sizes.per_group.to(tl.int32)
    at, first = access.channels_in_group(s, group, 0, a, C)
    centre = channels.about(a, at, C)
    none = exact(tl.full([1], 0.0, tl.float64))
    total = tiles.Sums(none, none)
    for k in range(0, per_group, C.channels):
        at, first = access.channels_in_group(s, group, k, a, C)
        totals = tiles.none(C)
        for here in range(0, end, C.positions):
            weight, bias = tiles.parameters(a, s, here, C)
            totals = sum_tile(a, at, first, here, end, centre, centre, weight, totals, False, C)
        totals = tiles.along(totals, 0, C)
        if C.keeps_sums:
            channels.put_sums(a, 0, at, centre, totals, C)
        if C.sharing == 0:
            totals = channels.weigh(a, at, totals, C)
        of_tile = tiles.Sums(
            tiles.over_channels(totals.total), tiles.over_channels(totals.projection)
        )
        total = tiles.both(total, tiles.as_pairs(of_tile), C.wide)
    total = tiles.settle(total)
    total = tiles.Sums(tiles.for_channels(total.total, C), tiles.for_channels(total.projection, C))
    for k in range(0, per_group, C.channels):
        at, first = access.channels_in_group(s, group, k, a, C)
        c = channels.finish(a, at, centre, total, 0, C)
        for here in range(0, end, C.positions):
            weight, bias = tiles.parameters(a, s, here, C)
            write_tile(a, at, first, here, end, c, weight, bias, C)


@helper
def chain(a, s, part, begin, end, first_block, last_block, weight, bias, C: tl.constexpr):
    """Sum and write some tiles, and return the sums of their terms of the parameters' gradients."""
    columns = tiles.no_columns(C)
    for block in tl.range(first_block, last_block, num_stages=C.stages):
        at, first = access.channels_of(s, block, a, C)
        p, there = access.positions_from(a, begin, end, at, False, C)
        dy, x = tiles.load_both(a, s, first, p, there, C)
        centre = channels.about(a, at, C)
        terms = tiles.terms_of_tile(dy, x, centre, there, C)
        if C.columns:
            r, rest = channels.read_invstd(a, at, C), channels.mean_rest(a, at, C)
            columns = tiles.add_columns(columns, terms, r, rest, C)
        totals = tiles.along(tiles.sums_of_terms(terms, weight, C), 0, C)
        if C.keeps_sums:
            channels.put_sums(a, part, at, centre, totals, C)
        if C.writes:
            if C.sharing == 0:
                totals = channels.weigh(a, at, totals, C)
            c = channels.finish(a, at, centre, totals, 0, C)
            value = tiles.result_of_tile(dy, x, c, weight, bias, C)
            tiles.store_dx(a, s, first, p, there, value, C)
    return columns


@triton.jit
def groups(a, C: tl.constexpr):
    """Sum and write whole groups, in programs that process some tiles one after the other.

    A tile of channels that are groups of their own, or of lines, is read once; of lines it may also
    be a piece, which is only summed. A group of several channels is read twice. The lines' terms of
    the parameters' gradients are added up over all tiles of a program; lines.py explains lines.
    """
    parts = a.sizes.parts.to(tl.int32)
    units = a.sizes.sets.to(tl.int32) * parts
    slot = tl.program_id(0) // units
    s = tl.program_id(0) % units // parts
    part = tl.program_id(0) % parts
    if C.resident:
        blocks = blocks_of(a)
    else:
        blocks = a.sizes.groups.to(tl.int32)
    first_block = slot * a.sizes.each.to(tl.int32)
    last_block = tl.minimum(first_block + a.sizes.each.to(tl.int32), blocks)
    if C.long_positions:
        begin = part.to(tl.int64) * C.positions
        end = a.sizes.positions.to(tl.int64)
    else:
        begin = part * C.positions
        end = a.sizes.positions.to(tl.int32)
    if C.resident:
        weight, bias = tiles.parameters(a, s, begin, C)
        columns = tiles.no_columns(C)
        folds = 0
        if C.chain == 0:
            columns = chain(a, s, part, begin, end, first_block, last_block, weight, bias, C)
        else:
            for start in range(first_block, last_block, C.chain):
                if start > first_block:
                    channels.put_columns(a, slot, s, begin, columns, folds, C)
                    folds += 1
                stop = tl.minimum(start + C.chain, last_block)
                columns = chain(a, s, part, begin, end, start, stop, weight, bias, C)
        if C.columns:
            channels.put_columns(a, slot, s, begin, columns, folds, C)
    else:
        for group in range(first_block, last_block):
            read_twice(a, s, group, end, C)


# Sums in the workspace


@helper
def members_of(s, first_group, j, a, C: tl.constexpr):
    """The channels of some groups that are at certain positions within their group."""
    FAN: tl.constexpr = C.fan
    i = tl.arange(0, C.groups * FAN)
    group = first_group + i // FAN
    member = j + i % FAN
    per_group = a.sizes.per_group.to(tl.int32)
    there = (group < a.sizes.groups.to(tl.int32)) & (member < per_group)
    return access.Channels(s, group * per_group + member, group, there)


@helper
def sums_of_parts(a, at, C: tl.constexpr):
    """Add up the channels' two sums over all parts, in the order of the parts."""
    zero = exact(at.channel.to(tl.float64) * 0.0)
    totals = tiles.Sums(zero, zero)
    parts = a.sizes.summed.to(tl.int32)
    for row in range(0, parts, C.rows):
        part = (row + tl.arange(0, C.rows))[:, None]
        there = (part < parts) & at.there[None, :]
        rows = access.Channels(at.set, at.channel[None, :], at.group[None, :], there)
        of_rows = tiles.as_pairs(channels.load_sums(a, part, rows, C))
        totals = tiles.both(totals, tiles.as_pairs(tiles.along(of_rows, 0, C)), C.wide)
    return tiles.settle(totals)


@helper
def over_members(value, C: tl.constexpr):
    """Sum a number over the channels of each group."""
    return tl.sum(tl.reshape(value, [C.groups, C.fan]), 1)


@helper
def to_members(value, C: tl.constexpr):
    """Give each channel its group's value."""
    value = tl.broadcast_to(value[:, None], [C.groups, C.fan])
    return tl.reshape(value, [C.groups * C.fan])


@triton.jit
def combine_parts(a, C: tl.constexpr):
    """Combine the sums of all parts, for some groups of a set.

    This makes statistics for gradients, the coefficients of dx or y, and per-channel outputs.
    """
    blocks = (a.sizes.groups.to(tl.int32) + C.groups - 1) // C.groups
    s = tl.program_id(0) // blocks
    first_group = tl.program_id(0) % blocks * C.groups
    per_group = a.sizes.per_group.to(tl.int32)
    zero = exact(tl.full([C.groups], 0.0, tl.float64))
    of_groups = tiles.Sums(zero, zero)
    for j in range(0, per_group, C.fan):
        at = members_of(s, first_group, j, a, C)
        partial = channels.weigh(a, at, sums_of_parts(a, at, C), C)
        partial = tiles.Sums(over_members(partial.total, C), over_members(partial.projection, C))
        of_groups = tiles.both(of_groups, tiles.as_pairs(partial), C.wide)
    of_groups = tiles.settle(of_groups)
    totals = tiles.Sums(to_members(of_groups.total, C), to_members(of_groups.projection, C))
    if C.saves:
        at = members_of(s, first_group, 0, a, C)
        at = access.Channels(s, at.channel, at.group, channels.firsts(a, at))
        channels.save_statistics(a, at, channels.about_sums(a, at, C), totals, C)
    else:
        for j in range(0, per_group, C.fan):
            at = members_of(s, first_group, j, a, C)
            c = channels.finish(a, at, channels.about_sums(a, at, C), totals, 0, C)
            if C.coefficients:
                channels.put_coefficients(a, at, c, C)


@triton.jit
def combine_sets(a, C: tl.constexpr):
    """Sum the gradients of some parameters over all sets and parts, and write them."""
    channel = tl.program_id(0) * C.channels + tl.arange(0, C.channels)
    group = channel // a.sizes.per_group.to(tl.int32)
    at = access.Channels(channel * 0, channel, group, channel < a.sizes.channels.to(tl.int32))
    sets = a.sizes.sets.to(tl.int32)
    rows = a.sizes.summed.to(tl.int32) * sets
    zero = exact(channel.to(tl.float64) * 0.0)
    totals = tiles.Sums(zero, zero)
    scaled = zero
    for row in range(0, rows, C.rows):
        k = (row + tl.arange(0, C.rows))[:, None]
        there = (k < rows) & at.there[None, :]
        here = access.Channels(k % sets, channel[None, :], group[None, :], there)
        partial = channels.load_sums(a, k // sets, here, C)
        partial = channels.correct_sums(a, here, partial, C)
        term = tl.where(there, channels.read_invstd(a, here, C) * partial.projection, 0.0)
        scaled = added(scaled, exact(tl.sum(term, 0)), C.wide)
        of_rows = tiles.along(tiles.as_pairs(partial), 0, C)
        totals = tiles.both(totals, tiles.as_pairs(of_rows), C.wide)
    channels.write_gradients(a, at, tiles.settle(totals), settled(scaled), C)


@helper
def over_lines(a, block, C: tl.constexpr):
    """Sum the lines' terms of some parameters' gradients over all programs, and write them."""
    parameter = block * C.parameters + tl.arange(0, C.parameters)
    of_set = a.sizes.positions.to(tl.int32) // C.sharing
    rows = a.sizes.slots.to(tl.int32)
    s = parameter // of_set
    if C.shared:  # by all sets
        rows *= a.sizes.sets.to(tl.int32)
        s = parameter * 0
    width = of_set
    if not C.shared:
        width *= a.sizes.sets.to(tl.int32)
    exists = parameter < width
    zero = exact(parameter.to(tl.float64) * 0.0)
    totals = tiles.Sums(zero, zero)
    for row in range(0, rows, C.rows):
        k = (row + tl.arange(0, C.rows))[:, None]
        there = (k < rows) & exists[None, :]
        place = k.to(tl.int64) * width + parameter[None, :]
        partial = channels.load_columns(a, place, rows.to(tl.int64) * width, there, C)
        of_rows = tiles.along(tiles.as_pairs(partial), 0, C)
        totals = tiles.both(totals, tiles.as_pairs(of_rows), C.wide)
    totals = tiles.settle(totals)
    index = parameter - s * of_set
    access.write(a, s, index, exists, totals.projection, access.GRAD_WEIGHT, C)
    access.write(a, s, index, exists, totals.total, access.GRAD_BIAS, C)


@triton.jit
def combine_lines(a, C: tl.constexpr):
    """Sum the lines' terms of the parameters' gradients, in programs that do nothing else."""
    over_lines(a, tl.program_id(0), C)


@helper
def average(a, at, n, mean, VARIANCES: tl.constexpr, C: tl.constexpr):
    """The average over all ranks of their means minus one mean, or of variance + eps about it."""
    total = exact(at.channel.to(tl.float64) * 0.0)
    ranks = a.numbers.counts.to(tl.int32)
    for row in range(0, ranks, C.rows):
        rank = row + tl.arange(0, C.rows)
        share = access.count_at(a, rank, rank < ranks, C)[:, None]
        there = (share != 0.0) & at.there[None, :]
        index = at.channel[None, :] + rank[:, None] * 0
        value = access.read(a, rank[:, None], index, there, access.MEAN, 0.0, C) - mean[None, :]
        if VARIANCES:
            r = access.read(a, rank[:, None], index, there, access.INVSTD, 1.0, C)
            value = 1.0 / (r * r) + value * value
        value = tl.where(there, share * value, 0.0)
        total = added(total, exact(tl.sum(value, 0)), C.wide)
    return tl.where(n != 0.0, settled(total) / n, 0.0)


@triton.jit
def combine_ranks(a, C: tl.constexpr):
    """Combine all ranks' statistics of some channels.

    1/r² is a rank's variance + eps. Its average over all elements, plus that of the squared
    deviations of the ranks' means from the common mean, is the common variance + eps.
    """
    channel = tl.program_id(0) * C.channels + tl.arange(0, C.channels)
    at = access.Channels(channel * 0, channel, channel, channel < a.sizes.channels.to(tl.int32))
    n = channels.total_count(a, C)
    mean = average(a, at, n, channel.to(tl.float64) * 0.0, False, C)
    variance = average(a, at, n, mean, True, C)
    access.write_parameter(a, at, mean, access.OUT_MEAN, C)
    access.write_parameter(
        a, at, tl.where(n != 0.0, 1.0 / tl.sqrt(variance), 0.0), access.OUT_INVSTD, C
    )
    variance = variance - number(a.numbers.eps)
    variance = tl.where(variance < 0.0, 0.0, variance)
    variance = variance * tl.where(n > 1.0, n / (n - 1.0), 1.0)
    channels.update_running(a, at, mean, variance, n, C)
