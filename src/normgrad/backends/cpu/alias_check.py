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
from .block import (
    ALIAS_FIELDS,
    ALIAS_FLAGS,
    ALIAS_HIGH,
    ALIAS_LOW,
    ALIAS_MADVISE,
    ALIAS_MSYNC,
    ALIAS_PAGE,
    HAS_BYTES,
    MAY_BE,
    WORKSPACE,
)
from .block import ALIAS_SLOT as SLOT
from .program import ALIGNMENT


def table(inputs: Places, outputs: Places, workspace_size: int) -> npt.NDArray[np.int64]:
    """Make the table for a plan's tensors, in the order of a call's addresses."""
    words = np.zeros(ALIAS_FIELDS, np.int64)
    for place in (*inputs, *outputs):
        if place is None or place.low >= place.high:
            continue
        row = words[SLOT * place.slot :]
        row[ALIAS_LOW], row[ALIAS_HIGH], row[ALIAS_FLAGS] = place.low, place.high, HAS_BYTES
        for output in outputs:
            if output is not None and output.may_be(place):
                row[ALIAS_FLAGS] |= 1 << (MAY_BE + output.slot)
    if workspace_size:
        row = words[SLOT * WORKSPACE :]
        row[ALIAS_HIGH], row[ALIAS_FLAGS] = used(workspace_size, ALIGNMENT), HAS_BYTES
    words[ALIAS_MADVISE], words[ALIAS_MSYNC] = pages.probe_addresses()
    words[ALIAS_PAGE] = mmap.PAGESIZE
    return words
