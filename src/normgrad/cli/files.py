"""Reading an operator's tensors from .npz and .safetensors files.

Files are not trusted: nothing is unpickled, no name in an archive becomes a path, and every size
that a header claims is compared with what the file can hold before memory is allocated for it.
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
from contextlib import contextmanager
from enum import Enum
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import numpy as np
import numpy.typing as npt

from .. import dtypes, memory
from ..dtypes import DType
from ..unusable import shortened, shown

Array = npt.NDArray[Any]

#: Reading a file may take this many times the file's size of memory, and this many bytes more, as
#: `normgrad run --help` says. Deflate packs at most 1032 bytes into one, so no honest archive
#: exceeds the ratio. The slack is for NumPy's buffers and the parser of a header.
MAX_RATIO, RATIO_SLACK = 1032, 1 << 20

#: The most bytes of an array's header; NumPy writes 118 for few axes. Headers are parsed as Python
#: code, which takes up to 500 times their size.
MAX_HEADER = 1024

#: If this many bytes are left, a decoder's error was not for lack of memory. A decoder uses
#: Python's allocator, which takes memory from the system by the MiB.
DECODER_MEMORY = 4 << 20

#: The largest entry that is read as a number, a word or a few flags.
MAX_SCALAR_ELEMENTS, MAX_SCALAR_BYTES = 64, 4096

_EITHER = "allowed: a .npz or .safetensors file"


class InputError(Exception):
    """The user's input cannot be used; the text says what is wrong and what is allowed."""

    def __init__(self, subject: object, what: str) -> None:
        """The subject is the file, or the option."""
        super().__init__(f"{subject}: {what}")


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
        raise InputError(subject, f"{value!r}; allowed: {', '.join(allowed)}")


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

    def _refused(self, what: str) -> InputError:
        """An error that says what is wrong with this file."""
        return InputError(self.path, what)

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
            reason = shortened(f"{error}") or type(error).__name__
            raise self._refused(
                f"{what}: damaged or truncated ({reason}); allowed: an intact {self.format.value} "
                "file",
            ) from None

    def tensor(self, name: str, allowed: Sequence[DType]) -> Array:
        """An entry's array.

        Raises:
            InputError: the dtype is not among ``allowed``, or the entry cannot be read.
        """
        entry = self._entry(name)
        if dtypes.from_numpy(entry.dtype) not in allowed:
            apart = [dtypes.bfloat16] if self.format is Format.NPZ else []
            names = ", ".join(known.name for known in allowed if known not in apart)
            if dtypes.bfloat16 in allowed and apart:
                names += " (and bfloat16 in a .safetensors)"
            raise self._refused(f"{name}: dtype {entry.dtype_name}; allowed: {names}")
        # An array without elements may claim any number of channels at no cost in bytes, and the
        # gradients of its parameters would have as many elements.
        longest = self._most // dtypes.float64.itemsize
        if max(entry.shape, default=0) > longest:
            raise self._refused(
                f"{name}: shape {shown(entry.shape)} in a file this small; allowed: axes of at "
                f"most {longest}",
            )
        with self._decoding(name):
            return entry.read()

    def value(self, name: str) -> Any:
        """The value of an entry or of the metadata: a word, a number, a boolean, a list, or None.

        Raises:
            InputError: the entry is something else, or cannot be read.
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
            raise self._refused(
                f"{name}: an array of shape {shown(entry.shape)} and dtype {entry.dtype_name}; "
                "allowed: a 0-d entry with a number, a boolean or a word",
            )
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
            raise self._refused(
                f"the archive: members of {packed} bytes in a file of {size}; allowed: members "
                "beside each other",
            )
        total = sum(member.file_size for member in members)
        if total > MAX_RATIO * size:
            raise self._refused(
                f"the archive: {size} bytes that claim to unpack to {total}; allowed: at most "
                f"{MAX_RATIO * size}",
            )
        self._members: dict[str, zipfile.ZipInfo] = {}
        for member in members:
            name = member.filename.removesuffix(".npy")
            if name in self._members:
                twice = "there twice; allowed: one entry of each name"
                raise self._refused(f"{shortened(name)}: {twice}")
            self._members[name] = member
        self.names = tuple(self._members)

    @contextmanager
    def _open(self, name: str) -> Iterator[Any]:
        member = self._members[name]
        stored = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)
        with self._decoding(name), warnings.catch_warnings():
            # NumPy warns of headers that Python 2 wrote, but reads them.
            warnings.simplefilter("ignore")
            if member.compress_type not in stored:
                # Other methods' decoders allocate what their own headers claim. NumPy never writes
                # such members.
                raise self._refused(
                    f"{name}: compression method {member.compress_type}; allowed: stored or "
                    "deflated members, as NumPy writes them",
                )
            opened: Any
            with self._archive.open(member) as opened:
                # The header's length follows the version, in two bytes or in four. NumPy would read
                # the whole length that is claimed.
                start = opened.peek(12)
                length = int.from_bytes(start[8 : 10 if start[6:7] == b"\x01" else 12], "little")
                is_npy = start.startswith(np.lib.format.MAGIC_PREFIX)
                if is_npy and min(length, member.file_size) > MAX_HEADER:
                    raise self._refused(
                        f"{name}: a header of {length} bytes; allowed: at most {MAX_HEADER}, as an "
                        "array has",
                    )
                yield opened

    def _entry(self, name: str) -> _Entry:
        with self._open(name) as member:
            lib = np.lib.format
            readers = {(1, 0): lib.read_array_header_1_0, (2, 0): lib.read_array_header_2_0}
            version = lib.read_magic(member)
            if version not in readers:
                raise self._refused(f"{name}: .npy version {version}; allowed: 1.0, 2.0")
            try:
                shape, _, dtype = readers[version](member)
            except MemoryError:
                # A short header can be nested too deep for Python's parser.
                raise ValueError("its header cannot be parsed") from None
            if dtype.hasobject:
                raise self._refused(
                    f"{name}: an array of Python objects, which are never unpickled; allowed: "
                    "numbers, booleans and words, and no entry at all for None",
                )
            claimed = member.tell() + math.prod(shape) * dtype.itemsize
            size = self._members[name].file_size
            if min(shape, default=0) < 0 or claimed != size:
                raise self._refused(
                    f"{name}: shape {shape} of {dtype} would be {claimed} bytes with its header, "
                    f"and the entry has {size}; allowed: an intact .npz file",
                )
        plain = dtype.isnative and dtype.kind in "biufc"
        dtype_name = dtype.name if plain else dtype.str if dtype.names is None else "record"
        return _Entry(shape, dtype, dtype_name, partial(self._read, name))

    def _read(self, name: str) -> Array:
        with self._open(name) as member:
            array: Array = np.lib.format.read_array(member, allow_pickle=False)
            member.read(1)  # zipfile compares the checksum only at the end
        return array


_SAFETENSORS_DTYPES = {
    "BOOL": np.dtype(np.bool_),
    "BF16": dtypes.bfloat16.numpy,
    "U8": np.dtype(np.uint8),
    "I8": np.dtype(np.int8),
    **{
        f"{kind}{8 * size}": np.dtype(f"{kind.lower()}{size}")
        for kind in "UIF"
        for size in (2, 4, 8)
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
    """Open a file in the format of its content, whatever its name.

    Raises:
        InputError: the file cannot be read, or has neither format.
    """
    try:
        _check_regular(path, path.stat())
        # Do not block: if a pipe has just replaced the file, opening it would wait for a writer.
        file = os.fdopen(os.open(path, os.O_RDONLY | os.O_NONBLOCK), "rb")
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise InputError(path, f"{reason}; {_EITHER}") from None
    with file:
        status = os.fstat(file.fileno())
        _check_regular(path, status)
        yield _contents(path, file, status.st_size)


def _check_regular(path: Path, status: os.stat_result) -> None:
    if stat.S_ISDIR(status.st_mode):
        raise InputError(path, f"a directory; {_EITHER}")
    if not stat.S_ISREG(status.st_mode):
        raise InputError(path, f"not a regular file; {_EITHER}")


def _contents(path: Path, file: BinaryIO, size: int) -> Contents:
    try:
        start = file.read(9)
        file.seek(0)
    except OSError as error:
        raise InputError(path, f"cannot be read ({error.strerror or error}); {_EITHER}") from None
    if not start:
        raise InputError(path, f"an empty file; {_EITHER}")
    if start.startswith((b"PK\x03\x04", b"PK\x05\x06")):
        return _Npz(path, file, size)
    if start[8:] == b"{":
        return _Safetensors(path, file, size)
    if start.startswith(b"\x93NUMPY"):
        raise InputError(path, f"a .npy file, a single array without a name; {_EITHER}")
    lacking = {
        ".npz": "not a .npz file: it does not begin as a zip archive",
        ".safetensors": "not a .safetensors file: it has no header",
    }
    neither = "neither a zip archive nor a safetensors header"
    raise InputError(path, f"{lacking.get(path.suffix.lower(), neither)}; {_EITHER}")
