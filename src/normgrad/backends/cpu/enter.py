"""The compiled entry of calls: from the Python objects to the driver, if the signature is known.

A plan remembers the signature of its last call's tensors: shapes, strides, dtypes, device. Compiled
code computes at once if the next call has the same signature, its storages hold all elements, and
its outputs can be written. If not, it does nothing, and Python handles the call (see plans.py).
Python calls ``function``, with an array of borrowed objects. Plans of other backends are run by
another compiled function (see launch.py).
"""

from __future__ import annotations

from numba import types

from ... import entries as E
from ... import native
from ...problem import PLACES, WORKSPACE, Role
from . import objects as py
from .alias_check import passes
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
    shift,
    word,
)
from .keys import bytes_of, describe_all, key_of

# mypy: disable-error-code="untyped-decorator,no-untyped-def"

# Constants are passed as `plain` integers, since a helper is compiled anew for each literal.

#: The type of ``function``: it takes its owner, an array of objects and the array's length.
SIGNATURE = types.int64(types.int64, types.int64, types.int64)
#: Sizes of arrays on the stack, which have to be globals of the module that uses them. Signatures
#: and keys are arrays of words, which are int64.
KEY_MAX, FACTS_MAX, FOUND = 4 * E.WORDS_MAX, py.FOUND * E.ENTRIES_MAX, py.FOUND
ENTRIES_MAX = E.ENTRIES_MAX
DY, X = int(Role.GRAD_OUT), int(Role.INPUT)
#: The statuses of a call for which nothing was done, and of one whose plan's function of Python
#: has answered otherwise than by running it.
NOTHING_DONE, ANSWERED = 1, 2


@helper
def is_brought(known, out, index):
    """Whether the caller gave a tensor for a result; ``out`` is None or a tuple."""
    nothing = word(known, native.NONE)
    return out != nothing and py.entry(known, out, index) != nothing


@helper
def takes(plan, words):
    """Whether the signature of the inputs, with which ``words`` begin, is the plan's."""
    for at in range(word(plan, E.RESULTS) - 1):  # the word before the results is a mark
        if get(words, at) != word(plan, E.WORDS + at):
            return False
    return True


@helper
def tell_addresses(plan, known, tensors, out, first, words, at, facts, addresses):
    """Store the addresses of described tensors if the signature is the plan's.

    Returns the number of words so far, or -1 if they are not the plan's, or if a storage lacks
    elements. ``first`` is the number of the first tensor: 0 for inputs. Of results, those that
    ``out`` has are the caller's, and must be writable; the others are new.
    """
    not_inlined()
    for index in range(word(tensors, py.LENGTH)):
        end = at + py.length_of(address_of(words) + 8 * at)
        for at_word in range(at, end):
            if get(words, at_word) != word(plan, E.WORDS + at_word):
                return -1
        value, found = py.entry(known, tensors, index), shift(facts, FOUND * index)
        brought = first > 0 and is_brought(known, out, index)
        if (first == 0 or brought) and not py.holds_all(
            known, value, words, at, get(found, py.BYTES)
        ):
            return -1
        if brought and get(found, py.FLAGS) & native.ARRAY_WRITEABLE == 0:
            return -1
        at = end
        slot = word(plan, E.SLOTS + first + index)
        if slot >= 0:
            put(addresses, slot, get(found, py.ADDRESS))
    return at


@helper
def aligned(plan, address):
    """The first aligned address, from this one on, where a plan's workspace may begin."""
    alignment = word(plan, E.ALIGNMENT)
    return (address + alignment - 1) // alignment * alignment


@helper
def room_of(plan, known, workspace, words):
    """The first aligned address of a workspace that is large enough; else 0."""
    found, at = int_buffer(FOUND), plain(0)
    if py.describe(known, workspace, words, at, found) < 0 or get(words, 0) == 0:
        return 0
    # NumPy's strides are in bytes, PyTorch's in elements.
    length, whole = get(words, py.SIZES), get(words, py.SIZES + 1)
    if get(words, py.KIND) == word(known, native.NDARRAY):
        if (
            get(words, py.DTYPE) != word(known, native.BYTES)
            or get(found, py.FLAGS) & native.ARRAY_FLAT == 0
            or length < 2
        ):
            return 0
    else:
        if whole != 1 or not py.holds_all(known, workspace, words, plain(0), get(found, py.BYTES)):
            return 0
        whole = get(found, py.BYTES)
    if (
        get(words, py.RANK) != 1
        or get(words, py.DEVICE) != word(plan, E.DEVICE)
        or get(found, py.FLAGS) & native.ARRAY_WRITEABLE == 0
        or whole * length < word(plan, E.WORKSPACE_SIZE)
    ):
        return 0
    return aligned(plan, get(found, py.ADDRESS))


@helper
def seat_of(index, value):
    """The place where a tensor is remembered as writable, chosen by its object's address.

    There are SEATS places for each result and, as the last index, for the workspace.
    """
    return E.SEATS * index + ((value >> 4 ^ value >> 7) & (E.SEATS - 1))


@helper
def was_probed(plan, known, probed, index, value, address):
    """Whether an earlier call found this result (or workspace, the last index) writable."""
    seat = seat_of(index, value)
    reference = py.list_entry((probed, seat))
    return (
        reference != word(known, native.NONE)
        and word(reference, py.REFERENT) == value
        and word(plan, E.PROBED + seat) == address
    )


@helper
def remember(plan, probed, index, value, address):
    """Remember what a call found writable, by a weak reference, since its memory may be reused."""
    reference, seat = py.refer((value, 0)), seat_of(index, value)
    if reference == 0:
        py.clear_error(())
    else:
        put(integers_at(plan), E.PROBED + seat, address)
        if py.set_list_entry((probed, seat, reference)) != 0:
            py.clear_error(())


@helper
def count_writes(known, out):
    """Count for autograd that the caller's results, if any, were written to.

    Returns False if Python raised.
    """
    counted, argument = True, int_buffer(1)
    for index in range(word(out, py.LENGTH) if out != word(known, native.NONE) else 0):
        counted &= py.count_write(known, py.entry(known, out, index))
    if counted or word(known, native.WRITTEN) == 0:
        return True
    # Python counts all of them: to count some twice does no harm.
    put(argument, 0, out)
    done = py.call_object((word(known, native.WRITTEN), argument, 1, 0))
    py.release((done,))
    return done != 0


@helper
def nothing_made(known):
    """Answer None in the place of an exception, which Python's own checks will raise.

    A function of Python's has failed before anything was computed. An interrupt stays: 0.
    """
    if py.is_error((word(known, native.EXCEPTION),)) == 0:
        return 0
    py.clear_error(())
    py.retain((word(known, native.NONE),))
    return word(known, native.NONE)


@helper
def run(plan, known, probed, team, threads, tensors, results, out, workspace, words, facts, said):
    """Compute on a call's objects; returns 0 if it was done, else one of the statuses above.

    ``words`` and ``facts`` are the inputs', and are overwritten. If it returns ANSWERED, ``said``
    has what the plan's function of Python answered instead of running it, or 0 if Python raised.
    """
    not_inlined()
    addresses, inputs, start = int_buffer(PLACES), word(tensors, py.LENGTH), word(plan, E.RESULTS)
    for slot in range(PLACES):
        put(addresses, slot, 0)
    at = tell_addresses(plan, known, tensors, out, plain(0), words, plain(0), facts, addresses)
    if at + 1 != start or describe_all(known, results, words, start, facts) < 0:
        return NOTHING_DONE
    at = tell_addresses(plan, known, results, out, inputs, words, start, facts, addresses)
    if at != word(plan, E.LENGTH):
        return NOTHING_DONE
    if word(plan, E.READS_DY) != 0:
        put(addresses, X, get(addresses, DY))
    if word(plan, E.READS_X) != 0:
        put(addresses, DY, get(addresses, X))
    slots, unprobed, count = 0, 0, word(results, py.LENGTH)
    for index in range(count):
        slot = word(plan, E.SLOTS + inputs + index)
        if slot >= 0 and is_brought(known, out, index):
            slots |= 1 << slot
            value, address = py.entry(known, results, index), get(addresses, slot)
            if not was_probed(plan, known, probed, index, value, address):
                unprobed |= 1 << slot
    size, scratch = word(plan, E.WORKSPACE_SIZE), 0
    if size > 0 and workspace != word(known, native.NONE):
        slots |= 1 << WORKSPACE
        scratch = room_of(plan, known, workspace, words)
        if not was_probed(plan, known, probed, count, workspace, scratch):
            unprobed |= 1 << WORKSPACE
    put(addresses, WORKSPACE, scratch)
    if not passes(plan, slots, unprobed, addresses):
        return NOTHING_DONE
    if word(plan, E.RUN) != 0:
        status = call(word(plan, E.RUN), (plan, known, addresses, said))
        if status != 0:
            return status
    else:
        own = 0
        if size > 0 and scratch == 0:
            own = py.allocate((size,))
            if own == 0:
                return NOTHING_DONE
            put(addresses, WORKSPACE, aligned(plan, own))
        # A brief plan keeps the GIL: it ends before another thread could take it.
        state = py.let_others_run(()) if word(plan, E.BRIEF) == 0 else plain(0)
        status = call(word(plan, E.DRIVE), (plan, team, threads, addresses))
        if state != 0:
            py.come_back((state,))
        py.free((own,))
        if status != 0:  # Python runs the plan on a thread with a larger stack
            return NOTHING_DONE
    for index in range(count):
        slot = word(plan, E.SLOTS + inputs + index)
        if slot >= 0 and unprobed >> slot & 1:
            value, address = py.entry(known, results, index), get(addresses, slot)
            remember(plan, probed, index, value, address)
    if unprobed >> WORKSPACE & 1:
        remember(plan, probed, count, workspace, scratch)
    return 0


@helper
def results_of(plan, known, makers, tensors, out, stale):
    """Make the tuple of results, the caller's and new ones; 0 if Python raised an exception.

    The inputs have the plan's signature: a function of Python's that makes a result may change what
    it takes, as NumPy's does with a tensor. ``stale`` is set if such a function was called. Other
    code of Python's does not run here, since the garbage collector is off.
    """
    collects = plain(py.stop_collector(()))
    values, argument, count = int_buffer(ENTRIES_MAX), int_buffer(1), word(makers, py.LENGTH)
    direct, words = py.makes_tensors(known), plan + 8 * (E.WORDS + word(plan, E.RESULTS))
    for index in range(count):
        maker, value = py.entry(known, makers, index), plain(0)
        if is_brought(known, out, index):
            value = py.entry(known, out, index)
            py.retain((value,))
        elif maker == word(known, native.NONE):
            value = maker
            py.retain((value,))
        elif direct and word(plan, E.MADE + index) != 0:
            value = py.new_tensor(known, words)
        words += 8 * py.length_of(words)
        if value == 0:
            put(argument, 0, py.entry(known, tensors, word(plan, E.LIKES + index)))
            put(stale, 0, 1)
            if collects != 0:
                py.start_collector(())
                collects = plain(0)
            value = py.call_object((maker, argument, 1, 0))
            if value == 0:
                py.release_all(values, index)
                return 0
        put(values, index, value)
    results = py.tuple_of(values, count)
    if collects != 0:
        py.start_collector(())
    return results


@helper
def compute(known, ready, tensors, out, workspace, team, words, facts, stale, counts):
    """Compute the results with a plan; None if it is not ready for them, 0 if Python raised.

    ``team`` is a Team, or 0 for this thread's; if that is yet to be made, the result is None.
    ``words`` begin with the tensors' signature, and ``facts`` are theirs, unless ``stale`` is set.
    Any code of Python's sets it, since it may replace the memory of tensors. ``counts`` is 0 if
    writes to ``out`` are not counted for autograd.
    """
    not_inlined()
    plan, makers = py.long_value((py.entry(known, ready, 0),)), py.entry(known, ready, 1)
    nothing, address, threads = word(known, native.NONE), plain(0), plain(1)
    if not (
        word(tensors, py.LENGTH) == word(plan, E.INPUTS)
        and (
            out == nothing
            or (py.is_tuple(known, out) and word(out, py.LENGTH) == word(makers, py.LENGTH))
        )
        and takes(plan, words)
    ):
        py.retain((nothing,))
        return nothing
    if word(plan, E.PARALLEL) != 0:
        found = team
        if team == 0:
            put(stale, 0, 1)
            found = py.call_nothing((word(known, native.TEAM),))
        if found == 0:
            return nothing_made(known)
        if found == nothing:
            return found
        address = py.integer(py.entry(known, found, 0))
        threads = py.integer(py.entry(known, found, 1))
        if team == 0:
            py.release((found,))
    py.retain((nothing,))
    said, status = int_buffer(1), plain(NOTHING_DONE)
    results = results_of(plan, known, makers, tensors, out, stale)
    if results != 0 and (
        get(stale, 0) == 0 or describe_all(known, tensors, words, plain(0), facts) >= 0
    ):
        probed = py.entry(known, ready, 2)
        status = run(
            plan, known, probed, address, threads, tensors, results, out, workspace, words, facts,
            said,
        )  # fmt: skip
    if results == 0:
        py.release((nothing,))
        return nothing_made(known)
    if status == 0:
        py.release((nothing,))
        if counts == 0 or count_writes(known, out):
            return results
        py.release((results,))
        return 0
    py.release((results,))
    if status != ANSWERED:
        return nothing
    py.release((nothing,))
    error = get(said, 0)
    if error == 0:
        return nothing_made(known)
    py.set_error((word(error, py.TYPE), error))
    py.release((error,))
    return 0


@helper
def answer(table, arguments, count):
    """Compute a call if a plan is ready for its signature, or return its key.

    The arguments are the plans by the keys of their calls, or None for the key as bytes; the
    tensors, results or None, and the other arguments. With one plan instead of several, the last
    argument is a workspace or None, and a Team may follow. The result is None if no plan is ready,
    or if compiled code cannot read an argument; with five arguments otherwise, also if a mode,
    transform or tracer of PyTorch's may have to see operators, and writes to ``out`` are not
    counted.
    """
    known = py.long_value((table,))
    plans, tensors, out = word(arguments, 0), word(arguments, 1), word(arguments, 2)
    words, facts, stale = int_buffer(KEY_MAX), int_buffer(FACTS_MAX), int_buffer(1)
    nothing = word(known, native.NONE)
    put(stale, 0, 0)
    if py.is_tuple(known, plans):
        if not py.is_tuple(known, tensors) or (
            describe_all(known, tensors, words, plain(0), facts) < 0
        ):
            py.retain((nothing,))
            return nothing
        team = word(arguments, 4) if count == 5 else 0
        workspace = word(arguments, 3)
        return compute(known, plans, tensors, out, workspace, team, words, facts, stale, plain(1))
    if count == 5 and py.is_watched(known):
        py.retain((nothing,))
        return nothing
    at = key_of(known, tensors, out, word(arguments, 3), words, facts)
    if at < 0:
        py.retain((nothing,))
        return nothing
    key = bytes_of(known, words, at)
    if key == 0 or plans == nothing:
        return key
    ready = py.find((plans, key))
    py.release((key,))
    if ready == 0:
        py.clear_error(())
        py.retain((nothing,))
        return nothing
    # Another thread may drop the plan meanwhile.
    py.retain((ready,))
    counts = plain(0) if count == 5 else plain(1)
    results = compute(known, ready, tensors, out, nothing, plain(0), words, facts, stale, counts)
    py.release((ready,))
    return results


@helper
def copies(table, arguments):
    """Copy a tuple of vectors; None if one of them is not copied here, 0 if Python raised.

    The arguments are the vectors and a function that makes a tensor like its argument.
    """
    known = py.long_value((table,))
    values, make = word(arguments, 0), word(arguments, 1)
    nothing, count = word(known, native.NONE), word(values, py.LENGTH)
    made, done = int_buffer(ENTRIES_MAX), plain(0)
    while done < count and count <= ENTRIES_MAX:
        copy = py.copy_of(known, make, py.entry(known, values, done))
        if copy == 0:
            break
        put(made, done, copy)
        done += 1
    if done < count:
        py.release_all(made, done)
        py.retain((nothing,))
        return nothing
    return py.tuple_of(made, count)


def function(owner, arguments, count):
    """The function that Python calls: which of three depends on the number of arguments.

    They are one function, so that the helpers they share are compiled once.
    """
    if count == 1:
        known = py.long_value((owner,))
        done = py.add_one(known, word(arguments, 0))
        answered = word(known, native.TRUE) if done else word(known, native.NONE)
        py.retain((answered,))
        return answered
    if count == 2:
        return copies(owner, arguments)
    return answer(owner, arguments, count)
