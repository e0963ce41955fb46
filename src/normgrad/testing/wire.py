"""Messages between the process that judges and the one that runs an implementation.

Questions and answers are lines of JSON, with arrays in base64. Nothing is unpickled.
"""

from __future__ import annotations

import json
import os
import select
import time
from base64 import b64decode, b64encode
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np

from .. import dtypes
from .outcomes import Outcome

#: The largest answer that is read, in bytes. Real outcomes are a few megabytes.
MOST_BYTES = 1 << 30

#: Seconds between checks whether the other process lives.
_GLANCE = 1.0


class SilenceError(Exception):
    """The other process has not answered in time."""


def send(descriptor: int, message: Mapping[str, Any]) -> None:
    """Write a question or an answer.

    Raises:
        BrokenPipeError: the other process has ended.
    """
    rest = memoryview(json.dumps(message).encode() + b"\n")
    while rest:
        rest = rest[os.write(descriptor, rest) :]


def questions(descriptor: int) -> Iterator[dict[str, Any]]:
    """Yield questions as they arrive, until the process that asks has ended.

    The system writes and reads so few bytes atomically. So a process that ends while it reads does
    not leave part of a question to the next one.
    """
    while data := os.read(descriptor, 1 << 16):
        yield from map(json.loads, data.splitlines())


def receive(
    descriptor: int, unread: bytearray, seconds: float, lives: Callable[[], bool]
) -> dict[str, Any]:
    """Read an answer.

    Args:
        descriptor: the descriptor to read from.
        unread: bytes that were read from there and belong to no answer yet.
        seconds: how long to wait for the answer.
        lives: whether the process that answers still runs. The pipe alone does not show it, since a
            helper that the implementation started may hold the pipe open.

    Raises:
        EOFError: the other process has ended.
        SilenceError: no answer has come in time.
        ValueError: the bytes are no answer.
    """
    deadline, searched = time.monotonic() + seconds, 0
    while (end := unread.find(b"\n", searched)) < 0:
        searched = len(unread)
        if searched > MOST_BYTES:
            raise ValueError(f"a message of more than {MOST_BYTES} bytes")
        gone = not lives()  # before reading, so that all it wrote before it ended is there
        if select.select([descriptor], [], [], 0 if gone else _GLANCE)[0]:
            read = os.read(descriptor, 1 << 20)
            if not read:
                raise EOFError
            unread += read
        elif gone:
            raise EOFError
        elif time.monotonic() > deadline:
            raise SilenceError
    line = bytes(unread[:end])
    del unread[: end + 1]
    found: dict[str, Any] = json.loads(line)
    return found


def written(outcome: Outcome) -> dict[str, Any]:
    """Encode an outcome as part of an answer."""
    outputs = {
        name: (str(value.dtype), value.shape, b64encode(value.tobytes()).decode())
        for name, value in outcome.outputs.items()
    }
    return {**vars(outcome), "outputs": outputs}


def outcome_of(answer: Mapping[str, Any]) -> Outcome:
    """Decode the outcome in an answer."""
    outputs = {}
    for name, (dtype, shape, data) in answer["outputs"].items():
        known = dtypes.BY_NAME.get(dtype)
        kind: np.dtype[Any] = np.dtype(dtype) if known is None else known.numpy
        outputs[name] = np.frombuffer(b64decode(data), kind).reshape(shape)
    error = answer["error"]
    return Outcome(
        outputs,
        None if error is None else (str(error[0]), str(error[1])),
        str(answer["absent"]),
        tuple(map(str, answer["faults"])),
    )
