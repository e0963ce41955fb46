"""normgrad.torch on GPUs, as far as it goes without one: with a stand-in for the backend.

Layers on GPUs are computed in C++, which takes no stand-in for a tensor of a GPU.
"""

from __future__ import annotations

import re

import pytest
import stand_in

torch = pytest.importorskip("torch")
nt = pytest.importorskip("normgrad.torch")
functional = nt.functional

from normgrad.torch import collectives, synchronised  # noqa: E402


@pytest.fixture
def seen(monkeypatch):
    return stand_in.install(monkeypatch)


@pytest.fixture
def on_gpu(monkeypatch, seen):
    return stand_in.torch_on_gpu(monkeypatch, seen).of


def refuse(exception, message, action):
    with pytest.raises(exception, match=f"^{re.escape(message)}$"):
        action()


def test_gpus_that_cannot_be_used(monkeypatch, on_gpu):
    """Synchronised batch norm says why they cannot, before it waits for other ranks."""
    seen = stand_in.install(monkeypatch, "Triton is not installed")
    x = on_gpu(torch.randn(5, 6, 7))
    monkeypatch.setattr(collectives, "size", lambda group: 2)
    refuse(
        ValueError,
        "input: on device cuda:0, which cannot be used here: Triton is not installed; allowed: cpu",
        lambda: functional.sync_batch_norm(x, None, None, training=True, process_group=object()),
    )
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


def test_a_graph_s_capture_is_told_nothing(monkeypatch, on_gpu):
    """What the ranks tell each other is read, which a capture cannot wait for."""
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
    monkeypatch.setattr(synchronised, "_agreements", set())
    monkeypatch.setattr(collectives, "name_of", lambda group: "group")
    synchronised._check_ranks_agree(0, object(), {}, on_gpu(torch.ones(3, 4)))
    assert not synchronised._agreements
