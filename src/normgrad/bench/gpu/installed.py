"""Other libraries' kernels, where they are installed: Apex's and Liger's.

They are called through what their own layers call. Their interfaces are no public ones, and change:
a call that fails is reported by whoever makes it.
"""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Callable, Mapping
from typing import Any

from .. import layers
from ..compositions import EPS, Call
from ..data import Data
from ..suite import Case, Layout, Operator

Maker = Callable[[Data], Call]

#: What is looked for, and the module that must be there for it. Apex is built with options: each
#: of its extensions may be missing.
MODULES: Mapping[str, tuple[str, ...]] = {
    "apex.parallel (syncbn)": ("apex", "syncbn"),
    "apex.contrib.group_norm": ("apex", "group_norm_cuda"),
    "apex.contrib.groupbn": ("apex", "bnp"),
    "liger_kernel": ("liger_kernel",),
}


def _there(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except (ImportError, ValueError):
        return False


def found() -> frozenset[str]:
    """Those of :data:`MODULES` that are installed; nothing is imported."""
    return frozenset(name for name, needs in MODULES.items() if all(map(_there, needs)))


def maker(torch: Any, case: Case, name: str) -> Maker | None:
    """What an installed library has for a case; None for nothing.

    Args:
        torch: the module.
        case: that is to be computed.
        name: out of :data:`MODULES`.
    """
    offers = {
        "apex.parallel (syncbn)": _syncbn,
        "apex.contrib.group_norm": _apex_group_norm,
        "apex.contrib.groupbn": _groupbn,
        "liger_kernel": _liger,
    }
    return offers[name](torch, case)


def _syncbn(torch: Any, case: Case) -> Maker | None:
    """The kernels of Apex's SyncBatchNorm, with one rank; channels-last ones for such tensors."""
    if case.operator not in (Operator.TRAIN, Operator.REDUCE, Operator.ELEMT):
        return None
    kernels = importlib.import_module("syncbn")
    last = case.layout is Layout.CHANNELS_LAST
    reduce, elemt = (
        getattr(kernels, f"{name}{'_c_last' if last else ''}")
        for name in ("reduce_bn", "batchnorm_backward")
    )

    def make(data: Data) -> Call:
        dy, x = data.grad_out, data.input
        if last:  # it wants the channels as the last axis, and gives it so
            dy, x = (tensor.permute(0, 2, 3, 1) for tensor in (dy, x))
        vectors = (data.mean, data.invstd, data.weight)

        def shaped(dx: Any) -> Any:
            return dx.permute(0, 3, 1, 2) if last else dx

        def train() -> Any:
            sum_dy, sum_dy_xmu, grad_weight, grad_bias = reduce(dy, x, *vectors)
            dx = elemt(dy, x, *vectors, sum_dy, sum_dy_xmu, data.count)
            return shaped(dx), grad_weight, grad_bias

        sums = (data.sum_dy, data.sum_dy_xmu, data.count)
        calls: dict[Operator, Call] = {
            Operator.TRAIN: train,
            Operator.REDUCE: lambda: reduce(dy, x, *vectors),
            Operator.ELEMT: lambda: shaped(elemt(dy, x, *vectors, *sums)),
        }
        return calls[case.operator]

    return make


def _apex_group_norm(torch: Any, case: Case) -> Maker | None:
    """Apex's group norm, which is for channels-last tensors; its layer chooses the algorithm."""
    if not case.groups or case.layout is not Layout.CHANNELS_LAST:
        return None
    kind = importlib.import_module("apex.contrib.group_norm").GroupNorm
    samples, channels, *_ = case.shape
    layer = kind(case.groups, channels, EPS, device="cuda", dtype=getattr(torch, case.parameters))

    def make(data: Data) -> Call:
        if case.operator is Operator.LAYER_GROUP_NORM:
            return layers.step_of(torch, kind(case.groups, channels, EPS, device="cuda"), data)
        if not layer._check_legality(data.input):
            raise RuntimeError("it does not take these groups, channels or dtypes")
        kernels = importlib.import_module("group_norm_cuda")
        positions = case.elements // (samples * channels)
        passes = 2 if positions > 1024 else 1  # as its layer does, from compute capability 8.0 on
        affine = (data.weight, data.bias, EPS, passes, False)
        if case.operator is Operator.FORWARD_GROUP_NORM:
            return lambda: kernels.forward(data.input, case.groups, *affine)[:1]
        # Σx and Σx² of each group, from its own forward pass.
        _, sums = kernels.forward(data.input, case.groups, *affine)
        return lambda: kernels.backward(data.grad_out, sums, data.input, case.groups, *affine)

    return make


def _groupbn(torch: Any, case: Case) -> Maker | None:
    """Apex's batch norm for channels-last halves: a layer, whose kernels stand behind handles."""
    if case.operator is not Operator.LAYER_BATCH_NORM or case.dtype != "float16":
        return None
    if case.layout is not Layout.CHANNELS_LAST:
        return None
    kind = importlib.import_module("apex.contrib.groupbn.batch_norm").BatchNorm2d_NHWC

    def make(data: Data) -> Call:
        x, dy = (tensor.permute(0, 2, 3, 1) for tensor in (data.input, data.grad_out))
        step = layers.step_on(torch, kind(case.shape[1]).cuda(), x, dy, data)

        def call() -> Any:
            y, dx, *rest = step()
            return y.permute(0, 3, 1, 2), dx.permute(0, 3, 1, 2), *rest

        return call

    return make


def _liger(torch: Any, case: Case) -> Maker | None:
    """Liger's group norm, of contiguous tensors; others are copied first, as its layer does."""
    if not case.groups:
        return None
    samples, channels, *_ = case.shape
    if case.operator is Operator.LAYER_GROUP_NORM:
        kind = importlib.import_module("liger_kernel.transformers.group_norm").LigerGroupNorm

        def layer(data: Data) -> Call:
            made = kind(channels, case.groups, EPS, bias=True).to(data.input.device)
            return layers.step_of(torch, made, data)

        return layer
    kernels = importlib.import_module("liger_kernel.ops.group_norm")

    def rows(tensor: Any) -> Any:
        return tensor.contiguous().view(samples, channels, -1)

    def make(data: Data) -> Call:
        def forward() -> Any:
            y, _, mean, rstd, *_ = kernels.group_norm_forward(
                rows(data.input), channels, case.groups, data.weight, data.bias, EPS
            )
            return y.view(case.shape), mean, rstd

        def backward() -> Any:
            dx, grad_gamma, grad_beta = kernels.group_norm_backward(
                *(rows(data.grad_out), rows(data.input), data.weight, data.bias),
                *(data.mean, data.invstd, channels, case.groups),
            )
            return dx.view(case.shape), grad_gamma, grad_beta

        return forward if case.operator is Operator.FORWARD_GROUP_NORM else backward

    return make
