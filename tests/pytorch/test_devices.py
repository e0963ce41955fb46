"""normgrad.torch on GPUs, as far as it goes without one: with a stand-in for the backend."""

from __future__ import annotations

import re

import pytest
import stand_in

torch = pytest.importorskip("torch")
nt = pytest.importorskip("normgrad.torch")
functional = nt.functional

from normgrad.torch import collectives, kernels, layers, ops, synchronised, watching  # noqa: E402


@pytest.fixture
def seen(monkeypatch):
    return stand_in.install(monkeypatch)


@pytest.fixture
def on_gpu(monkeypatch, seen):
    kind = stand_in.torch_on_gpu(monkeypatch, seen)
    monkeypatch.setattr(watching, "_TENSOR_TYPES", (*watching._TENSOR_TYPES, kind))
    return kind.of


def refuse(exception, message, action):
    with pytest.raises(exception, match=f"^{re.escape(message)}$"):
        action()


@pytest.fixture
def pytorch_s(monkeypatch):
    """PyTorch's own functions, which say that they were called."""
    called = []
    for name in ("batch_norm", "group_norm"):
        monkeypatch.setattr(
            torch.nn.functional, name, lambda *arguments, name=name: called.append(name)
        )
    return called


@pytest.mark.parametrize("training", [True, False])
def test_batch_norm(seen, on_gpu, training, pytorch_s):
    x, dy = torch.randn(5, 6, 7), torch.randn(5, 6, 7)
    w, b, mean, var = torch.randn(6), torch.randn(6), torch.randn(6), torch.rand(6) + 0.5
    results = []
    for where in (torch.clone, lambda tensor: on_gpu(tensor.clone(), 1)):
        del seen.probed[:]  # the CPU's
        leaves = [where(tensor).requires_grad_() for tensor in (x, w, b)]
        old = where(mean), where(var)
        output = functional.batch_norm(leaves[0], *old, *leaves[1:], training)
        results.append([output, *old])
        if training:  # an evaluation clones its statistics, which are the CPU's then
            output.backward(where(dy))
            results[-1] += [leaf.grad for leaf in leaves]
    assert [index for index, _ in seen.launches] == [1] * (1 + training)
    assert seen.probed == []
    for ours, theirs in zip(*results, strict=True):
        assert torch.equal(ours.detach(), theirs.detach().as_subclass(torch.Tensor))
    assert pytorch_s == []


def test_group_norm(seen, on_gpu, pytorch_s):
    x, dy, w = torch.randn(5, 6, 7), torch.randn(5, 6, 7), torch.randn(6)
    results = []
    for where in (torch.clone, lambda tensor: on_gpu(tensor.clone(), 1)):
        leaves = [where(tensor).requires_grad_() for tensor in (x, w)]
        output = functional.group_norm(leaves[0], 3, leaves[1])
        output.backward(where(dy))
        results.append([output, *(leaf.grad for leaf in leaves)])
    assert [index for index, _ in seen.launches] == [1, 1]
    for ours, theirs in zip(*results, strict=True):
        assert torch.equal(ours.detach(), theirs.detach().as_subclass(torch.Tensor))
    assert pytorch_s == []


def test_autocast_has_group_norm_in_float32(seen, on_gpu, pytorch_s):
    x, w = torch.randn(5, 6, 7), torch.randn(6)
    expected = functional.group_norm(x.half().float(), 3, w.half().float())
    before = torch.is_autocast_enabled("cuda")
    torch.set_autocast_enabled("cuda", True)
    try:
        found = functional.group_norm(on_gpu(x.half()), 3, on_gpu(w.half()))
        assert found.dtype == torch.float32
        assert torch.equal(found.as_subclass(torch.Tensor), expected)
        assert functional.group_norm(on_gpu(x.double()), 3).dtype == torch.float64
        # Nothing of batch norm, nor of the CPU.
        assert functional.batch_norm(on_gpu(x.half()), None, None, training=True).dtype == (
            torch.float16
        )
        assert functional.group_norm(x.half(), 3).dtype == torch.float16
        # Nor of instance norm, although it is computed as group norm.
        assert functional.instance_norm(on_gpu(x.half())).dtype == torch.float16
    finally:
        torch.set_autocast_enabled("cuda", before)
    assert functional.group_norm(on_gpu(x.half()), 3).dtype == torch.float16
    assert pytorch_s == []


def test_vectors_elsewhere_are_pytorch_s_to_refuse(on_gpu, pytorch_s):
    x, v = torch.randn(5, 6, 7), torch.ones(6)
    functional.batch_norm(on_gpu(x), v, v, training=True)
    functional.batch_norm(x, on_gpu(v), on_gpu(v), training=True)
    functional.group_norm(on_gpu(x), 2, on_gpu(v, 1))
    assert pytorch_s == ["batch_norm", "batch_norm", "group_norm"]


def test_gpus_that_cannot_be_used(monkeypatch, on_gpu, pytorch_s):
    """Functions leave them to PyTorch; operators say why they cannot."""
    seen = stand_in.install(monkeypatch, "Triton is not installed")
    x, v = on_gpu(torch.randn(5, 6, 7)), on_gpu(torch.ones(6))
    functional.batch_norm(x, v, v, training=True)
    functional.group_norm(x, 2, v)
    assert pytorch_s == ["batch_norm", "group_norm"]
    reason = (
        "input: on device cuda:0, which cannot be used here: Triton is not installed; allowed: cpu"
    )
    kernel = kernels.KERNELS["native_group_norm"]
    refuse(ValueError, reason, lambda: kernel(x, v, v, 5, 6, 7, 2, 1e-5))
    monkeypatch.setattr(collectives, "size", lambda group: 2)
    refuse(
        ValueError, reason,
        lambda: functional.sync_batch_norm(x, None, None, training=True, process_group=object()),
    )  # fmt: skip
    assert seen.launches == []


def test_synchronised_vectors_elsewhere(monkeypatch, on_gpu):
    monkeypatch.setattr(collectives, "size", lambda group: 2)
    x, v = torch.randn(5, 6, 7), torch.ones(6)
    for x_there, mean, message in (
        (on_gpu(x), v, "running_mean: on device cpu; allowed: cuda:0, where input is"),
        (x, on_gpu(v, 1), "running_mean: on device cuda:1; allowed: cpu, where input is"),
    ):
        refuse(
            ValueError, message,
            lambda x_there=x_there, mean=mean: functional.sync_batch_norm(
                x_there, mean, v, training=True, process_group=object()
            ),
        )  # fmt: skip


def test_every_operator_has_kernels_for_every_device():
    for name in ops.__all__:
        for device in ("CPU", "CUDA"):
            assert torch._C._dispatch_has_kernel_for_dispatch_key(f"normgrad::{name}", device)


def test_a_graph_s_capture_is_told_nothing(monkeypatch, on_gpu):
    """What the ranks tell each other is read, which a capture cannot wait for."""
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
    monkeypatch.setattr(synchronised, "_agreements", set())
    monkeypatch.setattr(collectives, "name_of", lambda group: "group")
    synchronised._check_ranks_agree(0, object(), {}, on_gpu(torch.ones(3, 4)))
    assert not synchronised._agreements


def test_whether_gpus_are_usable_is_a_constant_to_the_compiler(seen):
    def which(x):
        return x + 1 if layers.is_usable(0) else x - 1

    compiled = torch.compile(which, fullgraph=True, backend="eager")
    assert compiled(torch.zeros(1)).item() == 1
