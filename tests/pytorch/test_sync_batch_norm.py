"""Synchronised batch norm on two and three real processes: as if one had the whole batch."""

from __future__ import annotations

import itertools
import time

import numpy as np
import pytest
from common import FLOATS, FULL

from normgrad.operators import precision, reference
from normgrad.tensors import dtypes

torch = pytest.importorskip("torch")

import rank_programs  # noqa: E402 - they need torch
from ranks import Ranks  # noqa: E402

import normgrad.torch as nt  # noqa: E402


@pytest.fixture(scope="module")
def ranks():
    """Makes groups of processes, each once for all tests."""
    made = {}

    def of(size):
        if size not in made:
            made[size] = Ranks(size)
        return made[size]

    yield of
    for group in made.values():
        group.close()


def whole(shape, dtype, seed, mean=0.5):
    """x and dy of all ranks, in NumPy's types."""
    both = rank_programs.whole(shape, dtype, seed, mean)[:2]
    return [tensor.double().numpy().astype(FLOATS[dtype]) for tensor in both]


def expected(shape, dtype, parameters, seed=0, mean=0.5, momentum=0.1, affine=True, counts=()):
    """What the oracle says of one process that has the whole batch, and each rank's parameters'."""
    x, dy = whole(shape, dtype, seed, mean)
    layer = torch.nn.BatchNorm1d(shape[1], affine=affine).to(getattr(torch, parameters))
    rank_programs.filled(layer)
    running = {
        name: getattr(layer, name).double().numpy() for name in ("running_mean", "running_var")
    }
    w, b = (
        (layer.weight.detach().double().numpy(), layer.bias.detach().double().numpy())
        if affine
        else (None, None)
    )
    forward = reference.batch_norm(x, w, b, **running, training=True, momentum=momentum)
    saved = {f"save_{name}": forward[name].value.astype(np.float64) for name in ("mean", "invstd")}
    backward = reference.batch_norm_backward(dy, x, w, **saved, training=True)
    # A rank's own parameters' gradients are of its own elements, about everyone's statistics.
    mine = []
    edges = np.cumsum((0, *counts))
    for first, last in itertools.pairwise(edges):
        part = reference.batch_norm_backward(
            dy[first:last], x[first:last], w, **saved, training=True
        )
        mine.append({name: part[name] for name in ("grad_weight", "grad_bias")})
    return {**forward, "grad_input": backward["grad_input"]}, mine


def check(answers, shape, counts, dtype="float32", parameters="float32", **options):
    """Every rank's part within the bound of the whole's."""
    exact, mine = expected(shape, dtype, parameters, counts=counts, **options)
    arithmetic = dtypes.arithmetic(dtypes.BY_NAME[dtype])
    edges = np.cumsum((0, *counts))
    for rank, answer in enumerate(answers):
        rows = slice(edges[rank], edges[rank + 1])
        for name in ("output", "grad_input", "running_mean", "running_var"):
            wanted = exact[name]
            kind = parameters
            if name in ("output", "grad_input"):
                wanted = reference.Exact(*(part[rows] for part in wanted))
                kind = dtype
            value = answer[name].astype(FLOATS[kind])
            units = precision.error(value, wanted, arithmetic)
            assert units.shape == wanted.value.shape
            assert units.max(initial=0) <= 1, (name, rank, units.max())
        for name, wanted in mine[rank].items():
            if answer[name] is not None:
                units = precision.error(answer[name].astype(FLOATS[parameters]), wanted, arithmetic)
                assert units.max() <= 1, (name, rank, units.max())
        assert answer["num_batches_tracked"] == 1
        output, grad_input, given = answer["strides"]
        if counts[rank] > 1:
            assert output == grad_input == given
    # The same statistics, to the bit.
    for name in ("running_mean", "running_var"):
        assert len({answer[name].tobytes() for answer in answers}) == 1


SHAPES = [(11, 5), (11, 5, 7), (11, 5, 4, 3), (11, 5, 3, 2, 4)]


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("counts", [(6, 5), (10, 1), (11, 0), (4, 4, 3), (0, 11, 0)], ids=str)
def test_ranks_together_are_one(ranks, counts, shape):
    check(ranks(len(counts)).run("step", shape=shape, counts=counts), shape, counts)


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("parameters", ["float32", "same"])
@pytest.mark.parametrize("counts", [(6, 5), (11, 0)], ids=str)
def test_dtypes_and_an_empty_rank(ranks, counts, parameters, dtype):
    if parameters == "same" or dtype == "float64":
        parameters = dtype
    shape = (11, 5, 4, 3)
    options = {"dtype": dtype, "parameters": parameters}
    check(ranks(2).run("step", shape=shape, counts=counts, **options), shape, counts, **options)


@pytest.mark.parametrize("layout", ["channels_last", "sliced"])
def test_layouts(ranks, layout):
    for shape in ((11, 5, 4, 3), (11, 5, 3, 2, 4)):
        answers = ranks(2).run("step", shape=shape, counts=(6, 5), layout=layout)
        if layout == "sliced":  # the results are dense, in the same order
            for answer in answers:
                answer["strides"] = (0, 0, 0)
        check(answers, shape, (6, 5))


@pytest.mark.parametrize("mean", [1e3, 1e5])
def test_a_mean_far_larger_than_the_deviation(ranks, mean):
    shape, counts = (40, 3, 50), (30, 10)
    answers = ranks(2).run("step", shape=shape, counts=counts, mean=mean)
    check(answers, shape, counts, mean=mean)


def test_without_parameters_or_running_statistics(ranks):
    shape, counts = (11, 5, 4), (6, 5)
    check(
        ranks(2).run("step", shape=shape, counts=counts, affine=False), shape, counts, affine=False
    )
    answers = ranks(2).run("step", shape=shape, counts=counts, track_running_stats=False)
    tracked = ranks(2).run("step", shape=shape, counts=counts)
    for answer, other in zip(answers, tracked, strict=True):
        assert answer["running_mean"] is None
        np.testing.assert_array_equal(answer["output"], other["output"])


def test_the_average_of_all_batches(ranks):
    shape, counts, steps = (11, 5, 4), (6, 5), 3
    answers = ranks(2).run("step", shape=shape, counts=counts, steps=steps, momentum=None)
    layer = rank_programs.filled(torch.nn.BatchNorm1d(5, momentum=None).double())
    for seed in range(steps):
        layer(rank_programs.whole(shape, "float32", seed)[0].double())
    for answer in answers:
        assert answer["num_batches_tracked"] == steps
        np.testing.assert_allclose(answer["running_mean"], layer.running_mean, rtol=1e-6)
        np.testing.assert_allclose(answer["running_var"], layer.running_var, rtol=1e-6)


@pytest.mark.parametrize("momentum", [0.1, None])
def test_checkpointing_updates_the_buffers_twice(ranks, momentum):
    """As PyTorch's layer, whose running statistics have the versions from before."""
    for once, twice, versions in ranks(2).run(
        "checkpointed", shape=(7, 3, 4), counts=(4, 3), momentum=momentum
    ):
        assert once["num_batches_tracked"] == 2
        for name, value in twice.items():
            np.testing.assert_array_equal(once[name], value)
        assert versions == (0, 0)


def test_frozen_statistics(ranks):
    shape, counts = (11, 5, 4), (6, 5)
    answers = ranks(2).run("step", shape=shape, counts=counts, evaluating=True)
    layer = rank_programs.filled(torch.nn.BatchNorm1d(5).double()).eval()
    x, dy, _ = (t.double() for t in rank_programs.whole(shape, "float32", 0))
    x.requires_grad_()
    layer(x).backward(dy)
    gradient = np.concatenate([answer["grad_input"] for answer in answers])
    np.testing.assert_allclose(gradient, x.grad, rtol=1e-5, atol=1e-6)
    for answer in answers:
        assert answer["num_batches_tracked"] == 0
        np.testing.assert_array_equal(answer["running_mean"], layer.running_mean.float().numpy())


def test_sub_groups(ranks):
    shape, counts = (11, 5, 4), (6, 5)
    answers = ranks(3).run("step", shape=shape, counts=counts, ranks=[0, 2])
    assert answers[1] is None
    check([answers[0], answers[2]], shape, counts)
    alone = ranks(3).run("step", shape=(6, 5, 4), counts=(6,), ranks=[1])
    assert alone[0] is None
    check([alone[1]], (6, 5, 4), (6,))


@pytest.mark.parametrize("counts", [(6, 5), (11, 0), (4, 4, 3)], ids=str)
def test_derivatives_of_the_second_and_third_order(ranks, counts):
    shape = (11, 3, 4)
    layer = rank_programs.filled(torch.nn.BatchNorm1d(3).double())
    x, dy, u = rank_programs.whole(shape, "float64", 0)
    # Parameters are every rank's own: in one process, too, each has its own, for its own samples.
    whole = one_process(layer, x, dy, u, counts)
    answers = ranks(len(counts)).run("second", shape=shape, counts=counts)
    for rank, answer in enumerate(answers):
        for found, wanted in zip(answer, whole[rank], strict=True):
            np.testing.assert_allclose(found, wanted, rtol=1e-9, atol=1e-9)


def test_hooks_run_once(ranks):
    assert ranks(2).run("hooked") == [1, 1]


def one_process(layer, x, dy, u, counts):
    """What ``rank_programs.differentiated`` gives on each rank, by float64 autograd alone."""
    ranks = len(counts)
    w, b = (t.detach().repeat(ranks, 1).requires_grad_() for t in (layer.weight, layer.bias))
    rows = torch.repeat_interleave(torch.arange(ranks), torch.tensor(counts))
    x, dy = x.clone().requires_grad_(), dy.clone().requires_grad_()
    mean = x.mean((0, 2), keepdim=True)
    r = ((x - mean) ** 2).mean((0, 2), keepdim=True).add(layer.eps).rsqrt()
    y = (x - mean) * r * w[rows].unsqueeze(2) + b[rows].unsqueeze(2)
    first = torch.autograd.grad((y * dy).sum(), (x, w, b), create_graph=True)
    loss = (first[0] * u).sum() + (first[1] ** 2).sum() + first[2].sum()
    again = torch.autograd.grad(loss, (dy, x, w), create_graph=True)
    third = torch.autograd.grad((again[1] * u).sum() + (again[0] * u).sum(), (x, dy))
    per_sample = {0, 3, 4, 6, 7}
    return [
        [
            (value[rows == rank] if index in per_sample else value[rank]).detach().numpy()
            for index, value in enumerate((*first, *again, *third))
        ]
        for rank in range(ranks)
    ]


@pytest.mark.parametrize("dtype", ["bfloat16", "float32", "float64"])
def test_one_collective_forward_and_one_backward(ranks, dtype):
    channels = 5
    for answer in ranks(2).run("traffic", shape=(7, channels, 3), counts=(4, 3), dtype=dtype):
        *steps, evaluating = answer
        step = [
            ("all_gather", 2 * channels + 1, "torch.float64"),
            ("all_reduce", 2 * channels, "torch.float64"),
        ]
        # The ranks' agreement is made sure of once.
        assert steps == [[("all_gather", 6, "torch.float64"), *step], step, step]
        assert evaluating == []
    for answer in ranks(2).run("traffic", shape=(7, channels, 3), counts=(4, 3), frozen=True):
        assert [name for name, _, _ in answer[1]] == ["all_gather"]  # nobody asks for x's gradient


@pytest.mark.parametrize(
    ("counts", "momentum"),
    [
        ((6, 5), None),
        ((11, 0), 0.1),
        pytest.param((6, 5), 0.1, marks=pytest.mark.full),
        pytest.param((11, 0), None, marks=pytest.mark.full),
    ],
)
def test_compiled(ranks, momentum, counts):
    """The layer itself runs between two graphs."""
    arguments = {"shape": (11, 5, 4, 3), "counts": counts, "momentum": momentum, "steps": 2}
    compiled = ranks(2).run("step", compiled="aot_eager", **arguments)
    eager = ranks(2).run("step", **arguments)
    for one, other in zip(compiled, eager, strict=True):
        for name, value in other.items():
            if name != "strides":
                assert one[name].tobytes() == value.tobytes(), name


@pytest.mark.parametrize("kind", ["ddp", "fsdp", "fully_shard"])
@pytest.mark.parametrize("counts", [(5, 2), (3, 2, 2)], ids=str)
@pytest.mark.filterwarnings("ignore")
def test_wrappers_train_as_one_process(ranks, counts, kind):
    model = rank_programs.network()
    optimiser = torch.optim.SGD(model.parameters(), lr=0.1)
    for seed in range(3):
        x, _, _ = rank_programs.whole((sum(counts), 3, 6, 6), "float64", seed)
        optimiser.zero_grad()
        (model(x).square().sum() / sum(counts)).backward()
        optimiser.step()
    wanted = model.state_dict()
    for answer in ranks(len(counts)).run("wrapped", kind=kind, counts=counts):
        assert set(answer) <= set(wanted)
        assert len(answer) >= len(list(model.parameters()))
        for name, value in answer.items():
            np.testing.assert_allclose(value, wanted[name].numpy(), rtol=1e-9, atol=1e-9)


# What goes wrong


@pytest.mark.parametrize(
    ("each", "message"),
    [
        ([{"features": 4}, {"features": 5}], "channels: 4 on rank 0, 5 on rank 1"),
        (
            [{"dtype": "float32"}, {"dtype": "float64"}],
            "dtype: float32 on rank 0, float64 on rank 1",
        ),
        ([{"dtype": "bfloat16"}, {}], "dtype: bfloat16 on rank 0, float32 on rank 1"),
        ([{"eps": 1e-5}, {"eps": 1e-3}], "eps: 1e-05 on rank 0, 0.001 on rank 1"),
        ([{}, {"affine": False}], "weight: there on rank 0, none on rank 1"),
        ([{}, {"track_running_stats": False}], "running statistics: there on rank 0, none on"),
    ],
)
def test_ranks_that_disagree_are_told_so(ranks, each, message):
    errors = ranks(2).errors("disagree", each)
    for kind, text in errors:
        assert kind == "ValueError"
        assert message in text
        assert "allowed: the same on all ranks of group" in text
    assert ranks(2).run("still_works") == [2.0, 2.0]


def test_models_that_differ_are_not_converted(ranks):
    for each, message in (
        ([{"layers": 2}, {"layers": 3}], "'no such layer' on rank 0, '2: 4 features"),
        ([{"features": 4}, {"features": 5}], "'0: 4 features, eps 1e-05, momentum 0.1, affine"),
    ):
        for kind, text in ranks(2).errors("convert", each):
            assert kind == "ValueError"
            assert text.startswith("module: the ranks' layers differ: ")
            assert message in text
    assert ranks(2).run("convert") == [["SyncBatchNorm"] * 2] * 2


def test_a_group_of_others(ranks):
    ranks(2).start("convert", outside=True)
    assert ranks(2).answer(0) == (True, ["SyncBatchNorm"] * 2)
    done, (kind, text, _) = ranks(2).answer(1)
    assert not done
    assert (kind, text) == (
        "ValueError",
        "process_group: a group of which this rank is not; allowed: one that it is of",
    )


def test_a_group_that_was_destroyed(ranks):
    for kind, text in ranks(2).errors("destroyed_group"):
        assert kind == "RuntimeError"
        assert "allowed: a group of this process that was not destroyed" in text


def test_copies_and_files_know_their_group_by_name(ranks):
    first, second = ranks(2).run("copies")
    assert first == pytest.approx([-value for value in second])  # centred about everyone's mean
    assert first[0] == pytest.approx(first[1])
    assert abs(first[0]) > 0.1


def test_a_copy_on_one_rank_goes_on_with_the_others(ranks):
    assert ranks(2).run("copied_on_one_rank") == [True, True]


def test_exported(ranks):
    """In evaluation it is batch norm; in training there is no program of it."""
    for same, names, error in ranks(2).run("exported"):
        assert same
        assert "aten.batch_norm.default" in names
        assert not [name for name in names if "normgrad" in name]
        assert error.startswith("sync_batch_norm: training in an exported program; allowed: ")


@pytest.mark.parametrize(
    ("how", "when", "named"),
    [
        ("die", "forward", "sync_batch_norm: statistics: all-gather of 9 float64 values"),
        ("die", "backward", "sync_batch_norm: gradients: all-reduce of 8 float64 values"),
        ("late", "forward", "sync_batch_norm: statistics: all-gather of 9 float64 values"),
        ("late", "backward", "sync_batch_norm: gradients: all-reduce of 8 float64 values"),
    ][slice(None) if FULL else slice(1, 3)],
)
def test_a_rank_that_dies_or_does_not_come(how, when, named):
    timeout = 20.0 if how == "die" else 5.0
    group = Ranks(2, timeout)
    try:
        group.run("still_works")
        each = [{"how": "wait"}, {"how": how, "seconds": 3 * timeout}]
        group.start("fail", each, when=when)
        start = time.monotonic()
        done, (kind, text, _) = group.answer(0, within=60.0 + timeout)
        assert not done
        assert kind == "RuntimeError"
        assert f"{named} failed on rank 0 of the 2 in group '0': " in text
        if how == "late":
            assert "imed out" in text
        # Not a hang: the group's timeout, and what a first call takes.
        assert time.monotonic() - start < 60.0
    finally:
        for process in group.processes:
            process.kill()
        group.close()


# In one process


def test_without_a_group_it_is_batch_norm():
    x = torch.randn(6, 5, 4, generator=torch.Generator().manual_seed(0))
    ours = rank_programs.filled(nt.nn.SyncBatchNorm(5))
    plain = rank_programs.filled(nt.nn.BatchNorm1d(5))
    assert torch.equal(ours(x), plain(x))
    assert torch.equal(ours.running_var, plain.running_var)
    assert not isinstance(ours, torch.nn.SyncBatchNorm)  # which DDP refuses on the CPU


@pytest.mark.parametrize("make", [nt.convert_sync_batchnorm,
                                  nt.nn.SyncBatchNorm.convert_sync_batchnorm])  # fmt: skip
def test_conversion(make):
    shared = torch.nn.BatchNorm2d(4)
    model = torch.nn.Sequential(
        shared, nt.nn.BatchNorm2d(4), torch.nn.Sequential(shared, torch.nn.SyncBatchNorm(4)),
        torch.nn.GroupNorm(2, 4), torch.nn.LazyBatchNorm2d(), torch.nn.InstanceNorm2d(4),
    )  # fmt: skip
    weights = [shared.weight, model[1].weight, model[2][1].weight]
    assert make(model) is model
    assert [type(m).__name__ for m in (*model[:2], *model[2], *model[3:])] == [
        "SyncBatchNorm", "SyncBatchNorm", "SyncBatchNorm", "SyncBatchNorm", "GroupNorm",
        "LazyBatchNorm2d", "InstanceNorm2d",
    ]  # fmt: skip
    assert model[0] is model[2][0] is shared
    kept = [model[0].weight, model[1].weight, model[2][1].weight]
    assert all(a is b for a, b in zip(weights, kept, strict=True))
    alone = torch.nn.BatchNorm2d(4)
    root = make(alone)
    assert type(root) is nt.nn.SyncBatchNorm
    assert root.weight is alone.weight
    assert type(alone) is torch.nn.BatchNorm2d
    assert nt.revert(model) is model
    assert type(model[0]) is torch.nn.SyncBatchNorm


def test_parametrized_layers_are_refused_before_anything_is_changed():
    layer = torch.nn.BatchNorm1d(4)
    torch.nn.utils.parametrize.register_parametrization(layer, "weight", torch.nn.Identity())
    model = torch.nn.Sequential(torch.nn.BatchNorm1d(4), layer)
    with pytest.raises(ValueError, match=r"^module: 1 is parametrized; allowed: batch norms with"):
        nt.convert_sync_batchnorm(model)
    assert type(model[0]) is torch.nn.BatchNorm1d


def test_checkpoints_go_both_ways():
    theirs, ours = torch.nn.SyncBatchNorm(4), nt.nn.SyncBatchNorm(4)
    rank_programs.filled(theirs)
    ours.load_state_dict(theirs.state_dict())
    assert torch.equal(ours.running_var, theirs.running_var)
    theirs.load_state_dict(ours.state_dict())
    assert repr(ours) == f"normgrad.{theirs!r}"


@pytest.mark.parametrize(
    ("x", "change", "error", "message"),
    [
        (torch.ones(3, 4), {"eps": 0.0}, ValueError,
         "batch_norm eps must be positive during training, but got 0.0"),
        (torch.ones(3, 4), {"momentum": None}, TypeError,
         "argument 'momentum' must be float, not NoneType"),
        (torch.ones(4), {}, ValueError, "expected at least 2D input (got 1D input)"),
        (torch.ones(3, 4), {"weight": torch.ones(5)}, RuntimeError,
         "weight should contain 4 elements not 5"),
        (torch.ones(3, 4, dtype=torch.int32), {}, TypeError, "input: torch.int32; allowed:"),
        (torch.ones(3, 0), {}, ValueError,
         "SyncBatchNorm number of input channels should be non-zero"),
        (torch.ones([1] * 9), {}, ValueError, "expected at most 8D input (got 9D input)"),
        (torch.ones(3, 4, device="meta"), {}, ValueError,
         "SyncBatchNorm expected input tensor to be on cpu or cuda, but got meta"),
    ],
)  # fmt: skip
def test_wrong_arguments_are_found_before_the_others_are_told(x, change, error, message,
                                                              monkeypatch):  # fmt: skip
    from normgrad.torch import collectives

    group = object()
    monkeypatch.setattr(collectives, "size", lambda group: 2)
    arguments = {"running_mean": None, "running_var": None, "training": True, **change}
    with pytest.raises(error) as caught:
        nt.functional.sync_batch_norm(x, process_group=group, **arguments)
    assert message in str(caught.value)
