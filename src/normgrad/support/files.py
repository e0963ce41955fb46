"""Atomic writes of files: either the new content is complete, or the old file remains."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO


@contextmanager
def replacing(path: Path, mode: int | None = None, durable: bool = True) -> Iterator[BinaryIO]:
    """A context with a new file, which replaces the old one if the block succeeds.

    Otherwise the old file does not change. The new file has the permissions of ``mode``, or else
    the old file's. Unless it is ``durable``, a part of it may be lost with the machine's power.

    Raises:
        OSError: the file cannot be written.
    """
    if mode is None:
        with suppress(FileNotFoundError):
            mode = stat.S_IMODE(path.stat().st_mode)
    temporary = path.parent / f".normgrad-{os.urandom(8).hex()}"
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL
    handle = os.open(temporary, flags, 0o666 if mode is None else mode)
    try:
        with os.fdopen(handle, "wb") as file:
            yield file
            file.flush()
            if durable:
                os.fsync(handle)
            if mode is not None:
                with suppress(OSError):  # some file systems have no permissions
                    os.fchmod(handle, mode)
        temporary.replace(path)
    except BaseException:
        with suppress(OSError):
            temporary.unlink()
        raise
