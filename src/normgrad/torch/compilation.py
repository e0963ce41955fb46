"""The compilation of the kernels that a model needs, before its training begins."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor
from torch.nn import Module
from torch.utils import _pytree as pytree

from ..support.values import describe
from . import native
from .nn import check_module


def warmup(module: Module, /, *example: Any, **kwargs: Any) -> None:
    """Compile the kernels that a training step and an evaluation of a model need, for an example.

    The C++ library is built first, unless it is there or cannot be built (see :func:`build`).

    The function calls a copy of the model, as ``module(*example, **named)``: forward and backward
    in training mode, and forward in evaluation mode. The model itself, its gradients and running
    statistics, the example and the state of PyTorch's random numbers do not change. Hooks are
    called, and synchronised layers communicate, so with these every rank has to call the function.

    The kernels depend on dtypes, layouts and shapes, so the example should be like a batch of the
    training, and the call should be in the contexts of the training (such as autocast). All layers
    of the model run, so the call takes the time and memory of a training step, and memory for the
    copy.

    Args:
        module: a model. If it is in training mode, layers in evaluation mode stay in it.
        example, kwargs: the arguments of the model's call. Tensors may be in tuples, lists and
            dictionaries.

    Raises:
        TypeError: not a module, a module that is or contains TorchScript, or one that cannot be
            copied.
        ValueError: the model has parameters to train, but no result depends on them.
        Exception: any exception of the model.
    """
    check_module(module)
    native.build_and_load()
    tensors = [*module.parameters(), *module.buffers(), *pytree.tree_leaves((example, kwargs))]
    gpus = {each.device.index for each in tensors if isinstance(each, Tensor) and each.is_cuda}

    def forward() -> Any:
        positional, keywords = pytree.tree_map_only(Tensor, like, (example, kwargs))
        return model(*positional, **keywords)

    with torch.random.fork_rng(sorted(gpus)), torch.inference_mode(False):
        model = copy_of(module)
        if not model.training:
            model.train()
        with torch.enable_grad():
            _differentiate(forward(), model)
        model.eval()
        with torch.no_grad():
            forward()


def copy_of(module: Module) -> Module:
    """Copy a model, or raise a TypeError that names the layer that cannot be copied."""
    try:
        with torch.no_grad():
            copied = copy.deepcopy(module)
    except MemoryError:
        raise
    except Exception as error:  # a layer's copy may raise any type of exception
        layers = reversed([*module.named_modules()])  # the innermost first
        name = next((name for name, layer in layers if not _can_copy(layer)), "")
        raise TypeError(
            f"module: {name or 'it'} cannot be copied: {error}; allowed: a model that "
            "copy.deepcopy can copy"
        ) from error
    # TorchScript copies its parameters by an operator, whose gradients would reach the originals.
    pairs = (each.named_parameters(remove_duplicate=False) for each in (module, copied))
    for (_, parameter), (_, ours) in zip(*pairs, strict=True):
        ours.requires_grad_(parameter.requires_grad)
    return copied


def _can_copy(layer: Module) -> bool:
    try:
        copy.deepcopy(layer)
    except Exception:  # as above
        return False
    return True


def like(tensor: Tensor) -> Tensor:
    """A copy with the same strides and ``requires_grad``; clone() might change the strides."""
    return copy.deepcopy(tensor.detach()).requires_grad_(tensor.requires_grad)


def differentiable(values: Any) -> list[Tensor]:
    """The tensors among values, and in tuples, lists and dictionaries, that require gradients."""
    leaves = pytree.tree_leaves(values)
    return [each for each in leaves if isinstance(each, Tensor) and each.requires_grad]


def _differentiate(results: Any, model: Module) -> None:
    outputs = differentiable(results)
    if outputs:
        # The gradients that losses pass to outputs are dense, some in the output's layout and
        # others contiguous, so both are tried.
        alike = [torch.ones_like(output) for output in outputs]
        differ = not all(each.is_contiguous() for each in alike)
        torch.autograd.backward(outputs, alike, retain_graph=differ)
        if differ:
            torch.autograd.backward(outputs, [each.contiguous() for each in alike])
    elif any(parameter.requires_grad for parameter in model.parameters()):
        raise ValueError(
            f"module: its result, {describe(results)}, depends on no parameter as far as "
            "can be seen; allowed: tensors, or tuples, lists and dictionaries of them"
        )
