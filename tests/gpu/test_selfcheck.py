"""The kernels' check on a real GPU, at their first use there."""

from __future__ import annotations

from functools import cache

import pytest
from common import make
from gpu_tensors import GPU, compute, only_on_a_gpu

from normgrad.backends import choice
from normgrad.backends.triton import device, selfcheck
from normgrad.plans import calls
from normgrad.plans.cache import Cache

torch = pytest.importorskip("torch")

pytestmark = only_on_a_gpu


def test_the_first_use_checks_all_cases(monkeypatch, tmp_path):
    monkeypatch.setattr(selfcheck, "path_of", lambda name: tmp_path / "verdict.txt")
    monkeypatch.setattr(selfcheck, "_known", {})
    monkeypatch.setattr(choice, "_triton", cache(choice._Triton))
    monkeypatch.setattr(calls, "_plans", Cache())
    found = device.of(0)
    with torch.cuda.graph(torch.cuda.CUDAGraph()):
        torch.ones(1, device=GPU)
        assert not selfcheck.settled(0, found)
    assert selfcheck.read(found.name) is None
    compute(make("train", (3, 6, 5, 4)))
    assert selfcheck.read(found.name) == ""
