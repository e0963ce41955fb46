"""``torch.nn``'s normalisation layers, computed by normgrad on the CPU and on GPUs.

They are subclasses of PyTorch's layers that replace ``forward`` only: constructors, parameters,
buffers, checkpoints and ``isinstance`` are the same. On another device, or on a GPU without Triton,
a layer calls PyTorch's function.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import count
from typing import Any

import torch
from torch import Tensor
from torch.fx import Proxy
from torch.nn import Module

from ..support.values import describe
from . import collectives, functional


class Ours(Module):
    """The base class of all normgrad layers.

    Layers are called with a tensor that has the axes that the class names, in any memory layout;
    the result has PyTorch's, which is channels-last where the input is. They raise the errors of
    PyTorch's layers.

    Converted layers are also of a user's class, so their attributes that PyTorch's layers lack are
    named ``_normgrad_...``. A bound ``forward`` may outlive the conversion of its layer, so each
    computes with what PyTorch's layers have.

    Attributes:
        _normgrad_replaces: the class that the class replaces. A class that has none of its own, but
            inherits one, replaces nothing.
    """

    _normgrad_replaces: type[Module]

    def __repr__(self) -> str:
        return f"normgrad.{super().__repr__()}"

    def __prepare_scriptable__(self) -> Any:
        """Refuse torch.jit.script, which calls this method."""
        raise TypeError(
            f"torch.jit.script: {describe(self)} of normgrad's; allowed: PyTorch's layers: "
            "normgrad.torch.revert(model) first"
        )


def check_module(module: Module) -> None:
    """Raise a TypeError if the argument is not a module, or is one of TorchScript's.

    TorchScript calls PyTorch's operators directly, so its layers cannot be converted.
    """
    if not isinstance(module, Module):
        raise TypeError(f"module: {describe(module)}; allowed: a torch.nn.Module")
    if isinstance(module, torch.jit.ScriptModule):
        raise TypeError(
            f"module: it is {describe(module)}, code of TorchScript's; "
            "allowed: modules in Python, before torch.jit scripts or traces them"
        )


# Parameters and buffers are read from their tables, which avoids calls of ``__getattr__``. They are
# plain attributes in pruned layers, replicas and layers with parametrizations.


def _affine(layer: Any) -> tuple[Any, Any]:
    """The weight and the bias."""
    table = layer._parameters
    try:
        return table["weight"], table["bias"]
    except KeyError:
        return layer.weight, layer.bias


def _batch_norm_tensors(layer: Any) -> tuple[Any, Any, Any, Any, Any]:
    """The running mean and variance, the number of batches, the weight and the bias."""
    table, parameters = layer._buffers, layer._parameters
    try:  # one function for all, since in cold caches each call costs
        return (
            table["running_mean"], table["running_var"], table["num_batches_tracked"],
            parameters["weight"], parameters["bias"],
        )  # fmt: skip
    except KeyError:
        tracked = layer.running_mean, layer.running_var, layer.num_batches_tracked
        return (*tracked, layer.weight, layer.bias)


def leaf(layer: Module, *args: Any, **kwargs: Any) -> Any:
    """Record a layer's call in a torch.fx graph as one node, like the calls of PyTorch's layers."""
    proxy: Any = next(value for value in (*args, *kwargs.values()) if isinstance(value, Proxy))
    tracer = proxy.tracer
    return tracer.create_proxy("call_module", tracer.path_of_module(layer), args, kwargs)


def _batch_norm(
    layer: Any, input: Tensor, norm: Callable[..., Tensor] = functional.batch_norm
) -> Tensor:
    """What a batch norm computes; ``norm`` takes what :func:`.functional.batch_norm` takes."""
    layer._check_input_dim(input)
    mean, var, batches, weight, bias = _batch_norm_tensors(layer)
    training = layer.training
    if not training:
        training, batches = mean is None and var is None, None
    elif not layer.track_running_stats:
        mean = var = batches = None
    # Counted first, as by PyTorch's layer: checkpointing ends a call that it repeats where autograd
    # saves tensors.
    if batches is not None:
        batches.add_(1)
    momentum = layer.momentum
    if momentum is None:
        momentum = 0.0 if batches is None else 1.0 / float(batches)
    return norm(input, mean, var, weight, bias, training, momentum, layer.eps)


class _BatchNorm(Ours, torch.nn.modules.batchnorm._BatchNorm):
    """The common base of the batch norms; each also inherits from PyTorch's class."""

    def forward(self, input: Tensor) -> Tensor:
        """Compute batch norm."""
        return leaf(self, input) if isinstance(input, Proxy) else _batch_norm(self, input)


class BatchNorm1d(_BatchNorm, torch.nn.BatchNorm1d):
    """:class:`torch.nn.BatchNorm1d` by normgrad: (N, C) or (N, C, L)."""


class BatchNorm2d(_BatchNorm, torch.nn.BatchNorm2d):
    """:class:`torch.nn.BatchNorm2d` by normgrad: (N, C, H, W)."""


class BatchNorm3d(_BatchNorm, torch.nn.BatchNorm3d):
    """:class:`torch.nn.BatchNorm3d` by normgrad: (N, C, D, H, W)."""


class GroupNorm(Ours, torch.nn.GroupNorm):
    """:class:`torch.nn.GroupNorm` by normgrad: (N, C, ...)."""

    def forward(self, input: Tensor) -> Tensor:
        """Compute group norm."""
        if isinstance(input, Proxy):
            return leaf(self, input)
        weight, bias = _affine(self)
        return functional.group_norm(input, self.num_groups, weight, bias, self.eps)


class LayerNorm(Ours, torch.nn.LayerNorm):
    """:class:`torch.nn.LayerNorm` by normgrad: the last axes are ``normalized_shape``."""

    def forward(self, input: Tensor) -> Tensor:
        """Compute layer norm."""
        if isinstance(input, Proxy):
            return leaf(self, input)
        weight, bias = _affine(self)
        return functional.layer_norm(input, self.normalized_shape, weight, bias, self.eps)


class RMSNorm(Ours, torch.nn.RMSNorm):
    """:class:`torch.nn.RMSNorm` by normgrad: the last axes are ``normalized_shape``."""

    def forward(self, x: Tensor) -> Tensor:
        """Compute RMS norm; PyTorch's layer has this name for its input."""
        if isinstance(x, Proxy):
            return leaf(self, x)
        return functional.rms_norm(x, self.normalized_shape, self.weight, self.eps)


class _InstanceNorm(Ours, torch.nn.modules.instancenorm._InstanceNorm):
    """The common base of the instance norms; each also inherits from PyTorch's class."""

    def forward(self, input: Tensor) -> Tensor:
        """Compute instance norm."""
        if isinstance(input, Proxy):
            return leaf(self, input)
        return torch.nn.modules.instancenorm._InstanceNorm.forward(self, input)

    def _apply_instance_norm(self, input: Tensor) -> Tensor:
        use_input_stats = self.training or not self.track_running_stats
        return functional.instance_norm(
            input, self.running_mean, self.running_var, self.weight, self.bias, use_input_stats,
            self.momentum or 0.0, self.eps,
        )  # fmt: skip


class InstanceNorm1d(_InstanceNorm, torch.nn.InstanceNorm1d):
    """:class:`torch.nn.InstanceNorm1d` by normgrad: (N, C, L) or (C, L)."""


class InstanceNorm2d(_InstanceNorm, torch.nn.InstanceNorm2d):
    """:class:`torch.nn.InstanceNorm2d` by normgrad: (N, C, H, W) or (C, H, W)."""


class InstanceNorm3d(_InstanceNorm, torch.nn.InstanceNorm3d):
    """:class:`torch.nn.InstanceNorm3d` by normgrad: (N, C, D, H, W) or (C, D, H, W)."""


#: The numbers that identify synchronised layers; see ``key`` of
#: :func:`.functional.sync_batch_norm`.
_keys = count()


def join(layer: Any, process_group: Any) -> None:
    """Let a synchronised layer synchronise with a group from now on; None for all ranks."""
    layer.process_group = process_group
    layer._normgrad_key = next(_keys)


class SyncBatchNorm(_BatchNorm):
    """:class:`torch.nn.SyncBatchNorm` by normgrad, on the CPU too: (N, C, ...), 2 to 8 axes.

    In training, it computes :func:`.functional.sync_batch_norm`, and at its first call the ranks
    check that their layers agree. Without torch.distributed, in a group of one rank and in
    evaluation it is an ordinary batch norm. It is no subclass of :class:`torch.nn.SyncBatchNorm`,
    which DistributedDataParallel refuses on the CPU.
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
        """Take PyTorch's arguments: ``process_group`` is None for all ranks."""
        super().__init__(
            num_features, eps, momentum, affine, track_running_stats, device=device, dtype=dtype
        )
        join(self, process_group)

    _check_input_dim = torch.nn.SyncBatchNorm._check_input_dim

    def forward(self, input: Tensor) -> Tensor:
        """Compute batch norm of all ranks' batches together."""
        if isinstance(input, Proxy):
            return leaf(self, input)
        group, key = self.process_group, self._normgrad_key
        if isinstance(group, str):
            group = collectives.by_name(group)

        def norm(*arguments: Any) -> Tensor:
            return functional.sync_batch_norm(*arguments, group, key=key)  # type: ignore[misc]

        return _batch_norm(self, input, norm)

    def __getstate__(self) -> dict[str, Any]:
        """Replace the process group, which cannot leave its process, by its name."""
        state = super().__getstate__()
        group = state.get("process_group")
        if group is not None and not isinstance(group, str):
            state = {**state, "process_group": collectives.name_of(group)}
        return state  # type: ignore[no-any-return]

    @classmethod
    def convert_sync_batchnorm(cls, module: Module, process_group: Any = None) -> Any:
        """Do the same as :func:`normgrad.torch.convert_sync_batchnorm`."""
        from .conversion.model import convert_sync_batchnorm

        return convert_sync_batchnorm(module, process_group)
