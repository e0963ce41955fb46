"""PyTorch's layers in a model become normgrad's, and back."""

from __future__ import annotations

import sys
import warnings
from collections import Counter
from typing import Any, NamedTuple

from torch.nn import Module

from . import nn
from .adapting import LAYERS, class_of, is_norm, replaced_by
from .replacement import Ours, check_module, made_from, replaced


class Conversion(NamedTuple):
    """What of a model's norm layers is normgrad's.

    Attributes:
        layers: how many layers of each class are, by the class's name.
        left: why the others are not, by their names in the model.
    """

    layers: dict[str, int]
    left: dict[str, str]

    def __str__(self) -> str:
        ours = ", ".join(f"{count} {name}" for name, count in self.layers.items())
        reasons = Counter(self.left.values())
        theirs = "; ".join(f"{count} {reason}" for reason, count in reasons.items())
        return f"normgrad's: {ours or 'none'}" + (f"; left: {theirs}" if theirs else "")


def converted(module: Module) -> Conversion:
    """What :func:`convert` did with a model, or would leave of it.

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

    The new layers have the old ones' very parameters, buffers and hooks, so optimisers and handles
    go on working, and a layer that occurs in several places still does. Subclasses of PyTorch's
    layers are replaced where their ``forward`` comes to that of PyTorch's class or to PyTorch's
    function, and keep what they add; so are those that :func:`register` was told of. Where norm
    layers are left, there is a warning; :func:`converted` says why. Lazy layers can be converted
    once their first call has made ordinary ones of them.

    Args:
        module: a model. Where it is itself such a layer, it stays as it is, and a new layer with
            the same parameters is returned.

    Returns:
        The model.

    Raises:
        TypeError: no module, or one that is TorchScript or has some in it; nothing is changed.
    """
    check_module(module)

    def applies(layer: Module) -> bool:
        return not isinstance(layer, Ours) and not isinstance(class_of(layer), str)

    made = replaced(module, applies, lambda layer: _as(class_of(layer), layer))
    done = converted(made)
    if done.left:
        warnings.warn(f"normgrad.torch.convert left norm layers as they were: {done}", stacklevel=2)
    return made


def revert(module: Module) -> Module:
    """Replace normgrad's layers by PyTorch's, in place: what undoes :func:`convert`.

    Args:
        module: a model, as for :func:`convert`.

    Returns:
        The model.

    Raises:
        TypeError: as for :func:`convert`.
    """
    check_module(module)
    return replaced(
        module,
        lambda layer: replaced_by(type(layer)) is not None,
        lambda layer: _as(replaced_by(type(layer)), layer),
    )


def convert_sync_batchnorm(module: Module, process_group: Any = None) -> Module:
    """Replace batch norm layers, PyTorch's and normgrad's, by synchronised ones, in place.

    Like PyTorch's function of that name: every layer that is a batch norm is replaced, subclasses
    too (but for lazy ones without their parameters), with the same parameters, buffers and hooks.
    There is a warning where that drops what a subclass adds to ``forward``. Where torch.distributed
    has been initialised, the group's ranks are checked to have converted the same layers, so all of
    them have to call this.

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


def _as(kind: Any, layer: Module) -> Module:
    made: Module = made_from(kind, layer)
    if isinstance(made, nn.SyncBatchNorm):
        made.join(layer.__dict__.get("process_group"))
    return made


def _refused(is_qat: bool, *layers: Module) -> None:
    kinds = ", ".join(type(layer).__name__ for layer in layers)
    raise TypeError(
        f"torch.ao.quantization: {kinds} to be fused, of which some are normgrad's; allowed: "
        "PyTorch's layers: normgrad.torch.revert(model) first"
    )


# What fuses layers finds them by their classes, and does not say what to do where there are none.
_fusing = sys.modules.get("torch.ao.quantization.fuser_method_mappings")
_fusers: dict[Any, Any] = getattr(_fusing, "_DEFAULT_OP_LIST_TO_FUSER_METHOD", {})
for _kinds in list(_fusers):
    _fusers.setdefault(tuple(LAYERS.get(kind, kind) for kind in _kinds), _refused)
