"""Helpers of all tests: tensors in every layout, and the check that every result must pass."""

from __future__ import annotations

import contextlib
import os
import random
from collections.abc import Iterable, Iterator
from dataclasses import replace
from functools import cache
from typing import Any, TypeVar
from unittest import mock

import ml_dtypes
import numpy as np

from normgrad.backends import choice
from normgrad.backends.cpu.schedule import schedules as schedule
from normgrad.backends.cpu.schedule.policy import Policy, policy_of
from normgrad.backends.triton import device
from normgrad.backends.triton.device import Device
from normgrad.operators import precision
from normgrad.operators.reference import Exact
from normgrad.plans import calls
from normgrad.tensors import dtypes
from normgrad.testing import GRADIENTS as OPERATORS  # noqa: F401 - tests import these from here
from normgrad.testing import LAYOUTS as LAYOUTS
from normgrad.testing import Call as Case
from normgrad.testing import lay_out as lay_out
from normgrad.testing import make as make
from normgrad.testing.tensors import HALVES as HALVES

T = TypeVar("T")
FLOATS = {dtype.name: dtype.numpy for dtype in dtypes.FLOATS}
BFLOAT16 = np.dtype(ml_dtypes.bfloat16)

#: Whether all cases run, rather than a sample of those that are many and slow.
FULL = os.environ.get("NORMGRAD_FULL") == "1"


def sampled(items: Iterable[T], most: int, seed: object = "") -> list[T]:
    """All items if all cases run, else at most ``most`` of them, the same ones in every run."""
    every = list(items)
    return every if FULL else random.Random(f"{seed}").sample(every, min(most, len(every)))


#: Whether Triton's interpreter computes, which takes too long for large tensors.
INTERPRETED = os.environ.get("NORMGRAD_BACKEND") == "triton"
#: A shape whose rows are longer than a block that kernels process at once.
LONG_ROWS = (3, 2, 20, 20) if INTERPRETED else (3, 6, 70, 70)


def same_strides(like: np.ndarray) -> np.ndarray:
    """A new array full of NaN with exactly the strides of ``like``, even negative ones."""
    flip = tuple(slice(None, None, -1 if step < 0 else 1) for step in like.strides)
    low = like[flip]
    span = 1 + sum(
        (n - 1) * abs(s) // low.itemsize for n, s in zip(low.shape, low.strides, strict=True)
    )
    flat = np.full(span, np.nan, like.dtype)
    return np.lib.stride_tricks.as_strided(flat, low.shape, low.strides)[flip]


def poisoned(like: np.ndarray, dtype: np.dtype | None = None) -> np.ndarray:
    """A new output full of NaN, in the layout of ``like``."""
    out = np.empty_like(like, dtype=dtype or like.dtype)
    out[...] = np.nan
    return out


class Producer:
    """A tensor that speaks DLPack and nothing else."""

    def __init__(self, tensor: Any) -> None:
        self._tensor = tensor

    def __dlpack_device__(self) -> Any:
        return self._tensor.__dlpack_device__()

    def __dlpack__(self, **arguments: Any) -> Any:
        return self._tensor.__dlpack__(**arguments)


def named(result: Any) -> dict[str, Any]:
    """A result's outputs by name; an operator with one output returns the tensor itself."""
    return result._asdict() if hasattr(result, "_asdict") else {"the only one": result}


def units_of(
    value: np.ndarray, exact: Exact, arithmetic: dtypes.DType, normal: bool = False
) -> np.ndarray:
    """The error of each element in units of its bound.

    Where the formula gives infinity or NaN, normgrad's outputs must be what float64 gives, and not
    either of these, as of other implementations.
    """
    special = ~np.isfinite(exact.value)
    np.testing.assert_array_equal(value[special].astype(float), exact.value[special].astype(float))
    return precision.error(value, exact, arithmetic, normal)


def check(case: Case, result: Any, *, normal: bool = False, exact: Any = None) -> float:
    """Check that every output is within its bound; return the largest error in units of it."""
    worst = 0.0
    exact = exact or case.exact()
    for name, value in named(result).items():
        if value is None:
            continue
        name = name if name in exact else next(iter(exact))
        units = units_of(np.asarray(value), exact[name], case.arithmetic, normal)
        assert units.shape == exact[name].value.shape
        if units.size:
            worst = max(worst, float(units.max()))
            assert units.max() <= 1, f"{name}: {units.max():.3g} of the bound in {case}"
    return worst


def run(case: Case, *, normal: bool = False, **more: Any) -> Any:
    """Make the call, check its result against the oracle, and check that no input has changed."""
    before = {
        name: None if value is None else value.tobytes() for name, value in case.tensors.items()
    }
    exact = case.exact()
    result = case.call(**more)
    after = {
        name: None if value is None else value.tobytes() for name, value in case.tensors.items()
    }
    assert before == after
    check(case, result, normal=normal, exact=exact)
    return result


def bits(result: Any) -> dict[str, bytes | None]:
    """A result as bytes, to compare exactly."""
    return {
        name: None if value is None else np.ascontiguousarray(value).tobytes()
        for name, value in named(result).items()
    }


#: The device to plan for when Triton's interpreter is to split tensors finely.
FINE = Device("fine", processors=3, threads=32, programs_each=1, persistent=1)


@contextlib.contextmanager
def on_device(made_up: Device) -> Iterator[None]:
    """Plan for this GPU when Triton's interpreter computes."""
    with (
        mock.patch.object(device, "INTERPRETED", made_up),
        mock.patch.object(choice, "_triton", cache(choice._Triton)),
        mock.patch.dict(calls._plans, clear=True),
    ):
        yield


@contextlib.contextmanager
def shared_by_threads() -> Iterator[None]:
    """Plan for several threads however few elements there are."""
    with (
        mock.patch.object(
            schedule, "policy_of", lambda machine: replace(policy_of(machine), shared=1)
        ),
        mock.patch.dict(calls._plans, clear=True),
    ):
        yield


#: A policy that cuts small tensors as large ones are cut.
FINELY = Policy(
    small=1, shared=1, part=8, in_cache=64, rows=2, rows_of_part=1, rows_in_order=1,
    streamed_row=1, streamed=1, cache=0, fetched=0,
)  # fmt: skip


@contextlib.contextmanager
def cut_finely() -> Iterator[None]:
    """Plan as for large tensors: many tasks, channels in parts, dx written past the caches.

    With Triton's interpreter, plan for a GPU whose programs hold no elements.
    """
    with (
        on_device(FINE),
        mock.patch.object(schedule, "policy_of", return_value=FINELY),
        mock.patch.dict(calls._plans, clear=True),
    ):
        yield
