"""PyTorch's own operators by normgrad."""

from __future__ import annotations

import threading
import warnings

import pytest

import normgrad as ng

torch = pytest.importorskip("torch")
nt = pytest.importorskip("normgrad.torch")
functional = torch.nn.functional

X = torch.randn(4, 6, 5, 3, generator=torch.Generator().manual_seed(0))
W, B = torch.linspace(-1, 2, 6), torch.linspace(1, 2, 6)
SYNCHRONISED = (
    "batch_norm_stats",
    "batch_norm_elemt",
    "batch_norm_gather_stats_with_counts",
    "batch_norm_backward_reduce",
    "batch_norm_backward_elemt",
)


def gradients(kind, x=X, **more):
    x, w, b = (t.clone().requires_grad_() for t in (x, W.to(x.dtype), B.to(x.dtype)))
    if kind == "group":
        y = functional.group_norm(x, 2, w, b)
    elif kind == "instance":
        y = functional.instance_norm(x, weight=w, bias=b)
    else:
        y = functional.batch_norm(x, x.new_zeros(6), x.new_ones(6), w, b, kind == "train")
    return torch.autograd.grad(y, (x, w, b), y.detach() ** 2)


def ours(kind):
    """What normgrad's function gives for PyTorch's statistics, to the bit."""
    aten = torch.ops.aten
    if kind == "group":
        y, mean, rstd = aten.native_group_norm(X, W, B, 4, 6, 15, 2, 1e-5)
        return ng.group_norm_backward(y**2, X, mean, rstd, W, num_groups=2)
    training = kind == "train"
    zeros, ones = torch.zeros(6), torch.ones(6)
    y, mean, invstd = aten.native_batch_norm(X, W, B, zeros, ones, training, 0.1, 1e-5)
    return ng.batch_norm_backward(
        y**2, X, W, torch.zeros(6), torch.ones(6), mean, invstd, training=training
    )


@pytest.mark.parametrize("kind", ["train", "evaluate", "group"])
def test_gradients_are_ours_inside_and_pytorch_s_outside(kind):
    before = gradients(kind)
    with nt.override():
        inside = gradients(kind)
        with nt.override():
            again = gradients(kind)
        still = gradients(kind)
    after = gradients(kind)
    for found in (inside, again, still):
        assert all(map(torch.equal, found, ours(kind)))
    assert all(map(torch.equal, before, after))
    assert not all(map(torch.equal, before, inside))
    torch.testing.assert_close(before, inside, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("kind", ["train", "evaluate", "group", "instance"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(
    "x", [X.to(memory_format=torch.channels_last), X.permute(0, 1, 3, 2), X[:, :, ::2]]
)
def test_values(kind, dtype, x):
    before = gradients(kind, x.to(dtype))
    with nt.override():
        inside = gradients(kind, x.to(dtype))
    torch.testing.assert_close(before, inside, rtol=1e-4, atol=1e-4)


def test_many_axes():
    """PyTorch takes any number."""
    x = torch.randn(3, 4, *[1] * 7, 2, dtype=torch.float64, requires_grad=True)

    def both():
        y = functional.batch_norm(x, None, None, training=True)
        z = functional.group_norm(x, 2)
        return torch.autograd.grad((y**3 + z**3).sum(), x)

    before = both()
    with nt.override():
        torch.testing.assert_close(both(), before)


def test_a_backward_pass_that_is_recorded():
    """There PyTorch's operators get tensors that require gradients, with gradients enabled."""
    x = torch.randn(3, 4, 5, dtype=torch.float64, requires_grad=True)
    weight = torch.randn(5, dtype=torch.float64, requires_grad=True)

    def penalty():
        output = torch.nn.functional.layer_norm(x, (5,), weight).pow(3).sum()
        (first,) = torch.autograd.grad(output, x, create_graph=True)
        return torch.autograd.grad(first.square().sum(), (x, weight))

    expected = penalty()
    with nt.override():
        torch.testing.assert_close(penalty(), expected)


def test_no_warning_and_others_pass():
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        with nt.override():
            warnings.warn("another", stacklevel=1)
    assert [str(warning.message) for warning in caught] == ["another"]


def test_operators_of_synchronised_batch_norm():
    """There they are; with the values of our own functions; gone afterwards."""
    with nt.override():
        mean, invstd = torch.batch_norm_stats(X, 1e-5)
        y = torch.batch_norm_elemt(X, W, B, mean, invstd, 1e-5)
        torch.testing.assert_close(
            y, functional.batch_norm(X, None, None, W, B, True), rtol=1e-5, atol=1e-5
        )
        running_mean, running_var = torch.zeros(6), torch.ones(6)
        count = torch.tensor([60.0, 60.0])
        both = torch.batch_norm_gather_stats_with_counts(
            X, torch.stack([mean, mean]), torch.stack([invstd, invstd]), running_mean,
            running_var, 0.1, 1e-5, count,
        )  # fmt: skip
        torch.testing.assert_close(both, (mean, invstd))
        torch.testing.assert_close(running_mean, 0.1 * mean)
        assert not torch.equal(running_var, torch.ones(6))
        sums = torch.batch_norm_backward_reduce(y, X, mean, invstd, W, True, False, True)
        expected = ng.batch_norm_backward_reduce(y, X, mean, invstd, W, weight_g=False)
        assert sums[2] is None
        for got, wanted in zip(sums, expected, strict=True):
            assert got is wanted is None or torch.equal(got, wanted)
        count = torch.tensor([60], dtype=torch.int32)
        grad = torch.batch_norm_backward_elemt(y, X, mean, invstd, W, *sums[:2], count)
        torch.testing.assert_close(
            grad,
            ng.batch_norm_backward(y, X, W, save_mean=mean, save_invstd=invstd, training=True)[0],
        )
    for name in SYNCHRONISED:
        assert not torch._C._dispatch_has_kernel_for_dispatch_key(f"aten::{name}", "CPU")


def test_what_crashes_pytorch_does_not_crash_ours():
    """A short gradient is an error, absent statistics are computed."""
    aten = torch.ops.aten
    with nt.override():
        found = aten.native_batch_norm_backward(X, X, W, *[None] * 4, True, 1e-5, [True] * 3)
        expected = ng.batch_norm_backward(X, X, W, training=True)
        assert all(map(torch.equal, found, expected))
        with pytest.raises(ValueError, match=r"^grad_out: shape \(2, 6, 5, 3\); allowed: "):
            aten.native_batch_norm_backward(X[:2], X, W, *[None] * 4, True, 1e-5, [True] * 3)
        masked = aten.native_group_norm_backward(
            X, X.to(memory_format=torch.channels_last), torch.zeros(4, 2), torch.ones(4, 2), W,
            4, 6, 15, 2, [False, True, True],
        )  # fmt: skip
        assert masked[0] is None
        empty = aten.native_batch_norm_backward(X[:0], X[:0], W, *[None] * 4, True, 0.1, [True] * 3)
        assert torch.equal(empty[1], torch.zeros(6))


def test_compiled_code_calls_what_is_there():
    torch._dynamo.reset()
    compiled = torch.compile(lambda: gradients("train"), backend="aot_eager")
    before = compiled()
    with nt.override():
        inside = compiled()
    assert all(map(torch.equal, inside, ours("train")))
    assert all(map(torch.equal, compiled(), before))


def test_threads():
    """PyTorch's own are back when the last has left, however they overlap."""
    expected, failed = ours("train"), []
    barrier = threading.Barrier(4)

    def work(index):
        barrier.wait()
        for _ in range(10):
            with nt.override():
                if not all(map(torch.equal, gradients("train"), expected)):
                    failed.append(index)

    before = gradients("train")
    workers = [threading.Thread(target=work, args=(index,)) for index in range(4)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert not failed
    assert all(map(torch.equal, gradients("train"), before))


def test_errors_leave_nothing_behind():
    before = gradients("train")
    with pytest.raises(KeyError), nt.override():
        raise KeyError
    assert all(map(torch.equal, gradients("train"), before))


def test_what_is_installed_can_be_uninstalled():
    before, inside = gradients("train"), ours("train")

    def is_ours():
        return all(map(torch.equal, gradients("train"), inside))

    handle = nt.install()
    with nt.install():
        assert is_ours()
    assert is_ours()
    handle.close(), handle.close()
    assert not is_ours()
    nt.install(), nt.install()
    with nt.override():
        nt.uninstall()
        assert is_ours()
    assert all(map(torch.equal, gradients("train"), before))
    nt.uninstall()


def test_install_stays():
    """In a process of its own, which it changes for good."""
    import subprocess
    import sys

    program = """
import warnings; warnings.simplefilter("error")
import torch, normgrad.torch as nt
nt.install(); nt.install()
with nt.override(): pass
print(torch.batch_norm_stats(torch.ones(2, 3, 4), 1e-5)[0].tolist())
"""
    result = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert result.stdout == "[1.0, 1.0, 1.0]\n"
    assert result.stderr == ""
