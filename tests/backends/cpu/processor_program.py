"""Digests of results on the processor that the environment names, after they were checked."""

from __future__ import annotations

import hashlib

import ml_dtypes
import numpy as np
from common import check, make, named, sampled

import normgrad as ng

HALVES = np.arange(1 << 16, dtype=np.uint16).view(np.float16)


def singles() -> np.ndarray:
    """Numbers of every size, each half and what lies half-way to the next, and their neighbours."""
    words = np.arange(1 << 16, dtype=np.uint32)
    halves = HALVES.astype(np.float32).view(np.uint32)
    steps = np.array([0, 1, -1], np.int64).astype(np.uint32)
    near = [part + step for part in (words << 16, halves, halves | 0x1000) for step in steps]
    return np.concatenate(near).view(np.float32)


def scaled(dy: np.ndarray, weight: np.ndarray, out: tuple) -> None:
    """dy, one element a channel, times the weight; and dy itself as the gradient of the bias."""
    ones = np.ones_like(weight)
    vectors = {"running_mean": np.zeros_like(weight), "running_var": ones}
    ng.batch_norm_backward(
        dy[None], dy[None], weight, **vectors, training=False, eps=0.0, out=(out[0], None, out[1])
    )


def normalised(x: np.ndarray, weight: np.ndarray) -> np.ndarray:
    """x, one element a channel, times the weight, by a loop that sums nothing."""
    vectors = {"running_mean": np.zeros_like(weight), "running_var": np.ones_like(weight)}
    return ng.batch_norm(x, weight, **vectors, training=False, eps=0.0).output


def conversions() -> bytes:
    """Every float16 as a single and back, and many singles as both half types."""
    widened, back = np.empty(HALVES.size, np.float32), np.empty((1, HALVES.size), np.float16)
    ones = np.ones(HALVES.size, np.float32)
    scaled(HALVES, ones, (back, widened))
    np.testing.assert_array_equal(widened, HALVES.astype(np.float32))
    np.testing.assert_array_equal(back[0], HALVES)
    numbers = singles()
    rounded = np.empty((1, numbers.size), np.float16)
    weight = np.where(np.isnan(numbers), 0, numbers)
    scaled(np.ones(numbers.size, np.float16), weight, (rounded, np.empty_like(weight)))
    with np.errstate(over="ignore"):
        np.testing.assert_array_equal(rounded[0], weight.astype(np.float16))
    numbers = numbers[np.isfinite(numbers)]
    output = normalised(np.ones((1, numbers.size), ml_dtypes.bfloat16), numbers)
    with np.errstate(over="ignore"):
        np.testing.assert_array_equal(output[0], numbers.astype(ml_dtypes.bfloat16))
    return b"".join(part.tobytes() for part in (widened, back, rounded, output))


print(hashlib.sha256(conversions()).hexdigest())
# Parts of rows of lanes in sums of one row and of several: in columns, and in rows.
SHAPES = [
    ((20, 70), "float32"), ((20, 70), "float16"), ((90, 70), "float32"), ((3, 5, 75), "float32"),
]  # fmt: skip
for shape, dtype in sampled(SHAPES, 2):
    case = make("train", shape, dtype=dtype)
    result = case.call()
    check(case, result)
    content = b"".join(value.tobytes() for value in named(result).values())
    print(shape, dtype, hashlib.sha256(content).hexdigest())
