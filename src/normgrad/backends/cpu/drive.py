"""The driver: it checks a call's memory, and runs a program's steps on one thread or several."""

from __future__ import annotations

from numba import prange, types

from ... import entries as E
from ... import pages
from . import block as B
from .helpers import helper
from .intrinsics import address_of, call, get, int_buffer, integers_at, put, shift, word

# mypy: disable-error-code="untyped-decorator,no-untyped-def"

#: Sizes of arrays on the stack, which have to be globals of the module that uses them.
BLOCK_FIELDS, TEAM_FIELDS = B.BLOCK_FIELDS, B.TEAM_FIELDS
SIGNATURE = types.int64(*[types.int64] * 6)
START_SIGNATURE = types.void(*[types.int64] * 2)
SHARE_SIGNATURE = types.void(types.int64)


def start_numba(block, step):
    """Share a step's tasks among as many of Numba's threads as it is set to use."""
    for task in prange(word(step, B.TASKS)):
        call(word(step, B.RUN_TASKS), (block, step, task, task + 1))


def share(words):
    """Do one OpenMP thread's share of a step's tasks."""
    me, threads = call(word(words, B.THREAD_NUMBER), ()), call(word(words, B.THREAD_COUNT), ())
    step = word(words, B.TEAM_STEP)
    tasks = word(step, B.TASKS)
    first, last = me * tasks // threads, (me + 1) * tasks // threads
    call(word(step, B.RUN_TASKS), (word(words, B.TEAM_BLOCK), step, first, last))


@helper
def row_of(aliases, slot):
    """The address of a tensor's row in the alias check's table."""
    return shift(aliases, B.ALIAS_SLOT * slot)


@helper
def can_be_written(aliases, first, last):
    """Whether the pages from first to last can be written, by the probes of pages.py."""
    madvise, page = get(aliases, B.ALIAS_MADVISE), get(aliases, B.ALIAS_PAGE)
    size = last + page - first
    if madvise == 0:
        return True
    if size <= pages.FEW * page:
        return call(madvise, (first, size, pages.POPULATE_WRITE)) == 0
    return (
        call(madvise, (first, page, pages.POPULATE_WRITE)) == 0
        and call(madvise, (last, page, pages.POPULATE_WRITE)) == 0
        and call(get(aliases, B.ALIAS_MSYNC), (first, size, pages.MS_ASYNC)) == 0
    )


@helper
def is_apart(aliases, addresses, slot):
    """Whether an output shares no byte with any other tensor."""
    address = get(addresses, slot)
    low = address + get(row_of(aliases, slot), B.ALIAS_LOW)
    high = address + get(row_of(aliases, slot), B.ALIAS_HIGH)
    for other in range(B.PLACES):
        flags = get(row_of(aliases, other), B.ALIAS_FLAGS)
        elsewhere = get(addresses, other)
        if (
            other != slot
            and flags & B.HAS_BYTES
            and low < elsewhere + get(row_of(aliases, other), B.ALIAS_HIGH)
            and elsewhere + get(row_of(aliases, other), B.ALIAS_LOW) < high
            and not (flags >> (B.MAY_BE + slot) & 1 and address == elsewhere)
        ):
            return False
    return True


@helper
def passes(aliases, given, unprobed, addresses):
    """Whether a call's memory passes the alias check.

    ``given`` has a bit for each output of the caller's, ``unprobed`` for each of these that has yet
    to be probed for read-only pages.
    """
    page = get(aliases, B.ALIAS_PAGE)
    seen = -1
    for slot in range(B.PLACES):
        if get(row_of(aliases, slot), B.ALIAS_FLAGS) & B.HAS_BYTES == 0:
            continue
        address = get(addresses, slot)
        if address == 0:
            return False
        if given >> slot & 1:
            if not is_apart(aliases, addresses, slot):
                return False
            if not unprobed >> slot & 1:
                continue
            # Short outputs often share a page, which is probed once.
            first = (address + get(row_of(aliases, slot), B.ALIAS_LOW)) // page * page
            last = (address + get(row_of(aliases, slot), B.ALIAS_HIGH) - 1) // page * page
            if (first != seen or last != seen) and not can_be_written(aliases, first, last):
                return False
            seen = last
    return True


def drive(plan, team, threads, given, unprobed, places):
    """Run a plan's program: copy its block, fill in the addresses, and call its steps one by one.

    ``plan`` is the address of its entry table. The ``threads`` of a team share the tasks of
    parallel steps. Returns 0 if the steps were run, or 1 if the alias check (see ``passes``) failed
    first; the check is skipped if ``given`` is below 0.
    """
    addresses = integers_at(places)
    if given >= 0 and not passes(integers_at(word(plan, E.ALIASES)), given, unprobed, addresses):
        return 1
    block = int_buffer(BLOCK_FIELDS)
    for slot in range(B.ADDRESSES):
        put(block, slot, get(addresses, slot))
    for field in range(B.ADDRESSES, B.BLOCK_FIELDS):
        put(block, field, word(word(plan, E.TEMPLATE), field))
    put(block, B.STREAM, threads <= get(block, B.STREAM))
    if get(block, B.DX) == get(block, B.X):  # the memory of dx has x, which is still read
        put(block, B.DY_IN_DX, 0)
    if get(block, B.DY_IN_DX) != 0:  # the caches have the lines of dx
        put(block, B.STREAM, 0)
    here = address_of(block)
    for index in range(word(plan, E.STEP_COUNT)):
        step = word(plan, E.STEPS) + 8 * B.STEP_FIELDS * index
        if word(step, B.THREADS) == 0 or threads <= 1:
            call(word(step, B.RUN_TASKS), (here, step, 0, word(step, B.TASKS)))
        elif word(team, B.START) != 0:
            call(word(team, B.START), (here, step))
        else:
            told = int_buffer(TEAM_FIELDS)
            for field in range(B.TEAM_BLOCK):
                put(told, field, word(team, field))
            put(told, B.TEAM_BLOCK, here)
            put(told, B.TEAM_STEP, step)
            call(get(told, B.PARALLEL), (get(told, B.SHARE), told, threads, 0))
    return 0
