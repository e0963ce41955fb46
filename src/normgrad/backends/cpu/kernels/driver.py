"""The driver: it runs a schedule's steps on one thread or several."""

from __future__ import annotations

from ..schedule import block as B
from ..vector.helpers import helper
from ..vector.intrinsics import (
    address_of,
    call,
    fetch_add,
    get,
    int_buffer,
    integers_at,
    not_inlined,
    put,
    smaller,
    word,
)

# mypy: disable-error-code="untyped-decorator,no-untyped-def"

#: Sizes of arrays on the stack, which have to be globals of the module that uses them.
BLOCK_FIELDS, TEAM_FIELDS = B.BLOCK_FIELDS, B.TEAM_FIELDS
#: CLOCK_MONOTONIC_COARSE, which takes 10 ns to read, and has a resolution of 1 to 10 ms.
COARSE = 6
#: How long the calling thread works alone after a step that took too long, in times of that step:
#: where every core is busy with other programs, the steps that find out take a twentieth of the
#: time.
ALONE_FOR = 20


def share(team):
    """Run the share of one of OpenMP's threads of a step's tasks."""
    thread, threads = call(word(team, B.THREAD_NUMBER), ()), call(word(team, B.THREAD_COUNT), ())
    step = word(team, B.TEAM_STEP)
    tasks = word(step, B.TASKS)
    first, last = thread * tasks // threads, (thread + 1) * tasks // threads
    block = word(team, B.TEAM_BLOCK)
    # No other thread has this number, and there is scratch memory for it.
    number = first if tasks <= word(block, B.MOST_THREADS) else thread
    call(word(step, B.RUN_TASKS), (block, step, number, first, last))


def take(shared, number):
    """Run the tasks of a step that no other thread has taken, with a thread's own scratch memory.

    Thread 0, which calls, then waits for the tasks that others have taken.
    """
    block, step = word(shared, B.SHARED_BLOCK), word(shared, B.SHARED_STEP)
    tasks, size = word(shared, B.SHARED_TASKS), word(shared, B.AT_A_TIME)
    first = fetch_add(shared + 8 * B.TAKEN, size)
    while first < tasks:
        last = smaller(first + size, tasks)
        call(word(step, B.RUN_TASKS), (block, step, number, first, last))
        fetch_add(shared + 8 * B.DONE, last - first)
        first = fetch_add(shared + 8 * B.TAKEN, size)
    if number == 0:
        while fetch_add(shared + 8 * B.DONE, 0) < tasks:
            call(word(shared, B.YIELD), ())


@helper
def now(team):
    """The time in milliseconds; 0 where no clock is known."""
    if word(team, B.CLOCK) == 0:
        return 0
    time = int_buffer(2)
    call(word(team, B.CLOCK), (COARSE, time))
    return get(time, 0) * 1000 + get(time, 1) // 1000000


@helper
def run_shared(block, step, team, threads):
    """Share a step's tasks among OpenMP's threads."""
    not_inlined()
    begin, fields = now(team), int_buffer(TEAM_FIELDS)
    for field in range(B.TEAM_BLOCK):
        put(fields, field, word(team, field))
    put(fields, B.TEAM_BLOCK, block)
    put(fields, B.TEAM_STEP, step)
    call(get(fields, B.PARALLEL), (get(fields, B.SHARE), fields, threads, 0))
    spent = now(team) - begin
    if spent > word(block, B.PATIENCE):
        put(integers_at(team), B.ALONE_UNTIL, begin + spent * (1 + ALONE_FOR))


@helper
def fill_block(table, threads, places, block):
    """Copy a schedule's block, with the addresses of a call and what follows from its threads."""
    template, addresses = word(table, B.TEMPLATE), integers_at(places)
    for slot in range(B.ADDRESSES):
        put(block, slot, get(addresses, slot))
    for field in range(B.ADDRESSES, B.BLOCK_FIELDS):
        put(block, field, word(template, field))
    put(block, B.STREAM, threads <= get(block, B.STREAM))
    if get(block, B.DX) == get(block, B.X):  # the memory of dx has x, which is still read
        put(block, B.DY_IN_DX, 0)
    if get(block, B.DY_IN_DX) != 0:  # the caches have the lines of dx
        put(block, B.STREAM, 0)


def begin(table, threads, places, block):
    """Fill the block of a call whose steps Python calls one by one."""
    fill_block(table, threads, places, block)


def drive(table, team, threads, places):
    """Run a schedule: copy its block, fill in the addresses, and call its steps one by one.

    ``table`` is the address of its table (block.py). The ``threads`` of a team share the tasks of
    parallel steps, unless their last step had to wait for cores that other programs keep busy.
    """
    block = int_buffer(BLOCK_FIELDS)
    here = address_of(block)
    threads = smaller(threads, word(word(table, B.TEMPLATE), B.MOST_THREADS))
    if threads > 1 and now(team) < word(team, B.ALONE_UNTIL):
        threads = 1
    fill_block(table, threads, places, block)
    for index in range(word(table, B.STEP_COUNT)):
        step = word(table, B.STEPS) + 8 * B.STEP_FIELDS * index
        if word(step, B.THREADS) == 0 or threads <= 1:
            call(word(step, B.RUN_TASKS), (here, step, 0, 0, word(step, B.TASKS)))
        else:
            run_shared(here, step, team, threads)
