"""Plans: from specs alone, run many times, with the caller's memory."""

from __future__ import annotations

import inspect
import itertools
import re
import tracemalloc
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from common import FLOATS, OPERATORS, Case, Producer, bits, cut_finely, make, named, run

import normgrad as ng
from normgrad import TensorSpec
from normgrad.backends.cpu.schedule import block
from normgrad.operators.by_name import PLANNED
from normgrad.plans import cache, calls, workspaces
from normgrad.plans.cache import Cache
from normgrad.testing.tensors import FORWARD


def plan_of(case: Case, **more) -> ng.Plan:
    return ng.plan(case.name, **case.tensors, **case.options, **more)


@pytest.mark.parametrize("layout", ["contiguous", "channels_last", "sliced"])
@pytest.mark.parametrize("kind", OPERATORS)
@pytest.mark.parametrize("cut", [False, True])
def test_a_plan_gives_the_functions_bits(kind, layout, cut):
    case = make(kind, (3, 4, 5, 6), layout=layout, num_groups=2)
    expected = bits(case.call())
    specs = {
        name: None
        if value is None
        else TensorSpec(value.shape, value.dtype, [s // value.itemsize for s in value.strides])
        for name, value in case.tensors.items()
    }
    if cut:
        with cut_finely():
            expected = bits(run(case))
            plan = ng.plan(case.name, **specs, **case.options)
    else:
        plan = ng.plan(case.name, **specs, **case.options)
    for _ in range(2):
        assert bits(plan.run(**case.tensors)) == expected
        positional = [
            case.tensors.get(name) for name in inspect.signature(getattr(ng, case.name)).parameters
        ]
        positional = positional[: len(plan._operator.inputs)]
        assert bits(plan.run(*positional)) == expected
    # Any alignment, and a workspace full of garbage.
    for offset in (0, 1, 33):
        memory = np.full(plan.workspace_size + 64, 0xFF, np.uint8)
        scratch = memory[offset : offset + plan.workspace_size]
        assert bits(plan.run(**case.tensors, workspace=scratch)) == expected
        assert (memory[:offset] == 0xFF).all()
        assert (memory[offset + plan.workspace_size :] == 0xFF).all()
    assert bits(plan.run(**case.tensors, workspace=bytearray(plan.workspace_size))) == expected


def test_specs_of_every_kind():
    array = np.zeros((2, 3, 4), np.float16)
    expected = ng.plan("batch_norm_backward", grad_out=array, input=array, training=True)
    for spec in (
        TensorSpec((2, 3, 4), "float16"),
        TensorSpec([2, 3, 4], np.float16, [12, 4, 1]),
        TensorSpec(np.array([2, 3, 4]), np.dtype("float16")),
    ):
        plan = ng.plan("batch_norm_backward", grad_out=spec, input=spec, training=True)
        assert plan.output_specs == expected.output_specs
        assert plan.workspace_size == expected.workspace_size
    grad_input, grad_weight, grad_bias = expected.output_specs
    assert grad_input == TensorSpec((2, 3, 4), "float16")
    assert grad_weight == grad_bias == TensorSpec((3,), "float16")


def test_a_plan_needs_no_data_and_little_memory():
    huge = TensorSpec((1 << 20, 64, 1 << 10, 1 << 10), "float32")
    plan = ng.plan(
        "group_norm_backward", grad_out=huge, input=huge, num_groups=32,
        mean=TensorSpec((1 << 20, 32), "float32"), rstd=TensorSpec((1 << 20, 32), "float32"),
    )  # fmt: skip
    assert 0 < plan.workspace_size < 1 << 37


def test_no_workspace_where_nothing_is_computed():
    x = TensorSpec((3, 4, 5), "float32")
    nothing = ng.plan(
        "batch_norm_backward", grad_out=x, input=x, training=True, output_mask=(False,) * 3
    )
    assert nothing.workspace_size == 0
    assert nothing.output_specs == (None, None, None)
    array = np.zeros((3, 4, 5), np.float32)
    assert nothing.run(array, array) == (None, None, None)
    empty = TensorSpec((0, 4, 5), "float32")
    assert (
        ng.plan("batch_norm_backward", grad_out=empty, input=empty, training=True).workspace_size
        == 0
    )


def test_running_allocates_nothing_that_grows():
    peaks = []
    for size in (1000, 100_000):
        case = make("train", (4, 8, size))
        plan = plan_of(case)
        dense = case.call()
        scratch = np.empty(plan.workspace_size, np.uint8)
        plan.run(**case.tensors, out=dense, workspace=scratch)
        tracemalloc.start()
        plan.run(**case.tensors, out=dense, workspace=scratch)
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert max(peaks) < 20_000


def test_planned_out():
    case = make("train", (3, 4, 5))
    spec = TensorSpec((3, 4, 5), "bfloat16", (1, 3, 12))
    plan = plan_of(case, out=(spec, None, None))
    assert plan.output_specs[0] == spec
    result = plan.run(**case.tensors)
    assert (result.grad_input.dtype, result.grad_input.strides) == (FLOATS["bfloat16"], (2, 6, 24))
    with pytest.raises(ValueError, match=re.escape(
        "out[0] (grad_input): float32 with shape (3, 4, 5) and strides (20, 5, 1); allowed: "
        "bfloat16 with shape (3, 4, 5) and strides (1, 3, 12), as in the plan"
    )):  # fmt: skip
        plan.run(**case.tensors, out=(np.zeros((3, 4, 5), np.float32), None, None))


def refuse(exception, message, action):
    with pytest.raises(exception, match=f"^{re.escape(message)}$"):
        action()


def test_errors_of_plan():
    x = TensorSpec((3, 4, 5), "float32")
    assert set(PLANNED) <= set(ng.__all__)
    names = ", ".join(PLANNED)
    refuse(ValueError, f"name: 'local_norm'; allowed: {names}", lambda: ng.plan("local_norm"))
    refuse(
        TypeError, "training: missing; batch_norm_backward has no default for it",
        lambda: ng.plan("batch_norm_backward", grad_out=x, input=x),
    )  # fmt: skip
    refuse(
        TypeError,
        "gamma: no argument of batch_norm_backward; allowed: grad_out, input, weight, "
        "running_mean, running_var, save_mean, save_invstd, training, eps, output_mask, "
        "channel_axis, out",
        lambda: ng.plan("batch_norm_backward", grad_out=x, input=x, gamma=x, training=True),
    )
    refuse(
        TypeError, "input: None; allowed: a tensor",
        lambda: ng.plan("batch_norm_backward", grad_out=x, training=True),
    )  # fmt: skip
    refuse(
        TypeError, "shape: 'ab' is not a sequence of integers", lambda: TensorSpec("ab", "float32")
    )
    refuse(ValueError, "shape: (3, -1) has a negative size; allowed: 0 or more",
           lambda: TensorSpec((3, -1), "float32"))  # fmt: skip
    refuse(
        ValueError,
        "strides: (1,) has 1 entries; allowed: 2, one for each axis of shape (3, 4)",
        lambda: TensorSpec((3, 4), "float32", (1,)),
    )
    refuse(
        TypeError,
        "dtype: 'float8' is not supported; allowed: float32, float16, bfloat16, float64, int32, "
        "int64",
        lambda: TensorSpec((3, 4), "float8"),
    )


def test_specs_that_no_memory_could_hold():
    for shape, strides in (((2**40, 3, 2**40), None), ((2, 2), (2**62, 1)), ((1, 2), (2**70, 1))):
        with pytest.raises(
            ValueError, match=r": reaches over \d+ bytes or more; allowed: what an "
        ):
            TensorSpec(shape, "float32", strides)
    with pytest.raises(TypeError, match=r"^dtype: None is not supported; allowed: float32"):
        TensorSpec((2, 3), None)
    with pytest.raises(ValueError, match=r"^name: \[\]; allowed: batch_norm_backward, "):
        ng.plan([])


def test_nan_options_are_cached_too(monkeypatch):
    monkeypatch.setattr(calls, "_plans", Cache())
    for momentum in (float("nan"), np.float32("nan"), -float("nan")):
        ng.batch_norm(np.ones((3, 4, 5)), training=True, momentum=momentum)
    assert len(calls._plans) == 1


def test_tensors_that_no_memory_could_hold():
    """A plan says which of its arguments they are, and which of its results they would be."""
    x = np.zeros((3, 4, 5), np.float32)
    far = np.lib.stride_tricks.as_strided(x, x.shape, (2**61, 4, 4))
    reach = f"reaches over {2**62} bytes or more; allowed: what an address can reach"
    message = f"shape (3, 4, 5) with strides ({2**59}, 1, 1): {reach}"
    tensors = {"grad_out": x, "input": x}
    for name in tensors:
        refuse(
            ValueError,
            f"{name}: {message}",
            lambda name=name: ng.plan(
                "batch_norm_backward", **{**tensors, name: far}, training=True
            ),
        )
    refuse(
        ValueError,
        f"out[0] (grad_input): {message}",
        lambda: ng.plan("batch_norm_backward", **tensors, training=True, out=(far, None, None)),
    )
    plan = ng.plan("batch_norm_backward", **tensors, training=True)
    refuse(ValueError, f"input: {message}", lambda: plan.run(x, far))

    expanded = TensorSpec((2**31, 2**31), "float32", (0, 0))
    refuse(
        ValueError,
        f"grad_input: shape {expanded.shape} with strides ({2**31}, 1): {reach}",
        lambda: ng.plan("batch_norm_backward", grad_out=expanded, input=expanded, training=True),
    )
    empty = TensorSpec((2**40, 2**40, 0), "float32")
    refuse(
        ValueError,
        f"mean: shape {(2**40, 2**40)} with strides ({2**40}, 1): {reach}",
        lambda: ng.plan("group_norm", input=empty, num_groups=2**40),
    )


def test_errors_of_run():
    case = make("train", (3, 4, 5))
    plan = plan_of(case)
    good = case.tensors
    tensor = "float32 with shape (3, 4, 5) and strides (20, 5, 1)"
    refuse(
        ValueError,
        "input: float32 with shape (3, 4, 5) and strides (1, 3, 12); allowed: "
        f"{tensor}, as in the plan",
        lambda: plan.run(**{**good, "input": np.zeros((5, 4, 3), np.float32).T}),
    )
    refuse(
        ValueError, f"grad_out: float64 with shape (3, 4, 5) and strides (20, 5, 1); allowed: "
        f"{tensor}, as in the plan",
        lambda: plan.run(**{**good, "grad_out": np.zeros((3, 4, 5))}),
    )  # fmt: skip
    refuse(
        ValueError,
        "weight: None; allowed: float32 with shape (4,) and strides (1,), as in the plan",
        lambda: plan.run(**{**good, "weight": None}),
    )
    refuse(
        ValueError,
        "running_mean: float32 with shape (4,) and strides (1,); allowed: None, as in the plan",
        lambda: plan.run(**good, running_mean=good["weight"]),
    )
    refuse(
        TypeError,
        "mean: no tensor of batch_norm_backward; allowed: grad_out, input, weight, running_mean, "
        "running_var, save_mean, save_invstd",
        lambda: plan.run(**good, mean=good["weight"]),
    )
    refuse(TypeError, "grad_out: given twice, by position and by name",
           lambda: plan.run(good["grad_out"], **good))  # fmt: skip
    refuse(
        TypeError,
        "run: 8 tensors; allowed: grad_out, input, weight, running_mean, running_var, save_mean, "
        "save_invstd",
        lambda: plan.run(*[good["input"]] * 8),
    )


def test_errors_of_the_workspace():
    case = make("train", (3, 4, 5))
    plan = plan_of(case)
    size = plan.workspace_size

    def run_with(workspace, **more):
        return lambda: plan.run(**case.tensors, workspace=workspace, **more)

    refuse(ValueError, f"workspace: {size - 1} bytes; allowed: at least {size}",
           run_with(bytearray(size - 1)))  # fmt: skip
    refuse(ValueError, f"workspace: 0 bytes; allowed: at least {size}", run_with(bytearray()))
    allowed = "allowed: a writable, contiguous buffer"
    refuse(ValueError, f"workspace: read-only; {allowed}", run_with(bytes(size)))
    gaps = np.zeros((size, 2), np.uint8)[:, 0]
    refuse(ValueError, f"workspace: not contiguous; {allowed}", run_with(gaps))
    refuse(TypeError, "workspace: an int; allowed: a writable buffer", run_with(4096))
    objects = np.empty(size, object)
    refuse(
        TypeError,
        "workspace: a buffer of Python objects; allowed: one of plain bytes",
        run_with(objects),
    )
    assert objects[0] is None
    for dtype in (FLOATS["bfloat16"], "M8[s]", ">f4"):
        assert bits(run_with(np.empty(size, dtype))()) == bits(case.call())
    memory = np.zeros(size + 240, np.uint8)
    out = memory[:240].view(np.float32).reshape(3, 4, 5)
    refuse(
        ValueError, "workspace: shares memory with out[0] (grad_input); allowed: memory of its own",
        run_with(memory[4:], out=(out, None, None)),
    )  # fmt: skip
    case.tensors["input"] = out
    refuse(
        ValueError, "workspace: shares memory with input; allowed: memory of its own",
        run_with(memory[4:]),
    )  # fmt: skip


def test_functions_use_cached_plans(monkeypatch):
    monkeypatch.setattr(calls, "_plans", Cache())
    case = make("train", (3, 4, 5))
    for _ in range(3):
        case.call()
    assert len(calls._plans) == 1
    # Options that compare equal but are not the same are told apart before they are looked up.
    case.options["eps"] = 1
    case.call()
    with pytest.raises(TypeError, match=r"^training: 1; allowed"):
        ng.batch_norm_backward(**case.tensors, training=1)
    assert len(calls._plans) == 2
    monkeypatch.setattr(cache, "SIZE", 2)
    for size in range(1, 6):
        make("train", (3, 4, size)).call()
    assert len(calls._plans) == 2


def test_calls_with_other_arguments_than_plain_ones_use_cached_plans(monkeypatch):
    """A list of booleans, numbers of NumPy's; subclasses, copies and tensors that are no arrays."""
    x = np.arange(24, dtype=np.float32).reshape(2, 3, 4)
    packed = np.zeros(24, [("pad", "u1"), ("x", "f4")])["x"].reshape(2, 3, 4)
    packed[...] = x
    ways = [
        (x, {"output_mask": [True, True, False]}),
        (x, {"eps": np.float32(0.5)}),
        (x.view(np.memmap), {}),
        (packed, {}),
        (Producer(x), {}),
    ]
    for input, options in ways:
        monkeypatch.setattr(calls, "_plans", Cache())
        dy = Producer(x) if isinstance(input, Producer) else x
        first, again = (
            ng.batch_norm_backward(dy, input, training=True, **options) for _ in range(2)
        )
        assert len(calls._plans) == 1
        assert bits(again) == bits(first)


def test_representations():
    spec = TensorSpec((2, 3, 4), "bfloat16")
    assert repr(spec) == "TensorSpec((2, 3, 4), 'bfloat16', (12, 4, 1))"
    assert eval(repr(spec)) == spec
    plan = ng.plan("layer_norm", input=spec, normalized_shape=4)
    assert repr(plan) == "<Plan of layer_norm on cpu: input bfloat16 (2, 3, 4)>"


@pytest.mark.parametrize("kind", OPERATORS)
def test_one_workspace_serves_many_runs(kind):
    """What one run leaves behind does not reach the next."""
    with cut_finely():
        plan = None
        for seed in range(3):
            case = make(kind, (3, 4, 50), num_groups=2, seed=seed)
            if plan is None:
                plan = plan_of(case)
                scratch = np.full(plan.workspace_size, 0xFF, np.uint8)
            expected = bits(case.call())
            assert bits(plan.run(**case.tensors, workspace=scratch)) == expected


def test_plans_say_which_way_they_go():
    short, long = (3, 4, 5, 6), (3, 4, 25, 40)
    for shape, layout, x_layout, pattern in (
        (long, "contiguous", "contiguous", "rows"),
        (short, "odd", "contiguous", "rows"),
        (short, "contiguous", "contiguous", "columns"),
        (long, "channels_last", "channels_last", "columns"),
        (long, "contiguous", "channels_last", "columns tiles"),
        (long, "channels_last", "contiguous", "rows tiles"),
        (long, "sliced", "sliced", "rows tiles"),
        (long, "expanded", "contiguous", "rows tiles"),
    ):
        case = make("train", shape, layout=layout, x_layout=x_layout)
        assert plan_of(case).path.split(" prepare")[0] == pattern
    mixture = make("train", (3, 4, 5), dtype="float16", x_dtype="float32")
    assert plan_of(mixture).path.split()[1] == "tiles"
    for dtype in ("float32", "float64"):
        rows = make("group_norm", (9, 40), num_groups=2, dtype=dtype)
        assert "gradients along" in plan_of(rows).path


@pytest.mark.parametrize(
    ("shape", "layout", "row"),
    [
        # (run, repeat, chunk): elements of a channel, positions, channels in one row of columns.
        ((256, 512, 4, 4), "contiguous", (16, 1, 128)),
        ((64, 64, 5, 5), "contiguous", (25, 1, 64)),
        ((8, 3, 224, 224), "channels_last", (1, 160, 3)),
        # One position fewer than fit, so that rows are not 2,048 bytes apart.
        ((32, 64, 56, 56), "channels_last", (1, 7, 64)),
        ((16, 256, 14, 14), "channels_last", (1, 1, 256)),
        ((32, 2048, 7, 7), "channels_last", (1, 1, 2048)),
        ((8, 4096, 7, 7), "channels_last", (1, 1, 2048)),
        ((256, 1024), "contiguous", (1, 1, 1024)),
        ((4, 3), "contiguous", (1, 4, 3)),
    ],
)
def test_rows_of_columns(shape, layout, row):
    """Long enough to be worth a loop, and of a length that leaves nothing over."""
    strides = None
    if layout == "channels_last":
        _, c, h, w = shape
        strides = (c * h * w, 1, w * c, c)
    spec = TensorSpec(shape, "float32", strides)
    plan = ng.plan("batch_norm_backward", grad_out=spec, input=spec, training=True)
    assert plan.path.startswith("columns")
    words = plan._schedule.block()
    chunk = max(step.cut.piece_channels for step in plan._schedule.steps)
    run, repeat = words[block.RUN], words[block.REPEAT]
    assert (run, repeat, chunk) == row
    assert run * repeat * chunk <= 2048


@pytest.mark.parametrize(
    ("shape", "dtype", "rows"),
    [
        # Images of 50,176 bytes compete for no place in a cache; of a multiple of 4,096, all do.
        ((32, 64, 14, 14), "float32", 4),
        ((16, 384, 28, 28), "float32", 2),
        ((16, 384, 28, 28), "bfloat16", 2),
    ],
)
def test_rows_at_once(shape, dtype, rows):
    spec = TensorSpec(shape, dtype)
    plan = ng.plan("batch_norm_backward", grad_out=spec, input=spec, training=False)
    (found,) = {step.cut.piece_rows for step in plan._schedule.steps if step.sums}
    assert found == rows


def test_rows_that_compete_for_the_cache_are_normalised_image_by_image():
    def rows_at_once(shape, dtype):
        plan = ng.plan("batch_norm", input=TensorSpec(shape, dtype), training=True)
        (step,) = plan._schedule.steps
        return step.cut.piece_rows

    assert rows_at_once((16, 384, 28, 28), "float32") == 2
    assert rows_at_once((16, 64, 28, 28), "float32") == 16  # small enough for the caches
    assert rows_at_once((16, 387, 28, 28), "float32") == 16  # not a multiple of pages


def test_rows_of_whole_lines_without_sums_are_written_in_the_order_of_memory():
    def rows_at_once(shape, operator, **tensors):
        spec = TensorSpec(shape, "float32")
        plan = ng.plan(operator, **dict.fromkeys(tensors, spec), training=False)
        return {step.cut.piece_rows for step in plan._schedule.steps if step.write}

    assert rows_at_once((8, 64, 16, 16), "batch_norm", input=1) == {1}
    assert rows_at_once((64, 63, 17, 17), "batch_norm", input=1) == {4}
    assert rows_at_once((128, 127, 8, 8), "batch_norm", input=1) == {4}
    # Smaller tensors stay in a core's cache, in whatever order they are read.
    assert rows_at_once((8, 63, 17, 17), "batch_norm", input=1) == {8}


def test_work_that_is_masked_off_is_not_done():
    def path(kind, **options):
        case = make(kind, (3, 4, 20, 30), num_groups=2)
        case.options |= options
        return plan_of(case).path

    assert path("eval", output_mask=(True, False, False)) == "rows prepare+coefficients+scale"
    assert path("eval", output_mask=(True, True, True)) == (
        "rows prepare+coefficients+evaluate+parameters+outputs"
    )
    assert path("train", output_mask=(False, True, True)) == "rows prepare+sums+parameters+outputs"
    assert path("train", output_mask=(False, False, False)) == "rows"
    assert path("reduce", input_g=False, weight_g=False, bias_g=False) == "rows"
    # Without grad_weight and grad_input nothing depends on x: it is not read, nor its statistics
    # computed.
    case = make("train_without_statistics", (3, 4, 5))
    case.options["output_mask"] = (False, False, True)
    plan = plan_of(case)
    assert plan.path == "columns prepare+sums+parameters+outputs"
    assert not plan.reads_input


def test_every_step_is_taken_somewhere():
    paths = set()
    layouts, dtypes = ("contiguous", "channels_last", "sliced"), ("float32", "float64")
    with cut_finely():
        for kind, layout, dtype in itertools.product(OPERATORS, layouts, dtypes):
            case = make(kind, (3, 4, 50), layout=layout, dtype=dtype, num_groups=2)
            paths |= set(" ".join(plan_of(case).path.split()).replace("+", " ").split())
            run(case)
    assert plan_of(make("train", (0, 4, 5))).path.split()[1:] == ["outputs"]
    assert paths == {
        "rows", "columns", "tiles", "count", "prepare", "exact", "moments", "sums", "combine",
        "mean", "statistics", "centre", "parameters", "outputs", "coefficients", "apply",
        "evaluate", "weights", "along", "gradients",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("shape", "strides", "run"),
    [
        ((16, 64, 14, 14), None, 196),  # rows of one image each, along the batch
        ((4, 8, 13, 13), (8 * 225, 225, 15, 1), 13),  # cut out of larger images
        ((4, 8, 600), None, 600),
        ((4, 8, 10000), None, 5056),  # cut in two, whole vectors
    ],
)
def test_rows_of_an_image_or_parts_of_one(shape, strides, run):
    spec = TensorSpec(shape, "float32", strides)
    plan = ng.plan("batch_norm_backward", grad_out=spec, input=spec, training=True)
    assert plan.path.startswith("rows")
    assert plan._schedule.block()[block.RUN] == run


@pytest.mark.parametrize(
    ("shape", "groups"),
    [((8, 256, 16, 16), 8), ((16, 64, 20, 20), 4), ((4, 96, 24, 24), 1), ((6, 320, 9, 9), 32)],
)
def test_group_norm_s_columns_are_taken_at_once(shape, groups):
    """All of a sample, so that it is read from memory once, and in memory's order."""
    case = make("group_norm", shape, layout="channels_last", num_groups=groups)
    plan = plan_of(case)
    assert plan.path == "columns prepare+sums+coefficients+parameters+apply outputs"
    assert plan._schedule.steps[0].cut.channel_block == shape[1]
    run(case)
    # Not where it takes more than a core's cache, nor where there is one sample.
    for large in ((4, 64, 200, 200), (1, 256, 32, 32)):
        spec = make("group_norm", large, layout="channels_last", num_groups=groups % 7 or 1)
        assert "combine" in plan_of(spec).path


def test_named_results():
    case = make("train", (3, 4, 5))
    assert list(named(case.call())) == ["grad_input", "grad_weight", "grad_bias"]
    assert list(named(make("reduce", (3, 4, 5)).call())) == [
        "sum_dy", "sum_dy_xmu", "grad_weight", "grad_bias",
    ]  # fmt: skip
    assert list(named(make("group_norm", (3, 4, 5)).call())) == [
        "grad_input", "grad_weight", "grad_bias",
    ]  # fmt: skip
    assert isinstance(make("elemt", (3, 4, 5)).call(), np.ndarray)


@pytest.mark.cpu
def test_banks_are_of_all_steps_that_read_the_tensors():
    """Each set has a bank of its own if several steps read the tensors."""
    compared, kinds = set(), (*OPERATORS, *FORWARD)
    shapes = ((3, 4, 5, 6), (2, 64, 40, 40), (70, 40), (4, 8, 5000))
    layouts, dtypes = ("contiguous", "channels_last"), ("float32", "bfloat16", "float64")
    for kind, shape, layout, dtype in itertools.product(kinds, shapes, layouts, dtypes):
        case = make(kind, shape, layout=layout, dtype=dtype, num_groups=2)
        program = plan_of(case)._schedule
        if program.cut is None or program.cut.parts > 1:
            continue
        reading = [step for step in program.steps if step.sums or step.write or step.along]
        sets = 1 if len(reading) > 1 else program.cut.sets_per_task
        assert program.block()[block.BANK_SETS] == sets
        compared.add(len(reading) > 1)
    assert compared == {False, True}


@pytest.mark.cpu
@pytest.mark.parametrize(
    ("kind", "shape"),
    [
        ("forward_train", (2, 2_000_000)), ("train", (4, 1_000_000)), ("train", (2, 500_000, 2)),
        ("forward_layer_norm", (500_000, 8)), ("layer_norm", (500_000, 8)),
    ],
)  # fmt: skip
def test_many_channels_take_a_small_workspace(kind, shape):
    """A task has arrays for the channels that it takes at once, not for all."""
    named = {name: ng.TensorSpec(shape, "float32") for name in ("grad_out", "input")}
    statistics = ng.TensorSpec((shape[0], 1) if "layer" in kind else shape[1:2], "float32")
    options = {"normalized_shape": shape[1:]} if "layer" in kind else {"training": True}
    if kind.startswith("forward"):
        name = "layer_norm" if "layer" in kind else "batch_norm"
        plan = ng.plan(name, input=named["input"], **options)
    elif "layer" in kind:
        plan = ng.plan("layer_norm_backward", **named, mean=statistics, rstd=statistics, **options)
    else:
        given = {"save_mean": statistics, "save_invstd": statistics}
        plan = ng.plan("batch_norm_backward", **named, **given, **options)
    assert plan.workspace_size < 8 << 20


@pytest.mark.cpu
def test_a_plan_that_ran_on_arrays_leaves_tensors_as_they_were():
    """NumPy would read a tensor to make a result like it, and fix the size of its storage."""
    torch = pytest.importorskip("torch")
    x = np.random.default_rng(0).random((2, 3, 4), np.float32)
    plan = ng.plan("batch_norm_backward", grad_out=x, input=x, training=True)
    expected = [each for each in bits(plan.run(x, x)).values() if each]
    for _ in range(2):
        plan.run(x, x)
        dy, other = torch.from_numpy(x).clone(), torch.from_numpy(x).clone()
        found = [np.asarray(each).tobytes() for each in plan.run(dy, other) if each is not None]
        assert found == expected
        plan.run(x, x)
        with pytest.raises(ValueError, match=r"^input: float32 with shape"):
            plan.run(dy, other[:1])
        for tensor in (dy, other):
            assert tensor.untyped_storage().resizable()
            tensor.untyped_storage().resize_(0)


@pytest.mark.cpu
def test_a_workspace_that_is_kept_serves_one_run_at_a_time(monkeypatch):
    spare = workspaces._spare
    del spare[:]
    case = make("train", (3, 4, 5))
    plan = plan_of(case)
    assert 0 < plan.workspace_size <= workspaces.SPARE_BYTES
    expected = bits(case.call())
    with ThreadPoolExecutor(4) as pool:
        found = pool.map(lambda _: bits(plan.run(**case.tensors)), range(400))
        assert all(each == expected for each in found)
    kept = [start for start, _, _ in spare]
    assert 0 < len({*kept}) == len(kept) <= 4
    large = make("train", (3, 40000, 5))
    assert plan_of(large).workspace_size > workspaces.SPARE_BYTES
    plan_of(large).run(**large.tensors)
    assert [start for start, _, _ in spare] == kept
