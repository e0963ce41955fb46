"""Liger-Kernel's Triton kernels: `--backend liger_norms:Ops`, with TRITON_INTERPRET=1 on a CPU."""

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


def _check(*vectors):
    if any(each is None for each in vectors):
        raise NotImplementedError("no weight or bias left out")


def _check_dtypes(*tensors, halves=True):
    """Leave out what Liger has not, and of halves what the interpreter computes otherwise.

    It truncates to bfloat16, and sums halves as if their bits were numbers.
    """
    dtype = tensors[0].dtype
    known = [torch.float32, *([torch.float16] if halves else [])]
    known += [torch.float16, torch.bfloat16] if device == "cuda" else []
    if dtype not in known or any(each.dtype != dtype for each in tensors):
        raise NotImplementedError("tensors of one dtype; no float64; interpreted, no bfloat16")


def _rows(tensor, normalized_shape):
    """The tensor with its rows in one axis, as Liger has them."""
    _check(tensor)
    lead = tensor.shape[: tensor.ndim - len(normalized_shape)]
    return tensor.reshape(*lead, math.prod(normalized_shape)).contiguous()


class _Scalar(float):
    """A number as kernels get it: Triton's interpreter passes floats, which lack ``to``."""

    def to(self, dtype):
        return self


device = "cuda" if torch.cuda.is_available() else "cpu"


class Ops:
    framework, device = "torch", device

    def layer_norm(self, input, normalized_shape, weight=None, bias=None, *, eps=1e-5):
        _check_dtypes(input)
        x, w, b = (_rows(each, normalized_shape) for each in (input, weight, bias))
        output, _, *statistics, _, _ = layer_norm.layer_norm_forward(x, w, b, _Scalar(eps))
        kept = input.shape[: -len(normalized_shape)] + (1,) * len(normalized_shape)
        return output.view(input.shape), *(each.view(kept) for each in statistics)

    def layer_norm_backward(self, grad_out, input, mean, rstd, weight=None, *, normalized_shape):
        _check_dtypes(grad_out, input)
        dy, x, w = (_rows(each, normalized_shape) for each in (grad_out, input, weight))
        statistics = (each.reshape(-1) for each in (mean, rstd))
        x = x.view(-1, x.shape[-1])
        dx, *vectors = layer_norm.layer_norm_backward(dy, x, w, w, *statistics)
        return dx.view(input.shape), *(each.view(normalized_shape) for each in vectors)

    def rms_norm(self, input, normalized_shape, weight=None, *, eps=None):
        _check_dtypes(input)
        x, w = (_rows(each, normalized_shape) for each in (input, weight))
        output, _, rstd, *_ = rms_norm.rms_norm_forward(x, w, _Scalar(eps), _Scalar(), _GEMMA, None)
        kept = input.shape[: -len(normalized_shape)] + (1,) * len(normalized_shape)
        return output.view(input.shape), rstd.view(kept)

    def rms_norm_backward(self, grad_out, input, rstd, weight=None, *, normalized_shape):
        _check_dtypes(grad_out, input)
        dy, x, w = (_rows(each, normalized_shape) for each in (grad_out, input, weight))
        x, how = x.view(-1, x.shape[-1]), rms_norm.calculate_settings(x.shape[-1])
        options = (_Scalar(), _GEMMA, *how, False, None)
        dx, dw = rms_norm.rms_norm_backward(dy, x, w, rstd.reshape(-1), *options)
        return dx.view(input.shape), dw.view(normalized_shape)

    def group_norm(self, input, gamma=None, beta=None, *, num_groups, eps=1e-5):
        _check(gamma, beta)
        _check_dtypes(input, halves=False)
        x, w, b = (each.contiguous() for each in (input, gamma, beta))
        found = group_norm.group_norm_forward(x, x.shape[1], num_groups, w, b, _Scalar(eps))
        output, _, *statistics, _ = found
        return output, *statistics

    def group_norm_backward(self, grad_out, input, mean, rstd, gamma=None, *, num_groups):
        _check(gamma)
        _check_dtypes(grad_out, input, halves=False)
        tensors = (each.contiguous() for each in (grad_out, input, gamma, gamma, mean, rstd))
        return group_norm.group_norm_backward(*tensors, input.shape[1], num_groups)
