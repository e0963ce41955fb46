"""normgrad's C libraries, which tests in several folders and processes use."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from normgrad.capi import build


def built(factory: pytest.TempPathFactory) -> Path:
    """The folder of the libraries, which one of pytest-xdist's processes builds for all."""
    import fcntl

    root = factory.getbasetemp()
    root = root.parent if "PYTEST_XDIST_WORKER" in os.environ else root
    out, done = root / "c-libraries", root / "c-libraries-are-built"
    with (root / "c-libraries-lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not done.exists():
            build.build(out)
            done.touch()
    return out
