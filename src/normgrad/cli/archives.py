"""Read an operator's tensors from .npz and .safetensors files, and write files atomically.

NumPy and the safetensors library read them. Files are not trusted: nothing is unpickled, no name in
an archive becomes a path, and sizes are checked before memory is allocated for them.
"""

from __future__ import annotations

import math
import os
import stat
import zipfile
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from enum import Enum
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import numpy as np
import numpy.typing as npt

from ..support import memory
from ..support.files import replacing
from ..support.values import represent, shorten
from ..tensors import dtypes
from ..tensors.dtypes import DType

Array = npt.NDArray[Any]

#: An archive may claim to unpack to this many times its size: deflate packs no more into a byte.
MAX_PACKED = 1032

#: Reading a file may take this many times the file's size of memory, and this many bytes more, as
#: `normgrad run --help` says: NumPy makes copies, and the parser of a header needs some, too.
MAX_RATIO, RATIO_SLACK = 4 * MAX_PACKED, 2 << 20

#: The most bytes of an array's header; NumPy writes 118 for few axes. NumPy parses headers as
#: Python code, which takes up to 1,400 times their size.
MAX_HEADER = 512

#: The most bytes of an entry that is read as a number, a word or a few flags.
MAX_VALUE = 4096

_EITHER = "a .npz or .safetensors file"


class InputError(Exception):
    """The user's input cannot be used; the text says what is wrong and what is allowed."""

    def __init__(self, file_or_option: object, what: str, allowed: str = "") -> None:
        super().__init__(f"{file_or_option}: {what}" + (f"; allowed: {allowed}" if allowed else ""))


@contextmanager
def blaming(subject: object, *kinds: type[Exception], allowed: str = "") -> Iterator[None]:
    """Turn errors of these kinds, which may not say what is allowed, into an InputError."""
    try:
        yield
    except kinds as error:
        raise InputError(subject, f"{error}; {allowed}" if allowed else str(error)) from None


def one_of(subject: object, value: str, allowed: Collection[str]) -> None:
    """Check that a value is one of those allowed."""
    if value not in allowed:
        raise InputError(subject, repr(value), ", ".join(allowed))


class Format(Enum):
    """A file format; the value is its suffix."""

    NPZ = ".npz"
    SAFETENSORS = ".safetensors"


class _Entry(NamedTuple):
    """An entry's description, by which it is judged before it is read."""

    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    dtype_name: str
    read: Callable[[], Array]


class Contents(ABC):
    """An open file, whose entries are read one by one on demand.

    Its format is that of its content, whatever its name; metadata are additional strings.
    """

    format: Format
    names: Sequence[str] = ()
    metadata: Mapping[str, str] = {}

    def __init__(self, path: Path) -> None:
        self.path = path
        self._size = path.stat().st_size

    @abstractmethod
    def _entry(self, name: str) -> _Entry: ...

    @contextmanager
    def _decoding(self, what: str) -> Iterator[None]:
        try:
            yield
        except (InputError, MemoryError):
            raise
        except Exception as error:  # a crafted file can make a decoder raise anything
            memory.need("reading", self._size + RATIO_SLACK)  # so can a lack of memory
            reason = shorten(f"{error}".partition("\n")[0]) or type(error).__name__
            damage = f"{what}: damaged or truncated ({reason})"
            raise InputError(self.path, damage, f"an intact {self.format.value} file") from None

    def _described(self, name: str) -> _Entry:
        """An entry, unless it has more elements, or a longer axis, than the file's size allows.

        An array without elements may claim any number of channels at no cost in bytes, and the
        gradients of its parameters would have as many elements.
        """
        with self._decoding(name):
            entry = self._entry(name)
        most = MAX_PACKED * self._size
        if max((math.prod(entry.shape), *entry.shape)) * entry.dtype.itemsize > most:
            text = f"{name}: shape {represent(entry.shape)} in a file this small"
            raise InputError(self.path, text, f"at most {most} bytes")
        return entry

    def tensor(self, name: str, allowed: Sequence[DType]) -> Array:
        """An entry's array; an InputError unless it can be read and its dtype is allowed."""
        entry = self._described(name)
        if dtypes.from_numpy(entry.dtype) not in allowed:
            lacking = [dtypes.bfloat16] if self.format is Format.NPZ else []
            names = ", ".join(known.name for known in allowed if known not in lacking)
            if set(lacking) & set(allowed):
                names += " (and bfloat16 in a .safetensors)"
            raise InputError(self.path, f"{name}: dtype {entry.dtype_name}", names)
        with self._decoding(name):
            return entry.read()

    def value(self, name: str) -> Any:
        """The value of an entry or of the metadata: a word, a number, a boolean, a list, or None.

        If the entry is something else, or cannot be read, it is an InputError.
        """
        if name in self.metadata:
            return self.metadata[name]
        if name not in self.names:
            return None
        entry = self._described(name)
        size = math.prod(entry.shape) * entry.dtype.itemsize
        if entry.dtype.kind not in "biufUS" or len(entry.shape) > 1 or size > MAX_VALUE:
            array = f"an array of shape {represent(entry.shape)} and dtype {entry.dtype_name}"
            allowed = "a 0-d entry with a number, a boolean or a word"
            raise InputError(self.path, f"{name}: {array}", allowed)
        with self._decoding(name):
            value = entry.read().tolist()
        return value.decode("utf-8", "replace") if isinstance(value, bytes) else value


class _Npz(Contents):
    """A zip archive of .npy members."""

    format = Format.NPZ

    def __init__(self, path: Path, file: BinaryIO) -> None:
        super().__init__(path)
        with self._decoding("the archive"):
            self._archive = zipfile.ZipFile(file)
        members = self._archive.infolist()
        # Reading allocates what a member claims, even if no file of this size can hold it.
        packed = sum(member.compress_size for member in members)
        unpacked = sum(member.file_size for member in members)
        most = MAX_PACKED * self._size
        if packed > self._size or unpacked > most:
            text = f"the archive: {packed} bytes that claim to unpack to {unpacked}"
            raise InputError(path, text, f"{self._size}, the file's size, and at most {most}")
        self._members = {member.filename.removesuffix(".npy"): member for member in members}
        self.names = tuple(self._members)

    def _entry(self, name: str) -> _Entry:
        member, lib = self._members[name], np.lib.format
        if member.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
            # Other methods' decoders allocate what their own headers claim.
            method = f"{name}: compression method {member.compress_type}"
            raise InputError(self.path, method, "stored or deflated members, as NumPy writes them")
        with self._archive.open(member) as opened:
            is_first = lib.read_magic(opened) == (1, 0)
            read_header = lib.read_array_header_1_0 if is_first else lib.read_array_header_2_0
            shape, _, dtype = read_header(opened, max_header_size=MAX_HEADER)
        if dtype.hasobject:
            objects = f"{name}: an array of Python objects, which are never unpickled"
            allowed = "numbers, booleans and words, and no entry at all for None"
            raise InputError(self.path, objects, allowed)
        is_number = dtype.isnative and dtype.kind in "biufc"
        dtype_name = dtype.name if is_number else dtype.str if dtype.names is None else "record"
        return _Entry(shape, dtype, dtype_name, partial(self._read, member))

    def _read(self, member: zipfile.ZipInfo) -> Array:
        with self._archive.open(member) as opened:
            array: Array = np.lib.format.read_array(
                opened, allow_pickle=False, max_header_size=MAX_HEADER
            )
        return array


_SAFETENSORS_DTYPES = {
    "BOOL": np.dtype(np.bool_),
    "BF16": dtypes.bfloat16.numpy,
    **{
        word: np.dtype(f"{word[0].lower()}{int(word[1:]) // 8}")
        for word in ["U8", "U16", "U32", "U64", "I8", "I16", "I32", "I64", "F16", "F32", "F64"]
    },
}


class _Safetensors(Contents):
    """A safetensors file; the library checks that its tensors lie within it, side by side."""

    format = Format.SAFETENSORS

    def __init__(self, path: Path) -> None:
        from safetensors import safe_open

        super().__init__(path)
        opened: Any = safe_open  # whose methods have no types
        with self._decoding("the header"):
            self._file = opened(path, framework="numpy")
            self.names = tuple(self._file.keys())
            self.metadata = self._file.metadata() or {}

    def _entry(self, name: str) -> _Entry:
        described = self._file.get_slice(name)
        dtype_name = described.get_dtype()
        # NumPy lacks some dtypes; void is no tensor's and no value's.
        dtype = _SAFETENSORS_DTYPES.get(dtype_name, np.dtype(np.void))
        read = partial(self._file.get_tensor, name)
        return _Entry(tuple(described.get_shape()), dtype, dtype_name, read)


@contextmanager
def reading(path: Path) -> Iterator[Contents]:
    """Open a file in the format of its content, whatever its name; otherwise an InputError."""
    if _format_of(path) is Format.SAFETENSORS:
        yield _Safetensors(path)
    else:
        with path.open("rb") as file:
            yield _Npz(path, file)


def _format_of(path: Path) -> Format:
    try:
        mode = path.stat().st_mode
        if not stat.S_ISREG(mode):  # opening a pipe would wait for a writer
            what = "a directory" if stat.S_ISDIR(mode) else "not a regular file"
            raise InputError(path, what, _EITHER)
        with path.open("rb") as file:
            start = file.read(9)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise InputError(path, str(reason), _EITHER) from None
    if start.startswith((b"PK\x03\x04", b"PK\x05\x06")):
        return Format.NPZ
    if start[8:] == b"{":
        return Format.SAFETENSORS
    what = {
        ".npz": "not a .npz file: it does not begin as a zip archive",
        ".safetensors": "not a .safetensors file: it has no header",
    }.get(path.suffix.lower(), "neither a zip archive nor a safetensors header")
    if start.startswith(b"\x93NUMPY"):
        what = "a .npy file, a single array without a name"
    raise InputError(path, what if start else "an empty file", _EITHER)


# Writing

_ALLOWED = "the name of a file, new or old, in a folder that is there"

#: The message for a file whose writing failed.
UNCHANGED = "cannot be written; what was there is as it was"


@contextmanager
def blaming_file(path: Path, what: str) -> Iterator[None]:
    """Turn an OSError into an InputError that names the file; ``what`` says what failed."""
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
    raise InputError(path, "links in a circle", _ALLOWED)


def out_path(name: str) -> Path:
    """The file that ``-o`` names, which is no missing folder ("x/"), whose slash Path drops."""
    if not name:
        raise InputError("-o", "''", _ALLOWED)
    path = Path(name)
    if os.path.basename(name) in ("", ".", "..") and not path.is_dir():  # noqa: PTH119
        raise InputError("-o", f"{name!r}, the name of a folder", _ALLOWED)
    return path


def check_writable(path: Path) -> None:
    """Check before any work that :func:`rewriting` can write to a path."""
    with blaming_file(path, "cannot be written"):
        if path.is_dir():
            raise InputError(path, "a directory", _ALLOWED)
        # A device or a pipe would be replaced with a file, rather than written to.
        if path.exists() and not path.is_file():
            raise InputError(path, "not a regular file", _ALLOWED)
        folder = _target(path).parent
        if not folder.is_dir():
            raise InputError(path, f"no folder {folder}", _ALLOWED)
        if not os.access(folder, os.W_OK):
            raise InputError(path, f"the folder {folder} may not be written to", _ALLOWED)


@contextmanager
def rewriting(path: Path) -> Iterator[BinaryIO]:
    """Replace the file of exactly this name atomically: the old one stays until all is written."""
    with blaming_file(path, UNCHANGED), replacing(_target(path)) as file:
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
