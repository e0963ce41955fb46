"""PyTorch's layers in a model become normgrad's, and back."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch.nn import Module
from torch.nn.modules.module import _WrappedHook

from . import nn

#: PyTorch's layers and ours in their place. Only these very classes are replaced: what a subclass
#: changes is not known here.
LAYERS: dict[type[Module], type[Module]] = {
    torch.nn.BatchNorm1d: nn.BatchNorm1d,
    torch.nn.BatchNorm2d: nn.BatchNorm2d,
    torch.nn.BatchNorm3d: nn.BatchNorm3d,
    torch.nn.GroupNorm: nn.GroupNorm,
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


def _replace(module: Module, classes: Mapping[type[Module], type[Module]]) -> Module:
    if not isinstance(module, Module):
        raise TypeError(f"module: a {type(module).__name__}; allowed: a torch.nn.Module")
    made: dict[int, Module] = {}

    def new(layer: Module) -> Module:
        if id(layer) not in made:
            made[id(layer)] = _as(classes[type(layer)], layer)
        return made[id(layer)]

    for parent in list(module.modules()):
        for name, child in parent._modules.items():
            if type(child) in classes:
                parent._modules[name] = new(child)
    return new(module) if type(module) in classes else module


def _as(kind: type[Module], layer: Module) -> Module:
    """A layer of another class with all that the old one has.

    The dictionaries of hooks are the old layer's own: handles that remove a hook look there.
    """
    made = kind.__new__(kind)
    made.__dict__.update(layer.__dict__)
    for name in ("_parameters", "_buffers", "_modules", "_non_persistent_buffers_set"):
        made.__dict__[name] = layer.__dict__[name].copy()
    # Compiled code is the old layer's; it is compiled anew where a model's code calls this one.
    made.__dict__["_compiled_call_impl"] = None
    hooks = made.__dict__["_load_state_dict_pre_hooks"]
    if any(isinstance(hook, _WrappedHook) and hook.with_module for hook in hooks.values()):
        # These know the layer that they are called for.
        made.__dict__["_load_state_dict_pre_hooks"] = type(hooks)(
            (key, _WrappedHook(hook.hook, made if hook.with_module else None))
            for key, hook in hooks.items()
        )
    return made
