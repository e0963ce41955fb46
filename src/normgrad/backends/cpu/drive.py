"""The driver: it runs a program's steps on one thread or several."""

from __future__ import annotations

from numba import prange, types

from ... import entries as E
from . import block as B
from .intrinsics import address_of, call, get, int_buffer, integers_at, put, word

# mypy: disable-error-code="untyped-decorator,no-untyped-def"

#: Sizes of arrays on the stack, which have to be globals of the module that uses them.
BLOCK_FIELDS, TEAM_FIELDS = B.BLOCK_FIELDS, B.TEAM_FIELDS
SIGNATURE = types.void(*[types.int64] * 4)
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


def drive(plan, team, threads, places):
    """Run a plan's program: copy its block, fill in the addresses, and call its steps one by one.

    ``plan`` is the address of its entry table. The ``threads`` of a team share the tasks of
    parallel steps.
    """
    addresses = integers_at(places)
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
