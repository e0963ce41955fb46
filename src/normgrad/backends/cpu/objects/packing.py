"""Compile units into a folder that a wheel for a platform brings.

    python -m normgrad.backends.cpu.objects.packing LEVEL FOLDER [UNIT...]

compiles these units, or all, for a level of some architecture (see target.py), on any machine.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path

from ....support import cache
from .. import target
from . import store, units


def pack(level: str, folder: Path, selection: Sequence[str] = ()) -> None:
    """Make a level's folder in a folder, with the object files of some units or of all.

    Raises:
        MemoryError, KernelError: a unit cannot be compiled.
    """
    kind = target.LEVELS[level]
    features = ",".join(f"+{name}" for name in kind.more)
    wanted = target.Processor(kind.processor, features, kind.triple)
    os.environ.update(zip((*target.VARIABLES, target.TRIPLE), wanted, strict=True))
    target_folder = folder / store.packaged(level).name
    target_folder.mkdir(parents=True, exist_ok=True)
    for unit, content in store.compiled(selection or units.every(), lambda: None):
        path = target_folder / store.file_of(unit)
        path.write_bytes(cache.seal(path, content))


if __name__ == "__main__":
    pack(sys.argv[1], Path(sys.argv[2]), sys.argv[3:])
