"""PyTorch's layers to be tried: exact ones, and for each defect one that has it."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional


class _Wide:
    """Computes in float64, and rounds once; float64 tensors stay as they are."""

    def forward(self, x):
        if x.dtype == torch.float64:
            return super().forward(x)
        bias = getattr(self, "bias", None)
        vectors = (self.weight.double(), None if bias is None else bias.double())
        return self.formula(x.double(), *vectors).to(x.dtype)


class ExactLayerNorm(_Wide, nn.LayerNorm):
    def formula(self, x, weight, bias):
        return functional.layer_norm(x, self.normalized_shape, weight, bias, self.eps)


class ExactRMSNorm(_Wide, nn.RMSNorm):
    device = "cpu:0"  # where tensors are copied to, as to any other device

    def formula(self, x, weight, bias):
        return functional.rms_norm(x, self.normalized_shape, weight, self.eps)


class ExactGroupNorm(_Wide, nn.GroupNorm):
    def formula(self, x, weight, bias):
        return functional.group_norm(x.contiguous(), self.num_groups, weight, bias, self.eps)


class ExactBatchNorm(_Wide, nn.BatchNorm1d):
    def formula(self, x, weight, bias):
        return functional.batch_norm(x, None, None, weight, bias, True, 0.1, self.eps)


class EpsOutsideRMSNorm(nn.RMSNorm):
    def forward(self, x):
        return self.weight * x / (x.pow(2).mean(-1, keepdim=True).sqrt() + self.eps)


class SquaresLayerNorm(nn.LayerNorm):
    def forward(self, x):
        mean, squares = (each.mean(-1, keepdim=True) for each in (x, x * x))
        rstd = torch.rsqrt((squares - mean * mean).clamp(min=0) + self.eps)
        return (x - mean) * rstd * self.weight + self.bias


class DetachedLayerNorm(nn.LayerNorm):
    """The statistics are constants to autograd."""

    def forward(self, x):
        mean = x.detach().mean(-1, keepdim=True)
        rstd = torch.rsqrt(x.detach().var(-1, keepdim=True, correction=0) + self.eps)
        return (x - mean) * rstd * self.weight + self.bias


class WideGroupNorm(nn.GroupNorm):
    def forward(self, x):
        return super().forward(x).double()


class InPlaceRMSNorm(nn.RMSNorm):
    def forward(self, x):
        result = super().forward(x)
        x.data.mul_(2)
        return result


class InPlaceOnADeviceRMSNorm(InPlaceRMSNorm):
    device = "cpu:0"


class TupleRMSNorm(nn.RMSNorm):
    def forward(self, x):
        return super().forward(x), None


class NoEpsRMSNorm(nn.Module):
    def __init__(self, size):
        super().__init__()


class Scale(nn.Module):
    """No normalisation by its name."""
