"""The kernels; schedule.py chooses which ones are launched, and in which order."""

from __future__ import annotations

from typing import Any, NamedTuple

import triton
import triton.language as tl

from . import access, channels, config, tiles
from .pairs import constant, helper, number

# mypy: disable-error-code="untyped-decorator,no-untyped-def"

#: What a kernel stores; see config.py.
RESULT, OUTPUTS = constant(config.RESULT), constant(config.OUTPUTS)
SUMS, COLUMNS = constant(config.SUMS), constant(config.COLUMNS)
STATISTICS = constant(config.MEAN | config.INVSTD)


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
    dy, x = tiles.load_both(a, at.set, first, p, there, tiles.FIRST, C)
    terms = tiles.terms_of_tile(dy, x, centre, there, C)
    totals = tiles.accumulated(totals, tiles.sums_of_terms(terms, weight, C), C)
    if C.constant and C.stores & RESULT:
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
    if C.stores & OUTPUTS:
        channels.finish(a, at, centre, totals, 0, C)
    else:
        channels.put_sums(a, part, at, centre, totals, C)


@helper
def write_tile(a, at, first, start, end, c, weight, bias, C: tl.constexpr):
    """Write a tile of dx or y from coefficients, and in lines from the positions' parameters."""
    p, there = access.positions_from(a, start, end, at, False, C)
    # In evaluation dx does not depend on x, and the compiler leaves out that load.
    dy, x = tiles.load_both(a, at.set, first, p, there, tiles.FIRST, C)
    tiles.store_dx(a, at.set, first, p, there, tiles.result_of_tile(dy, x, c, weight, bias, C), C)


@triton.jit
def write(a, C: tl.constexpr):
    """Write dx or y of each part of each tile, from sums or from given statistics."""
    task = tl.program_id(0)
    if C.from_sums:
        # The sums have left the last tiles in the L2 cache, so these come first.
        task = tl.num_programs(0) - 1 - task
    at, first, part, start, end = task_of(task, a, C)
    if C.from_sums:
        sums = sums_of_parts(a, channels.firsts_of_groups(a, at), C)
        if C.from_sums == SUMS:
            sums = channels.weigh(a, at, sums, C)
        c = channels.finish(a, at, channels.about_sums(a, at, C), sums, part, C)
    else:
        c = channels.from_arguments(a, at, C)
    for here in range(start, end, C.positions):
        weight, bias = tiles.parameters(a, at.set, here, C)
        write_tile(a, at, first, here, end, c, weight, bias, C)


# Whole groups


@helper
def read_twice(a, s, group, end, C: tl.constexpr):
    """Sum and write a group that is read twice: the second time from the L2 cache, if it fits."""
    per_group = a.sizes.per_group.to(tl.int32)
    at, first = access.channels_in_group(s, group, 0, a, C)
    centre = channels.about(a, at, C)
    none = tl.full([1], 0.0, tl.float64)
    total = tiles.Sums(none, none)
    for k in range(0, per_group, C.channels):
        at, first = access.channels_in_group(s, group, k, a, C)
        totals = tiles.none(C)
        for here in range(0, end, C.positions):
            weight, bias = tiles.parameters(a, s, here, C)
            totals = sum_tile(a, at, first, here, end, centre, centre, weight, totals, False, C)
        totals = tiles.along(totals, 0, C)
        if C.stores & SUMS:
            channels.put_sums(a, 0, at, centre, totals, C)
        totals = channels.weigh(a, at, totals, C)
        total = tiles.both(total, tiles.over_channels(totals))
    total = tiles.Sums(
        tl.broadcast_to(total.total, [C.channels]), tl.broadcast_to(total.projection, [C.channels])
    )
    for k in range(0, per_group, C.channels):
        at, first = access.channels_in_group(s, group, k, a, C)
        c = channels.finish(a, at, centre, total, 0, C)
        for here in range(0, end, C.positions):
            weight, bias = tiles.parameters(a, s, here, C)
            write_tile(a, at, first, here, end, c, weight, bias, C)


class Row(NamedTuple):
    """What belongs to each of a line's tiles: to the first, and to those after it, or 0."""

    own: Any
    rest: Any


class Held(NamedTuple):
    """A tile in registers: its positions, the mask of elements that exist, dy and x."""

    positions: Any
    there: Any
    dy: Any
    x: Any


@helper
def parameters_of_row(a, s, start, C: tl.constexpr):
    """The weights and biases of the positions of a line's tiles."""
    NEXT: tl.constexpr = C.next
    own = tiles.parameters(a, s, start, C)
    if NEXT is None:
        return Row(own, 0)
    else:
        return Row(own, parameters_of_row(a, s, start + C.positions, NEXT))


@helper
def no_columns_of_row(C: tl.constexpr):
    """Zeros to which the terms of the parameters' gradients are added, for a line's tiles."""
    NEXT: tl.constexpr = C.next
    if NEXT is None:
        return Row(tiles.no_columns(C), 0)
    else:
        return Row(tiles.no_columns(C), no_columns_of_row(NEXT))


@helper
def put_columns_of_row(a, slot, s, start, columns, folds, C: tl.constexpr):
    """Store a chain's sums for the parameters of a line's tiles."""
    NEXT: tl.constexpr = C.next
    channels.put_columns(a, slot, s, start, columns.own, folds, C)
    if NEXT is not None:
        put_columns_of_row(a, slot, s, start + C.positions, columns.rest, folds, NEXT)


@helper
def sum_row(a, at, first, start, end, centre, given, columns, r, rest, C: tl.constexpr):
    """Sum a line's tiles: the sums of each thread, the columns with its terms, and the tiles."""
    NEXT: tl.constexpr = C.next
    p, there = access.positions_from(a, start, end, at, False, C)
    dy, x = tiles.load_both(a, at.set, first, p, there, tiles.FIRST, C)
    terms = tiles.terms_of_tile(dy, x, centre, there, C)
    own = columns.own
    if C.stores & COLUMNS:
        own = tiles.add_columns(own, terms, r, rest, C)
    weight = given.own[0]
    if C.again:
        weight, _ = tiles.parameters(a, at.set, start, C)
    totals = tiles.sums_of_terms(terms, weight, C)
    held = Held(p, there, dy, x)
    if NEXT is None:
        return totals, Row(own, 0), Row(held, 0)
    else:
        start += C.positions
        more, columns_of_more, held_more = sum_row(
            a, at, first, start, end, centre, given.rest, columns.rest, r, rest, NEXT
        )
        totals = tiles.accumulated(totals, more, C)
        return totals, Row(own, columns_of_more), Row(held, held_more)


@helper
def write_row(a, at, first, start, held, c, given, C: tl.constexpr):
    """Write dx or y of a line's tiles, which may have to be read again."""
    NEXT: tl.constexpr = C.next
    tile = held.own
    dy, x = tile.dy, tile.x
    weight, bias = given.own
    if C.again:
        weight, bias = tiles.parameters(a, at.set, start, C)
        dy, x = tiles.load_both(a, at.set, first, tile.positions, tile.there, tiles.AGAIN, C)
    value = tiles.result_of_tile(dy, x, c, weight, bias, C)
    tiles.store_dx(a, at.set, first, tile.positions, tile.there, value, C)
    if NEXT is not None:
        write_row(a, at, first, start + C.positions, held.rest, c, given.rest, NEXT)


@helper
def chain(a, s, part, begin, end, first_block, last_block, given, C: tl.constexpr):
    """Sum and write some blocks, and return the sums of their terms of parameters' gradients.

    A block is a tile of some channels, or all tiles of a line.
    """
    columns = no_columns_of_row(C)
    for block in tl.range(first_block, last_block, num_stages=C.stages):
        at, first = access.channels_of(s, block, a, C)
        centre = channels.about(a, at, C)
        r, rest = 1.0, 0.0
        if C.stores & COLUMNS:
            r, rest = channels.read_invstd(a, at, C), channels.mean_rest(a, at, C)
        totals, columns, held = sum_row(
            a, at, first, begin, end, centre, given, columns, r, rest, C
        )
        totals = tiles.along(totals, 0, C)
        if C.stores & SUMS:
            channels.put_sums(a, part, at, centre, totals, C)
        if C.stores & RESULT:
            totals = channels.weigh(a, at, totals, C)
            c = channels.finish(a, at, centre, totals, 0, C)
            write_row(a, at, first, begin, held, c, given, C)
    return columns


@triton.jit
def groups(a, C: tl.constexpr):
    """Sum and write whole groups, in programs that process some tiles one after the other.

    A tile of channels that are groups of their own, or of lines, is read once; of lines it may also
    be a piece, which is only summed. A line may be several tiles. A group of several channels is
    read twice. lines.py explains lines, whose terms of the parameters' gradients are added up over
    chains of blocks.
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
        given = parameters_of_row(a, s, begin, C)
        if C.stores & COLUMNS:
            links = (a.sizes.each.to(tl.int32) + C.chain - 1) // C.chain
            slots = (links + C.chains - 1) // C.chains
            for link in range(0, links):
                start = first_block + link * C.chain
                stop = tl.minimum(start + C.chain, last_block)
                columns = chain(a, s, part, begin, end, start, stop, given, C)
                place = slot * slots + link // C.chains
                put_columns_of_row(a, place, s, begin, columns, link % C.chains, C)
        else:
            chain(a, s, part, begin, end, first_block, last_block, given, C)
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
    zero = at.channel.to(tl.float64) * 0.0
    totals = tiles.Sums(zero, zero)
    parts = a.sizes.summed.to(tl.int32)
    for row in range(0, parts, C.rows):
        part = (row + tl.arange(0, C.rows))[:, None]
        there = (part < parts) & at.there[None, :]
        rows = access.Channels(at.set, at.channel[None, :], at.group[None, :], there)
        totals = tiles.both(totals, tiles.over_rows(channels.load_sums(a, part, rows, C)))
    return totals


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

    This makes statistics for gradients, per-channel outputs, or the sums of whole groups.
    """
    blocks = (a.sizes.groups.to(tl.int32) + C.groups - 1) // C.groups
    s = tl.program_id(0) // blocks
    first_group = tl.program_id(0) % blocks * C.groups
    per_group = a.sizes.per_group.to(tl.int32)
    zero = tl.full([C.groups], 0.0, tl.float64)
    of_groups = tiles.Sums(zero, zero)
    for j in range(0, per_group, C.fan):
        at = members_of(s, first_group, j, a, C)
        partial = channels.weigh(a, at, sums_of_parts(a, at, C), C)
        partial = tiles.Sums(over_members(partial.total, C), over_members(partial.projection, C))
        of_groups = tiles.both(of_groups, partial)
    totals = tiles.Sums(to_members(of_groups.total, C), to_members(of_groups.projection, C))
    if C.stores & STATISTICS:
        at = channels.only_firsts(a, members_of(s, first_group, 0, a, C))
        channels.save_statistics(a, at, channels.about_sums(a, at, C), totals, C)
    elif C.stores & OUTPUTS:
        for j in range(0, per_group, C.fan):
            at = members_of(s, first_group, j, a, C)
            channels.finish(a, at, channels.about_sums(a, at, C), totals, 0, C)
    else:
        at = channels.only_firsts(a, members_of(s, first_group, 0, a, C))
        channels.put_totals(a, at, totals)


@triton.jit
def combine_parameters(a, C: tl.constexpr):
    """Sum the terms of some parameters' gradients over all sets and slots, and write them.

    The terms are those of lines; or, where C.sharing is 0, the channels' sums of all parts, of
    which Σdy·(x − μ) is still to be corrected for the mean's rounding error and times 1/std.
    """
    program = tl.program_id(0)
    if C.long_positions:
        program = program.to(tl.int64)
    parameter = program * C.parameters + tl.arange(0, C.parameters)
    sets, rows = a.sizes.sets.to(tl.int32), a.sizes.slots.to(tl.int32)
    width = a.sizes.channels.to(parameter.dtype)
    if C.sharing > 0:
        width = a.sizes.positions.to(parameter.dtype) // C.sharing
    of_set = width
    s = parameter * 0
    if C.shared:  # by all sets
        rows *= sets
    else:
        s = parameter // of_set
        width *= sets
    exists = parameter < width
    zero = parameter.to(tl.float64) * 0.0
    totals = tiles.Sums(zero, zero)
    for row in range(0, rows, C.rows):
        k = (row + tl.arange(0, C.rows))[:, None]
        there = (k < rows) & exists[None, :]
        place = k.to(tl.int64) * width + parameter[None, :]
        terms = channels.load_columns(a, place, rows.to(tl.int64) * width, there, C)
        if C.sharing == 0:
            group = parameter[None, :] // a.sizes.per_group.to(tl.int32)
            at = access.Channels(k % sets, parameter[None, :], group, there)
            terms = channels.correct_sums(a, at, terms, C)
            scaled = tl.where(there, channels.read_invstd(a, at, C) * terms.projection, 0.0)
            terms = tiles.Sums(terms.total, scaled)
        totals = tiles.both(totals, tiles.over_rows(terms))
    index = parameter - s * of_set
    access.write(a, s, index, exists, totals.projection, access.GRAD_WEIGHT, C)
    access.write(a, s, index, exists, totals.total, access.GRAD_BIAS, C)


@helper
def average(a, at, n, mean, VARIANCES: tl.constexpr, C: tl.constexpr):
    """The average over all ranks of their means minus one mean, or of variance + eps about it."""
    total = at.channel.to(tl.float64) * 0.0
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
        total += tl.sum(tl.where(there, share * value, 0.0), 0)
    return tl.where(n != 0.0, total / n, 0.0)


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
