"""The choice of the normgrad class that replaces a layer's class, even for subclasses of PyTorch's.

A subclass keeps all that it adds to PyTorch's class. If its ``forward`` calls PyTorch's
``forward``, the new class inherits from both the subclass and normgrad's layer, so that the call
reaches normgrad's. If it calls PyTorch's function, a TorchFunctionMode redirects the call to
normgrad's. If it computes the norm itself, :func:`register` can name a function that replaces it.
"""

from __future__ import annotations

import copyreg
import inspect
from collections.abc import Callable
from functools import cache
from types import new_class
from typing import Any

import torch
from torch import Tensor
from torch.fx import Proxy
from torch.nn import Module
from torch.nn.modules.lazy import LazyModuleMixin
from torch.nn.utils.parametrize import is_parametrized
from torch.overrides import TorchFunctionMode

from ...support.values import represent
from .. import functional, nn
from ..nn import Ours, leaf
from . import families

#: The normgrad layer that replaces each layer of PyTorch.
LAYERS: dict[type[Module], type[Module]] = {
    getattr(torch.nn, name): ours
    for name, ours in vars(nn).items()
    if isinstance(ours, type) and ours.__module__ == nn.__name__ and hasattr(torch.nn, name)
}
for _theirs, _ours in LAYERS.items():
    _ours._normgrad_replaces = _theirs

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


def _unless_fast(compute: Callable[..., Any]) -> Callable[..., Any]:
    """A replacement of a class of timm's, for layers made while its ``set_fast_norm`` was off.

    Fast ones compute in autocast's dtype, so their own ``forward`` runs.
    """

    def forward(layer: Any, *args: Any, **kwargs: Any) -> Any:
        is_fast = getattr(layer, "_fast_norm", False)
        call = _by_mode(type(layer)._normgrad_replaces) if is_fast else compute
        return call(layer, *args, **kwargs)

    return forward


def _with_children(ours: type[Module]) -> Callable[..., Any]:
    """One of normgrad's layers, and the children that a subclass calls after it."""
    return lambda layer, x: families.apply_children(layer, ours.forward(layer, x))


def _over_channels(layer: Any, x: Tensor) -> Any:
    """Layer norm over the channels of images."""
    return nn.LayerNorm.forward(layer, x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)


#: The replacements of classes' ``forward``, by class or by qualified name. None means that the
#: class's ``forward`` calls PyTorch's function, although its own code does not show that.
_forwards: dict[type[Module] | str, Callable[..., Any] | None] = {
    # These call PyTorch's function, or a helper that does. To redirect that call takes 45 to 80 µs.
    "timm.layers.norm.LayerNorm2d": _unless_fast(_over_channels),
    "torchvision.models.convnext.LayerNorm2d": _over_channels,
    **{
        f"timm.layers.{name}": _unless_fast(_with_children(ours))
        for name, ours in {
            "norm.GroupNorm": nn.GroupNorm,
            "norm.LayerNorm": nn.LayerNorm,
            "norm_act.BatchNormAct2d": nn.BatchNorm2d,
            "norm_act.GroupNormAct": nn.GroupNorm,
            "norm_act.LayerNormAct": nn.LayerNorm,
            "norm_act.SyncBatchNormAct": nn.SyncBatchNorm,
        }.items()
    },
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

    Nothing compares the function's results with the class's.

    Raises:
        TypeError: ``cls`` is not a class of modules, or ``forward`` no function.
    """
    if not (isinstance(cls, type) and issubclass(cls, Module)):
        raise TypeError(f"cls: {cls!r}; allowed: a class of torch.nn.Module's")
    if not (forward is None or callable(forward)):
        raise TypeError(f"forward: {represent(forward)}; allowed: a function, or None")
    _forwards[cls] = forward
    _class_for.cache_clear()


_NORMS = (
    torch.nn.modules.batchnorm._NormBase,
    torch.nn.LocalResponseNorm,
    torch.nn.CrossMapLRN2d,
    *LAYERS,
)
_LAZY = "it has no parameters before its first call"
_OF_ITS_OWN = "no formula of normgrad's computes it; see normgrad.torch.register"


def name_of(kind: type[Module]) -> str:
    """A class's name with its module's, which is torch.nn for PyTorch's layers."""
    module = "torch.nn" if kind.__module__.startswith("torch.nn.modules.") else kind.__module__
    return f"{module}.{kind.__qualname__}"


def is_norm(layer: Module) -> bool:
    """Whether this is a norm layer.

    A norm layer is an instance of one of PyTorch's classes; or of a class whose name contains a
    norm's, unless a part of it is a norm layer, or has parameters and so is more than a norm.
    """
    if isinstance(layer, _NORMS):
        return True
    is_scripted = isinstance(layer, torch.jit.ScriptModule)
    if families.NAMED.search(layer.original_name if is_scripted else type(layer).__name__) is None:
        return False
    parts = [*layer.modules()][1:]
    if any(map(is_norm, parts)):
        return False
    return bool(_functions_named(type(layer))) or not any(part._parameters for part in parts)


def class_of(layer: Module) -> type[Module] | str:
    """The class that replaces a layer's class, or the reason why the layer cannot be converted."""
    if isinstance(layer, torch.jit.ScriptModule):
        return "TorchScript has compiled it; convert before torch.jit scripts or traces it"
    if is_parametrized(layer):
        return "it is parametrized"
    kind = type(layer)
    if any(cls.__name__ == "FSDPModule" for cls in kind.__mro__):
        return "fully_shard has sharded it; convert before fully_shard"
    if "forward" in layer.__dict__:
        return "it has a forward of its own, which is not its class's"
    replacement = _class_for(kind)  # type: ignore[arg-type]
    is_known = kind.__module__.startswith("torch.") or _keys(kind) & _forwards.keys()
    is_norm_of_pytorch = issubclass(kind, _NORMS) and replacement != _OF_ITS_OWN
    if is_known or is_norm_of_pytorch or replacement == _LAZY:
        return replacement
    # It may compute by itself what one of normgrad's formulas says.
    formula = families.formula_of(layer)
    if isinstance(formula, families.Formula):
        return _class_for(kind, formula)  # type: ignore[arg-type]
    # A class may call PyTorch's function with some options alone, or have a child of its name.
    if not isinstance(replacement, str) and is_norm(layer) and families.calls(layer, _FUNCTIONS):
        return replacement
    return formula or (replacement if isinstance(replacement, str) else _OF_ITS_OWN)


def _keys(kind: type[Module]) -> set[type[Module] | str]:
    """The keys under which a replacement of the class's ``forward`` may be registered."""
    return {kind, f"{kind.__module__}.{kind.__qualname__}"}


def _functions_named(kind: type[Module]) -> set[str]:
    """PyTorch's functions of norms that a class's ``forward`` names."""
    return _NAMES & _names_in(getattr(kind, "forward", None))


def _names_in(function: Any) -> set[str]:
    """The names that a function's code refers to."""
    code: Any = getattr(inspect.unwrap(function), "__code__", None)
    return {*code.co_names, *code.co_freevars} if code else set()


@cache
def _class_for(theirs: Any, formula: families.Formula | None = None) -> type[Module] | str:
    """The class that replaces a class, or the reason why none does; for layers of a formula."""
    if theirs in LAYERS:
        return LAYERS[theirs]
    if formula is not None:
        return _adapt(theirs, Ours, _by_formula(theirs, formula), formula)
    base = next((cls for cls in theirs.__mro__ if cls in LAYERS), None)
    ours = Ours if base is None else LAYERS[base]
    for key in _keys(theirs) & _forwards.keys():
        return _adapt(theirs, ours, _forwards[key] or _by_mode(theirs))
    if issubclass(theirs, LazyModuleMixin):
        return _LAZY
    if base is torch.nn.SyncBatchNorm:
        return "its class extends SyncBatchNorm; see normgrad.torch.register"
    if theirs.__module__.startswith("torch."):
        return _OF_ITS_OWN
    if base is None:
        is_one = families.NAMED.search(theirs.__name__) and _functions_named(theirs)
        return _adapt(theirs, Ours, _by_mode(theirs)) if is_one else _OF_ITS_OWN
    for cls in theirs.__mro__[: theirs.__mro__.index(base)]:
        if "forward" not in cls.__dict__:
            continue
        names = _names_in(cls.__dict__["forward"])
        # The names of functions, and those that BatchNorm2d.forward(self, x) uses:
        if names & _NAMES or {base.__name__, "forward"} <= names:
            return _adapt(theirs, ours, _by_mode(theirs))
        if not {"__class__", "forward"} <= names:  # those of super().forward(x)
            return _OF_ITS_OWN
    return _adapt(theirs, ours)


def _by_mode(theirs: Any) -> Callable[..., Any]:
    """A class's ``forward``, in which calls of PyTorch's functions run normgrad's."""

    def forward(layer: Any, *args: Any, **kwargs: Any) -> Any:
        with _FunctionsReplaced():
            return theirs.forward(layer, *args, **kwargs)

    return forward


def _by_formula(theirs: Any, formula: families.Formula) -> Callable[..., Any]:
    """What a class's ``forward`` computes, by the formula; other calls run that ``forward``."""

    def forward(layer: Any, *args: Any, **kwargs: Any) -> Any:
        # Programs keep what the class computes by, which compilers fuse and every exporter knows.
        is_known = len(args) == 1 and not kwargs and formula.takes(layer, args[0])
        if is_known and not (torch.compiler.is_compiling() or torch.jit.is_tracing()):
            return formula.compute(layer, args[0])
        return theirs.forward(layer, *args, **kwargs)

    return forward


class _Adapted(Module):
    """The first base of adapted classes.

    They are no classes of the user's, so a class's ``__init_subclass__`` does not see them: it may
    ask for arguments, or put them in place of their originals.
    """

    def __init_subclass__(cls) -> None:
        pass


class _Kind(type):
    """The class of adapted classes, since pickle asks copyreg about classes of such classes only.

    No module has adapted classes under their names, which are those of the original classes.
    """


def _reduce(cls: Any) -> Any:
    """Pickle an adapted class by its original class, and a user's subclass of one by its name."""
    if "_normgrad_how" not in vars(cls):
        return cls.__qualname__
    return _load, (cls._normgrad_replaces, *cls._normgrad_how)


@cache
def _kind(theirs: Any) -> Any:
    """The class of the adapted classes of those that are of a class."""
    kind = _Kind if theirs is type else new_class("_Kind", (_Kind, theirs))
    copyreg.pickle(kind, _reduce)
    return kind


def _adapt(
    theirs: type[Module],
    ours: type[Module],
    compute: Callable[..., Any] | None = None,
    *how: families.Formula,
) -> type[Module] | str:
    """A subclass of both classes that computes with normgrad: by its bases, or by a function.

    If there can be none, the reason.
    """

    def forward(layer: Any, *args: Any, **kwargs: Any) -> Any:
        """Compute what the original class computes, with normgrad."""
        if any(isinstance(value, Proxy) for value in (*args, *kwargs.values())):
            return leaf(layer, *args, **kwargs)
        # Not by super(): after a conversion back a bound method may come here too.
        return (compute or base.forward)(layer, *args, **kwargs)

    namespace = {
        "__module__": theirs.__module__,
        "__qualname__": theirs.__qualname__,
        "__doc__": theirs.__doc__,
        "forward": forward,
        "_normgrad_replaces": theirs,
        "_normgrad_how": how,
    }
    bases = (_Adapted, Ours, theirs) if ours is Ours else (_Adapted, theirs, ours)
    try:
        options = {"metaclass": _kind(type(theirs))}  # type: ignore[arg-type]
        adapted: Any = new_class(theirs.__name__, bases, options, lambda s: s.update(namespace))
    except Exception as error:  # of a metaclass
        return f"no subclass of its class can be made: {error}"
    base = next(cls for cls in adapted.__mro__[1:] if "forward" in vars(cls))
    return adapted  # type: ignore[no-any-return]


def _load(theirs: type[Module], *how: families.Formula) -> type[Module]:
    """The class that replaces a class, for unpickling."""
    replacement = _class_for(theirs, *how)  # type: ignore[arg-type]
    if isinstance(replacement, str):
        raise TypeError(f"a converted {theirs.__qualname__} cannot be loaded: {replacement}")
    return replacement
