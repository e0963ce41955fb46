"""What must hold of memory before anything is written, as a table that the driver goes through.

Every tensor has an address, an output shares no byte with another tensor, and it can be written.
Here a view is all bytes from its first to its last. So what passes is right; what does not is
looked at again, exactly and with words for what is wrong (see overlap.py).
"""

from __future__ import annotations

import mmap
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from ... import pages
from ...overlap import Place, used
from .block import (
    GUARD_FIELDS,
    GUARD_FLAGS,
    GUARD_HIGH,
    GUARD_LOW,
    GUARD_MADVISE,
    GUARD_MSYNC,
    GUARD_PAGE,
    HAS_BYTES,
    MAY_BE,
    WORKSPACE,
)
from .block import GUARD_SLOT as SLOT
from .program import ALIGNMENT


def table(
    inputs: Sequence[Place | None], outputs: Sequence[Place | None], workspace_size: int
) -> npt.NDArray[np.int64]:
    """The words of the table, for tensors at their slots of the list of addresses."""
    words = np.zeros(GUARD_FIELDS, np.int64)
    for place in (*inputs, *outputs):
        if place is None or place.low >= place.high:
            continue
        row = words[SLOT * place.slot :]
        row[GUARD_LOW], row[GUARD_HIGH], row[GUARD_FLAGS] = place.low, place.high, HAS_BYTES
        for output in outputs:
            if output is not None and output.may_be(place):
                row[GUARD_FLAGS] |= 1 << (MAY_BE + output.slot)
    if workspace_size:
        row = words[SLOT * WORKSPACE :]
        row[GUARD_HIGH], row[GUARD_FLAGS] = used(workspace_size, ALIGNMENT), HAS_BYTES
    words[GUARD_MADVISE], words[GUARD_MSYNC] = pages.probe_addresses()
    words[GUARD_PAGE] = mmap.PAGESIZE
    return words
