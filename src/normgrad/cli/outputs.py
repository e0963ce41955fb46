"""Write gradients to .npz and .safetensors files atomically."""

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

#: The message for a file whose writing failed.
UNCHANGED = "cannot be written; what was there is as it was"


@contextmanager
def reported(path: Path, what: str) -> Iterator[None]:
    """Turn an OSError into an InputError that names the file."""
    try:
        yield
    except OSError as error:
        raise InputError(path, f"{what} ({error.strerror or error})") from None


def _target(path: Path) -> Path:
    """The file that a path names, with links resolved, so that writing does not replace a link."""
    with suppress(RuntimeError):  # Python before 3.13 raises this for a cycle of links
        target = path.resolve()
        if not target.is_symlink():
            return target
    raise InputError(path, f"links in a circle; {_ALLOWED}")


def named(name: str) -> Path:
    """The file that the option ``-o`` names.

    Raises:
        InputError: the name is empty, or is a missing folder's ("x/"), whose slash Path drops.
    """
    if not name:
        raise InputError("-o", f"''; {_ALLOWED}")
    path = Path(name)
    if os.path.basename(name) in ("", ".", "..") and not path.is_dir():  # noqa: PTH119
        raise InputError("-o", f"{name!r}, the name of a folder; {_ALLOWED}")
    return path


def check_writable(path: Path) -> None:
    """Check before any work that :func:`rewriting` can write to a path.

    Raises:
        InputError: the path is a directory or a device, or its folder does not exist.
    """
    with reported(path, "cannot be written"):
        if path.is_dir():
            raise InputError(path, f"a directory; {_ALLOWED}")
        # A device or a pipe would be replaced with a file, rather than written to.
        if path.exists() and not path.is_file():
            raise InputError(path, f"not a regular file; {_ALLOWED}")
        target = _target(path)
        if not target.parent.is_dir():
            raise InputError(path, f"no folder {target.parent}; {_ALLOWED}")
        if not os.access(target.parent, os.W_OK):
            raise InputError(path, f"the folder {target.parent} may not be written to; {_ALLOWED}")


@contextmanager
def rewriting(path: Path) -> Iterator[BinaryIO]:
    """Replace the file of exactly this name atomically: the old one stays until all is written.

    Raises:
        InputError: the file cannot be written.
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

    # Encoding makes a copy, and a copy of that.
    memory.need("writing", 2 * sum(array.nbytes for array in tensors.values()))
    # safetensors writes memory as it is, so arrays must be contiguous.
    file.write(save({name: np.ascontiguousarray(array) for name, array in tensors.items()}))
