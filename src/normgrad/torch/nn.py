"""``torch.nn``'s batch norm and group norm layers, by normgrad on the CPU.

They are PyTorch's own classes but for ``forward``: constructors, parameters, buffers, checkpoints
and ``isinstance`` are the same, and a layer on another device computes what PyTorch's would.
"""

from __future__ import annotations

from typing import Any

import torch

from . import functional

Tensor = torch.Tensor


class _BatchNorm(torch.nn.modules.batchnorm._BatchNorm):
    """What the batch norms share; each is of PyTorch's class for its number of axes too."""

    def forward(self, input: Tensor) -> Tensor:
        """Batch norm.

        Args:
            input: (N, C, ...) with as many axes as the class says, in any memory layout, which the
                result keeps.

        Raises:
            TypeError, ValueError, RuntimeError: as PyTorch's layer.
        """
        self._check_input_dim(input)
        mean, var = self.running_mean, self.running_var
        if not self.training:
            absent = mean is None and var is None
            return self._normalise(input, mean, var, absent, self.momentum or 0.0)
        if not self.track_running_stats:
            return self._normalise(input, None, None, True, self.momentum or 0.0)
        batches = self.num_batches_tracked
        if batches is not None:
            batches.add_(1)
            if self.momentum is None and mean is not None and var is not None:
                return self._averaging(input, mean, var, batches)
        return self._normalise(input, mean, var, True, self.momentum or 0.0)

    def _normalise(
        self, input: Tensor, mean: Any, var: Any, training: bool, momentum: float
    ) -> Tensor:
        return functional.batch_norm(
            input, mean, var, self.weight, self.bias, training, momentum, self.eps
        )

    def _averaging(self, input: Tensor, mean: Tensor, var: Tensor, batches: Tensor) -> Tensor:
        """The running statistics become the average of all batches' so far.

        How many there were stays in its tensor: reading it here would cut a compiled graph.
        """
        batch_mean, batch_var = torch.zeros_like(mean), torch.zeros_like(var)
        output = self._normalise(input, batch_mean, batch_var, True, 1.0)
        for running, batch in ((mean, batch_mean), (var, batch_var)):
            running.lerp_(batch, batches.reciprocal().to(running.dtype))
        return output


class BatchNorm1d(_BatchNorm, torch.nn.BatchNorm1d):
    """:class:`torch.nn.BatchNorm1d` by normgrad: (N, C) or (N, C, L)."""


class BatchNorm2d(_BatchNorm, torch.nn.BatchNorm2d):
    """:class:`torch.nn.BatchNorm2d` by normgrad: (N, C, H, W)."""


class BatchNorm3d(_BatchNorm, torch.nn.BatchNorm3d):
    """:class:`torch.nn.BatchNorm3d` by normgrad: (N, C, D, H, W)."""


class GroupNorm(torch.nn.GroupNorm):
    """:class:`torch.nn.GroupNorm` by normgrad: (N, C, ...)."""

    def forward(self, input: Tensor) -> Tensor:
        """Group norm.

        Args:
            input: (N, C, ...), in any memory layout, which the result keeps.

        Raises:
            TypeError, ValueError, RuntimeError: as PyTorch's layer.
        """
        return functional.group_norm(input, self.num_groups, self.weight, self.bias, self.eps)
