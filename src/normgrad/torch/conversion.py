"""The conversion of a model's layers from PyTorch's classes to normgrad's, and back."""

from __future__ import annotations

import sys
import warnings
from collections import Counter
from collections.abc import Callable, Mapping
from itertools import zip_longest
from typing import Any, NamedTuple

import torch
from torch.nn import Module
from torch.nn.modules.module import _WrappedHook
from torch.nn.utils.parametrize import is_parametrized

from . import collectives, nn
from .adapting import LAYERS, class_of, is_norm
from .nn import Ours


class Conversion(NamedTuple):
    """Which of a model's norm layers are normgrad's.

    Attributes:
        layers: the number of normgrad layers of each class, by the class's name.
        left: for each other norm layer, by its name in the model, the reason why it is not one.
    """

    layers: dict[str, int]
    left: dict[str, str]

    def __str__(self) -> str:
        ours = ", ".join(f"{count} {name}" for name, count in self.layers.items())
        reasons = Counter(self.left.values())
        theirs = "; ".join(f"{count} {reason}" for reason, count in reasons.items())
        return f"normgrad's: {ours or 'none'}" + (f"; left: {theirs}" if theirs else "")


def converted(module: Module) -> Conversion:
    """Report which norm layers of a model are converted, and why the others are not.

    Args:
        module: a model.

    Raises:
        TypeError: as for :func:`convert`.
    """
    check_module(module)
    layers: Counter[str] = Counter()
    left = {}
    for name, layer in module.named_modules():
        kind = type(layer).__name__
        if isinstance(layer, Ours):
            layers[kind] += 1
        elif is_norm(layer):
            why = class_of(layer)
            left[name] = f"{kind}: {why if isinstance(why, str) else 'not converted yet'}"
    return Conversion(dict(layers), left)


def convert(module: Module) -> Module:
    """Replace PyTorch's normalisation layers by normgrad's, in place.

    The new layers share the old layers' parameters, buffers and hooks, so optimisers and hook
    handles still work, and a layer that occurs in several places still does. A subclass of a
    PyTorch layer is replaced if its ``forward`` calls PyTorch's ``forward`` or PyTorch's function,
    or if :func:`register` has registered it; the new layer keeps what the subclass adds. If norm
    layers cannot be converted, there is a warning, and :func:`converted` gives the reasons. Lazy
    layers can be converted after their first call, which turns them into ordinary layers.

    Args:
        module: a model. If it is a norm layer itself, it does not change, and a new layer with the
            same parameters is returned.

    Returns:
        The model.

    Raises:
        TypeError: not a module, or a module that is or contains TorchScript; nothing is changed.
    """
    check_module(module)

    def kind_for(layer: Module) -> type[Module] | None:
        found = None if isinstance(layer, Ours) else class_of(layer)
        return None if isinstance(found, str) else found

    made = _replaced(module, kind_for)
    done = converted(made)
    if done.left:
        warnings.warn(f"normgrad.torch.convert left norm layers as they were: {done}", stacklevel=2)
    return made


def revert(module: Module) -> Module:
    """Replace normgrad's layers by PyTorch's, in place; this undoes :func:`convert`.

    Args:
        module: a model, as for :func:`convert`.

    Returns:
        The model.

    Raises:
        TypeError: as for :func:`convert`.
    """
    check_module(module)
    return _replaced(module, lambda layer: vars(type(layer)).get("replaces"))


def convert_sync_batchnorm(module: Module, process_group: Any = None) -> Module:
    """Replace batch norm layers, PyTorch's and normgrad's, by synchronised ones, in place.

    As in PyTorch's function of the same name, every batch norm layer is replaced, even if it is an
    instance of a subclass (except lazy layers whose parameters do not exist yet), by a layer with
    the same parameters, buffers and hooks. If this drops what a subclass adds to ``forward``, there
    is a warning. If torch.distributed is initialised, all ranks of the group must call this
    function, which checks that they convert the same layers.

    Args:
        module: a model. If it is a batch norm layer itself, it does not change, and a new layer
            with the same parameters is returned.
        process_group: the group whose ranks synchronise; None for all ranks.

    Returns:
        The model. :func:`revert` converts its layers to :class:`torch.nn.SyncBatchNorm`.

    Raises:
        TypeError: as for :func:`convert`.
        ValueError: the ranks' models differ, this rank is not in the group, or a layer is
            parametrized; nothing is changed.
        RuntimeError: a rank of the group died, or did not call this within the group's timeout.
    """
    check_module(module)
    norms = {name: layer for name, layer in module.named_modules() if _is_batch_norm(layer)}
    for name, layer in norms.items():
        if is_parametrized(layer):
            raise ValueError(
                f"module: {name or 'it'} is parametrized; allowed: batch norms without "
                "parametrizations"
            )
    whole = {torch.nn.BatchNorm1d.forward, torch.nn.SyncBatchNorm.forward, nn.SyncBatchNorm.forward}
    kinds = {type(layer) for layer in norms.values()}
    dropped = sorted({kind.__qualname__ for kind in kinds if kind.forward not in whole})
    if dropped:
        warnings.warn(
            f"convert_sync_batchnorm: of {', '.join(dropped)} batch norm alone remains; what else "
            "their forward does is dropped",
            stacklevel=2,
        )
    group = collectives.default_group() if process_group is None else process_group
    if group is not None:
        _check_ranks_agree(norms, group)
    made = _replaced(module, lambda layer: nn.SyncBatchNorm if _is_batch_norm(layer) else None)
    for layer in made.modules():
        if isinstance(layer, nn.SyncBatchNorm):
            layer.join(process_group)
    return made


def _is_batch_norm(layer: Module) -> bool:
    return isinstance(layer, torch.nn.modules.batchnorm._BatchNorm) and not isinstance(
        layer, torch.nn.modules.lazy.LazyModuleMixin
    )


def _check_ranks_agree(norms: Mapping[str, Any], group: Any) -> None:
    """Raise a ValueError on every rank if their models' batch norms differ."""
    mine = [
        f"{name or 'the module'}: {layer.num_features} features, eps {layer.eps}, momentum "
        f"{layer.momentum}, {'' if layer.affine else 'not '}affine, running statistics "
        f"{'' if layer.track_running_stats else 'not '}tracked"
        for name, layer in norms.items()
    ]
    everyone = collectives.gather_objects("convert_sync_batchnorm: layers", mine, group)
    for other, theirs in enumerate(everyone):
        for first, their in zip_longest(everyone[0], theirs, fillvalue="no such layer"):
            if first != their:
                raise ValueError(
                    f"module: the ranks' layers differ: {first!r} on rank 0, {their!r} on rank "
                    f"{other}; allowed: the same on all ranks"
                )


def check_module(module: Module) -> None:
    """Raise a TypeError if the argument is not a module, or is or contains TorchScript.

    TorchScript calls PyTorch's operators directly, so its layers cannot be replaced.
    """
    if not isinstance(module, Module):
        raise TypeError(f"module: a {type(module).__name__}; allowed: a torch.nn.Module")
    for name, part in module.named_modules():
        if isinstance(part, torch.jit.ScriptModule):
            raise TypeError(
                f"module: {name or 'it'} is a {type(part).__name__}, code of TorchScript's; "
                "allowed: modules in Python, before torch.jit scripts or traces them"
            )


def _replaced(module: Module, kind_for: Callable[[Module], type[Module] | None]) -> Module:
    """Replace the layers for which ``kind_for`` returns a new class, and return the module.

    If the module itself is such a layer, the new layer is returned. A layer that occurs in several
    places is replaced by one new layer.
    """
    made: dict[int, Module] = {}

    def new(layer: Module) -> Module:
        if id(layer) not in made:
            kind = kind_for(layer)
            made[id(layer)] = layer if kind is None else _made_from(kind, layer)
        return made[id(layer)]

    for parent in list(module.modules()):
        for name, child in parent._modules.items():
            if child is not None:
                parent._modules[name] = new(child)
    return new(module)


def _made_from(kind: type[Module], layer: Module) -> Module:
    """A layer of another class with the same attributes, parameters, buffers and hooks.

    It shares the old layer's dictionaries of hooks, since handles remove their hooks from these.
    """
    made: Module = object.__new__(kind)
    made.__dict__.update(layer.__dict__)
    for name in ("_parameters", "_buffers", "_modules", "_non_persistent_buffers_set"):
        made.__dict__[name] = layer.__dict__[name].copy()
    # The old layer's compiled code does not fit; PyTorch compiles the new layer when it is called.
    made.__dict__["_compiled_call_impl"] = None
    hooks = made.__dict__["_load_state_dict_pre_hooks"]
    if any(isinstance(hook, _WrappedHook) and hook.with_module for hook in hooks.values()):
        # These hooks hold a reference to the layer that they are called for.
        made.__dict__["_load_state_dict_pre_hooks"] = type(hooks)(
            (key, _WrappedHook(hook.hook, made if hook.with_module else None))
            for key, hook in hooks.items()
        )
    if isinstance(made, nn.SyncBatchNorm):
        made.join(layer.__dict__.get("process_group"))
    return made


def _refused(is_qat: bool, *layers: Module) -> None:
    kinds = ", ".join(type(layer).__name__ for layer in layers)
    raise TypeError(
        f"torch.ao.quantization: {kinds} to be fused, of which some are normgrad's; allowed: "
        "PyTorch's layers: normgrad.torch.revert(model) first"
    )


# torch.ao.quantization finds the function that fuses layers by the layers' classes, and its own
# error for an unknown class does not name a remedy.
_fusing = sys.modules.get("torch.ao.quantization.fuser_method_mappings")
_fusers: dict[Any, Any] = getattr(_fusing, "_DEFAULT_OP_LIST_TO_FUSER_METHOD", {})
for _kinds in list(_fusers):
    _fusers.setdefault(tuple(LAYERS.get(kind, kind) for kind in _kinds), _refused)
