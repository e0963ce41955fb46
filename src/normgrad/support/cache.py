"""The user's cache folder, with compiled kernels and everything else made once per machine.

What is read from it runs as machine code, or decides what runs. So a file is read only if it and
its folder belong to this user and nobody else can write to them, and what is written is private.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
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
    path = Path(platformdirs.user_cache_dir("normgrad") if setting is None else setting)
    if path.is_absolute():
        return path
    if setting is None:
        raise FileNotFoundError("this user has no home")
    raise SettingError(f"{VARIABLE}: {setting!r}; allowed: the absolute path of a folder")


def _is_private(path: Path) -> bool:
    """Whether a file or folder belongs to this user, and nobody else can write to it."""
    status = path.lstat()
    return status.st_uid == os.geteuid() and not status.st_mode & (stat.S_IWGRP | stat.S_IWOTH)


def read(path: Path) -> bytes | None:
    """The content of a file in the cache; None if there is none that may be read."""
    with suppress(OSError):
        if path.is_file() and _is_private(path.parent) and _is_private(path):
            return path.read_bytes()
    return None


def make_folder(path: Path) -> None:
    """Make a folder of the cache if there is none; an OSError if no file can be written to it."""
    path.mkdir(mode=0o700, parents=True, exist_ok=True)
    if not _is_private(path):
        raise PermissionError(f"{path} belongs to another user, or others can write to it")


def write(path: Path, content: bytes) -> None:
    """Write a whole file in place of what is there, and make its folder if there is none."""
    make_folder(path.parent)
    with replacing(path, mode=0o600, durable=False) as file:
        file.write(content)


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
        lock = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
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
    return list((folder() / KERNELS).glob("[0-9a-f]" * 16))


#: What normgrad keeps in the cache folder: kernels, libraries, verdicts (as earlier versions kept
#: them too), locks, and the unfinished files of processes that were killed.
_KEPT = (
    f"{KERNELS}/{'[0-9a-f]' * 16}/*",
    *(f"{TORCH}/{name}" for name in ("torch-*.so", "*.lock", ".normgrad-*")),
    *(f"{GPU}/{name}" for name in ("*.txt", "*.json", "*.lock", ".normgrad-*")),
)


def _files() -> list[Path]:
    return [path for pattern in _KEPT for path in folder().glob(pattern)]


def size() -> int:
    """The bytes of all files in the cache."""
    return sum(path.lstat().st_size for path in _files())


def clean() -> None:
    """Remove what normgrad keeps in the cache folder, and nothing else."""
    for path in _files():
        path.unlink()
    for path in (*kernels(), *(folder() / part for part in (KERNELS, GPU, TORCH))):
        with suppress(OSError):  # there is none, or it has files of the user's
            path.rmdir()
