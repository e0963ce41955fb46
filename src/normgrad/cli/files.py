"""Reading an operator's tensors from .npz and .safetensors files.

What is read is not trusted: nothing is unpickled, no name in an archive becomes a path, and every
size that a header claims is compared with what the file can hold before memory is allocated for it.
"""

from __future__ import annotations

import json
import math
import os
import stat
import warnings
import zipfile
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from enum import Enum
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import numpy as np
import numpy.typing as npt

from .. import dtypes, memory
from ..dtypes import DType

Array = npt.NDArray[Any]

#: How many times its own size reading a file may take of memory, and how many bytes beyond that.
#: `normgrad run --help` says it. A .npz may unpack to that many times its size: deflate packs at
#: most 1032 bytes into one, so that no honest archive is refused. What lies beyond is for what
#: reading takes itself: NumPy's buffers, and the parser of a header.
MAX_RATIO, RATIO_SLACK = 1032, 1 << 20

#: No array's header has more bytes than this: NumPy's take 118 for few axes. It is parsed as Python
#: code, which takes up to 500 times its size.
MAX_HEADER = 1024

#: Where so much memory is left, a decoder did not fail for want of it: it takes Python's memory,
#: which comes from the system by the MiB.
DECODER_MEMORY = 4 << 20

#: An entry that stands for a number, a word or a few flags is no larger than this.
MAX_SCALAR_ELEMENTS, MAX_SCALAR_BYTES = 64, 4096

_EITHER = "allowed: a .npz or .safetensors file"


class InputError(Exception):
    """What the user gave cannot be used; the text says what is wrong and what is allowed.

    Args:
        subject: the file, or the option.
        what: what is wrong with it, and what is allowed.
    """

    def __init__(self, subject: object, what: str) -> None:
        super().__init__(f"{subject}: {what}")


class Format(Enum):
    """The file formats; the value is the suffix."""

    NPZ = ".npz"
    SAFETENSORS = ".safetensors"

    @staticmethod
    def of_name(path: Path) -> Format | None:
        """The format a file's suffix stands for."""
        return next((known for known in Format if known.value == path.suffix.lower()), None)


class _Look(NamedTuple):
    """An entry without its data; ``dtype`` is None where NumPy has none for it."""

    shape: tuple[int, ...]
    dtype: np.dtype[Any] | None
    dtype_name: str


class Contents(ABC):
    """An open file's entries, read one by one as they are asked for.

    Attributes:
        path: the file.
        format: what it is, whatever its name says.
        names: the entries.
        metadata: the words kept beside them.
    """

    format: Format
    names: Sequence[str] = ()
    metadata: Mapping[str, str] = {}

    def __init__(self, path: Path, size: int) -> None:
        self.path = path
        self._most = MAX_RATIO * size + RATIO_SLACK

    def _refused(self, what: str) -> InputError:
        """The error for what is wrong with this file."""
        return InputError(self.path, what)

    @abstractmethod
    def _look(self, name: str) -> _Look: ...

    @abstractmethod
    def _read(self, name: str) -> Array: ...

    @contextmanager
    def _decoding(self, what: str) -> Iterator[None]:
        try:
            yield
        except (InputError, MemoryError):
            raise
        except Exception as error:  # a crafted file can make a decoder raise anything
            memory.need("reading", DECODER_MEMORY)  # so can memory that ran out
            reason = f"{error}" or type(error).__name__
            raise self._refused(
                f"{what}: damaged or truncated ({reason}); allowed: an intact {self.format.value} "
                "file",
            ) from None

    def tensor(self, name: str, allowed: Sequence[DType]) -> Array:
        """An entry's array.

        Raises:
            InputError: a dtype that is not among ``allowed``, or an entry that cannot be read.
        """
        look = self._look(name)
        dtype = None if look.dtype is None else dtypes.from_numpy(look.dtype)
        if dtype not in allowed:
            names = ", ".join(
                known.name
                for known in allowed
                if self.format is Format.SAFETENSORS or known is not dtypes.bfloat16
            )
            if self.format is Format.NPZ and dtypes.bfloat16 in allowed:
                names += " (and bfloat16 in a .safetensors)"
            raise self._refused(f"{name}: dtype {look.dtype_name}; allowed: {names}")
        # An array without elements may claim any number of channels at no cost in bytes, and the
        # gradients of its parameters would have as many elements.
        if max(look.shape, default=0) > self._most // dtypes.float64.itemsize:
            raise self._refused(
                f"{name}: shape {look.shape} in a file this small; allowed: axes of at most "
                f"{self._most // dtypes.float64.itemsize}",
            )
        with self._decoding(name):
            return self._read(name)

    def value(self, name: str) -> Any:
        """What an entry or the metadata say: a word, a number, a boolean, a list, or None.

        Raises:
            InputError: an entry that is something else, or that cannot be read.
        """
        if name in self.metadata:
            return self.metadata[name]
        if name not in self.names:
            return None
        look = self._look(name)
        elements = math.prod(look.shape)
        if (
            look.dtype is None
            or look.dtype.kind not in "biufUS"
            or len(look.shape) > 1
            or elements > MAX_SCALAR_ELEMENTS
            or elements * look.dtype.itemsize > MAX_SCALAR_BYTES
        ):
            raise self._refused(
                f"{name}: an array of shape {look.shape} and dtype {look.dtype_name}; allowed: a "
                "0-d entry with a number, a boolean or a word",
            )
        with self._decoding(name):
            value = self._read(name).tolist()
        return value.decode("utf-8", "replace") if isinstance(value, bytes) else value


_HEADERS: Mapping[tuple[int, int], Callable[[Any], Any]] = {
    (1, 0): np.lib.format.read_array_header_1_0,
    (2, 0): np.lib.format.read_array_header_2_0,
}


class _Npz(Contents):
    """A zip archive of .npy members."""

    format = Format.NPZ

    def __init__(self, path: Path, file: BinaryIO, size: int) -> None:
        super().__init__(path, size)
        with self._decoding("the archive"):
            self._archive = zipfile.ZipFile(file)
        members = self._archive.infolist()
        # Of sizes that no file of this one's can hold, memory would be allocated to read them; and
        # members that lie over each other could be read again and again.
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
                raise self._refused(f"{name}: there twice; allowed: one entry of each name")
            self._members[name] = member
        self.names = tuple(self._members)

    @contextmanager
    def _open(self, name: str) -> Iterator[Any]:
        member = self._members[name]
        stored = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)
        with self._decoding(name), warnings.catch_warnings():
            # NumPy warns of headers that Python 2 wrote, which it reads all the same.
            warnings.simplefilter("ignore")
            if member.compress_type not in stored:
                # The others allocate what their own headers ask for; NumPy never writes them.
                raise self._refused(
                    f"{name}: compression method {member.compress_type}; allowed: stored or "
                    "deflated members, as NumPy writes them",
                )
            with self._archive.open(member) as opened:
                self._check_header(name, opened, member.file_size)
                yield opened

    def _check_header(self, name: str, member: Any, size: int) -> None:
        """Refuse a header too long for any array: NumPy would read all that it claims to have."""
        start = member.peek(12)
        if start.startswith(np.lib.format.MAGIC_PREFIX):
            # Behind the version are the length's two bytes, or four.
            width = 2 if start[6:7] == b"\x01" else 4
            length = int.from_bytes(start[8 : 8 + width], "little")
            if min(length, size) > MAX_HEADER:
                raise self._refused(
                    f"{name}: a header of {length} bytes; allowed: at most {MAX_HEADER}, as an "
                    "array has",
                )

    def _look(self, name: str) -> _Look:
        with self._open(name) as member:
            version = np.lib.format.read_magic(member)
            read = _HEADERS.get(version)
            if read is None:
                raise self._refused(f"{name}: .npy version {version}; allowed: 1.0, 2.0")
            try:
                shape, _, dtype = read(member)
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
        if dtype.names is not None:
            return _Look(shape, dtype, "record")
        plain = dtype.isnative and dtype.kind in "biufc"
        return _Look(shape, dtype, dtype.name if plain else dtype.str)

    def _read(self, name: str) -> Array:
        with self._open(name) as member:
            array: Array = np.lib.format.read_array(member, allow_pickle=False)
            member.read(1)  # the checksum is compared at the end alone
        return array


_SAFETENSORS_DTYPES = {
    "BOOL": np.dtype(np.bool_),
    "BF16": dtypes.bfloat16.numpy,
    **{
        f"{kind}{8 * size}": np.dtype(f"{kind.lower()}{size}")
        for kind, sizes in (("U", (1, 2, 4, 8)), ("I", (1, 2, 4, 8)), ("F", (2, 4, 8)))
        for size in sizes
    },
}


class _Safetensors(Contents):
    """A safetensors file; the library checks that its tensors lie within it, side by side."""

    format = Format.SAFETENSORS

    def __init__(self, path: Path, file: BinaryIO, size: int) -> None:
        import safetensors

        super().__init__(path, size)
        with self._decoding("the header"):
            data = file.read(size)  # and no more, should it grow meanwhile
            memory.need("reading", len(data))  # of which a copy is made
            # Not safetensors.numpy.load, which knows no bfloat16.
            decode: Any = safetensors.deserialize
            self._entries: dict[str, Any] = dict(sorted(decode(data)))
            end = 8 + int.from_bytes(data[:8], "little")
            self.metadata = json.loads(data[8:end]).get("__metadata__") or {}
        self.names = tuple(self._entries)

    def _look(self, name: str) -> _Look:
        entry = self._entries[name]
        dtype = _SAFETENSORS_DTYPES.get(entry["dtype"])
        return _Look(tuple(entry["shape"]), dtype, entry["dtype"])

    def _read(self, name: str) -> Array:
        look = self._look(name)
        assert look.dtype is not None
        return np.ndarray(look.shape, look.dtype, self._entries[name]["data"])


@contextmanager
def reading(path: Path) -> Iterator[Contents]:
    """A file's contents, by what is in it rather than by its name.

    Raises:
        InputError: a file that cannot be read, or that is neither format.
    """
    try:
        _check_regular(path, path.stat())
        # Should it be replaced now by a pipe, opening that would wait for its writer.
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
        Format.NPZ: "not a .npz file: it does not begin as a zip archive",
        Format.SAFETENSORS: "not a .safetensors file: it has no header",
        None: "neither a zip archive nor a safetensors header",
    }
    raise InputError(path, f"{lacking[Format.of_name(path)]}; {_EITHER}")
