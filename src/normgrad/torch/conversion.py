"""PyTorch's layers in a model become normgrad's, and back."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch.nn import Module

from . import nn
from .replacement import check_module, made_from, replaced

#: PyTorch's layers and ours in their place. Only these very classes are replaced: what a subclass
#: changes is not known here.
LAYERS: dict[type[Module], type[Module]] = {
    torch.nn.BatchNorm1d: nn.BatchNorm1d,
    torch.nn.BatchNorm2d: nn.BatchNorm2d,
    torch.nn.BatchNorm3d: nn.BatchNorm3d,
    torch.nn.GroupNorm: nn.GroupNorm,
    torch.nn.LayerNorm: nn.LayerNorm,
    torch.nn.RMSNorm: nn.RMSNorm,
    torch.nn.InstanceNorm1d: nn.InstanceNorm1d,
    torch.nn.InstanceNorm2d: nn.InstanceNorm2d,
    torch.nn.InstanceNorm3d: nn.InstanceNorm3d,
    torch.nn.SyncBatchNorm: nn.SyncBatchNorm,
}


def convert(module: Module) -> Module:
    """Replace PyTorch's normalisation layers by normgrad's, in place.

    The new layers have the old ones' very parameters, buffers and hooks, so optimisers and handles
    go on working, and a layer that occurs in several places still does. Subclasses of PyTorch's
    layers stay as they are; so do lazy layers, until their first call has made ordinary ones of
    them.

    Args:
        module: a model. Where it is itself such a layer, it stays as it is, and a new layer with
            the same parameters is returned.

    Returns:
        The model.

    Raises:
        TypeError: no module, or one that is TorchScript or has some in it; nothing is changed.
    """
    return _replace(module, LAYERS)


def revert(module: Module) -> Module:
    """Replace normgrad's layers by PyTorch's, in place: what undoes :func:`convert`.

    Args:
        module: a model, as for :func:`convert`.

    Returns:
        The model.

    Raises:
        TypeError: as for :func:`convert`.
    """
    return _replace(module, {ours: theirs for theirs, ours in LAYERS.items()})


def convert_sync_batchnorm(module: Module, process_group: Any = None) -> Module:
    """Replace batch norm layers, PyTorch's and normgrad's, by synchronised ones, in place.

    Like PyTorch's function of that name: every layer that is a batch norm is replaced, subclasses
    too (but for lazy ones without their parameters), with the same parameters, buffers and hooks.
    Where torch.distributed has been initialised, the group's ranks are checked to have converted
    the same layers, so all of them have to call this.

    Args:
        module: a model. Where it is itself such a layer, it stays as it is, and a new layer with
            the same parameters is returned.
        process_group: with whom the layers synchronise; None for all ranks.

    Returns:
        The model. :func:`revert` makes :class:`torch.nn.SyncBatchNorm` of its layers.

    Raises:
        TypeError: as for :func:`convert`.
        ValueError: the ranks' models differ, this rank is not of the group, or a layer is
            parametrized; nothing is changed.
        RuntimeError: a rank of the group died, or did not come within its timeout.
    """
    return nn.SyncBatchNorm.convert_sync_batchnorm(module, process_group)


def _replace(module: Module, classes: Mapping[type[Module], type[Module]]) -> Module:
    check_module(module)
    return replaced(
        module, lambda layer: type(layer) in classes, lambda layer: _as(classes[type(layer)], layer)
    )


def _as(kind: type[Module], layer: Module) -> Module:
    made = made_from(kind, layer)
    if isinstance(made, nn.SyncBatchNorm):
        made.join(layer.__dict__.get("process_group"))
    return made
