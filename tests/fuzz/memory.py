"""Tensors in memory that is watched, in any layout, with any values."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import ml_dtypes
import numpy as np
from common import FLOATS
from hypothesis import strategies as st

torch: Any
try:
    import torch
except ImportError:
    torch = None

#: Every byte of this is NaN in every floating dtype, so that what is read beside a tensor shows.
_POISON = 0xFF

#: Bytes before and behind everything in an arena.
_MARGIN = 64

#: Tensors of so many elements are shown with their values.
_SHOWN = 40

#: No tensor has more elements.
MOST_ELEMENTS = 3000

COUNTS = {name: np.dtype(name) for name in ("int32", "int64", "float16", "float32")}
DTYPES = {**FLOATS, **COUNTS}

#: What no operator takes.
WRONG_DTYPES = [
    *(np.dtype(name) for name in ("int8", "uint8", "int16", "uint16", "uint32", "uint64", "bool")),
    *(np.dtype(name) for name in ("complex64", "complex128", "longdouble", "S4", "U2", "O", "V3")),
    *(np.dtype(name) for name in (">f4", ">f2", ">f8", "M8[s]", "m8[ns]")),
    np.dtype([("a", "<f4")]),
    np.dtype([("a", "<f2"), ("b", "<i4")]),
    np.dtype(ml_dtypes.float8_e4m3fn),
    np.dtype(ml_dtypes.float8_e5m2),
    np.dtype(ml_dtypes.int4),
]


# Memory


class Short:
    """Shown by Hypothesis as its repr."""

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:
        printer.text(repr(self))


@dataclass(frozen=True, repr=False)
class View(Short):
    """A tensor: where it lies in an arena, in bytes."""

    shape: tuple[int, ...]
    dtype: str
    strides: tuple[int, ...]
    offset: int
    arena: np.ndarray = field(compare=False)

    def __repr__(self) -> str:
        values = self.array.tolist() if math.prod(self.shape) <= _SHOWN else "..."
        return f"{self.dtype}{self.shape} by {self.strides} at {self.offset}: {values}"

    @property
    def itemsize(self) -> int:
        return DTYPES[self.dtype].itemsize

    @property
    def array(self) -> np.ndarray:
        """The tensor, as NumPy has it."""
        if 0 in self.shape:
            return np.empty(self.shape, DTYPES[self.dtype])
        return np.ndarray(self.shape, DTYPES[self.dtype], self.arena, self.offset, self.strides)

    @property
    def is_whole(self) -> bool:
        """Whether the strides are whole items, as all but NumPy's are."""
        return all(step % self.itemsize == 0 for step in self.strides)

    @property
    def steps(self) -> tuple[int, ...]:
        """The strides in elements."""
        return tuple(step // self.itemsize for step in self.strides)

    @property
    def tensor(self) -> Any:
        """The same in PyTorch."""
        dtype = getattr(torch, self.dtype)
        if 0 in self.shape:
            return torch.empty(self.shape, dtype=dtype)
        start = self.offset % self.itemsize
        storage = torch.from_numpy(self.arena[start:]).untyped_storage()
        return torch.empty(0, dtype=dtype).set_(
            storage, self.offset // self.itemsize, self.shape, self.steps
        )

    def bytes_of(self, mask: np.ndarray) -> None:
        """Set the mask, as long as the arena, where the tensor's bytes are."""
        if 0 not in self.shape:
            item = (*self.shape, self.itemsize)
            np.ndarray(item, np.bool_, mask, self.offset, (*self.strides, 1))[...] = True


class Watched:
    """Arenas, and what was in them when the watch began.

    Args:
        arenas: all memory of a call.
        outputs: what may be written.
    """

    def __init__(self, arenas: Sequence[np.ndarray], outputs: Sequence[View]) -> None:
        self._arenas = list({id(arena): arena for arena in arenas}.values())
        self._before = [arena.copy() for arena in self._arenas]
        self._outputs = outputs

    def check_untouched(self) -> None:
        """Nothing has changed at all."""
        for arena, before in zip(self._arenas, self._before, strict=True):
            assert np.array_equal(arena, before), "written by a call that was refused"

    def check_gaps(self) -> None:
        """Nothing has changed but the outputs' elements."""
        for arena, before in zip(self._arenas, self._before, strict=True):
            changed = arena != before
            if changed.any():
                mask = np.zeros(arena.shape, np.bool_)
                for view in self._outputs:
                    if view.arena is arena:
                        view.bytes_of(mask)
                where = np.flatnonzero(changed & ~mask)
                assert not where.size, f"written beside the outputs: bytes {where[:8]}"


def placed(
    shape: tuple[int, ...], dtype: str, strides: Sequence[int], misaligned: int = 0, room: int = 0
) -> View:
    """A tensor with these strides, in bytes, in an arena of its own with ``room`` behind it."""
    low = high = 0
    if 0 not in shape:
        for size, step in zip(shape, strides, strict=True):
            low, high = low + min(0, (size - 1) * step), high + max(0, (size - 1) * step)
    most = 2 * _MARGIN + high - low + DTYPES[dtype].itemsize + misaligned + room
    arena = np.full(most, _POISON, np.uint8)
    first = _MARGIN - low
    first += -(arena.ctypes.data + first) % 16
    return View(shape, dtype, tuple(strides), first + misaligned, arena)


# How tensors lie

_DENSE = ("contiguous", "permuted", "gapped", "odd", "misaligned")
_REPEATED = (*_DENSE, "expanded", "sliding", "crossing")


@st.composite
def views(
    draw: Any,
    shape: tuple[int, ...],
    dtype: str,
    *,
    output: bool = False,
    negative: bool = True,
    whole: bool = True,
    room: int = 0,
) -> View:
    """A tensor in any layout.

    Args:
        draw: Hypothesis's.
        shape, dtype: the tensor's.
        output: whether no element may be there twice.
        negative: whether strides may be.
        whole: whether strides are whole items.
        room: bytes kept free behind.
    """
    itemsize = DTYPES[dtype].itemsize
    rank = len(shape)
    style = draw(st.sampled_from(_DENSE if output else _REPEATED))
    order = list(range(rank))
    if style in ("permuted", "gapped", "crossing", "odd"):
        order = draw(st.permutations(order))
    inner = draw(st.integers(1, 3)) if style == "gapped" else 1
    gap = draw(st.integers(0, 2)) if style in ("gapped", "odd") else 0
    strides = [itemsize] * rank
    step = inner * itemsize
    for axis in reversed(order):
        strides[axis] = step
        step = step * max(shape[axis], 1) + gap * itemsize
    if style == "sliding" and rank:
        strides[draw(st.integers(0, rank - 1))] = itemsize
    if style == "expanded" and rank:
        strides[draw(st.integers(0, rank - 1))] = 0
    if style == "crossing" and not whole and itemsize > 1:
        # As a field of a record: apart, but by no whole items.
        strides = [step + step // itemsize for step in strides]
    if negative and rank and draw(st.booleans()):
        for axis in range(rank):
            if draw(st.booleans()):
                strides[axis] = -strides[axis]
    misaligned = draw(st.integers(0, itemsize - 1)) if style == "misaligned" else 0
    return placed(shape, dtype, strides, misaligned, room)


# Values

KINDS_OF_VALUES = ("normal", "normal", "normal", "special", "wild", "few")


def fill(view: View, rng: np.random.Generator, kind: str, positive: bool = False) -> None:
    """Put values into a tensor.

    Args:
        view: the tensor.
        rng: what they are drawn with.
        kind: "normal": of everyday size; "special": some NaN and Inf among them; "wild": of any
            magnitude; "few": small whole numbers, zeros among them.
        positive: whether they are about a spread.
    """
    array = view.array
    shape = view.shape
    if view.dtype in ("int32", "int64"):
        array[...] = rng.integers(0 if kind == "few" else 1, 100, shape)
        return
    values = rng.uniform(0.5, 2, shape) if positive else rng.normal(0.3, 1, shape)
    if kind == "few":
        values = rng.integers(0 if positive else -2, 3, shape).astype(np.float64)
    if kind == "wild":
        most = {"float16": 9, "float64": 600}.get(view.dtype, 75)
        values = np.asarray(values) * 10.0 ** (rng.uniform(-most, most, shape) / 2)
        values = np.where(rng.random(shape) < 0.1, 0.0, values)
    if kind == "special" and values.size:
        special = rng.choice([np.nan, np.inf, -np.inf, -0.0, 1e-45, 3e38], shape)
        values = np.where(rng.random(shape) < 2 / max(4, values.size), special, values)
    with np.errstate(all="ignore"):
        array[...] = values.astype(DTYPES[view.dtype])
