"""What is said between the process that judges and the one that runs what is tried.

A question is a line of JSON. An answer is a header in JSON, and the bytes of the arrays that it
names. Nothing is unpickled.
"""

from __future__ import annotations

import json
import math
import os
import select
import struct
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np

from .. import dtypes
from .outcomes import Outcome
from .tensors import Array

_LENGTH = struct.Struct("<Q")

#: No answer of an honest process is larger: outcomes are a few megabytes.
MOST_BYTES = 1 << 30


class SilenceError(Exception):
    """The other process has not answered in time."""


def ask(descriptor: int, question: Mapping[str, Any]) -> None:
    """Write a question.

    Raises:
        BrokenPipeError: the other process is gone.
    """
    os.write(descriptor, json.dumps(question).encode() + b"\n")


def questions(descriptor: int) -> Iterator[dict[str, Any]]:
    """The questions as they come, until whoever asks is gone.

    The system writes and reads so few bytes as one, so a process that ends while it reads leaves no
    part of a question for the next.
    """
    while data := os.read(descriptor, 1 << 16):
        yield from map(json.loads, data.splitlines())


def send(descriptor: int, header: Mapping[str, Any], arrays: Mapping[str, Array]) -> None:
    """Write an answer.

    Raises:
        BrokenPipeError: the other process is gone.
    """
    described = [
        {"name": name, "dtype": str(value.dtype), "shape": value.shape}
        for name, value in arrays.items()
    ]
    text = json.dumps({**header, "arrays": described}).encode()
    whole = [_LENGTH.pack(len(text)), text, *(value.tobytes() for value in arrays.values())]
    rest = memoryview(b"".join(whole))
    while rest:
        rest = rest[os.write(descriptor, rest) :]


def receive(
    descriptor: int, seconds: float | None = None, lives: Callable[[], bool] = lambda: True
) -> tuple[dict[str, Any], dict[str, Array]]:
    """Read an answer.

    Args:
        descriptor: where from.
        seconds: how long to wait for it.
        lives: whether whoever is to write it still does. A helper that an implementation has
            started may hold the pipe open when it is gone.

    Raises:
        EOFError: the other process is gone.
        SilenceError: nothing has come in so many seconds.
        ValueError: what came is no answer.
    """
    deadline = None if seconds is None else time.monotonic() + seconds
    (length,) = _LENGTH.unpack(_read(descriptor, _LENGTH.size, deadline, lives))
    header = json.loads(_read(descriptor, length, deadline, lives))
    arrays = {}
    for entry in header.pop("arrays"):
        dtype, shape = _dtype(entry["dtype"]), tuple(map(int, entry["shape"]))
        data = _read(descriptor, dtype.itemsize * math.prod(shape), deadline, lives)
        arrays[str(entry["name"])] = np.frombuffer(data, dtype).reshape(shape)
    return header, arrays


def _dtype(name: str) -> np.dtype[Any]:
    known = dtypes.BY_NAME.get(name)
    return np.dtype(name) if known is None else known.numpy


#: How often it is looked whether the other process lives.
_GLANCE = 1.0


def _read(descriptor: int, count: int, deadline: float | None, lives: Callable[[], bool]) -> bytes:
    if not 0 <= count <= MOST_BYTES:
        raise ValueError(f"a message of {count} bytes")
    data = bytearray()
    while len(data) < count:
        gone = not lives()  # asked first: what it wrote before is there by now
        if not select.select([descriptor], [], [], 0 if gone else _GLANCE)[0]:
            if gone:
                raise EOFError
            if deadline is not None and time.monotonic() > deadline:
                raise SilenceError
            continue
        read = os.read(descriptor, count - len(data))
        if not read:
            raise EOFError
        data += read
    return bytes(data)


def send_outcome(descriptor: int, outcome: Outcome, **more: Any) -> None:
    """Write an answer with an outcome, and what else the header is to say."""
    header = {"error": outcome.error, "absent": outcome.absent, "faults": outcome.faults, **more}
    send(descriptor, header, outcome.outputs)


def outcome_of(header: dict[str, Any], arrays: dict[str, Array]) -> Outcome:
    """The outcome in an answer."""
    error = header["error"]
    return Outcome(
        arrays,
        None if error is None else (str(error[0]), str(error[1])),
        str(header["absent"]),
        tuple(map(str, header["faults"])),
    )
