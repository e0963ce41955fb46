"""The conversion of a model's layers from PyTorch's classes to normgrad's, and back."""

from __future__ import annotations

import sys
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from difflib import get_close_matches
from itertools import zip_longest
from typing import Any, NamedTuple, TypeVar

import torch
from torch.nn import Module
from torch.nn.modules.module import _WrappedHook
from torch.nn.utils.parametrize import is_parametrized

from .. import collectives, native, nn
from ..nn import Ours, check_module
from .classes import LAYERS, class_of, is_norm, name_of

#: The type of the model, which conversion keeps.
Model = TypeVar("Model", bound=Module)
#: What names layers of a model: classes, names in the model (a module's name names all layers in
#: it), and functions of a name and a layer.
Only = type[Module] | str | Callable[[str, Module], bool]


class Conversion(NamedTuple):
    """Which of a model's norm layers are normgrad's.

    Attributes:
        layers: the number of normgrad layers by the name of the class that they replace.
        left: for each other norm layer, by its name in the model, its class and the reason why it
            is not one.
    """

    layers: dict[str, int]
    left: dict[str, str]

    def __str__(self) -> str:
        if not (self.layers or self.left):
            return "normgrad's: none, as the model has no norm layers"
        ours = ", ".join(f"{count} {name}" for name, count in self.layers.items())
        reasons: dict[str, list[str]] = {}
        for text, count in Counter(self.left.values()).items():
            kind, _, reason = text.partition(": ")
            reasons.setdefault(reason, []).append(f"{count} {kind}")
        theirs = "; ".join(f"{', '.join(kinds)}: {reason}" for reason, kinds in reasons.items())
        return f"normgrad's: {ours or 'none'}" + (f"; left: {theirs}" if theirs else "")


def converted(module: Module) -> Conversion:
    """Report which norm layers of a model are converted, and why the others are not.

    Args:
        module: a model.

    Raises:
        TypeError: as for :func:`convert`.
    """
    check_module(module)
    return _report(module.named_modules())


def _report(named_layers: Iterable[tuple[str, Module]]) -> Conversion:
    layers: Counter[str] = Counter()
    left = {}
    for name, layer in named_layers:
        if isinstance(layer, Ours):
            layers[stock_name(layer)] += 1
        elif is_norm(layer):
            why = class_of(layer)
            reason = why if isinstance(why, str) else "not converted yet"
            left[name] = f"{name_of(type(layer))}: {reason}"
    return Conversion(dict(layers), left)


def convert(module: Model, only: Only | Iterable[Only] | None = None) -> Model:
    """Replace the classes of normalisation layers, PyTorch's and public libraries', in place.

    The layers remain the same objects, so all references to them, parameters, buffers and hooks
    stay valid. A subclass of a PyTorch layer is converted if its ``forward`` calls PyTorch's
    ``forward`` or PyTorch's function, or if :func:`register` has registered it; the layer keeps
    what the subclass adds. A layer that computes RMS norm, layer norm or frozen batch norm by
    itself, as those of transformers do, is converted if its ``forward`` agrees with normgrad's
    formula on small random inputs. If norm layers cannot be converted, or there are none, there is
    a warning, and :func:`converted` gives the reasons. Lazy layers can be converted after their
    first call, which turns them into ordinary layers. The C++ library that computes is built first
    if it is missing, which takes some 25 s once; where it cannot be built, layers are computed by
    PyTorch, and one line says so.

    Args:
        module: a model. If it is a norm layer itself, it does not change, and a new layer with the
            same parameters is returned.
        only: which layers to convert; None for all. A class of layers; the name of a layer or of a
            module around layers; a function that takes a layer's name and the layer, and returns
            whether to convert it; or several of these.

    Returns:
        The model.

    Raises:
        TypeError: not a module, or a module of TorchScript's; ``only`` is none of these.
        ValueError: ``only``, or one of several, matches no norm layer.
        Exception: any exception of ``only``. After an error nothing is changed.
    """
    check_module(module)
    native.build_and_load()
    selection = None if only is None else _selection(module, only)

    def kind_for(layer: Module) -> type[Module] | None:
        if isinstance(layer, Ours) or not (selection is None or id(layer) in selection):
            return None
        kind = class_of(layer)
        return None if isinstance(kind, str) else kind

    model = _replace(module, kind_for)
    _tell_tools(model)
    report = _report(
        (name, layer)
        for name, layer in model.named_modules()
        if selection is None or id(layer) in selection or isinstance(layer, Ours)
    )
    if report.left or not report.layers:
        outcome = "left norm layers as they were" if report.left else "converted nothing"
        warnings.warn(f"normgrad.torch.convert {outcome}: {report}", stacklevel=2)
    return model


def _selection(module: Module, only: Only | Iterable[Only]) -> set[int]:
    """The identities of the norm layers that ``only`` names."""
    layers = {
        name: layer
        for name, layer in module.named_modules(remove_duplicate=False)
        if isinstance(layer, Ours) or is_norm(layer) or not isinstance(class_of(layer), str)
    }
    several = not isinstance(only, (str, type)) and isinstance(only, Iterable)
    identities: set[int] = set()
    for one in only if several else [only]:  # type: ignore[union-attr]
        if isinstance(one, str):
            matches = [n for n in layers if one in ("", n) or n.startswith(f"{one}.")]
        elif isinstance(one, type) and issubclass(one, Module):
            matches = [name for name, layer in layers.items() if isinstance(layer, one)]
        elif callable(one) and not isinstance(one, type):
            matches = [name for name, layer in layers.items() if one(name, layer)]
        else:
            raise TypeError(
                f"only: {one!r}; allowed: classes of layers, names, functions of a name and a layer"
            )
        if not matches:
            words = [*layers, *sorted({name_of(type(layer)) for layer in layers.values()})]
            spelling = name_of(one) if isinstance(one, type) else str(one)
            near = get_close_matches(spelling, words, n=5, cutoff=0.4) or words[:5]
            raise ValueError(
                f"only: {spelling!r} matches no norm layer; allowed: such as {', '.join(near)}"
                if near
                else f"only: {spelling!r}; allowed: None, since the model has no norm layers"
            )
        identities.update(id(layers[name]) for name in matches)
    return identities


def revert(module: Model) -> Model:
    """Give normgrad's layers their original classes, in place; this undoes :func:`convert`.

    Args:
        module: a model, as for :func:`convert`.

    Returns:
        The model.

    Raises:
        TypeError: as for :func:`convert`.
    """
    check_module(module)
    return _replace(module, stock_class)


def stock_class(layer: Module) -> type[Module] | None:
    """The class that a layer's class replaces, if it replaces one."""
    stock: type[Module] | None = vars(type(layer)).get("_normgrad_replaces")
    return stock


def stock_name(layer: Module) -> str:
    """The name of the class that a layer's class replaces, or else of its own."""
    return name_of(stock_class(layer) or type(layer))


def convert_sync_batchnorm(module: Model, process_group: Any = None) -> Model:
    """Make batch norm layers, PyTorch's and normgrad's, synchronised ones, in place.

    As in PyTorch's function of the same name, every batch norm layer is converted, even if it is an
    instance of a subclass (except lazy layers whose parameters do not exist yet). The layers remain
    the same objects, as in :func:`convert`. If this drops what a subclass adds to ``forward``,
    there is a warning. If torch.distributed is initialised, all ranks of the group must call this
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
    whole = {
        getattr(module, name).forward
        for module in (torch.nn, nn)
        for name in ("BatchNorm1d", "SyncBatchNorm")
    }
    kinds = {type(layer) for layer in norms.values()}
    dropped = sorted({kind.__qualname__ for kind in kinds if kind.forward not in whole})
    if dropped:
        warnings.warn(
            f"convert_sync_batchnorm: {', '.join(dropped)}: only batch norm remains; the other "
            "code of their forward is dropped",
            stacklevel=2,
        )
    group = collectives.default_group() if process_group is None else process_group
    if group is not None:
        _check_ranks_agree(norms, group)
    model = _replace(module, lambda layer: nn.SyncBatchNorm if _is_batch_norm(layer) else None)
    for layer in model.modules():
        if isinstance(layer, nn.SyncBatchNorm):
            nn.join(layer, process_group)
    return model


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


def _replace(module: Model, kind_for: Callable[[Module], type[Module] | None]) -> Model:
    """Give the layers for which ``kind_for`` returns a class this class, and return the module.

    A layer keeps its identity, since lists, closures, hooks and other models may refer to it. If
    the module itself is such a layer, a copy of it is returned. All classes are found before the
    first layer changes.
    """
    kinds = [(layer, kind) for layer in module.modules() if (kind := kind_for(layer)) is not None]
    for layer, kind in kinds:
        changed = layer
        if layer is module:
            module = changed = _copy_of(layer)
        # A layer's own __setattr__ might refuse.
        object.__setattr__(changed, "__class__", kind)
        if isinstance(changed, nn.SyncBatchNorm):
            nn.join(changed, changed.__dict__.get("process_group"))
    return module


def _copy_of(layer: Any) -> Any:
    """A layer of the same class with the same attributes, parameters, buffers and hooks.

    It shares the old layer's dictionaries of hooks, since handles remove their hooks from these.
    """
    new: Any = object.__new__(type(layer))
    new.__dict__.update(layer.__dict__)
    for name in ("_parameters", "_buffers", "_modules", "_non_persistent_buffers_set"):
        new.__dict__[name] = layer.__dict__[name].copy()
    # The old layer's compiled code calls the old layer.
    new.__dict__["_compiled_call_impl"] = None
    hooks = new.__dict__["_load_state_dict_pre_hooks"]
    if any(isinstance(hook, _WrappedHook) and hook.with_module for hook in hooks.values()):
        # These hooks hold a reference to the layer that they are called for.
        new.__dict__["_load_state_dict_pre_hooks"] = type(hooks)(
            (key, _WrappedHook(hook.hook, new if hook.with_module else None))
            for key, hook in hooks.items()
        )
    return new


#: The tables of tools that look layers' classes up: a module, and an object in it.
_TABLES = (
    ("opacus.validators", "ModuleValidator.VALIDATORS"),
    ("opacus.validators", "ModuleValidator.FIXERS"),
    ("captum.attr._core.lrp", "SUPPORTED_LAYERS_WITH_RULES"),
)


def _tell_tools(module: Module) -> None:
    """Let Opacus and captum, if loaded, treat normgrad's layers as those that they replace.

    Opacus would find nothing wrong with a batch norm of normgrad's, and captum no rule for it.
    """
    for name, path in _TABLES:
        table: Any = sys.modules.get(name)
        for part in path.split("."):
            table = getattr(table, part, None)
        for layer in () if table is None else module.modules():
            if (stock := stock_class(layer)) in table:
                table.setdefault(type(layer), table[stock])


def _refuse_fusion(is_qat: bool, *layers: Module) -> None:
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
    _fusers.setdefault(tuple(LAYERS.get(kind, kind) for kind in _kinds), _refuse_fusion)
