"""The choice of the normgrad class that replaces a layer's class, even for subclasses of PyTorch's.

A subclass keeps all that it adds to PyTorch's class. If its ``forward`` calls PyTorch's
``forward``, the new class inherits from both the subclass and normgrad's layer, so that the call
reaches normgrad's. If it calls PyTorch's function, a TorchFunctionMode redirects the call to
normgrad's. If it computes the norm itself, :func:`register` can name a function that replaces it.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from functools import cache
from types import new_class
from typing import Any

import torch
from torch.fx import Proxy
from torch.nn import Module
from torch.nn.modules.lazy import LazyModuleMixin
from torch.nn.utils.parametrize import is_parametrized
from torch.overrides import TorchFunctionMode

from . import functional, nn
from .nn import Ours, leaf

#: The normgrad layer that replaces each layer of PyTorch.
LAYERS: dict[type[Module], type[Module]] = {
    getattr(torch.nn, name): ours
    for name, ours in vars(nn).items()
    if isinstance(ours, type) and ours.__module__ == nn.__name__ and hasattr(torch.nn, name)
}
for _theirs, _ours in LAYERS.items():
    _ours.replaces = _theirs

#: The names of PyTorch's functions that a subclass may call, and the functions that replace them.
_NAMES = {"batch_norm", "group_norm", "layer_norm", "rms_norm", "instance_norm"}
_FUNCTIONS: dict[Callable[..., Any], Callable[..., Any]] = {
    getattr(torch.nn.functional, name): getattr(functional, name) for name in _NAMES
}


class _FunctionsReplaced(TorchFunctionMode):
    """A context in which calls of PyTorch's functions run normgrad's instead."""

    def __torch_function__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        return _FUNCTIONS.get(function, function)(*args, **(kwargs or {}))


def _frozen_batch_norm(layer: Any, x: Any) -> Any:
    """Batch norm with weight and bias in buffers, in the dtype that multiplying by them gives."""
    if x.dim() != 4:
        return layer.replaces.forward(layer, x)
    x = x.to(torch.promote_types(x.dtype, layer.weight.dtype))
    mean, var = layer.running_mean, layer.running_var
    return functional.batch_norm(x, mean, var, layer.weight, layer.bias, False, 0.0, layer.eps)


def _rms_norm(layer: Any, x: Any) -> Any:
    """RMS norm in the dtype that multiplying by its weight gives."""
    if layer.weight is not None:
        x = x.to(torch.promote_types(x.dtype, layer.weight.dtype))
    return functional.rms_norm(x, layer.normalized_shape, layer.weight, layer.eps)


#: The replacements of classes' ``forward``, by class or by qualified name. None means that the
#: class's ``forward`` calls PyTorch's function, although its own code does not show that.
_forwards: dict[type[Module] | str, Callable[..., Any] | None] = {
    "torchvision.ops.misc.FrozenBatchNorm2d": _frozen_batch_norm,
    "detectron2.layers.batch_norm.FrozenBatchNorm2d": _frozen_batch_norm,
    "timm.layers.norm_act.FrozenBatchNormAct2d": lambda layer, x: layer.act(
        layer.drop(_frozen_batch_norm(layer, x))
    ),
    "timm.layers.norm.RmsNorm": _rms_norm,
}


def register(cls: type[Module], forward: Callable[..., Any] | None = None) -> None:
    """Let :func:`.convert` convert layers of a class that it would leave unchanged otherwise.

    Subclasses of PyTorch's layers need no registration if their ``forward`` calls PyTorch's
    ``forward`` or PyTorch's function.

    Args:
        cls: a class of modules; the registration does not extend to its subclasses.
        forward: a function that computes the same as the class's ``forward``, and takes the layer
            as its first argument. None if the class's ``forward`` calls PyTorch's function
            indirectly, for example in a helper function: then those calls run normgrad's function.

    Raises:
        TypeError: ``cls`` is not a class of modules.
    """
    if not (isinstance(cls, type) and issubclass(cls, Module)):
        raise TypeError(f"cls: {cls!r}; allowed: a class of torch.nn.Module's")
    _forwards[cls] = forward
    _class_for.cache_clear()


_NORMS = (torch.nn.modules.batchnorm._NormBase, *LAYERS)


def is_norm(layer: Module) -> bool:
    """Whether this is a norm layer.

    A norm layer is an instance of one of PyTorch's classes, or of a class whose name contains the
    name of a norm, unless one of its children is a norm layer.
    """
    if isinstance(layer, _NORMS):
        return True
    named = re.search(r"(batch|group|instance|layer|rms)_?norm", type(layer).__name__, re.I)
    return named is not None and not any(map(is_norm, layer.children()))


def class_of(layer: Module) -> type[Module] | str:
    """The class that replaces a layer's class, or the reason why the layer cannot be converted."""
    if is_parametrized(layer):
        return "it is parametrized"
    if "forward" in layer.__dict__:
        return "it has a forward of its own, which is not its class's"
    return _class_for(type(layer))  # type: ignore[arg-type]


@cache
def _class_for(theirs: Any) -> type[Module] | str:
    if theirs in LAYERS:
        return LAYERS[theirs]
    for key in (theirs, f"{theirs.__module__}.{theirs.__qualname__}"):
        if key in _forwards:
            return _adapted(theirs, Ours, _forwards[key], by_mode=_forwards[key] is None)
    if issubclass(theirs, LazyModuleMixin):
        return "it has no parameters before its first call"
    base = next((cls for cls in theirs.__mro__ if cls in LAYERS), None)
    if base in (None, torch.nn.SyncBatchNorm) or theirs.__module__.startswith("torch."):
        return "normgrad has no layer for it"
    for cls in theirs.__mro__[: theirs.__mro__.index(base)]:
        if "forward" not in cls.__dict__:
            continue
        code: Any = getattr(inspect.unwrap(cls.__dict__["forward"]), "__code__", None)
        names = {*code.co_names, *code.co_freevars} if code else set()
        if names & _NAMES:
            return _adapted(theirs, LAYERS[base], None, by_mode=True)
        if not {"__class__", "forward"} <= names:  # the names that super().forward uses
            return "its forward computes by itself; see normgrad.torch.register"
    return _adapted(theirs, LAYERS[base], None, by_mode=False)


def _adapted(
    theirs: type[Module], ours: type[Module], forward: Callable[..., Any] | None, *, by_mode: bool
) -> type[Module]:
    """A subclass of both classes that computes with normgrad."""

    def computed(layer: Any, *args: Any, **kwargs: Any) -> Any:
        """Compute what the original class computes, with normgrad."""
        if any(isinstance(value, Proxy) for value in (*args, *kwargs.values())):
            return leaf(layer, *args, **kwargs)
        if forward is not None:
            return forward(layer, *args, **kwargs)
        if by_mode:
            with _FunctionsReplaced():
                return theirs.forward(layer, *args, **kwargs)
        return super(made, layer).forward(*args, **kwargs)

    def reduced(layer: Any, protocol: int) -> Any:
        """Pickle the layer by its original class; unpickling creates this class again."""
        return (_blank, (theirs,), *super(made, layer).__reduce_ex__(2)[2:])

    namespace = {
        "__module__": theirs.__module__,
        "__qualname__": theirs.__qualname__,
        "__doc__": theirs.__doc__,
        "__reduce_ex__": reduced,
        "forward": computed,
        "replaces": theirs,
    }
    bases = (Ours, theirs) if ours is Ours else (theirs, ours)
    made: Any = new_class(theirs.__name__, bases, {}, lambda space: space.update(namespace))
    return made  # type: ignore[no-any-return]


def _blank(theirs: type[Module]) -> Module:
    """An uninitialised layer of the class that replaces a class, for unpickling."""
    found = _class_for(theirs)  # type: ignore[arg-type]
    if isinstance(found, str):
        raise TypeError(f"a converted {theirs.__qualname__} cannot be loaded: {found}")
    made: Module = object.__new__(found)
    return made
