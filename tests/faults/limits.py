"""Resource limits that a test's program sets for itself."""

from __future__ import annotations

import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def addresses(more: int) -> Iterator[None]:
    """Allow at most this many bytes of new address space, so that larger allocations fail."""
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    before = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (used + more, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)


def told(function, *arguments, **options):
    """Make a call; return its result, or its error's type and text."""
    try:
        return function(*arguments, **options)
    except Exception as error:
        return f"{type(error).__name__}: {error}"
