"""Layers in a model replaced by others with all that they have."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from itertools import zip_longest
from typing import Any, TypeVar

import torch
from torch.fx import Proxy
from torch.nn import Module
from torch.nn.modules.module import _WrappedHook
from torch.nn.utils.parametrize import is_parametrized

from . import collectives

_Layer = TypeVar("_Layer", bound=Module)


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


def synchronised(kind: Any, module: Module, process_group: Any) -> Module:
    """A model whose batch norms are synchronised ones; see :func:`.convert_sync_batchnorm`.

    ``kind`` is their class.
    """
    check_module(module)
    for name, layer in module.named_modules():
        if _is_batch_norm(layer) and is_parametrized(layer):
            raise ValueError(
                f"module: {name or 'it'} is parametrized; allowed: batch norms without "
                "parametrizations"
            )
    whole = {torch.nn.BatchNorm1d.forward, torch.nn.SyncBatchNorm.forward, kind.forward}
    dropped = sorted(
        {
            type(layer).__qualname__
            for layer in module.modules()
            if _is_batch_norm(layer) and type(layer).forward not in whole
        }
    )
    if dropped:
        warnings.warn(
            f"convert_sync_batchnorm: of {', '.join(dropped)} batch norm alone remains; what else "
            "their forward does is dropped",
            stacklevel=4,
        )
    group = collectives.default_group() if process_group is None else process_group
    if group is not None:
        _check_ranks_agree(module, group)
    return replaced(
        module, _is_batch_norm, lambda layer: made_from(kind, layer).join(process_group)
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


def check_module(module: Module) -> None:
    """Raise a TypeError for what is no module, or has code of TorchScript's in it.

    The layers in that are no modules that could be replaced: it calls PyTorch's own operators.
    """
    if not isinstance(module, Module):
        raise TypeError(f"module: a {type(module).__name__}; allowed: a torch.nn.Module")
    for name, part in module.named_modules():
        if isinstance(part, torch.jit.ScriptModule):
            raise TypeError(
                f"module: {name or 'it'} is a {type(part).__name__}, code of TorchScript's; "
                "allowed: modules in Python, before torch.jit scripts or traces them"
            )


def replaced(
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


def made_from(kind: type[_Layer], layer: Module) -> _Layer:
    """A layer of another class with all that the old one has.

    The dictionaries of hooks are the old layer's own: handles that remove a hook look there.
    """
    made: _Layer = object.__new__(kind)
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
