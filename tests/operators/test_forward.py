"""The forward pass beside test_suite.py's cases: cuts, threads, memory, plans, ranks, errors."""

from __future__ import annotations

import numpy as np
import pytest
from common import (
    BFLOAT16,
    FLOATS,
    HALVES,
    INTERPRETED,
    LONG_ROWS,
    Case,
    bits,
    cut_finely,
    lay_out,
    poisoned,
    run,
)

import normgrad as ng
from normgrad.operators import precision, reference

KINDS = ("train", "eval", "elemt", "group_norm")


def make(
    kind, shape, *, dtype="float32", parameters=None, layout="contiguous", axis=1, groups=1,
    mean=0.3, std=1.0, affine=True, running=True, seed=0,
):  # fmt: skip
    """Normally distributed tensors for a forward pass."""
    rng = np.random.default_rng(seed)
    kept = FLOATS[parameters or ("float32" if dtype in HALVES else dtype)]
    x = lay_out((mean + std * rng.standard_normal(shape)).astype(FLOATS[dtype]), layout)
    channels = shape[axis]

    def vector():
        return rng.standard_normal(channels).astype(kept)

    w, b = (vector(), vector()) if affine else (None, None)
    common = {} if axis == 1 else {"channel_axis": axis}
    if kind == "group_norm":
        tensors = {"input": x, "weight": w, "bias": b}
        return Case("group_norm", tensors, {"num_groups": groups, **common})
    if kind == "elemt":
        tensors = {"weight": w, "bias": b, "mean": vector(), "invstd": abs(vector()) + kept.type(1)}
        return Case("batch_norm_elemt", {"input": x, **tensors}, common)
    old = {"running_mean": vector(), "running_var": abs(vector())}
    old = old if running else dict.fromkeys(old)
    options = {"training": kind == "train", "eps": 1e-3, "momentum": 0.3, **common}
    return Case("batch_norm", {"input": x, "weight": w, "bias": b, **old}, options)


def test_an_output_has_the_layout_of_the_input():
    x = make("elemt", (4, 6, 5, 7), layout="channels_last")
    assert ng.batch_norm_elemt(**x.tensors).strides == x.tensors["input"].strides
    y = ng.group_norm(x.tensors["input"], num_groups=2).output
    assert y.strides == x.tensors["input"].strides


@pytest.mark.parametrize(
    "shape", [(2, 1), (3, 1), (1, 6), (64, 12), (2, 6, 4), (5, 42, 3), LONG_ROWS, (2,) * 8]
)
@pytest.mark.parametrize("axis", [1, -1])
@pytest.mark.parametrize("kind", KINDS)
def test_shapes_and_axes(kind, axis, shape):
    for groups in (1, 2, shape[axis]) if kind == "group_norm" else (1,):
        if shape[axis] % groups == 0:
            run(make(kind, shape, axis=axis, groups=groups, seed=1))


def test_one_running_statistic_alone():
    case = make("train", (4, 6, 5))
    only_var = {**case.tensors, "running_mean": None}
    result = run(Case(case.name, only_var, case.options))
    assert result.running_mean is None
    np.testing.assert_array_equal(result.running_var, case.call().running_var)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("ratio", [1e3, 1e5, 1e6])
@pytest.mark.parametrize("kind", ["train", "group_norm"])
def test_a_mean_far_larger_than_the_deviation(kind, ratio, dtype):
    case = make(kind, (16, 6, 300), dtype=dtype, mean=ratio, groups=3, seed=2)
    result = run(case, normal=True)
    # Not only within the bound: the deviation itself is right.
    exact = case.exact()["rstd" if kind == "group_norm" else "invstd"].value
    np.testing.assert_allclose(
        result[2], exact.astype(result[2].dtype), rtol=4 * np.finfo(FLOATS[dtype]).eps
    )


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("axis", [1, -1])
def test_batch_norm_has_the_statistics_of_stats_and_the_output_of_elemt(axis, dtype):
    for shape in ((4, 6, 5, 7), (4, 6, 9, 9) if INTERPRETED else (32, 24, 40, 40)):
        x, w, b = (make("train", shape, dtype=dtype, axis=axis).tensors[n] for n in
                   ("input", "weight", "bias"))  # fmt: skip
        y, mean, invstd, _, _ = ng.batch_norm(x, w, b, training=True, channel_axis=axis)
        assert bits(ng.batch_norm_stats(x, channel_axis=axis)) == bits(
            type(ng.batch_norm_stats(x[:1]))(mean, invstd)
        )
        unrounded = np.empty((2, len(mean)))
        ng.batch_norm_stats(x, channel_axis=axis, out=(*unrounded,))
        np.testing.assert_array_equal(mean, unrounded[0].astype(mean.dtype))
        composed = ng.batch_norm_elemt(x, w, b, *unrounded, channel_axis=axis)
        if dtype != "float64":  # of which the mean is kept in more than float64 inside
            assert y.tobytes() == composed.tobytes()


@pytest.mark.cpu
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float64"])
@pytest.mark.parametrize("layout", ["contiguous", "channels_last"])
@pytest.mark.parametrize("kind", KINDS)
def test_the_same_bits_for_any_number_of_threads(kind, layout, dtype):
    case = make(kind, (16, 24, 40, 40), dtype=dtype, layout=layout, groups=4, seed=4)
    try:
        results = []
        for threads in (1, 2, 3):
            ng.set_num_threads(threads)
            results.append(bits(case.call()))
    finally:
        ng.set_num_threads(None)
    assert results[0] == results[1] == results[2]


def test_one_element_a_channel_does_not_spoil_the_running_variance():
    case = make("train", (1, 6))
    result = run(case)
    old = case.tensors["running_var"].astype(np.float64)
    np.testing.assert_allclose(result.running_var, 0.7 * old, rtol=1e-6)


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("layout", ["contiguous", "channels_last", "sliced"])
def test_what_is_not_finite_stays_in_its_channel(layout, dtype):
    case = make("train", (4, 6, 3, 9), dtype=dtype, layout=layout, seed=5)
    x = case.tensors["input"]
    clean = run(case)
    x[2, 1, 1, 3], x[1, 2, 0, 0], x[0, 3, 0, 0] = np.nan, np.inf, -np.inf
    result = run(case)
    for found, before in zip(result, clean, strict=True):
        axis = 1 if found.ndim > 1 else 0
        rest = [0, 4, 5]
        assert found.take(rest, axis).tobytes() == before.take(rest, axis).tobytes()
        assert np.isnan(result.output[:, 1:4].astype(np.float64)).all()
    case = make("elemt", (4, 6, 3, 9), dtype=dtype, layout=layout, seed=5)
    case.tensors["input"][0, 0, 0, :3] = np.nan, np.inf, -np.inf
    case.tensors["bias"][1], case.tensors["weight"][2] = np.nan, 0
    case.tensors["mean"][3], case.tensors["invstd"][4] = np.inf, np.nan
    run(case)


def test_a_constant_channel():
    x = np.full((4, 3, 5), 7.25, np.float32)
    y, mean, invstd, _, var = ng.batch_norm(
        x, running_mean=np.zeros(3), running_var=np.zeros(3), training=True, momentum=1.0
    )
    np.testing.assert_array_equal(y, np.zeros_like(x))
    np.testing.assert_array_equal(mean, np.full(3, 7.25))
    np.testing.assert_array_equal(invstd, np.full(3, np.float32(1e-5**-0.5)))
    np.testing.assert_array_equal(var, np.zeros(3))


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("kind", KINDS)
def test_in_place(kind, dtype):
    case = make(kind, (4, 6, 5, 7), dtype=dtype, groups=2, seed=6)
    expected = bits(case.call())
    x = case.tensors["input"]
    out = x if kind == "elemt" else (x, *[None] * (2 if kind == "group_norm" else 4))
    with cut_finely():
        assert bits(case.call(out=poisoned_copy(out, x))) == bits(case.call())
    result = case.call(out=out)
    assert bits(result) == expected
    assert (result if kind == "elemt" else result.output) is x


def poisoned_copy(out, x):
    """The same ``out``, its first tensor another one."""
    new = poisoned(x)
    return new if out is x else (new, *out[1:])


def test_running_statistics_in_place():
    case = make("train", (4, 6, 5), seed=7)
    expected = bits(case.call())
    mean, var = case.tensors["running_mean"], case.tensors["running_var"]
    result = case.call(out=(None, None, None, mean, var))
    assert bits(result) == expected
    assert result.running_mean is mean
    assert result.running_var is var
    assert mean.tobytes() == expected["running_mean"]


@pytest.mark.parametrize("dtype", FLOATS)
def test_outputs_of_the_caller_s(dtype):
    case = make("group_norm", (4, 6, 9), groups=3, seed=8)
    wide = np.full((4, 12, 9), np.nan, FLOATS[dtype])
    mean, rstd = (np.full((3, 8), np.nan, FLOATS[dtype]).T[::2] for _ in range(2))
    out = (wide[:, ::2], mean, rstd)
    result = run(case, out=out)
    assert all(a is b for a, b in zip(result, out, strict=True))
    assert np.isnan(wide[:, 1::2].astype(np.float64)).all()


def test_numpy_and_torch_agree_to_the_bit():
    torch = pytest.importorskip("torch")
    for kind in KINDS:
        case = make(kind, (4, 6, 5, 7), groups=2, seed=9)
        theirs = {k: None if v is None else torch.from_numpy(v) for k, v in case.tensors.items()}
        ours = getattr(ng, case.name)(**theirs, **case.options)
        ours = ours if isinstance(ours, tuple) else (ours,)
        expected = bits(case.call())
        assert [v if v is None else v.numpy().tobytes() for v in ours] == [*expected.values()]


@pytest.mark.parametrize("kind", KINDS)
def test_plans(kind):
    case = make(kind, (4, 6, 5, 7), groups=2, seed=10)
    plan = ng.plan(case.name, **case.tensors, **case.options)
    assert plan.reads_input
    workspace = np.empty(plan.workspace_size, np.uint8)
    assert bits(plan.run(**case.tensors, workspace=workspace)) == bits(case.call())


# Statistics of several ranks


def ranks(counts, channels=5, dtype="float32", mean=0.3, seed=0, running=True):
    """A batch cut into ranks: their statistics, and the whole."""
    rng = np.random.default_rng(seed)
    whole = (mean + rng.standard_normal((sum(counts), channels))).astype(FLOATS[dtype])
    parts = np.split(whole, np.cumsum(counts)[:-1])
    found = [ng.batch_norm_stats(part, eps=1e-3) for part in parts]
    kept = FLOATS["float64" if dtype == "float64" else "float32"]
    old = rng.standard_normal(channels).astype(kept), rng.random(channels).astype(kept)
    tensors = {
        "input": parts[0],
        "mean": np.stack([s.mean for s in found]),
        "invstd": np.stack([s.invstd for s in found]),
        "running_mean": old[0] if running else None,
        "running_var": old[1] if running else None,
        "counts": np.array(counts, np.float32),
    }
    options = {"momentum": 0.3, "eps": 1e-3}
    return Case("batch_norm_gather_stats_with_counts", tensors, options), whole


COUNTS = [(7,), (4, 4), (1, 30), (3, 0, 9), (0, 5), (2, 1, 1, 40, 3), tuple(range(1, 60))]


def check_gathered(case):
    exact = case.exact()
    result = case.call()
    for name, value in result._asdict().items():
        if value is not None:
            units = precision.error(value, exact[name], case.arithmetic, normal=True)
            assert units.max(initial=0) <= 1, name
    return result


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("counts", COUNTS, ids=str)
def test_statistics_of_ranks(counts, dtype):
    case, whole = ranks(counts, dtype=dtype)
    result = check_gathered(case)
    # They are the whole batch's, but for the rounding of the ranks'.
    old = {name: case.tensors[name] for name in ("running_mean", "running_var")}
    direct = ng.batch_norm(whole, **old, training=True, eps=1e-3, momentum=0.3)
    for name in ("mean", "invstd", "running_mean", "running_var"):
        a, b = getattr(result, name), getattr(direct, name)
        assert a.dtype == b.dtype
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=2 * np.finfo(a.dtype).eps)


def test_ranks_far_from_zero_and_from_each_other():
    case, whole = ranks((50, 70), mean=1e4, seed=1)
    result = check_gathered(case)
    expected = ng.batch_norm_stats(whole, eps=1e-3)
    np.testing.assert_allclose(result.invstd, expected.invstd, rtol=2e-3)  # a mean's half unit
    case.tensors["mean"][1] += 100
    check_gathered(case)


def test_many_channels_and_other_views_of_ranks():
    case, _ = ranks((3, 4, 5), channels=300)
    check_gathered(case)
    tensors = dict(case.tensors)
    tensors["mean"] = np.asfortranarray(tensors["mean"])
    tensors["counts"] = np.array([[3], [4], [5]], np.int64)
    tensors["input"] = np.empty((0, 300, 2, 2), BFLOAT16)
    other = Case(case.name, tensors, case.options)
    assert bits(check_gathered(other)) == bits(case.call())


def test_ranks_without_a_single_element():
    case, _ = ranks((3, 4))
    case.tensors["counts"][:] = 0
    case.tensors["mean"][:] = np.nan
    result = check_gathered(case)
    assert not result.mean.any()
    assert not result.invstd.any()
    assert result.running_var.tobytes() == case.tensors["running_var"].tobytes()


def test_running_statistics_of_ranks_in_place_or_absent():
    case, _ = ranks((3, 4))
    expected = bits(case.call())
    result = case.call(out=(None, None, case.tensors["running_mean"], case.tensors["running_var"]))
    assert bits(result) == expected
    case, _ = ranks((3, 4), running=False)
    assert case.call()[2:] == (None, None)


@pytest.mark.parametrize(
    ("function", "change", "error", "message"),
    [
        ("group_norm", {"num_groups": 4}, ValueError, "num_groups: 4; allowed: a positive divisor"),
        ("group_norm", {"channel_axis": 0}, ValueError, "channel_axis: 0; allowed: any axis but"),
        ("group_norm", {"bias": np.zeros(5)}, ValueError, "bias: shape (5,); allowed: (6,)"),
        ("batch_norm", {"training": 1}, TypeError, "training: 1; allowed: True or False"),
        ("batch_norm", {"momentum": None}, TypeError, "momentum: None; allowed: a real number"),
        ("batch_norm", {"bias": np.zeros(6, int)}, TypeError, "bias: dtype int64; allowed:"),
        ("batch_norm", {"out": (None,)}, ValueError, "out: 1 entries; allowed: a tuple of 5"),
        ("batch_norm", {"out": (None, None, None, np.empty(5), None)}, ValueError,
         "out[3] (new_running_mean): shape (5,); allowed: (6,)"),
        ("batch_norm_elemt", {"mean": None}, TypeError, "mean: None; allowed: a tensor"),
        ("batch_norm_elemt", {"out": np.empty((4, 6, 5), int)}, TypeError, "out (output): dtype"),
        ("gather", {"counts": np.ones(3, int)}, ValueError,
         "mean: shape (2, 6); allowed: (3, 6), a row for each of counts"),
        ("gather", {"invstd": np.ones(6)}, ValueError, "invstd: shape (6,); allowed: (2, 6)"),
        ("gather", {"counts": None}, TypeError, "counts: None; allowed: a tensor"),
    ],
)  # fmt: skip
def test_wrong_arguments(function, change, error, message):
    x, row = np.ones((4, 6, 5), np.float32), np.ones(6, np.float32)
    rows, two = np.ones((2, 6), np.float32), np.ones(2, np.int64)
    arguments = {
        "group_norm": {"input": x, "num_groups": 2},
        "batch_norm": {"input": x, "running_mean": row, "running_var": row, "training": True},
        "batch_norm_elemt": {"input": x, "weight": row, "bias": row, "mean": row, "invstd": row},
        "gather": {"input": x, "mean": rows, "invstd": rows, "running_mean": row,
                   "running_var": row, "counts": two},
    }[function]  # fmt: skip
    name = "batch_norm_gather_stats_with_counts" if function == "gather" else function
    with pytest.raises(error) as caught:
        getattr(ng, name)(**{**arguments, **change})
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("out", "message"),
    [
        (lambda t: (t["input"][::-1], None, None, None, None),
         "out[0] (output): shares memory with input; allowed: memory of its own, or all of input "
         "with the same strides and dtype"),
        (lambda t: (None, t["running_mean"], None, None, None),
         "out[1] (mean): shares memory with running_mean; allowed: memory of its own"),
        (lambda t: (None, None, None, t["running_var"], None),
         "out[3] (new_running_mean): shares memory with running_var; allowed: memory of its own, "
         "or all of running_mean with the same strides and dtype"),
    ],
)  # fmt: skip
def test_outputs_that_share_memory(out, message):
    case = make("train", (4, 6, 5))
    before = {name: value.tobytes() for name, value in case.tensors.items()}
    with pytest.raises(ValueError, match="shares memory") as caught:
        case.call(out=out(case.tensors))
    assert str(caught.value) == message
    assert before == {name: value.tobytes() for name, value in case.tensors.items()}


def test_out_entries_of_what_is_not_computed_are_ignored():
    case = make("eval", (4, 6, 5))
    mine = np.full(6, 7.0)
    result = case.call(out=(None, mine, None, None, mine))
    assert result[1:] == (None,) * 4
    assert (mine == 7).all()
    case = make("train", (4, 6, 5), running=False)
    assert case.call(out=(None, None, None, mine, None)).running_mean is None
    assert (mine == 7).all()


def test_the_oracle_is_torch_s_formula():
    torch = pytest.importorskip("torch")
    case = make("train", (4, 6, 5), dtype="float64", seed=11)
    x, w, b, mean, var = (torch.from_numpy(v.copy()) for v in case.tensors.values())
    y = torch.nn.functional.batch_norm(x, mean, var, w, b, True, 0.3, 1e-3)
    exact = reference.batch_norm(**case.tensors, **case.options)
    np.testing.assert_allclose(y, exact["output"].value.astype(float), rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(mean, exact["running_mean"].value.astype(float), rtol=1e-12)
    np.testing.assert_allclose(var, exact["running_var"].value.astype(float), rtol=1e-12)
