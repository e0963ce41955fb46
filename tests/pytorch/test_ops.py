"""The operators in torch.ops: values, what they look like to PyTorch, batches, refusals."""

from __future__ import annotations

import itertools
import typing
from collections import defaultdict

import numpy as np
import pytest
from support import FLOATS, make, sampled

import normgrad as ng

torch = pytest.importorskip("torch")
nt = pytest.importorskip("normgrad.torch")
ops = nt.ops

DTYPES = (torch.float32, torch.bfloat16, torch.float16, torch.float64)
WIDE = {torch.float64: torch.float64}
MASKS = tuple(itertools.product((True, False), repeat=3))


def tensor(*shape, dtype=torch.float32, seed=0, grad=True, channels_last=False):
    made = torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(dtype)
    if channels_last:
        made = made.to(memory_format=torch.channels_last)
    return made.requires_grad_(grad)


def samples(dtype, channels_last):
    """Arguments for every operator, as (name, arguments)."""
    wide = WIDE.get(dtype, torch.float32)
    x = tensor(3, 4, 5, 6, dtype=dtype, channels_last=channels_last)
    dy = tensor(3, 4, 5, 6, dtype=dtype, seed=1)
    w, b = tensor(4, dtype=wide, seed=2), tensor(4, dtype=wide, seed=3)
    mean, running = (tensor(4, dtype=wide, seed=seed, grad=False) for seed in (4, 5))
    spread = running.square() + 0.5
    for training in (True, False):
        yield "native_batch_norm", (x, w, b, running, spread, training, 0.1, 1e-5)
        yield "native_batch_norm", (x, None, b, None, None, training, 0.1, 1e-5)
        statistics = (None, None, mean, spread) if training else (running, spread, None, None)
        for mask in MASKS[:: 1 if dtype is torch.float32 else 3]:
            yield (
                "native_batch_norm_backward",
                (dy, x, w, *statistics, training, 1e-5, list(mask)),
            )
        yield (
            "native_batch_norm_backward",
            (dy, x, *[None] * 5, training, 1e-5, [True] * 3),
        )
    yield "batch_norm_stats", (x, 1e-5)
    yield "batch_norm_elemt", (x, w, b, mean, spread, 1e-5)
    ranks = tensor(2, 4, dtype=wide, seed=6)
    yield (
        "batch_norm_gather_stats_with_counts",
        (x, ranks, ranks.detach() ** 2 + 0.5, running, None, 0.1, 1e-5, torch.tensor([3.0, 4.0])),
    )
    for mask in MASKS[::3]:
        yield "batch_norm_backward_reduce", (dy, x, mean, spread, w, *mask)
    count = torch.tensor([90, 80], dtype=torch.int32)
    yield "batch_norm_backward_elemt", (dy, x, mean, spread, w, mean, running, count)
    yield "native_group_norm", (x, w, b, 3, 4, 30, 2, 1e-5)
    yield "native_group_norm", (x, None, None, 3, 4, 30, 1, 1e-5)
    mean = tensor(3, 2, dtype=wide, seed=7, grad=False)
    for mask in MASKS[::3]:
        yield (
            "native_group_norm_backward",
            (dy, x, mean, mean**2 + 0.5, w, 3, 4, 30, 2, list(mask)),
        )

    w, b = tensor(5, 6, dtype=wide, seed=2), tensor(5, 6, dtype=wide, seed=3)
    mean = tensor(3, 4, 1, 1, dtype=wide, seed=8, grad=False)
    rows, row = (mean, mean**2 + 0.5), [5, 6]
    yield "native_layer_norm", (x, row, w, b, 1e-5)
    yield "native_layer_norm", (x, row, None, None, 1e-5)
    for mask in MASKS[::3]:
        yield "native_layer_norm_backward", (dy, x, row, *rows, w, b, list(mask))
    for eps in (None, 1e-5):
        yield "_fused_rms_norm", (x, row, w, eps)
    for mask in MASKS[::4]:
        yield "_fused_rms_norm_backward", (dy, x, row, rows[1], w, list(mask[:2]))


@pytest.mark.parametrize(
    ("dtype", "channels_last"),
    [
        (torch.bfloat16, True),
        pytest.param(torch.float32, False, marks=pytest.mark.full),
        pytest.param(torch.float64, True, marks=pytest.mark.full),
    ],
)
def test_opcheck(dtype, channels_last):
    """Schema, autograd registration, fake tensors, and AOT dispatch with dynamic shapes."""
    calls = defaultdict(list)
    for name, arguments in samples(dtype, channels_last):
        calls[name].append(arguments)
    # What speaks to other ranks is checked where there are some.
    spoken = ("sync_", "all_reduce_")
    assert set(calls) == {name for name in ops.__all__ if not name.startswith(spoken)}
    for name, of_one in calls.items():
        for arguments in sampled(of_one, 1, f"{name} {dtype}"):
            torch.library.opcheck(getattr(ops, name), arguments)


def to_torch(array):
    """The same values and strides."""
    if array is None:
        return None
    if array.dtype.name == "bfloat16":
        return to_torch(array.view(np.uint16)).view(torch.bfloat16)
    return torch.from_numpy(array)


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("layout", ["contiguous", "channels_last", "sliced"])
def test_gradients_are_those_of_the_functions(dtype, layout):
    """The same bits and strides, whatever the mask; what is masked off is empty."""
    for kind, mask in itertools.product(("train", "eval", "group_norm"), MASKS):
        case = make(kind, (3, 4, 5, 6), dtype=dtype, layout=layout, num_groups=2)
        tensors = {name: to_torch(value) for name, value in case.tensors.items()}
        if kind == "group_norm":
            result = ops.native_group_norm_backward(*tensors.values(), 3, 4, 30, 2, mask)
            expected = ng.group_norm_backward(**tensors, num_groups=2, output_mask=mask)
        else:
            names = ("grad_out", "input", "weight", "running_mean", "running_var", "save_mean",
                     "save_invstd")  # fmt: skip
            training = kind == "train"
            result = ops.native_batch_norm_backward(
                *[tensors.get(name) for name in names], training, 1e-5, mask
            )
            expected = ng.batch_norm_backward(**tensors, training=training, output_mask=mask)
        for got, wanted in zip(result, expected, strict=True):
            if wanted is None:
                assert got.shape == (0,)
            else:
                assert torch.equal(got, wanted)
                assert got.stride() == wanted.stride()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("channels_last", [False, True])
def test_every_result_is_as_its_fake(dtype, channels_last):
    """Shapes, strides and dtypes; absent results too."""
    from torch._subclasses import FakeTensorMode

    for name, arguments in samples(dtype, channels_last):
        real = getattr(ops, name)(*arguments)
        with FakeTensorMode() as mode:
            fakes = [
                mode.from_tensor(value) if isinstance(value, torch.Tensor) else value
                for value in arguments
            ]
            fake = getattr(ops, name)(*fakes)
        alone = isinstance(real, torch.Tensor)
        for one, other in zip((real,) if alone else real, (fake,) if alone else fake, strict=True):
            assert one.shape == other.shape, name
            assert one.stride() == other.stride(), name
            assert one.dtype == other.dtype, name
            assert one.device == other.device, name


@pytest.mark.parametrize("permutation", list(itertools.permutations(range(4))))
def test_fakes_in_any_order_of_axes(permutation):
    from torch._subclasses import FakeTensorMode

    dense = torch.randn(2, 3, 4, 5).permute(permutation)
    gaps = torch.randn(4, 3, 8, 5)[::2, :, ::2].permute(permutation)
    expanded = torch.randn(2, 1, 4, 5).expand(2, 3, 4, 5).permute(permutation)
    for x in (dense, gaps, expanded):
        real = ops.native_batch_norm(x, None, None, None, None, True, 0.1, 1e-5)[0]
        with FakeTensorMode() as mode:
            fake = ops.native_batch_norm(
                mode.from_tensor(x), None, None, None, None, True, 0.1, 1e-5
            )[0]
        assert real.stride() == fake.stride()


def test_running_statistics_are_new():
    x, mean, var = tensor(3, 4, 5), torch.zeros(4), torch.ones(4)
    result = ops.native_batch_norm(x, None, None, mean, var, True, 0.1, 1e-5)
    assert torch.equal(mean, torch.zeros(4))
    assert torch.equal(var, torch.ones(4))
    torch.nn.functional.batch_norm(x, mean, var, training=True)
    torch.testing.assert_close(result[3], mean)
    torch.testing.assert_close(result[4], var)
    # In evaluation there is nothing but the output.
    result = ops.native_batch_norm(x, None, None, mean, var, False, 0.1, 1e-5)
    assert [value.shape for value in result[1:]] == [(0,)] * 4


def test_statistics_gathered_are_those_of_the_whole():
    x = tensor(7, 4, 5, dtype=torch.float64, grad=False)
    parts = (x[:2], x[2:], x[:0])
    each = [ops.batch_norm_stats(part, 1e-5) for part in parts]
    mean, invstd, new_mean, new_var = ops.batch_norm_gather_stats_with_counts(
        x, torch.stack([m for m, _ in each]), torch.stack([r for _, r in each]),
        torch.zeros(4).double(), None, 0.1, 1e-5, torch.tensor([10.0, 25.0, 0.0]),
    )  # fmt: skip
    torch.testing.assert_close(mean, x.mean((0, 2)))
    torch.testing.assert_close(invstd, (x.var((0, 2), correction=0) + 1e-5).rsqrt())
    torch.testing.assert_close(new_mean, 0.1 * x.mean((0, 2)))
    assert new_var.shape == (0,)


def folded_samples():
    """Arguments, and which of them vmap goes over; the operators' names."""
    for name, arguments in samples(torch.float64, False):
        arguments = [
            value.detach() if isinstance(value, torch.Tensor) else value for value in arguments
        ]
        floats = [
            index
            for index, value in enumerate(arguments)
            if isinstance(value, torch.Tensor) and (name, index) not in COUNTS
        ]
        yield name, arguments, floats
        yield name, arguments, floats[:1]
        yield name, arguments, floats[1:]


COUNTS = {("batch_norm_gather_stats_with_counts", 7), ("batch_norm_backward_elemt", 7)}


def test_vmap_is_a_loop():
    """Over every argument, over the first alone, over all but the first; along any axis."""
    for name, arguments, over in folded_samples():
        if not over:
            continue
        op = getattr(ops, name)
        batched, dims = list(arguments), [None] * len(arguments)
        for place, index in enumerate(over):
            value = arguments[index]
            axis = place % (value.dim() + 1)
            batched[index] = torch.stack([value * (1 + 0.25 * step) for step in range(3)], axis)
            dims[index] = axis
        together = torch.func.vmap(op, tuple(dims))(*batched)
        for step in range(3):
            one = list(arguments)
            for index in over:
                one[index] = batched[index].select(dims[index], step)
            expected = op(*one)
            alone = isinstance(expected, torch.Tensor)
            for got, wanted in zip(
                (together,) if alone else together, (expected,) if alone else expected, strict=True
            ):
                torch.testing.assert_close(got[step], wanted, rtol=1e-12, atol=1e-12)


def test_vmap_of_no_members():
    """A batch without members has results without members, of the usual shapes and dtypes."""
    for name, arguments, over in folded_samples():
        if not over:
            continue
        op, batched, dims = getattr(ops, name), list(arguments), [None] * len(arguments)
        for index in over:
            batched[index] = arguments[index].new_zeros((0, *arguments[index].shape))
            dims[index] = 0
        one, none = op(*arguments), torch.func.vmap(op, tuple(dims))(*batched)
        if isinstance(one, torch.Tensor):
            one, none = (one,), (none,)
        for wanted, got in zip(one, none, strict=True):
            assert (got.shape, got.dtype) == ((0, *wanted.shape), wanted.dtype), name


def test_derivatives_where_no_rank_has_elements():
    """Nothing is divided by a count of 0."""
    v = [torch.rand(3, requires_grad=True) for _ in range(5)]
    x = torch.zeros(0, 3, 2, requires_grad=True)
    result = ops.batch_norm_backward_elemt(x, x, *v, torch.tensor([0, 0]))
    for gradient in torch.autograd.grad(result.sum(), (x, *v)):
        assert not gradient.any()
    mean, invstd = torch.rand(2, 2, 3).requires_grad_()
    results = ops.batch_norm_gather_stats_with_counts(
        x, mean, invstd, None, None, 0.1, 1e-5, torch.tensor([0, 0])
    )
    for gradient in torch.autograd.grad(results[0].sum() + results[1].sum(), (mean, invstd)):
        assert not gradient.any()


def test_vmap_over_counts_is_refused():
    x, v = torch.randn(3, 4, 5), torch.ones(4)
    with pytest.raises(
        ValueError, match=r"^batch_norm_backward_elemt: count: batched by vmap; allowed: the same"
    ):
        torch.func.vmap(lambda n: ops.batch_norm_backward_elemt(x, x, v, v, None, v, v, n))(
            torch.ones(2, 3)
        )


def test_refusals():
    x = torch.randn(3, 4, 5)
    with pytest.raises(ValueError, match=r"^weight: shape \(3,\); allowed: \(4,\)"):
        ops.native_batch_norm_backward(
            x, x, torch.ones(3), *[None] * 4, True, 1e-5, [True, True, True]
        )
    with pytest.raises(ValueError, match=r"^input: shape \(3, 4, 5\); allowed: \(N, C, \.\.\.\)"):
        ops.native_group_norm(x, None, None, 3, 4, 6, 2, 1e-5)
    with pytest.raises(TypeError, match=r"^input: dtype int32; allowed: float32"):
        ops.batch_norm_stats(x.int(), 1e-5)
    with pytest.raises(NotImplementedError, match="normgrad::batch_norm_stats"):
        ops.batch_norm_stats(x.to_sparse(), 1e-5)


def test_kept_memory_is_no_view():
    """Large results lie in memory that is kept; autograd lets them be changed in place."""
    x = torch.randn(8, 32, 64, 64, requires_grad=True)
    output = ops.native_batch_norm(x, *[None] * 4, True, 0.1, 1e-5)[0]
    output.relu_().sum().backward()
    result = ops.native_batch_norm_backward(x, x, *[None] * 5, True, 1e-5, [True] * 3)
    result[0].add_(1).sum().backward()
    assert not any(value._is_view() for value in result)


def test_type_checkers_see_every_operator_and_its_results():
    shown = {
        name: typing.get_args(vars(ops)[kind])[-1]
        for name, kind in ops.__annotations__.items()
        if name in ops.__all__
    }
    results = {name: len(typing.get_args(kind)) or 1 for name, kind in shown.items()}
    operators = {name: getattr(torch.ops.normgrad, name).default for name in ops.__all__}
    assert results == {name: len(one._schema.returns) for name, one in operators.items()}


def test_the_module_shows_public_names_alone():
    assert dir(nt) == sorted(nt.__all__)
