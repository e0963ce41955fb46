"""Liger-Kernel: `normgrad verify liger_norms:Ops`, with TRITON_INTERPRET=1 on a CPU."""

from __future__ import annotations

import math
import os

import torch
import triton
from liger_kernel.ops import group_norm, layer_norm, rms_norm

if os.environ.get("TRITON_INTERPRET") == "1":
    for _module in (group_norm, layer_norm, rms_norm):
        # The interpreter has none of CUDA's functions, and its own in triton.language for a call.
        _module.rsqrt = lambda x: triton.language.rsqrt(x)

#: The casting mode that computes in float32 throughout; the default rounds before the weight.
_GEMMA = 1


device = "cuda" if torch.cuda.is_available() else "cpu"


def _check(data, vectors, statistics=(), of_groups=False):
    """Leave out what Liger has not, and of halves what the interpreter computes otherwise.

    It truncates to bfloat16, and sums halves as if their bits were numbers.
    """
    known = [torch.float32, *([] if of_groups else [torch.float16])]
    known += [torch.float16, torch.bfloat16] if device == "cuda" else []
    if data[0].dtype not in known or any(each.dtype != data[0].dtype for each in data):
        raise NotImplementedError("tensors of one dtype; no float64; interpreted, no bfloat16")
    if any(each is None for each in vectors):
        raise NotImplementedError("no weight or bias left out")
    if not all(each.isfinite().all() for each in statistics):
        raise NotImplementedError("statistics are the forward pass's, of finite data")
    if of_groups and (data[0].dim() < 3 or not data[0].shape[1]):
        raise NotImplementedError("LigerGroupNorm refuses fewer than three axes, and no channels")


def _row(normalized_shape):
    is_number = isinstance(normalized_shape, int)
    row = (normalized_shape,) if is_number else tuple(normalized_shape)
    if math.prod(row) > 65536:
        raise NotImplementedError("Liger has rows of up to 65,536 elements")
    return row


def _rows(tensor, row):
    """The tensor with its rows in one axis, as Liger has them."""
    lead = tensor.shape[: tensor.ndim - len(row)]
    return tensor.reshape(*lead, math.prod(row)).contiguous()


class _Scalar(float):
    """A number as kernels get it: Triton's interpreter passes floats, which lack ``to``."""

    def to(self, dtype):
        return self


class Ops:
    framework, device = "torch", device

    def layer_norm(self, input, normalized_shape, weight=None, bias=None, *, eps=1e-5):
        _check([input], [weight, bias])
        row = _row(normalized_shape)
        x, w, b = (_rows(each, row) for each in (input, weight, bias))
        output, _, *statistics, _, _ = layer_norm.layer_norm_forward(x, w, b, _Scalar(eps))
        kept = input.shape[: -len(row)] + (1,) * len(row)
        return output.view(input.shape), *(each.view(kept) for each in statistics)

    def layer_norm_backward(self, grad_out, input, mean, rstd, weight=None, *, normalized_shape):
        _check([grad_out, input], [weight], [mean, rstd])
        row = _row(normalized_shape)
        dy, x, w = (_rows(each, row) for each in (grad_out, input, weight))
        statistics = (each.reshape(-1) for each in (mean, rstd))
        x = x.view(-1, x.shape[-1])
        dx, *vectors = layer_norm.layer_norm_backward(dy, x, w, w, *statistics)
        return dx.view(input.shape), *(each.view(row) for each in vectors)

    def rms_norm(self, input, normalized_shape, weight=None, *, eps=None):
        _check([input], [weight])
        if eps is None:
            raise NotImplementedError("Liger has another default")
        row = _row(normalized_shape)
        x, w = (_rows(each, row) for each in (input, weight))
        output, _, rstd, *_ = rms_norm.rms_norm_forward(x, w, _Scalar(eps), _Scalar(), _GEMMA, None)
        kept = input.shape[: -len(row)] + (1,) * len(row)
        return output.view(input.shape), rstd.view(kept)

    def rms_norm_backward(self, grad_out, input, rstd, weight=None, *, normalized_shape):
        _check([grad_out, input], [weight], [rstd])
        row = _row(normalized_shape)
        dy, x, w = (_rows(each, row) for each in (grad_out, input, weight))
        x, how = x.view(-1, x.shape[-1]), rms_norm.calculate_settings(x.shape[-1])
        options = (_Scalar(), _GEMMA, *how, False, None)
        dx, dw = rms_norm.rms_norm_backward(dy, x, w, rstd.reshape(-1), *options)
        return dx.view(input.shape), dw.view(row)

    def group_norm(self, input, weight=None, bias=None, *, num_groups, eps=1e-5):
        _check([input], [weight, bias], of_groups=True)
        x, w, b = (each.contiguous() for each in (input, weight, bias))
        found = group_norm.group_norm_forward(x, x.shape[1], num_groups, w, b, _Scalar(eps))
        output, _, *statistics, _ = found
        return output, *statistics

    def group_norm_backward(self, grad_out, input, mean, rstd, weight=None, *, num_groups):
        _check([grad_out, input], [weight], [mean, rstd], of_groups=True)
        tensors = (each.contiguous() for each in (grad_out, input, weight, weight, mean, rstd))
        return group_norm.group_norm_backward(*tensors, input.shape[1], num_groups)
