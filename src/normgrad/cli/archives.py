"""Read an operator's tensors from .npz and .safetensors files, and write files atomically.

Files that are read are not trusted: nothing is unpickled, no name in an archive becomes a path, and
every size that a header claims is compared with what the file can hold before memory is allocated
for it.
"""

from __future__ import annotations

import json
import math
import os
import stat
import warnings
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

#: Reading a file may take this many times the file's size of memory, and this many bytes more, as
#: `normgrad run --help` says. Deflate packs at most 1032 bytes into one, so no honest archive
#: exceeds the ratio. The slack is for NumPy's buffers and the parser of a header.
MAX_RATIO, RATIO_SLACK = 1032, 1 << 20

#: The most bytes of an array's header; NumPy writes 118 for few axes. Headers are parsed as Python
#: code, which takes up to 1,400 times their size (in Python 3.12; 500 times in 3.11), and are too
#: short to be nested deeper than the parser can follow.
MAX_HEADER = 512

#: If this many bytes are left, a decoder's error was not for lack of memory. A decoder uses
#: Python's allocator, which takes memory from the system by the MiB.
DECODER_MEMORY = 4 << 20

#: The largest entry that is read as a number, a word or a few flags.
MAX_SCALAR_ELEMENTS, MAX_SCALAR_BYTES = 64, 4096

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

    def __init__(self, path: Path, size: int) -> None:
        self.path = path
        self._most = MAX_RATIO * size + RATIO_SLACK

    @abstractmethod
    def _entry(self, name: str) -> _Entry: ...

    @contextmanager
    def _decoding(self, what: str) -> Iterator[None]:
        try:
            yield
        except (InputError, MemoryError):
            raise
        except Exception as error:  # a crafted file can make a decoder raise anything
            memory.need("reading", DECODER_MEMORY)  # so can a lack of memory
            reason = shorten(f"{error}") or type(error).__name__
            damage = f"{what}: damaged or truncated ({reason})"
            raise InputError(self.path, damage, f"an intact {self.format.value} file") from None

    def tensor(self, name: str, allowed: Sequence[DType]) -> Array:
        """An entry's array; an InputError unless it can be read and its dtype is allowed."""
        entry = self._entry(name)
        if dtypes.from_numpy(entry.dtype) not in allowed:
            lacking = [dtypes.bfloat16] if self.format is Format.NPZ else []
            names = ", ".join(known.name for known in allowed if known not in lacking)
            if set(lacking) & set(allowed):
                names += " (and bfloat16 in a .safetensors)"
            raise InputError(self.path, f"{name}: dtype {entry.dtype_name}", names)
        # An array without elements may claim any number of channels at no cost in bytes, and the
        # gradients of its parameters would have as many elements.
        longest = self._most // dtypes.float64.itemsize
        if max(entry.shape, default=0) > longest:
            text = f"{name}: shape {represent(entry.shape)} in a file this small"
            raise InputError(self.path, text, f"axes of at most {longest}")
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
        entry = self._entry(name)
        elements = math.prod(entry.shape)
        if (
            entry.dtype.kind not in "biufUS"
            or len(entry.shape) > 1
            or elements > MAX_SCALAR_ELEMENTS
            or elements * entry.dtype.itemsize > MAX_SCALAR_BYTES
        ):
            array = f"an array of shape {represent(entry.shape)} and dtype {entry.dtype_name}"
            allowed = "a 0-d entry with a number, a boolean or a word"
            raise InputError(self.path, f"{name}: {array}", allowed)
        with self._decoding(name):
            value = entry.read().tolist()
        return value.decode("utf-8", "replace") if isinstance(value, bytes) else value


class _Npz(Contents):
    """A zip archive of .npy members."""

    format = Format.NPZ

    def __init__(self, path: Path, file: BinaryIO, size: int) -> None:
        super().__init__(path, size)
        with self._decoding("the archive"):
            self._archive = zipfile.ZipFile(file)
        members = self._archive.infolist()
        # Check sizes first: reading allocates what a member claims, even if no file of this size
        # can hold it, and overlapping members would let a small file be read again and again.
        packed = sum(member.compress_size for member in members)
        if packed > size:
            text = f"the archive: members of {packed} bytes in a file of {size}"
            raise InputError(path, text, "members beside each other")
        total, most = sum(member.file_size for member in members), MAX_RATIO * size
        if total > most:
            text = f"the archive: {size} bytes that claim to unpack to {total}"
            raise InputError(path, text, f"at most {most}")
        self._members: dict[str, zipfile.ZipInfo] = {}
        for member in members:
            name = member.filename.removesuffix(".npy")
            if name in self._members:
                raise InputError(path, f"{shorten(name)}: there twice", "one entry of each name")
            self._members[name] = member
        self.names = tuple(self._members)

    @contextmanager
    def _open(self, name: str) -> Iterator[Any]:
        member = self._members[name]
        if member.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
            # Other methods' decoders allocate what their own headers claim.
            method = f"{name}: compression method {member.compress_type}"
            raise InputError(self.path, method, "stored or deflated members, as NumPy writes them")
        with self._decoding(name), warnings.catch_warnings():
            # NumPy warns of headers that Python 2 wrote, but reads them.
            warnings.simplefilter("ignore")
            opened: Any
            with self._archive.open(member) as opened:
                # The header's length follows the version, in two bytes or in four. NumPy would read
                # the whole length that is claimed.
                start = opened.peek(12)
                length = int.from_bytes(start[8 : 10 if start[6:7] == b"\x01" else 12], "little")
                is_npy = start.startswith(np.lib.format.MAGIC_PREFIX)
                if is_npy and min(length, member.file_size) > MAX_HEADER:
                    header = f"{name}: a header of {length} bytes"
                    raise InputError(self.path, header, f"at most {MAX_HEADER}, as an array has")
                yield opened

    def _entry(self, name: str) -> _Entry:
        with self._open(name) as member:
            lib = np.lib.format
            readers = {(1, 0): lib.read_array_header_1_0, (2, 0): lib.read_array_header_2_0}
            version = lib.read_magic(member)
            if version not in readers:
                raise InputError(self.path, f"{name}: .npy version {version}", "1.0, 2.0")
            shape, _, dtype = readers[version](member)
            if dtype.hasobject:
                objects = f"{name}: an array of Python objects, which are never unpickled"
                allowed = "numbers, booleans and words, and no entry at all for None"
                raise InputError(self.path, objects, allowed)
            claimed = member.tell() + math.prod(shape) * dtype.itemsize
            size = self._members[name].file_size
            if min(shape, default=0) < 0 or claimed != size:
                claim = f"shape {shape} of {dtype} would be {claimed} bytes with its header"
                text = f"{name}: {claim}, and the entry has {size}"
                raise InputError(self.path, text, "an intact .npz file")
        is_number = dtype.isnative and dtype.kind in "biufc"
        dtype_name = dtype.name if is_number else dtype.str if dtype.names is None else "record"
        return _Entry(shape, dtype, dtype_name, partial(self._read, name))

    def _read(self, name: str) -> Array:
        with self._open(name) as member:
            array: Array = np.lib.format.read_array(member, allow_pickle=False)
            member.read(1)  # zipfile compares the checksum only at the end
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

    def __init__(self, path: Path, file: BinaryIO, size: int) -> None:
        import safetensors

        super().__init__(path, size)
        with self._decoding("the header"):
            data = file.read(size)  # and no more, even if the file has grown
            memory.need("reading", len(data))  # deserialising makes a copy
            # Not safetensors.numpy.load, which does not support bfloat16.
            decode: Any = safetensors.deserialize
            self._entries: dict[str, Any] = dict(sorted(decode(data)))
            end = 8 + int.from_bytes(data[:8], "little")
            self.metadata = json.loads(data[8:end]).get("__metadata__") or {}
        self.names = tuple(self._entries)

    def _entry(self, name: str) -> _Entry:
        entry = self._entries[name]
        shape, dtype_name = tuple(entry["shape"]), entry["dtype"]
        # NumPy lacks some dtypes; void is no tensor's and no value's.
        dtype = _SAFETENSORS_DTYPES.get(dtype_name, np.dtype(np.void))
        return _Entry(shape, dtype, dtype_name, lambda: np.ndarray(shape, dtype, entry["data"]))


@contextmanager
def reading(path: Path) -> Iterator[Contents]:
    """Open a file in the format of its content, whatever its name; otherwise an InputError."""
    try:
        _check_regular(path, path.stat())
        # Do not block: if a pipe has just replaced the file, opening it would wait for a writer.
        file = os.fdopen(os.open(path, os.O_RDONLY | os.O_NONBLOCK), "rb")
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise InputError(path, str(reason), _EITHER) from None
    with file:
        status = os.fstat(file.fileno())
        _check_regular(path, status)
        yield _contents(path, file, status.st_size)


def _check_regular(path: Path, status: os.stat_result) -> None:
    if stat.S_ISDIR(status.st_mode):
        raise InputError(path, "a directory", _EITHER)
    if not stat.S_ISREG(status.st_mode):
        raise InputError(path, "not a regular file", _EITHER)


def _contents(path: Path, file: BinaryIO, size: int) -> Contents:
    try:
        start = file.read(9)
        file.seek(0)
    except OSError as error:
        raise InputError(path, f"cannot be read ({error.strerror or error})", _EITHER) from None
    if start.startswith((b"PK\x03\x04", b"PK\x05\x06")):
        return _Npz(path, file, size)
    if start[8:] == b"{":
        return _Safetensors(path, file, size)
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
