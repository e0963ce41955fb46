"""Tensors that a GPU's kernels read in one pass and in two, by Triton's interpreter.

Tensors are small, so the GPU is made up to suit: one whose programs hold much, or nothing.
"""

from __future__ import annotations

from dataclasses import replace
from unittest import mock

import numpy as np
import pytest
from support import FLOATS, INTERPRETED, bits, make, on_device, run
from triton_programs import PASSES, forward_case

import normgrad as ng
from normgrad.backends.triton import tiling

pytestmark = pytest.mark.skipif(not INTERPRETED, reason="kernels are not interpreted")

SHAPE = (3, 6, 5, 4)
LAYOUTS = [
    ("contiguous", "contiguous"),
    ("channels_last", "channels_last"),
    ("contiguous", "channels_last"),
    ("sliced", "negative"),
]


def plan_of(case):
    return ng.plan(case.name, **case.tensors, **case.options)


def check_twice(case, passes):
    """Within the bound; the same bits with any rubbish in the workspace."""
    plan = plan_of(case)
    assert passes in plan.path
    first = run(case)
    rubbish = np.full(plan.workspace_size, 0xFF, np.uint8)
    again = plan.run(**case.tensors, workspace=rubbish)
    assert bits(first) == bits(again)


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize(("layout", "x_layout"), LAYOUTS)
@pytest.mark.parametrize("passes", PASSES)
def test_gradients(passes, layout, x_layout, dtype):
    for kind, groups in (("train", 1), ("group_norm", 2)):
        case = make(
            kind,
            SHAPE,
            dtype=dtype,
            layout=layout,
            x_layout=x_layout,
            num_groups=groups,
        )
        with on_device(PASSES[passes]):
            check_twice(case, passes)


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("layout", ["contiguous", "channels_last", "sliced"])
@pytest.mark.parametrize("passes", PASSES)
def test_forward_passes(passes, layout, dtype):
    for kind in ("batch_norm", "group_norm"):
        case = forward_case(kind, SHAPE, dtype, layout)
        with on_device(PASSES[passes]):
            check_twice(case, passes)


@pytest.mark.parametrize("passes", PASSES)
def test_statistics_that_are_missing(passes):
    case = make("train_without_statistics", SHAPE)
    with on_device(PASSES[passes]):
        check_twice(case, passes)


@pytest.mark.parametrize("passes", PASSES)
def test_nan_stays_in_its_channel(passes):
    case = make("train", (3, 6, 5, 4))
    case.tensors["grad_out"][1, 2, 3, 1] = np.nan
    case.tensors["input"][2, 4, 0, 0] = np.inf
    with on_device(PASSES[passes]):
        run(case)


@pytest.mark.parametrize("groups", [1, 2, 3, 6])
@pytest.mark.parametrize("passes", PASSES)
def test_groups_of_any_size(passes, groups):
    """Tiles with several groups, one group, or a part of one."""
    for layout in ("contiguous", "channels_last"):
        case = make("group_norm", (2, 12, 3, 4), layout=layout, num_groups=groups)
        with on_device(replace(PASSES[passes], processors=1 << 10)):
            run(case)


@pytest.mark.parametrize("where", ["grad_out", "input"])
@pytest.mark.parametrize("passes", PASSES)
def test_in_place(passes, where):
    case = make("train", (3, 6, 5, 4), layout="channels_last")
    with on_device(PASSES[passes]):
        expected = bits(case.call())
        out = (case.tensors[where], None, None)
        result = case.call(out=out)
    assert result.grad_input is case.tensors[where]
    assert bits(result) == expected


@pytest.mark.parametrize("kind", ["batch_norm", "group_norm"])
@pytest.mark.parametrize("passes", PASSES)
def test_forward_passes_in_place(passes, kind):
    """What moments are about is an element of x, and gone when others still need it."""
    case = forward_case(kind, SHAPE, "float32", "contiguous")
    with on_device(PASSES[passes]):
        expected = case.call()
        case.tensors["input"] = case.tensors["input"].copy("K")
        result = case.call(out=(case.tensors["input"], *[None] * (len(expected) - 1)))
    assert bits(result) == bits(expected)


def test_many_axes_that_cannot_be_merged():
    case = make("train", (2, 3, 2, 3, 2, 3), layout="sliced", x_layout="sliced")
    assert "one pass" in plan_of(case).path
    run(case)
    with on_device(PASSES["two passes"]):
        run(case)


def test_long_offsets_and_positions():
    """What tensors of more than 2³¹ elements need, on small ones."""
    for passes in PASSES:
        for layout in ("contiguous", "channels_last"):
            case = make("train", (3, 6, 5, 4), layout=layout)
            with mock.patch.object(tiling, "SHORT", 1), on_device(PASSES[passes]):
                run(case)


def test_an_address_that_is_aligned_to_its_elements_alone():
    case = make("train", (4, 8, 4, 4), dtype="float16")
    expected = bits(run(case))
    for name in ("grad_out", "input"):
        values = case.tensors[name]
        apart = np.zeros(values.size + 1, values.dtype)
        apart[1:] = values.ravel()
        case.tensors[name] = apart[1:].reshape(values.shape)
        assert case.tensors[name].ctypes.data % 4 == 2
    assert bits(run(case)) == expected


@pytest.mark.parametrize(("dtype", "step"), [("bfloat16", 2.0**-7), ("float16", 2.0**-10)])
def test_halves_are_rounded_once(dtype, step):
    """float64 arithmetic with results in halves: what float32 would make a tie is none."""
    dy = np.array([[1 + step / 2 + 2.0**-40], [1 + step / 2 - 2.0**-40], [1 + step / 2]])
    given = dict.fromkeys(("running_mean", "running_var"))
    result = ng.batch_norm_backward(
        np.concatenate([dy, -dy]), np.zeros((6, 1)), **given, training=False, eps=0.0,
        output_mask=(True, False, False), out=(np.empty((6, 1), FLOATS[dtype]), None, None),
    )  # fmt: skip
    got = result.grad_input.astype(np.float64).ravel().tolist()
    assert got == [1 + step, 1, 1, -1 - step, -1, -1]


@pytest.mark.parametrize("layout", ["contiguous", "channels_last", "odd"])
@pytest.mark.parametrize("passes", PASSES)
def test_nothing_is_written_beside_an_output(passes, layout):
    """At every alignment."""
    case = make("train", (3, 6, 5, 3), dtype="float16", layout=layout)
    shape, size = case.tensors["input"].shape, case.tensors["input"].size
    strides = np.empty_like(case.tensors["input"]).strides
    for offset in (0, 2, 8):
        memory = np.full(2 * size + 256, 0xAB, np.uint8)
        start = -memory.ctypes.data % 64 + 64 + offset
        flat = memory[start : start + 2 * size].view(np.float16)
        out = np.lib.stride_tricks.as_strided(flat, shape, strides)
        with on_device(PASSES[passes]):
            run(case, out=(out, None, None))
        assert (memory[:start] == 0xAB).all()
        assert (memory[start + 2 * size :] == 0xAB).all()


@pytest.mark.parametrize("groups", [2, 6])
@pytest.mark.parametrize("passes", PASSES)
def test_a_single_sample(passes, groups):
    """Its parameters' gradients are of channels, though its coefficients are of groups."""
    case = make("group_norm", (1, 6, 9, 9), num_groups=groups)
    with on_device(PASSES[passes]):
        run(case)
