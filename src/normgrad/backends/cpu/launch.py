"""Plans that compiled code does not compute itself: it launches a GPU's kernels, or asks Python.

Triton's launcher converts all arguments from Python objects at every launch. The entry table has
them in the form that CUDA's driver reads (see driver.py of the Triton backend), so that a call
supplies only the stream and the addresses. The GIL is held; it is released during launches.
"""

from __future__ import annotations

from numba import types

from ... import entries as E
from ... import native
from ...problem import OTHERS, WORKSPACE, Role
from . import objects as py
from .enter import ANSWERED, NOTHING_DONE, room_of
from .helpers import helper
from .intrinsics import (
    address_of,
    call,
    get,
    int_buffer,
    integers_at,
    not_inlined,
    plain,
    put,
    word,
)

# mypy: disable-error-code="untyped-decorator,no-untyped-def"

#: The type of ``run``: it takes the entry table, native.py's, the addresses, and a word.
SIGNATURE = types.int64(*[types.int64] * 4)
#: Sizes of arrays on the stack, which have to be globals of the module that uses them.
CONFIG_FIELDS, PARAMETERS_MAX = E.CONFIG_FIELDS, E.PARAMETERS_MAX
SIGNATURE_MAX = py.SIGNATURE_MAX
DY, X, DX = int(Role.GRAD_OUT), int(Role.INPUT), int(Role.RESULT)


@helper
def alignment_of(addresses):
    """The alignment for which kernels are compiled: the lowest bits of three addresses."""
    low = E.ALIGNED_BITS
    return (
        get(addresses, DY) % (1 << low)
        | get(addresses, X) % (1 << low) << low
        | get(addresses, DX) % (1 << low) << 2 * low
    )


@helper
def has_hooks(plan, known, name):
    """Whether there may be hooks of this name, which Triton's launcher calls at every launch."""
    chain, count = py.attribute((word(plan, E.HOOKED), name)), -1
    if chain == word(known, native.NONE):
        count = 0
    elif chain != 0:
        calls = py.attribute((chain, word(known, native.CALLS)))
        if calls != 0:
            count = py.size_of((calls,))
            py.release((calls,))
    py.release((chain,))
    if count < 0:
        py.clear_error(())
    return count != 0


@helper
def is_prepared(plan, known, addresses):
    """Whether the table has launches for these addresses, on the current device and unhooked."""
    if word(plan, E.STEP_COUNT) == 0 or word(plan, E.ALIGNED) != alignment_of(addresses):
        return False
    if has_hooks(plan, known, word(known, native.ENTER_HOOK)) or has_hooks(
        plan, known, word(known, native.EXIT_HOOK)
    ):
        return False
    current = int_buffer(1)
    put(current, 0, 0)
    if call(word(plan, E.CURRENT_DEVICE), (current,)) != 0:
        return False
    return get(current, 0) == word(plan, E.DEVICE) >> 32


@helper
def launch(plan, known, addresses):
    """Launch a plan's kernels on the current stream; returns how many CUDA accepted."""
    not_inlined()
    if not is_prepared(plan, known, addresses):
        return 0
    # Another thread may change the table from here on; what it points to is kept (see runtime.py).
    start, steps, count = word(plan, E.DRIVE), word(plan, E.STEPS), word(plan, E.STEP_COUNT)
    argument = int_buffer(1)
    put(argument, 0, word(plan, E.ORDINAL))
    found = py.call_object((word(plan, E.STREAM_OF), argument, 1, 0))
    if found == 0:
        py.clear_error(())
        return 0
    config, parameters = int_buffer(CONFIG_FIELDS), int_buffer(PARAMETERS_MAX)
    for field in range(CONFIG_FIELDS):
        put(config, field, 0)
    put(config, E.CONFIG_STREAM, py.integer(found))
    py.release((found,))
    for slot in range(OTHERS):
        put(parameters, slot, address_of(addresses) + 8 * slot)
    done = plain(0)
    state = py.let_others_run(())
    for index in range(count):
        step = steps + 8 * E.LAUNCH_FIELDS * index
        for field in range(E.CONFIG_STREAM):
            put(config, field, word(step, field))
        for constant in range(word(step, E.CONSTANT_COUNT)):
            put(parameters, OTHERS + constant, step + 8 * (E.CONSTANTS + constant))
        if call(start, (config, word(step, E.KERNEL), parameters, 0)) != 0:
            break
        done += 1
    py.come_back((state,))
    return done


@helper
def ask(plan, addresses, done):
    """Have a plan's function of Python run it from a step on; returns its answer.

    The answer is 0 if Python raised.
    """
    arguments, answered = int_buffer(2), plain(0)
    put(arguments, 0, py.long_from((address_of(addresses),)))
    put(arguments, 1, py.long_from((done,)))
    if get(arguments, 0) != 0 and get(arguments, 1) != 0:
        answered = py.call_object((word(plan, E.FUNCTION), arguments, 2, 0))
    py.release((get(arguments, 0),))
    py.release((get(arguments, 1),))
    return answered


def run(plan, known, places, said):
    """Launch a plan's kernels, or have its function of Python run it; returns a status of enter.py.

    ``said`` gets what the function answered if the plan did not run, or 0 if Python raised.
    """
    addresses, own = integers_at(places), plain(0)
    if word(plan, E.WORKSPACE_SIZE) > 0 and get(addresses, WORKSPACE) == 0:
        argument = int_buffer(1)
        put(argument, 0, word(plan, E.MODEL))
        own = py.call_object((word(plan, E.MAKER), argument, 1, 0))
        if own == 0:
            put(integers_at(said), 0, 0)
            return ANSWERED
        put(addresses, WORKSPACE, room_of(plan, known, own, int_buffer(SIGNATURE_MAX)))
        if get(addresses, WORKSPACE) == 0:
            py.release((own,))
            return NOTHING_DONE
    done, status = launch(plan, known, addresses), 0
    if done == 0 or done != word(plan, E.STEP_COUNT):
        answered = ask(plan, addresses, done)
        if answered == word(known, native.NONE):
            py.release((answered,))
        else:
            put(integers_at(said), 0, answered)
            status = ANSWERED
    # The memory may be reused only by later work on the same stream.
    py.release((own,))
    return status
