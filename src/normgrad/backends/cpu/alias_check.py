"""The alias check's table, which the driver reads before anything is written.

The check requires that every tensor has an address, and that an output is writable and shares no
byte with another tensor. A view counts as all bytes from its first to its last, so the check may
fail for views that are only interleaved: overlap.py then checks exactly and raises the errors.
"""

from __future__ import annotations

import mmap

import numpy as np
import numpy.typing as npt

from ... import pages
from ...overlap import Places, used
from . import block as B
from .program import ALIGNMENT


def table(inputs: Places, outputs: Places, workspace_size: int) -> npt.NDArray[np.int64]:
    """Make the table for a plan's tensors, in the order of a call's addresses."""
    words = np.zeros(B.ALIAS_FIELDS, np.int64)
    for place in (*inputs, *outputs):
        if place is None or place.low >= place.high:
            continue
        row = words[B.ALIAS_SLOT * place.slot :]
        row[B.ALIAS_LOW], row[B.ALIAS_HIGH], row[B.ALIAS_FLAGS] = place.low, place.high, B.HAS_BYTES
        for output in outputs:
            if output is not None and output.may_be(place):
                row[B.ALIAS_FLAGS] |= 1 << (B.MAY_BE + output.slot)
    if workspace_size:
        row = words[B.ALIAS_SLOT * B.WORKSPACE :]
        row[B.ALIAS_HIGH], row[B.ALIAS_FLAGS] = used(workspace_size, ALIGNMENT), B.HAS_BYTES
    words[B.ALIAS_MADVISE], words[B.ALIAS_MSYNC] = pages.probe_addresses()
    words[B.ALIAS_PAGE] = mmap.PAGESIZE
    return words
