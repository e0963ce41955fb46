"""What is said between the process that judges and the one that runs what is tried.

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

#: No answer of an honest process is larger: outcomes are a few megabytes.
MOST_BYTES = 1 << 30

#: How often it is looked whether the other process lives.
_GLANCE = 1.0


class SilenceError(Exception):
    """The other process has not answered in time."""


def send(descriptor: int, message: Mapping[str, Any]) -> None:
    """Write a question or an answer.

    Raises:
        BrokenPipeError: the other process is gone.
    """
    rest = memoryview(json.dumps(message).encode() + b"\n")
    while rest:
        rest = rest[os.write(descriptor, rest) :]


def questions(descriptor: int) -> Iterator[dict[str, Any]]:
    """The questions as they come, until whoever asks is gone.

    The system writes and reads so few bytes as one, so a process that ends while it reads leaves no
    part of a question for the next.
    """
    while data := os.read(descriptor, 1 << 16):
        yield from map(json.loads, data.splitlines())


def receive(
    descriptor: int, unread: bytearray, seconds: float, lives: Callable[[], bool]
) -> dict[str, Any]:
    """Read an answer.

    Args:
        descriptor: where from.
        unread: what was read from there and belongs to no answer yet.
        seconds: how long to wait for it.
        lives: whether whoever is to write it still does. A helper that an implementation has
            started may hold the pipe open when it is gone.

    Raises:
        EOFError: the other process is gone.
        SilenceError: nothing has come in so many seconds.
        ValueError: what came is no answer.
    """
    deadline, searched = time.monotonic() + seconds, 0
    while (end := unread.find(b"\n", searched)) < 0:
        searched = len(unread)
        if searched > MOST_BYTES:
            raise ValueError(f"a message of more than {MOST_BYTES} bytes")
        gone = not lives()  # asked first: what it wrote before is there by now
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
    """An outcome as a part of an answer."""
    outputs = {
        name: (str(value.dtype), value.shape, b64encode(value.tobytes()).decode())
        for name, value in outcome.outputs.items()
    }
    return {**vars(outcome), "outputs": outputs}


def outcome_of(answer: Mapping[str, Any]) -> Outcome:
    """The outcome in an answer."""
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
