"""The trial of C++ on a GPU at its first call, made on the CPU; and its verdict."""

from __future__ import annotations

import logging

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("normgrad.torch")
from normgrad.torch import native, native_plans  # noqa: E402

GPU = "cuda:0"


@pytest.fixture
def verdicts(monkeypatch):
    monkeypatch.setattr(native_plans, "_verdicts", {})
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    monkeypatch.setenv("NORMGRAD_QUIET", "0")
    return native_plans._verdicts


@pytest.mark.parametrize("name", native_plans.NORMS)
def test_c_plus_plus_agrees_with_pytorch(name):
    assert native_plans.agrees(name, "cpu")


@pytest.mark.parametrize("name", native_plans.NORMS)
@pytest.mark.parametrize(
    "wrong",
    [
        lambda stock, *arguments: stock(*arguments) * 1.001,
        lambda stock, x, *more: stock(x, *more) + x - x.detach(),
        lambda *arguments: NotImplemented,
    ],
    ids=["output", "gradient", "refusal"],
)
def test_a_wrong_norm_does_not(monkeypatch, name, wrong):
    stock = getattr(torch.nn.functional, name)
    monkeypatch.setattr(native, name, lambda *arguments: wrong(stock, *arguments))
    assert not native_plans.agrees(name, "cpu")


@pytest.mark.parametrize("error", [None, RuntimeError("CUDA refused a launch")])
def test_a_gpu_that_fails_is_left_to_pytorch(monkeypatch, verdicts, caplog, error):
    tried = []

    def agrees(name, device):
        tried.append((name, device))
        assert native_plans._is_right_on(device)  # the trial itself runs in C++
        if error is not None:
            raise error
        return name == "batch_norm"

    monkeypatch.setattr(native_plans, "agrees", agrees)
    with caplog.at_level(logging.WARNING, "normgrad"):
        assert [native_plans._is_right_on(GPU) for _ in range(3)] == [False] * 3
    names = [*native_plans.NORMS][: 1 if error else 2]
    assert tried == [(name, GPU) for name in names]
    said = "PyTorch computes normgrad's layers on cuda:0: C++ failed a trial"
    assert [record.getMessage() for record in caplog.records] == [said]


def test_a_gpu_that_is_right_is_tried_once(monkeypatch, verdicts):
    tried = []
    monkeypatch.setattr(native_plans, "agrees", lambda name, device: tried.append(name) or True)
    assert all(native_plans._is_right_on(GPU) for _ in range(3))
    assert tried == [*native_plans.NORMS]


def test_no_verdict_while_a_graph_is_captured(monkeypatch, verdicts):
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
    monkeypatch.setattr(native_plans, "agrees", None)
    assert native_plans._is_right_on(GPU)
    assert not verdicts
