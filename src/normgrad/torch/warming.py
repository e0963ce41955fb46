"""Compiling what a model will need, before its training begins."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor
from torch.nn import Module
from torch.utils import _pytree as pytree

from .conversion import check_module


def warmup(module: Module, /, *example: Any, **named: Any) -> None:
    """Compile whatever a training step and an evaluation of a model will need, for such an input.

    A copy of the model is called, as ``module(*example, **named)``: forwards and backwards in
    training, and forwards in evaluation. The model itself, its gradients and running statistics,
    the example and PyTorch's random numbers stay as they are. Hooks are called, and layers that
    synchronise do: then every rank has to call this.

    What kernels there are to compile follows from dtypes, layouts and shapes, so the example should
    be like a batch of the training's, and this be called in its contexts (such as autocast). Other
    layers compute too: it takes the time and memory of a training step, and memory for the copy.

    Args:
        module: a model. Layers that are in evaluation in a model that is in training stay in it.
        example, named: what it is called with. Tensors may be in tuples, lists and dictionaries.

    Raises:
        TypeError: no module, one that is TorchScript or has some in it, or one that cannot be
            copied.
        ValueError: there are parameters to train, and no result depends on them.
        Exception: whatever the model raises.
    """
    check_module(module)
    tensors = [*module.parameters(), *module.buffers(), *pytree.tree_leaves((example, named))]
    gpus = {each.device.index for each in tensors if isinstance(each, Tensor) and each.is_cuda}

    def called() -> Any:
        positional, keywords = pytree.tree_map_only(Tensor, _like, (example, named))
        return model(*positional, **keywords)

    with torch.random.fork_rng(sorted(gpus)), torch.inference_mode(False):
        model = _copy_of(module)
        if not model.training:
            model.train()
        with torch.enable_grad():
            _differentiate(called(), model)
        model.eval()
        with torch.no_grad():
            called()


def _copy_of(module: Module) -> Module:
    try:
        return copy.deepcopy(module)
    except MemoryError:
        raise
    except Exception as error:  # layers raise what they like
        layers = reversed([*module.named_modules()])  # the innermost first
        name = next((name for name, layer in layers if not _can_be_copied(layer)), "")
        raise TypeError(
            f"module: {name or 'it'} cannot be copied: {error}; allowed: a model that "
            "copy.deepcopy can copy"
        ) from error


def _can_be_copied(layer: Module) -> bool:
    try:
        copy.deepcopy(layer)
    except Exception:  # as above
        return False
    return True


def _like(tensor: Tensor) -> Tensor:
    """A copy with the same strides, which a copy of its elements alone might not have."""
    return copy.deepcopy(tensor.detach()).requires_grad_(tensor.requires_grad)


def _differentiate(results: Any, model: Module) -> None:
    outputs = [
        leaf
        for leaf in pytree.tree_leaves(results)
        if isinstance(leaf, Tensor) and leaf.requires_grad
    ]
    if outputs:
        # Losses give dense gradients, some in the outputs' layout and some always contiguous.
        alike = [torch.ones_like(output) for output in outputs]
        differ = not all(each.is_contiguous() for each in alike)
        torch.autograd.backward(outputs, alike, retain_graph=differ)
        if differ:
            torch.autograd.backward(outputs, [each.contiguous() for each in alike])
    elif any(parameter.requires_grad for parameter in model.parameters()):
        raise ValueError(
            f"module: its result, a {type(results).__name__}, depends on no parameter as far as "
            "can be seen; allowed: tensors, or tuples, lists and dictionaries of them"
        )
