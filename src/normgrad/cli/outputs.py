"""Writing gradients to .npz and .safetensors files, all or nothing."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from .. import memory
from ..writing import replacing
from .files import Array, Format, InputError

_ALLOWED = "allowed: the name of a file, new or old, in a folder that is there"

#: What is said of a file whose writing failed.
UNCHANGED = "cannot be written; what was there is as it was"


@contextmanager
def reported(path: Path, what: str) -> Iterator[None]:
    """Say of a failure of the system which file it is about."""
    try:
        yield
    except OSError as error:
        raise InputError(path, f"{what} ({error.strerror or error})") from None


def _target(path: Path) -> Path:
    """The file that a name or a link to it means: a link goes on pointing where it points."""
    with suppress(RuntimeError):  # what Python before 3.13 says of a circle
        target = path.resolve()
        if not target.is_symlink():
            return target
    raise InputError(path, f"links in a circle; {_ALLOWED}")


def named(option: str, name: str) -> Path:
    """The file that an option names.

    Raises:
        InputError: no name, or that of a folder that is not there, which a path would forget.
    """
    if not name:
        raise InputError(option, f"''; {_ALLOWED}")
    path = Path(name)
    if os.path.basename(name) in ("", ".", "..") and not path.is_dir():  # noqa: PTH119
        raise InputError(option, f"{name!r}, the name of a folder; {_ALLOWED}")
    return path


def check_writable(path: Path) -> None:
    """Find out before any work what would keep :func:`rewriting` from writing there.

    Raises:
        InputError: a directory, a device, or a name in a folder that is not there.
    """
    with reported(path, "cannot be written"):
        if path.is_dir():
            raise InputError(path, f"a directory; {_ALLOWED}")
        # Replacing a device or a pipe with a file would be no way to write to it.
        if path.exists() and not path.is_file():
            raise InputError(path, f"not a regular file; {_ALLOWED}")
        target = _target(path)
        if not target.parent.is_dir():
            raise InputError(path, f"no folder {target.parent}; {_ALLOWED}")
        if not os.access(target.parent, os.W_OK):
            raise InputError(path, f"the folder {target.parent} may not be written to; {_ALLOWED}")


@contextmanager
def rewriting(path: Path) -> Iterator[BinaryIO]:
    """A file of exactly this name, all or nothing: what was there stays until all is written.

    Raises:
        InputError: what the system says against it.
    """
    with reported(path, UNCHANGED), replacing(_target(path)) as file:
        yield file


def encode(file: BinaryIO, kind: Format, tensors: Mapping[str, Array]) -> None:
    """Write arrays by name in one of the formats."""
    if kind is Format.NPZ:
        arrays: dict[str, Any] = dict(tensors)
        np.savez(file, **arrays)
        return
    from safetensors.numpy import save

    # A copy is made, and one of that.
    memory.need("writing", 2 * sum(array.nbytes for array in tensors.values()))
    # Contiguous, since it writes the memory as it lies.
    file.write(save({name: np.ascontiguousarray(array) for name, array in tensors.items()}))
