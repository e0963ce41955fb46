"""PyTorch's own kernels under normgrad's names."""

from __future__ import annotations

import math
from typing import Any

import torch

_aten: Any = torch.ops.aten


class Aten:
    """What ``torch.ops.aten`` has of the operators, on the CPU and on GPUs."""

    name = f"torch {torch.__version__}"
    framework = "torch"
    device = "cpu"

    @staticmethod
    def set_num_threads(count: int | None) -> None:
        """None for as many as PyTorch began with."""
        torch.set_num_threads(count or _THREADS)

    @staticmethod
    def batch_norm_backward(
        *tensors: Any,
        training: bool,
        eps: float = 1e-5,
        output_mask: tuple[bool, bool, bool] = (True, True, True),
    ) -> Any:
        """``native_batch_norm_backward``."""
        return _aten.native_batch_norm_backward(*tensors, training, eps, output_mask)

    @staticmethod
    def group_norm_backward(
        grad_out: Any,
        input: Any,
        mean: Any,
        rstd: Any,
        gamma: Any,
        *,
        num_groups: int,
        output_mask: tuple[bool, bool, bool] = (True, True, True),
    ) -> Any:
        """``native_group_norm_backward``."""
        n, c, positions = _sizes(input)
        return _aten.native_group_norm_backward(
            grad_out, input, mean, rstd, gamma, n, c, positions, num_groups, output_mask
        )

    @staticmethod
    def batch_norm(
        input: Any,
        weight: Any,
        bias: Any,
        running_mean: Any,
        running_var: Any,
        *,
        training: bool,
        momentum: float = 0.1,
        eps: float = 1e-5,
    ) -> Any:
        """``native_batch_norm``, on copies of the running statistics, which it changes."""
        running = _copies(running_mean, running_var)
        output, mean, invstd = _aten.native_batch_norm(
            input, weight, bias, *running, training, momentum, eps
        )
        return (output, mean, invstd, *running) if training else (output,)

    @staticmethod
    def group_norm(input: Any, gamma: Any, beta: Any, *, num_groups: int, eps: float = 1e-5) -> Any:
        """``native_group_norm``."""
        return _aten.native_group_norm(input, gamma, beta, *_sizes(input), num_groups, eps)

    @staticmethod
    def layer_norm(
        input: Any, normalized_shape: Any, weight: Any, bias: Any, *, eps: float = 1e-5
    ) -> Any:
        """``native_layer_norm``."""
        return _aten.native_layer_norm(input, normalized_shape, weight, bias, eps)

    @staticmethod
    def layer_norm_backward(
        grad_out: Any,
        input: Any,
        mean: Any,
        rstd: Any,
        weight: Any,
        *,
        normalized_shape: Any,
        output_mask: tuple[bool, bool, bool] = (True, True, True),
    ) -> Any:
        """``native_layer_norm_backward``, which has a bias for its shape."""
        return _aten.native_layer_norm_backward(
            grad_out, input, normalized_shape, mean, rstd, weight, weight, output_mask
        )

    @staticmethod
    def rms_norm(
        input: Any, normalized_shape: Any, weight: Any, *, eps: float | None = None
    ) -> Any:
        """``_fused_rms_norm``."""
        return _aten._fused_rms_norm(input, normalized_shape, weight, eps)

    @staticmethod
    def rms_norm_backward(
        *tensors: Any, normalized_shape: Any, output_mask: tuple[bool, bool] = (True, True)
    ) -> Any:
        """``_fused_rms_norm_backward``."""
        dy, x, *rest = tensors
        return _aten._fused_rms_norm_backward(dy, x, normalized_shape, *rest, output_mask)

    @staticmethod
    def batch_norm_stats(input: Any, *, eps: float = 1e-5) -> Any:
        """``batch_norm_stats``, which is a GPU's alone, as are all that follow."""
        return _aten.batch_norm_stats(input, eps)

    @staticmethod
    def batch_norm_elemt(input: Any, weight: Any, bias: Any, mean: Any, invstd: Any) -> Any:
        """``batch_norm_elemt``."""
        return _aten.batch_norm_elemt(input, weight, bias, mean, invstd, 0.0)

    @staticmethod
    def batch_norm_gather_stats_with_counts(
        input: Any,
        mean: Any,
        invstd: Any,
        running_mean: Any,
        running_var: Any,
        counts: Any,
        *,
        momentum: float = 0.1,
        eps: float = 1e-5,
    ) -> Any:
        """``batch_norm_gather_stats_with_counts``, on copies of the running statistics."""
        running = _copies(running_mean, running_var)
        merged = _aten.batch_norm_gather_stats_with_counts(
            input, mean, invstd, *running, momentum, eps, counts
        )
        return (*merged, *running)

    @staticmethod
    def batch_norm_backward_reduce(
        *tensors: Any, input_g: bool = True, weight_g: bool = True, bias_g: bool = True
    ) -> Any:
        """``batch_norm_backward_reduce``."""
        return _aten.batch_norm_backward_reduce(*tensors, input_g, weight_g, bias_g)

    @staticmethod
    def batch_norm_backward_elemt(*tensors: Any) -> Any:
        """``batch_norm_backward_elemt``."""
        return _aten.batch_norm_backward_elemt(*tensors)


_THREADS = torch.get_num_threads()


def _sizes(input: Any) -> tuple[int, int, int]:
    """N, C and the positions, as group norm's kernels take them."""
    n, c, *rest = input.shape
    return n, c, math.prod(rest)


def _copies(*tensors: Any) -> list[Any]:
    return [None if each is None else each.clone() for each in tensors]
