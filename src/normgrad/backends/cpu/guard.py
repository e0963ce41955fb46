"""What must hold of memory before anything is written, as a table that the driver goes through.

Every tensor has an address, an output shares no byte with another tensor, and it can be written.
Here a view is all bytes from its first to its last. So what passes is right; what does not is
looked at again, exactly and with words for what is wrong (see plans.py).
"""

from __future__ import annotations

import mmap
from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from ... import pages
from ...arguments import Place
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
)
from .block import GUARD_SLOT as SLOT
from .block import OTHERS as OTHERS
from .block import PLACES as PLACES
from .block import WORKSPACE as WORKSPACE
from .program import ALIGNMENT

#: In the place of the outputs that were given: nothing is looked at.
UNGUARDED = -1


def used(workspace_size: int, alignment: int = ALIGNMENT) -> int:
    """How many bytes of a workspace are used, from its first aligned one on."""
    return max(0, workspace_size - alignment + 1)


def table(
    inputs: Mapping[int, Place],
    outputs: Mapping[int, Place],
    in_place: Mapping[int, tuple[str, ...]],
    workspace_size: int,
) -> npt.NDArray[np.int64]:
    """The words of the table, for tensors at slots of the list of addresses.

    ``in_place``: the inputs whose very memory the output at a slot may be.
    """
    words = np.zeros(GUARD_FIELDS, np.int64)
    for slot, place in (*inputs.items(), *outputs.items()):
        row = words[SLOT * slot :]
        row[GUARD_LOW], row[GUARD_HIGH] = place.low, place.high
        if place.low < place.high:
            row[GUARD_FLAGS] = HAS_BYTES
            for output, names in in_place.items():
                same = slot in inputs and place.spec == outputs[output].spec
                if same and place.name in names:
                    row[GUARD_FLAGS] |= 1 << (MAY_BE + output)
    if workspace_size:
        row = words[SLOT * WORKSPACE :]
        row[GUARD_HIGH], row[GUARD_FLAGS] = used(workspace_size), HAS_BYTES
    words[GUARD_MADVISE], words[GUARD_MSYNC] = pages.probe_addresses()
    words[GUARD_PAGE] = mmap.PAGESIZE
    return words
