"""Limits that a test's program sets itself."""

from __future__ import annotations

import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def addresses(more: int) -> Iterator[None]:
    """No more than so many bytes of new addresses: what is larger cannot be allocated."""
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    before = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (used + more, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)


def told(function, *arguments, **options):
    """What a call returned, or its error's type and text."""
    try:
        return function(*arguments, **options)
    except Exception as error:
        return f"{type(error).__name__}: {error}"
