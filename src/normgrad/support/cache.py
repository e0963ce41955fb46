"""The user's cache folder, with compiled kernels and everything else made once per machine.

What is read from it runs as machine code, or decides what runs. So a file is read only if it and
its folder belong to this user and nobody else can write to them, and what is written is private.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import re
import shutil
import stat
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import platformdirs

from . import notices
from .files import replacing
from .settings import SettingError

#: The environment variable with the folder; without it, the folder is the platform's.
VARIABLE = "NORMGRAD_CACHE_DIR"
#: The folders in it: of the CPU's kernels, of the verdicts on GPUs, and of C++ libraries.
KERNELS, GPU, TORCH = "kernels", "gpu", "torch"


def folder() -> Path:
    """The cache folder, which need not exist; an OSError for users without a home."""
    setting = os.environ.get(VARIABLE)
    if setting is None:
        with suppress(RuntimeError):
            path = Path(platformdirs.user_cache_dir("normgrad", appauthor=False))
            if path.is_absolute():
                return path
        raise FileNotFoundError("this user has no home")
    if not os.path.isabs(setting):  # noqa: PTH117 - the empty path is the current folder
        raise SettingError(f"{VARIABLE}: {setting!r}; allowed: the absolute path of a folder")
    return Path(setting)


#: The most bytes that are read of a file. A kernel has less than a MiB, a C++ library some; one for
#: debuggers has more.
_MOST = 256 << 20


def _is_private(status: os.stat_result) -> bool:
    """Whether a file or folder belongs to this user, and nobody else can write to it."""
    return status.st_uid == os.geteuid() and not status.st_mode & (stat.S_IWGRP | stat.S_IWOTH)


def read(path: Path) -> bytes | None:
    """The content of a file in the cache; None if there is none that may be read.

    Something else of its name is no file, such as a pipe, which would have no end, nor is what is
    far too large.
    """
    with suppress(OSError):
        if _is_private(path.parent.lstat()):
            with open(path, "rb", opener=at_once) as file:
                status = os.fstat(file.fileno())
                if stat.S_ISREG(status.st_mode) and status.st_size <= _MOST and _is_private(status):
                    return file.read()
    return None


def at_once(path: str, flags: int) -> int:
    """An opener of files that does not wait for the other end of what turns out to be a pipe."""
    return os.open(path, flags | os.O_NONBLOCK, 0o600)


def write(path: Path, content: bytes) -> None:
    """Write a whole file in place of what is there, and make its folder if there is none."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    if not _is_private(path.parent.lstat()):
        raise PermissionError(f"{path.parent} belongs to another user, or others can write to it")
    if path.is_dir():
        remove(path)
    with replacing(path, mode=0o600, durable=False) as file:
        file.write(content)


def remove(path: Path) -> None:
    """Remove a file, or a folder with what is in it."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


@contextmanager
def alone(part: str, name: str, work: str) -> Iterator[None]:
    """Let one process of this machine, and one thread, at a time do some work; the others wait.

    The system releases the lock of a process that is killed. Where there can be no lock, nobody
    waits.

    Args:
        part: the folder of the cache that the work writes to.
        name: that of the lock in this folder.
        work: what the process does that others wait for, as a part of a notice.
    """
    try:
        path = folder() / part / f"{name}.lock"
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        lock = at_once(str(path), os.O_RDWR | os.O_CREAT)
    except OSError:
        yield
        return
    try:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            notices.say("waiting for another process that %s", work)
            fcntl.flock(lock, fcntl.LOCK_EX)
        except OSError:  # this file system has no locks
            pass
        yield
    finally:
        with suppress(OSError):
            # Closing alone would leave it to the processes that were forked in the meantime.
            fcntl.flock(lock, fcntl.LOCK_UN)
        os.close(lock)


def digest_of(files: Iterable[Path], more: bytes = b"") -> str:
    """A digest of some bytes and of files' contents, in this order."""
    digest = hashlib.sha256(more)
    for path in files:
        digest.update(path.read_bytes())
    return digest.hexdigest()


def seal(path: Path, content: bytes) -> bytes:
    """What to write to a path: the content, and a digest of it and of the path's last two parts."""
    place = f"{path.parent.name}/{path.name}"
    return content + hashlib.sha256(place.encode() + content).digest()


def unseal(path: Path, file: bytes) -> bytes | None:
    """The content of a sealed file; None if it is damaged, or was sealed for another place."""
    content = file[: -hashlib.sha256().digest_size]
    return content if seal(path, content) == file else None


def kernels() -> list[Path]:
    """The folders of kernels, each of one version for one processor; the user may have others."""
    folders = (folder() / KERNELS).glob("*")
    return [path for path in folders if re.fullmatch("[0-9a-f]{16}", path.name) and path.is_dir()]


def _files() -> Iterator[Path]:
    for path in kernels():
        yield from path.glob("*.o")
    yield from (folder() / TORCH).glob("torch-*.so")
    yield from (folder() / GPU).glob("*.txt")
    for part in (GPU, TORCH):
        yield from (folder() / part).glob("*.lock")
        yield from (folder() / part).glob(".normgrad-*")  # of processes that were killed


def size() -> int:
    """The bytes of all files in the cache."""
    return sum(path.lstat().st_size for path in _files())


def clean() -> None:
    """Remove what normgrad keeps in the cache folder, and nothing else."""
    for path in kernels():
        shutil.rmtree(path)
    for path in _files():
        remove(path)
    for part in (KERNELS, GPU, TORCH):
        with suppress(OSError):  # there is none, or it has files of the user's
            (folder() / part).rmdir()
