"""Atomic writes of files: either the new content is complete, or the old file remains."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

#: The folder in which Linux lists a process's open files.
_OPEN_FILES = Path("/proc/self/fd")


@contextmanager
def replacing(path: Path, mode: int | None = None, durable: bool = True) -> Iterator[BinaryIO]:
    """A context with a new file, which replaces the old one if the block succeeds.

    Otherwise the old file does not change. If the system supports files without names, the new file
    gets its name at the end, so that nothing remains of it if the process is killed. The new file
    has the permissions of ``mode``, or else the old file's. Unless it is ``durable``, a part of it
    may be lost with the machine's power.

    Raises:
        OSError: the file cannot be written.
    """
    if mode is None:
        with suppress(FileNotFoundError):
            mode = stat.S_IMODE(path.stat().st_mode)
    temporary = path.parent / f".normgrad-{os.urandom(8).hex()}"
    at_first = 0o666 if mode is None else mode
    handle = _nameless(path.parent, at_first)
    nameless = handle is not None
    if handle is None:
        handle = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, at_first)
    try:
        with os.fdopen(handle, "wb") as file:
            yield file
            file.flush()
            if durable:
                os.fsync(handle)
            if mode is not None:
                with suppress(OSError):  # some file systems have no permissions
                    os.fchmod(handle, mode)
            if nameless:
                _name(handle, temporary)
        temporary.replace(path)
    except BaseException:
        with suppress(OSError):  # the new file may not have its name yet
            temporary.unlink()
        raise


def _nameless(folder: Path, mode: int) -> int | None:
    """Open a new file without a name in a folder; None if the system does not support it."""
    flag = getattr(os, "O_TMPFILE", None)
    if flag is None or not _OPEN_FILES.is_dir():
        return None
    try:
        return os.open(folder, os.O_WRONLY | flag, mode)
    except OSError:  # some file systems have no files without names
        return None


def _name(handle: int, name: Path) -> None:
    """Give a nameless file its name."""
    files = os.open(_OPEN_FILES, os.O_RDONLY)
    try:
        # Python follows the link to the open file only if the name is relative to a folder.
        os.link(str(handle), name, src_dir_fd=files, follow_symlinks=True)
    finally:
        os.close(files)
