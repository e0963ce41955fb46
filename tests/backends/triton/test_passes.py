"""Tensors that a GPU's kernels read in one pass and in two, by Triton's interpreter.

Tensors are small, so the GPU is made up to suit: one whose programs hold much, or nothing.
"""

from __future__ import annotations

import itertools
from dataclasses import replace
from unittest import mock

import numpy as np
import pytest
from common import FLOATS, INTERPRETED, bits, make, on_device, run
from triton_programs import PASSES, forward_case

import normgrad as ng
from normgrad.backends.triton import cuts, layouts
from normgrad.backends.triton.policy import POLICY
from normgrad.operators import precision

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


@pytest.mark.every_case
@pytest.mark.parametrize(
    ("positions", "launches"),
    [(300, "sums write+sums"), (20, "sums combine+parts write+sums")],
)
def test_groups_of_one_channel_in_parts(positions, launches):
    """Their sums are weighted by the program that writes, or by one before it."""
    case = make("group_norm", (1, 2, positions), dtype="bfloat16", num_groups=2)
    with on_device(PASSES["two passes"]):
        assert f" {launches} combine+parameters" in plan_of(case).path
        check_twice(case, "two passes")


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
        for kind in ("train", "group_norm", "layer_norm"):
            for layout in ("contiguous", "channels_last"):
                case = make(kind, (3, 6, 5, 4), layout=layout)
                with mock.patch.object(layouts, "SHORT", 1), on_device(PASSES[passes]):
                    assert plan_of(case)._schedule.launches[-1].config.long_positions
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


#: Groups of few positions to a channel: with one part of the lines and with several.
LINES = [
    ((70, 12), 1), ((300, 6), 2), ((9, 6, 3), 3), ((5, 40), 1), ((130, 8, 2, 2), 2), ((1, 6), 1),
    ((20, 6, 16), 2), ((9, 700), 2), ((3, 300, 3), 1),
]  # fmt: skip


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize(("shape", "groups"), LINES)
@pytest.mark.parametrize("passes", PASSES)
def test_lines(passes, shape, groups, dtype):
    for kind in ("group_norm", "forward_group_norm"):
        case = make(kind, shape, dtype=dtype, num_groups=groups)
        with on_device(PASSES[passes]):
            assert "lines" in plan_of(case).path
            check_twice(case, passes)


@pytest.mark.parametrize(("layout", "x_layout"), [*LAYOUTS, ("transposed", "transposed")])
@pytest.mark.parametrize("shape", [(40, 12), (9, 12, 3), (9, 4, 2, 3)])
@pytest.mark.parametrize("passes", PASSES)
def test_lines_in_any_layout(passes, shape, layout, x_layout):
    for kind in ("group_norm", "forward_group_norm"):
        case = make(kind, shape, layout=layout, x_layout=x_layout, num_groups=2)
        with on_device(PASSES[passes]):
            run(case, normal=True)


@pytest.mark.parametrize("mask", [*itertools.product([True, False], repeat=3)])
@pytest.mark.parametrize("passes", PASSES)
def test_outputs_of_lines_do_not_depend_on_each_other(passes, mask):
    case = make("group_norm", (70, 12), num_groups=2)
    with on_device(PASSES[passes]):
        whole = bits(case.call())
        found = bits(run(case, output_mask=mask))
    for wanted, (name, value) in zip(mask, found.items(), strict=True):
        assert value == (whole[name] if wanted else None), name


@pytest.mark.parametrize("where", ["grad_out", "input"])
@pytest.mark.parametrize("shape", [(70, 12), (9, 6, 3)])
@pytest.mark.parametrize("passes", PASSES)
def test_lines_in_place(passes, shape, where):
    for kind in ("group_norm", "forward_group_norm"):
        case = make(kind, shape, num_groups=3)
        name = where if kind == "group_norm" else "input"
        with on_device(PASSES[passes]):
            expected = bits(case.call())
            assert bits(case.call(out=(case.tensors[name], None, None))) == expected


@pytest.mark.parametrize("name", ["weight", "rstd", "grad_out", "input"])
@pytest.mark.parametrize("shape", [(40, 4), (40, 4, 3)])
@pytest.mark.parametrize("passes", PASSES)
def test_special_values_of_lines(passes, shape, name):
    """Parameters have what the oracle has; and a line is not finite where the oracle's is not."""
    for special in (np.nan, np.inf, -np.inf, 0.0):
        case = make("group_norm", shape, num_groups=2)
        values = case.tensors[name].copy()
        values[(..., 1) if name == "weight" else (7, 1)] = special
        case.tensors[name] = values
        exact = case.exact()
        with on_device(PASSES[passes]):
            result = case.call()
        for each in ("grad_weight", "grad_bias"):
            error = precision.error(getattr(result, each), exact[each], case.arithmetic)
            assert error.max() <= 1, (each, special)
        finite = np.isfinite(exact["grad_input"].value)
        error = precision.error(result.grad_input, exact["grad_input"], case.arithmetic)
        assert error[finite].max() <= 1
        assert (np.isfinite(result.grad_input) == finite).all()


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize(("rows", "columns"), [(70, 40), (20, 300), (19, 12)])
def test_chains_of_many_lines(rows, columns, dtype, monkeypatch):
    """Terms of the parameters' gradients that one program adds up: many chains, few, and one."""
    monkeypatch.setattr(cuts, "POLICY", replace(POLICY, warps=1))
    case = make("group_norm", (rows, columns), dtype=dtype, num_groups=1)
    with on_device(PASSES["one pass"]):
        (launch, _) = plan_of(case)._schedule.launches
        assert launch.config.chain == POLICY.chain
        sizes = launch.arguments.sizes
        programs_each = -(-sizes.each // (POLICY.chain * POLICY.chains))
        assert sizes.slots == launch.programs // sizes.sets * programs_each
        check_twice(case, "one pass")


@pytest.mark.parametrize("kind", ["train", "group_norm", "forward", "forward_group_norm"])
@pytest.mark.parametrize("layout", ["contiguous", "channels_last"])
@pytest.mark.parametrize("passes", PASSES)
def test_gpus_whose_float64_arithmetic_is_slow(passes, layout, kind):
    """Sums are pairs of float32, within the same bound."""
    slow = replace(PASSES[passes], fast_float64=False)
    for dtype in ("float32", "float16"):
        case = make(kind, (4, 6, 9, 5), dtype=dtype, layout=layout, num_groups=2)
        with on_device(slow):
            assert plan_of(case)._schedule.launches[0].config.singles
            check_twice(case, passes)


@pytest.mark.parametrize("passes", PASSES)
@pytest.mark.parametrize("shape", [(19, 300), (6, 40, 3)])
def test_lines_where_float64_arithmetic_is_slow(passes, shape):
    """Rows, and group norm's lines of channels with a few positions."""
    case = make("group_norm", shape, num_groups=1)
    with on_device(replace(PASSES[passes], fast_float64=False)):
        launches = plan_of(case)._schedule.launches
        assert launches[0].config.singles
        assert launches[-1].config.parameters > 0
        check_twice(case, passes)


@pytest.mark.parametrize("name", ["input", "grad_out"])
def test_special_values_where_float64_arithmetic_is_slow(name):
    for special in (np.nan, np.inf, -np.inf):
        case = make("train", (3, 5, 20, 3))
        case.tensors[name][1, 2, 3, 1] = special
        exact = case.exact()
        with on_device(replace(PASSES["two passes"], fast_float64=False)):
            result = case.call()
        for each in ("grad_weight", "grad_bias"):
            error = precision.error(getattr(result, each), exact[each], case.arithmetic)
            assert error.max() <= 1, (each, special)


@pytest.mark.parametrize("groups", [2, 6])
@pytest.mark.parametrize("passes", PASSES)
def test_a_single_sample(passes, groups):
    """Its parameters' gradients are of channels, though its coefficients are of groups."""
    case = make("group_norm", (1, 6, 9, 9), num_groups=groups)
    with on_device(PASSES[passes]):
        run(case)
