"""Layers on tensors and parameters that ranks share: DTensors and fully sharded models."""

from __future__ import annotations

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("torch.distributed.tensor")

from layer_pairs import LAYERS  # noqa: E402
from ranks import Ranks  # noqa: E402


@pytest.fixture(scope="module")
def ranks():
    made = Ranks(2)
    yield made
    made.close()


#: Which layers are tried where not all tests run.
_SOME = {"BatchNorm2d", "LayerNorm", "RMSNorm"}


@pytest.mark.every_case
@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=() if name in _SOME else pytest.mark.full) for name in LAYERS],
)
def test_dtensors_go_to_pytorch(ranks, name, training):
    """Sequence parallelism: what PyTorch's layer does, errors included."""
    for theirs, ours in ranks.run("sharded", layer_name=name, training=training):
        if isinstance(theirs[0], str):
            assert ours == theirs
        else:
            for expected, found in zip(theirs, ours, strict=True):
                np.testing.assert_allclose(found, expected, rtol=1e-10, atol=1e-10)


def test_fully_sharded_models(ranks):
    for ours, theirs in ranks.run("fully_sharded"):
        for found, expected in zip(ours, theirs, strict=True):
            np.testing.assert_allclose(found, expected, rtol=1e-10, atol=1e-10)


def test_tensor_parallel_plans(ranks):
    """Converted before the plan or after it."""
    for theirs, *ours in ranks.run("parallel_plan"):
        for results in ours:
            for found, expected in zip(results, theirs, strict=True):
                np.testing.assert_allclose(found, expected, rtol=1e-10, atol=1e-10)
