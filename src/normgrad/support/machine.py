"""The description of the machine that plans are made for."""

from __future__ import annotations

import contextlib
import os
from dataclasses import dataclass
from functools import cache
from pathlib import Path


@dataclass(frozen=True)
class Machine:
    """The caches in bytes (a core's L2, the whole L3), and the cores that this process may use."""

    cores: int = 1
    l2: int = 1 << 20
    l3: int = 32 << 20

    @property
    def cache(self) -> int:
        """The bytes that are expected to stay in cache from one pass to the next.

        A virtual machine with few cores reports the L3 of a whole server, which others share.
        """
        return min(self.l3, self.cores * CACHE_OF_A_CORE)

    @property
    def shares_l3(self) -> bool:
        """Whether the L3 is a whole server's, of which these cores are a small part."""
        return self.l3 > 4 * self.cores * CACHE_OF_A_CORE


#: The bytes of a server's L3 that are expected to be available to each core.
CACHE_OF_A_CORE = 8 << 20


@cache
def this_machine() -> Machine:
    """The machine that this process runs on; unknown values are those of a small server."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    sizes = {2: Machine.l2, 3: Machine.l3}
    with contextlib.suppress(OSError, ValueError):
        for index in Path("/sys/devices/system/cpu/cpu0/cache").glob("index*"):
            level = int((index / "level").read_text())
            if (index / "type").read_text().strip() != "Instruction" and level in sizes:
                # Linux writes the sizes of caches in KiB, such as 1024K.
                sizes[level] = int((index / "size").read_text().strip().removesuffix("K")) << 10
    return Machine(cores or 1, sizes[2], sizes[3])


#: The version that facts give for a missing package.
NOT_INSTALLED = "not installed"


def version(package: str) -> str:
    """An installed package's version, from its metadata, since importing torch takes seconds."""
    from importlib import metadata  # loads 50 modules, which `import normgrad` can do without

    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return NOT_INSTALLED
