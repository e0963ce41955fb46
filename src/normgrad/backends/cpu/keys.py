"""The signatures of calls, and their keys, in compiled code.

A tensor's signature is its dtype, type, device, rank, sizes and strides. A call's key has those of
all its tensors, and its other arguments; plans of earlier calls are found by it.
"""

from __future__ import annotations

from ... import entries as E
from ... import native
from . import objects as py
from .helpers import helper
from .intrinsics import bits_of, get, int_buffer, integers_at, not_inlined, plain, put, shift, word

# mypy: disable-error-code="untyped-decorator,no-untyped-def"

#: Sizes of arrays on the stack, which have to be globals of the module that uses them.
FACTS_MAX, FOUND = py.FOUND * E.ENTRIES_MAX, py.FOUND
#: The word that stands before the results in a signature or key.
_RESULTS = -2
#: 2⁶³ divided by the golden ratio, by which hashes usually multiply.
_RATIO = 0x4F1BBCDCBFA53E0B


@helper
def describe_choice(known, value, words, at):
    """Append an argument that is no tensor to a key; returns the key's new length, or -1."""
    kind = word(value, py.TYPE)
    put(words, at, kind)
    if kind == word(known, native.BOOL) or value == word(known, native.NONE):
        put(words, at + 1, value)
    elif kind == word(known, native.FLOAT):
        put(words, at + 1, bits_of(py.float_value((value,))))
    elif kind == word(known, native.INT):
        put(words, at + 1, py.long_value((value,)))
        if py.raised(()) != 0:
            py.clear_error(())
            return -1
    else:
        return -1
    return at + 2


@helper
def describe_all(known, values, words, at, facts):
    """Append the signature of a tuple of tensors; returns the new number of words, or -1.

    ``facts`` get what :func:`.describe` finds of each tensor.
    """
    not_inlined()
    for index in range(word(values, py.LENGTH)):
        if at < 0 or index >= E.ENTRIES_MAX:
            return -1
        found = shift(facts, FOUND * index)
        at = py.describe(known, py.entry(known, values, index), words, at, found)
    return at


@helper
def key_of(known, tensors, out, choices, words, facts):
    """Write a call's key: the signature and the other arguments. Returns its length, or -1.

    ``facts`` get what :func:`.describe` finds of the tensors; those of ``out`` are not kept.
    """
    if not (py.is_tuple(known, tensors) and py.is_tuple(known, choices)):
        return -1
    at = describe_all(known, tensors, words, plain(0), facts)
    if at < 0:
        return -1
    if py.is_tuple(known, out):
        put(words, at, _RESULTS)
        at = describe_all(known, out, words, at + 1, int_buffer(FACTS_MAX))
    else:
        at = py.describe(known, out, words, at, int_buffer(FOUND))
    for index in range(word(choices, py.LENGTH)):
        choice = py.entry(known, choices, index)
        if at < 0 or index >= E.ENTRIES_MAX:
            return -1
        if py.is_tuple(known, choice):
            put(words, at, word(choice, py.LENGTH))
            at += 1
            for inner in range(word(choice, py.LENGTH)):
                if at < 0 or inner >= E.ENTRIES_MAX:
                    return -1
                at = describe_choice(known, py.entry(known, choice, inner), words, at)
        else:
            at = describe_choice(known, choice, words, at)
    return at


@helper
def hash_of(words, count):
    """A hash of some words, which is not -1: Python takes that for none."""
    total = count
    for index in range(count):
        mixed = (get(words, index) ^ index * _RATIO) * _RATIO
        total += mixed ^ mixed >> 32
    return total if total != -1 else 0


@helper
def bytes_of(known, key, count):
    """A key as bytes, with a hash of its own: Python's takes longer than all the rest of a lookup.

    All keys of a dictionary of plans are made here, so that equal ones have equal hashes.
    """
    made = py.bytes_from((key, 8 * count))
    if made != 0 and word(known, native.HASH) != 0:
        put(integers_at(made), word(known, native.HASH), hash_of(key, count))
    return made
