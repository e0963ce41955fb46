"""``torch.nn``'s normalisation layers, by normgrad on the CPU and on GPUs.

They are PyTorch's own classes but for ``forward``: constructors, parameters, buffers, checkpoints
and ``isinstance`` are the same, and a layer on another device, or on a GPU without Triton, computes
what PyTorch's would.
"""

from __future__ import annotations

from itertools import count
from typing import Any

import torch
from torch import Tensor
from torch.fx import Proxy
from torch.nn import Module

from . import collectives, functional


class Ours(Module):
    """What all layers of normgrad's have in common."""

    def __repr__(self) -> str:
        return f"normgrad.{super().__repr__()}"

    def _own(self, table: dict[str, Any], *names: str) -> tuple[Any, ...]:
        """Parameters or buffers from their table, past PyTorch's Python function for each name."""
        try:
            return tuple(map(table.__getitem__, names))
        except KeyError:  # plain attributes, which pruning, replicas and parametrizations make
            return tuple(getattr(self, name) for name in names)

    def __prepare_scriptable__(self) -> Any:
        """What torch.jit.script asks a layer for."""
        raise TypeError(
            f"torch.jit.script: a {type(self).__name__} of normgrad's; allowed: PyTorch's layers: "
            "normgrad.torch.revert(model) first"
        )


def leaf(layer: Module, *args: Any, **kwargs: Any) -> Any:
    """A layer's call in a graph of torch.fx, as a whole, like those of PyTorch's layers."""
    proxy: Any = next(value for value in (*args, *kwargs.values()) if isinstance(value, Proxy))
    tracer = proxy.tracer
    return tracer.create_proxy("call_module", tracer.path_of_module(layer), args, kwargs)


class _BatchNorm(Ours, torch.nn.modules.batchnorm._BatchNorm):
    """What the batch norms share; each is of PyTorch's class for its number of axes too."""

    def forward(self, input: Tensor) -> Tensor:
        """Batch norm.

        Args:
            input: (N, C, ...) with as many axes as the class says, in any memory layout, which the
                result keeps.

        Raises:
            TypeError, ValueError, RuntimeError: as PyTorch's layer.
        """
        if isinstance(input, Proxy):
            return leaf(self, input)
        self._check_input_dim(input)
        mean, var, batches = self._own(
            self._buffers, "running_mean", "running_var", "num_batches_tracked"
        )
        momentum = 0.0 if self.momentum is None else self.momentum
        if not self.training:
            return self._normalise(input, mean, var, mean is None and var is None, momentum)
        if not self.track_running_stats:
            return self._normalise(input, None, None, True, momentum)
        if batches is None:
            return self._normalise(input, mean, var, True, momentum)
        if self.momentum is None and mean is not None and var is not None:
            return self._averaging(input, mean, var, batches)
        output = self._normalise(input, mean, var, True, momentum)
        batches.add_(1)  # a batch that could not be computed is none
        return output

    def _normalise(
        self, input: Tensor, mean: Any, var: Any, training: bool, momentum: float
    ) -> Tensor:
        """Batch norm with running statistics that may be others' than the layer's."""
        weight, bias = self._own(self._parameters, "weight", "bias")
        return functional.batch_norm(input, mean, var, weight, bias, training, momentum, self.eps)

    def _averaging(self, input: Tensor, mean: Tensor, var: Tensor, batches: Tensor) -> Tensor:
        """The running statistics become the average of all batches' so far.

        How many there were stays in its tensor: reading it here would cut a compiled graph.
        """
        # Of what they are: an empty batch leaves them so.
        batch_mean, batch_var = mean.clone(), var.clone()
        output = self._normalise(input, batch_mean, batch_var, True, 1.0)
        batches.add_(1)
        for running, batch in ((mean, batch_mean), (var, batch_var)):
            running.lerp_(batch, batches.to(running.dtype).reciprocal())
        return output


class BatchNorm1d(_BatchNorm, torch.nn.BatchNorm1d):
    """:class:`torch.nn.BatchNorm1d` by normgrad: (N, C) or (N, C, L)."""


class BatchNorm2d(_BatchNorm, torch.nn.BatchNorm2d):
    """:class:`torch.nn.BatchNorm2d` by normgrad: (N, C, H, W)."""


class BatchNorm3d(_BatchNorm, torch.nn.BatchNorm3d):
    """:class:`torch.nn.BatchNorm3d` by normgrad: (N, C, D, H, W)."""


class GroupNorm(Ours, torch.nn.GroupNorm):
    """:class:`torch.nn.GroupNorm` by normgrad: (N, C, ...)."""

    def forward(self, input: Tensor) -> Tensor:
        """Group norm.

        Args:
            input: (N, C, ...), in any memory layout, which the result keeps.

        Raises:
            TypeError, ValueError, RuntimeError: as PyTorch's layer.
        """
        if isinstance(input, Proxy):
            return leaf(self, input)
        weight, bias = self._own(self._parameters, "weight", "bias")
        return functional.group_norm(input, self.num_groups, weight, bias, self.eps)


class LayerNorm(Ours, torch.nn.LayerNorm):
    """:class:`torch.nn.LayerNorm` by normgrad."""

    def forward(self, input: Tensor) -> Tensor:
        """Layer norm.

        Args:
            input: its last axes are ``normalized_shape``.

        Raises:
            TypeError, ValueError, RuntimeError: as PyTorch's layer.
        """
        if isinstance(input, Proxy):
            return leaf(self, input)
        weight, bias = self._own(self._parameters, "weight", "bias")
        return functional.layer_norm(input, self.normalized_shape, weight, bias, self.eps)


class RMSNorm(Ours, torch.nn.RMSNorm):
    """:class:`torch.nn.RMSNorm` by normgrad."""

    def forward(self, x: Tensor) -> Tensor:
        """RMS norm.

        Args:
            x: its last axes are ``normalized_shape``.

        Raises:
            TypeError, ValueError, RuntimeError: as PyTorch's layer.
        """
        if isinstance(x, Proxy):
            return leaf(self, x)
        (weight,) = self._own(self._parameters, "weight")
        return functional.rms_norm(x, self.normalized_shape, weight, self.eps)


class _InstanceNorm(Ours, torch.nn.modules.instancenorm._InstanceNorm):
    """What the instance norms share; each is of PyTorch's class for its number of axes too."""

    def forward(self, input: Tensor) -> Tensor:
        """Instance norm.

        Args:
            input: (N, C, ...) or (C, ...), with as many axes as the class says.

        Raises:
            TypeError, ValueError, RuntimeError: as PyTorch's layer.
        """
        if isinstance(input, Proxy):
            return leaf(self, input)
        return super().forward(input)

    def _apply_instance_norm(self, input: Tensor) -> Tensor:
        return functional.instance_norm(
            input,
            self.running_mean,
            self.running_var,
            self.weight,
            self.bias,
            self.training or not self.track_running_stats,
            0.0 if self.momentum is None else self.momentum,
            self.eps,
        )


class InstanceNorm1d(_InstanceNorm, torch.nn.InstanceNorm1d):
    """:class:`torch.nn.InstanceNorm1d` by normgrad: (N, C, L) or (C, L)."""


class InstanceNorm2d(_InstanceNorm, torch.nn.InstanceNorm2d):
    """:class:`torch.nn.InstanceNorm2d` by normgrad: (N, C, H, W) or (C, H, W)."""


class InstanceNorm3d(_InstanceNorm, torch.nn.InstanceNorm3d):
    """:class:`torch.nn.InstanceNorm3d` by normgrad: (N, C, D, H, W) or (C, D, H, W)."""


#: Numbers by which synchronised layers are known on their rank.
_keys = count()


class SyncBatchNorm(_BatchNorm):
    """:class:`torch.nn.SyncBatchNorm` by normgrad, on the CPU too: (N, C, ...), 2 to 8 axes.

    In training, the statistics are those of all ranks' batches together, which may differ in size
    and be empty. There is one all-gather of 2·C + 1 values forward and one all-reduce of 2·C
    backward. At a layer's first call its ranks are checked to agree about it. Without
    torch.distributed, in a group of one and in evaluation it is an ordinary batch norm.

    It is no subclass of PyTorch's, which DistributedDataParallel refuses on the CPU.
    """

    def __init__(
        self,
        num_features: int,
        eps: float = 1e-5,
        momentum: float | None = 0.1,
        affine: bool = True,
        track_running_stats: bool = True,
        process_group: Any = None,
        device: Any = None,
        dtype: Any = None,
    ) -> None:
        """As PyTorch's: ``process_group`` is None for all ranks."""
        super().__init__(
            num_features, eps, momentum, affine, track_running_stats, device=device, dtype=dtype
        )
        self.join(process_group)

    def join(self, process_group: Any) -> SyncBatchNorm:
        """Synchronise with the ranks of another group from now on; None for all."""
        self.process_group = process_group
        self._key = next(_keys)
        return self

    def _check_input_dim(self, input: Tensor) -> None:
        if input.dim() < 2:
            raise ValueError(f"expected at least 2D input (got {input.dim()}D input)")

    def _normalise(
        self, input: Tensor, mean: Any, var: Any, training: bool, momentum: float
    ) -> Tensor:
        group = self.process_group
        if isinstance(group, str):
            group = collectives.by_name(group)
        return functional.sync_batch_norm(
            input, mean, var, self.weight, self.bias, training, momentum, self.eps, group,
            key=self._key,
        )  # fmt: skip

    def __getstate__(self) -> dict[str, Any]:
        """A process group is of its process; what is saved, or copied, is its name."""
        state = super().__getstate__()
        group = state.get("process_group")
        if group is not None and not isinstance(group, str):
            state = {**state, "process_group": collectives.name_of(group)}
        return state  # type: ignore[no-any-return]

    @classmethod
    def convert_sync_batchnorm(cls, module: Module, process_group: Any = None) -> Any:
        """As :func:`normgrad.torch.convert_sync_batchnorm`."""
        from .conversion import convert_sync_batchnorm

        return convert_sync_batchnorm(module, process_group)
