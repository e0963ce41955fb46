"""Places in a program: its functions, files and lines, found by addresses in them."""

from __future__ import annotations

import ctypes
import os
import shutil
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from .pointers import c_function

_dladdr = c_function("dladdr", ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p)
_free = c_function("free", None, ctypes.c_void_p)

#: A section and a symbol of a 64-bit ELF file.
_SECTION = np.dtype(
    "u4, u4, u8, u8, u8, u8, u4, u4, u8, u8"  # name, type, flags, address, offset, size, link, …
)
_SYMBOL = np.dtype("u4, u1, u1, u2, u8, u8")  # name, info, other, section, value, size
_SYMBOL_TABLE, _FUNCTION, _EXECUTABLE = 2, 2, 2


class _Place(ctypes.Structure):
    """The structure Dl_info, which dladdr fills."""

    _fields_ = (
        ("path", ctypes.c_char_p),
        ("base", ctypes.c_void_p),
        ("name", ctypes.c_char_p),
        ("start", ctypes.c_void_p),
    )


@lru_cache(1024)
def place_of(address: int) -> str:
    """ " in f (host.c:7)" for the call that returns to an address; "" if nothing is known.

    Without debugging information, or without addr2line, there is no file and no line.
    """
    place = _Place()
    if not address or not _dladdr(address, ctypes.byref(place)) or not place.path:
        return ""
    path = os.fsdecode(place.path)
    try:
        # If the loader knows no symbol there, the file may still have symbols for debuggers.
        name = _name_in_file(path, address, place.base or 0)
    except (OSError, ValueError, IndexError):
        name = None
    name = name or place.name
    line = _line_of(path, address, place.base or 0)
    return (f" in {_readable(name)}" if name else "") + (f" ({line})" if line else "")


def _line_of(path: str, address: int, base: int) -> str:
    """The file and line of the call before an address; "" if they are unknown."""
    import subprocess  # takes 10 ms

    path, tool = _existing(path), shutil.which("addr2line")
    try:
        content = Path(path).read_bytes()
        if tool is None or b".debug_line" not in content:
            return ""
        at = address - 1 - (0 if content[16] == _EXECUTABLE else base)
        command = [tool, "-s", "-e", path, hex(at)]
        output = subprocess.run(command, capture_output=True, text=True, check=False).stdout
    except OSError:
        return ""
    line = output.partition(" ")[0].strip()
    return "" if "?" in line else line


def _existing(path: str) -> str:
    """A file that the process has loaded; the program itself may have been started otherwise."""
    return path if Path(path).exists() else "/proc/self/exe"


def _name_in_file(path: str, address: int, base: int) -> bytes | None:
    file = np.fromfile(_existing(path), np.uint8)
    if file[:5].tobytes() != b"\x7fELF\x02":
        return None
    (start,), (size, count) = file[40:48].view("<u8"), file[58:62].view("<u2")
    sections = file[start : start + int(size) * int(count)].view(_SECTION)
    where = address - (0 if file[16] == _EXECUTABLE else base)
    for table in sections[sections["f1"] == _SYMBOL_TABLE]:
        symbols: npt.NDArray[Any] = file[table["f4"] : table["f4"] + table["f5"]].view(_SYMBOL)
        inside = (
            (symbols["f1"] & 15 == _FUNCTION)
            & (symbols["f4"] <= where)
            & (where <= symbols["f4"] + symbols["f5"])  # a call that ends it returns behind it
        )
        matches = symbols[inside]
        if len(matches):
            names = file[sections[table["f6"]]["f4"] :]
            first = matches[0]["f0"]
            return bytes(names[first : first + 4096]).split(b"\0")[0]
    return None


def _readable(name: bytes) -> str:
    """A demangled C++ name, if the process has loaded the C++ runtime that demangles it."""
    demangle = getattr(ctypes.CDLL(None), "__cxa_demangle", None)
    if demangle is not None and name.startswith(b"_Z"):
        demangle.restype = ctypes.c_void_p
        status = ctypes.c_int()
        text = demangle(name, None, None, ctypes.byref(status))
        if text:
            name = ctypes.string_at(text)
            _free(text)
    return name.decode(errors="replace")
