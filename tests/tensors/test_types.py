"""The types of results: those that type checkers find are those at run time.

mypy checks this file as it does the package, and pyright does with PyTorch in `nox -s types`.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from typing_extensions import assert_type

import normgrad as ng
from normgrad.tensors.specs import Tensor

#: Of no shape and dtype in particular: those of results need not be the input's.
Array = npt.NDArray[Any]


def _arrays(*results: tuple[Any, ...]) -> None:
    assert all(type(value) is np.ndarray for result in results for value in result)


def test_arrays() -> None:
    """Every function, on an input whose shape and dtype are known to type checkers."""
    x = np.zeros((2, 3, 4), np.float16)
    row, group, ranks = np.zeros((2, 3, 1)), np.zeros((2, 1)), np.zeros((1, 3))
    c, count = np.zeros(3), np.array([8])

    forward = assert_type(ng.batch_norm(x, c, training=True), ng.BatchNormOutput[Array])
    assert_type(forward.output, Array)
    assert_type(forward.mean, Array | Any)
    stats = assert_type(ng.batch_norm_stats(x), ng.BatchNormStatistics[Array])
    gathered = assert_type(
        ng.batch_norm_gather_stats_with_counts(x, ranks, ranks, c, c, count),
        ng.GatheredStatistics[Array],
    )
    gradients = assert_type(
        ng.batch_norm_backward(x, x, c, training=True), ng.BatchNormGradients[Array]
    )
    sums = assert_type(ng.batch_norm_backward_reduce(x, x, c, c), ng.BatchNormReductions[Array])
    _arrays(stats, gathered, gradients, sums, forward[:3])
    output = assert_type(ng.batch_norm_elemt(x, None, None, c, c), Array)
    gradient = assert_type(ng.batch_norm_backward_elemt(x, x, c, c, None, c, c, count), Array)
    _arrays((output, gradient))

    _arrays(
        assert_type(ng.group_norm(x, num_groups=1), ng.GroupNormOutput[Array]),
        assert_type(
            ng.group_norm_backward(x, x, group, group, num_groups=1), ng.GroupNormGradients[Array]
        ),
        assert_type(ng.layer_norm(x, 4), ng.LayerNormOutput[Array]),
        assert_type(
            ng.layer_norm_backward(x, x, row, row, normalized_shape=4), ng.LayerNormGradients[Array]
        ),
        assert_type(ng.rms_norm(x, 4), ng.RmsNormOutput[Array]),
        assert_type(
            ng.rms_norm_backward(x, x, row, normalized_shape=4), ng.RmsNormGradients[Array]
        ),
    )


def test_masked_off() -> None:
    """Entries that may be None have their type or Any, so that nobody has to check for None."""
    x = np.zeros((2, 3, 4), np.float32)
    only_input = ng.batch_norm_backward(x, x, training=True, output_mask=(True, False, False))
    assert_type(only_input.grad_weight, Array | Any)
    assert only_input.grad_weight is None
    assert ng.batch_norm(x, training=False).mean is None


def test_tensors() -> None:
    """PyTorch's; the results of a parameter, a subclass, are plain tensors."""
    pytest.importorskip("torch")
    import torch

    x = torch.zeros(2, 3, 4)
    forward = assert_type(ng.batch_norm(x, training=True), ng.BatchNormOutput[torch.Tensor])
    assert_type(forward.output, torch.Tensor)
    assert_type(forward.mean, torch.Tensor | Any)
    parameter = torch.nn.Parameter(x, requires_grad=False)
    gradients = ng.batch_norm_backward(x, parameter, training=True)
    assert_type(gradients, ng.BatchNormGradients[torch.Tensor])
    for value in (*forward[:3], *gradients):
        assert type(value) is torch.Tensor


class _Producer:
    """Speaks DLPack over a NumPy array, without an array namespace."""

    def __init__(self, array: Array) -> None:
        self._array = array

    def __dlpack_device__(self) -> tuple[int, int]:
        return 1, 0

    def __dlpack__(self, *, stream: int | None = None) -> Any:
        return self._array.__dlpack__()


def test_either() -> None:
    """What may be an array or a tensor is told apart before the call."""
    pytest.importorskip("torch")
    import torch

    def rstd(x: torch.Tensor | Array) -> tuple[int, ...]:
        if isinstance(x, np.ndarray):
            return assert_type(ng.layer_norm(x, 4), ng.LayerNormOutput[Array]).rstd.shape
        result = assert_type(ng.layer_norm(x, 4), ng.LayerNormOutput[torch.Tensor])
        return tuple(result.rstd.shape)

    assert rstd(torch.zeros(2, 4)) == rstd(np.zeros((2, 4))) == (2, 1)


def test_producers() -> None:
    """Results have what from_dlpack takes: which type they are, the array namespace decides."""
    result = assert_type(
        ng.layer_norm(_Producer(np.zeros((2, 4), np.float32)), 4), ng.LayerNormOutput[Tensor]
    )
    assert np.from_dlpack(result.rstd).shape == (2, 1)
