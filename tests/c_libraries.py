"""normgrad's C libraries, which tests in several folders and processes use."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from normgrad.dialects.c import build


def built(factory: pytest.TempPathFactory, sanitizer: str | None = None) -> Path:
    """The folder of the libraries, which one of pytest-xdist's processes builds for all."""
    import fcntl

    root = factory.getbasetemp()
    root = root.parent if "PYTEST_XDIST_WORKER" in os.environ else root
    name = f"c-libraries-{sanitizer or 'plain'}"
    out, done = root / name, root / f"{name}-are-built"
    with (root / f"{name}-lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not done.exists():
            build.build(out, sanitizer)
            done.touch()
    return out
