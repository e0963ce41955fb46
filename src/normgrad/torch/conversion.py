"""PyTorch's layers in a model become normgrad's, and back."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import zip_longest
from typing import Any, TypeVar

import torch
from torch.nn import Module
from torch.nn.modules.module import _WrappedHook
from torch.nn.utils.parametrize import is_parametrized

from . import collectives, nn

_Layer = TypeVar("_Layer", bound=Module)

#: PyTorch's layers and ours in their place. Only these very classes are replaced: what a subclass
#: changes is not known here.
LAYERS: dict[type[Module], type[Module]] = {
    torch.nn.BatchNorm1d: nn.BatchNorm1d,
    torch.nn.BatchNorm2d: nn.BatchNorm2d,
    torch.nn.BatchNorm3d: nn.BatchNorm3d,
    torch.nn.GroupNorm: nn.GroupNorm,
    torch.nn.SyncBatchNorm: nn.SyncBatchNorm,
}


def convert(module: Module) -> Module:
    """Replace PyTorch's batch and group norm layers by normgrad's, in place.

    The new layers have the old ones' very parameters, buffers and hooks, so optimisers and handles
    go on working, and a layer that occurs in several places still does. Subclasses of PyTorch's
    layers stay as they are; so do lazy layers, until their first call has made ordinary ones of
    them.

    Args:
        module: a model. Where it is itself such a layer, it stays as it is, and a new layer with
            the same parameters is returned.

    Returns:
        The model.
    """
    return _replace(module, LAYERS)


def revert(module: Module) -> Module:
    """Replace normgrad's layers by PyTorch's, in place: what undoes :func:`convert`.

    Args:
        module: a model, as for :func:`convert`.

    Returns:
        The model.
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
        ValueError: the ranks' models differ, this rank is not of the group, or a layer is
            parametrized; nothing is changed.
        RuntimeError: a rank of the group died, or did not come within its timeout.
    """
    _check_module(module)
    for name, layer in module.named_modules():
        if _is_batch_norm(layer) and is_parametrized(layer):
            raise ValueError(
                f"module: {name or 'it'} is parametrized; allowed: batch norms without "
                "parametrizations"
            )
    group = collectives.default_group() if process_group is None else process_group
    if group is not None:
        _check_ranks_agree(module, group)
    return _replaced(
        module, _is_batch_norm, lambda layer: _as(nn.SyncBatchNorm, layer).join(process_group)
    )


def _is_batch_norm(layer: Module) -> bool:
    return isinstance(layer, torch.nn.modules.batchnorm._BatchNorm) and not isinstance(
        layer, torch.nn.modules.lazy.LazyModuleMixin
    )


def _check_ranks_agree(module: Module, group: Any) -> None:
    """Raise a ValueError on every rank if their models' batch norms differ."""
    mine = [
        f"{name or 'the module'}: {layer.num_features} features, eps {layer.eps}, momentum "
        f"{layer.momentum}, {'' if layer.affine else 'not '}affine, running statistics "
        f"{'' if layer.track_running_stats else 'not '}tracked"
        for name, layer in module.named_modules()
        if _is_batch_norm(layer)
    ]
    everyone = collectives.gather_objects("convert_sync_batchnorm: layers", mine, group)
    for other, theirs in enumerate(everyone):
        for ours, said in zip_longest(everyone[0], theirs, fillvalue="no such layer"):
            if ours != said:
                raise ValueError(
                    f"module: the ranks' layers differ: {ours!r} on rank 0, {said!r} on rank "
                    f"{other}; allowed: the same on all ranks"
                )


def _check_module(module: Module) -> None:
    if not isinstance(module, Module):
        raise TypeError(f"module: a {type(module).__name__}; allowed: a torch.nn.Module")


def _replace(module: Module, classes: Mapping[type[Module], type[Module]]) -> Module:
    _check_module(module)
    return _replaced(
        module, lambda layer: type(layer) in classes, lambda layer: _as(classes[type(layer)], layer)
    )


def _replaced(
    module: Module, applies: Callable[[Module], bool], make: Callable[[Module], Module]
) -> Module:
    """A module whose layers are replaced, each by one new layer; or a new one for itself."""
    made: dict[int, Module] = {}

    def new(layer: Module) -> Module:
        if id(layer) not in made:
            made[id(layer)] = make(layer)
        return made[id(layer)]

    for parent in list(module.modules()):
        for name, child in parent._modules.items():
            if child is not None and applies(child):
                parent._modules[name] = new(child)
    return new(module) if applies(module) else module


def _as(kind: type[_Layer], layer: Module) -> _Layer:
    """A layer of another class with all that the old one has.

    The dictionaries of hooks are the old layer's own: handles that remove a hook look there.
    """
    made: _Layer = object.__new__(kind)
    made.__dict__.update(layer.__dict__)
    for name in ("_parameters", "_buffers", "_modules", "_non_persistent_buffers_set"):
        made.__dict__[name] = layer.__dict__[name].copy()
    # Compiled code is the old layer's; it is compiled anew where a model's code calls this one.
    made.__dict__["_compiled_call_impl"] = None
    if isinstance(made, nn.SyncBatchNorm):
        made.join(layer.__dict__.get("process_group"))
    hooks = made.__dict__["_load_state_dict_pre_hooks"]
    if any(isinstance(hook, _WrappedHook) and hook.with_module for hook in hooks.values()):
        # These know the layer that they are called for.
        made.__dict__["_load_state_dict_pre_hooks"] = type(hooks)(
            (key, _WrappedHook(hook.hook, made if hook.with_module else None))
            for key, hook in hooks.items()
        )
    return made
