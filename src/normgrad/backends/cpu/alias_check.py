"""The compiled alias check of a call's memory, before anything is written.

Every tensor must have memory, on a GPU at a multiple of its item size. An output of the caller's
must be writable and share no byte with another tensor, except an input that it may overwrite. A
view counts as all bytes from its first to its last, so the check may fail for views that are only
interleaved: overlap.py then checks exactly and raises the errors.
"""

from __future__ import annotations

from ... import entries as E
from ... import pages
from ...problem import PLACES, WORKSPACE
from .helpers import helper
from .intrinsics import call, get, not_inlined, word

# mypy: disable-error-code="untyped-decorator,no-untyped-def"


@helper
def field(plan, slot, index):
    """One of the alias check's fields for a tensor, in the plan's entry table."""
    return word(plan, E.ALIASES + E.ALIAS_FIELDS * slot + index)


@helper
def can_be_written(plan, first, last):
    """Whether the pages from first to last can be written, by the probes of pages.py."""
    madvise, page = word(plan, E.MADVISE), word(plan, E.PAGE)
    size = last + page - first
    if madvise == 0:
        return True
    if size <= pages.FEW * page:
        return call(madvise, (first, size, pages.POPULATE_WRITE)) == 0
    return (
        call(madvise, (first, page, pages.POPULATE_WRITE)) == 0
        and call(madvise, (last, page, pages.POPULATE_WRITE)) == 0
        and call(word(plan, E.MSYNC), (first, size, pages.MS_ASYNC)) == 0
    )


@helper
def is_apart(plan, addresses, slot):
    """Whether an output shares no byte with any other tensor."""
    address = get(addresses, slot)
    low, high = address + field(plan, slot, E.LOW), address + field(plan, slot, E.HIGH)
    for other in range(PLACES):
        flags = field(plan, other, E.FLAGS)
        elsewhere = get(addresses, other)
        if (
            other != slot
            and flags & E.HAS_BYTES
            and low < elsewhere + field(plan, other, E.HIGH)
            and elsewhere + field(plan, other, E.LOW) < high
            and not (flags >> (E.MAY_BE + slot) & 1 and address == elsewhere)
        ):
            return False
    return True


@helper
def passes(plan, given, unprobed, addresses):
    """Whether a call's memory passes the alias check.

    ``given`` has a bit for each output of the caller's, and for a workspace of the caller's;
    ``unprobed`` for each of these that has yet to be probed for read-only pages.
    """
    not_inlined()
    page = word(plan, E.PAGE)
    seen = -1
    for slot in range(PLACES):
        if field(plan, slot, E.FLAGS) & E.HAS_BYTES == 0:
            continue
        address, is_given = get(addresses, slot), given >> slot & 1
        if slot == WORKSPACE and not is_given:
            continue
        if address == 0 or address & field(plan, slot, E.ASKEW):
            return False
        if is_given:
            if not is_apart(plan, addresses, slot):
                return False
            if not unprobed >> slot & 1:
                continue
            # Short outputs often share a page, which is probed once.
            first = (address + field(plan, slot, E.LOW)) // page * page
            last = (address + field(plan, slot, E.HIGH) - 1) // page * page
            if (first != seen or last != seen) and not can_be_written(plan, first, last):
                return False
            seen = last
    return True
