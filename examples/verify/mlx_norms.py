"""MLX's norms, forward and by `mlx.core.vjp`: `normgrad verify mlx_norms:LayerNorm`, say."""

from __future__ import annotations

import mlx.core as mx
import torch
from bridge import Bridged
from mlx import nn


def to_mlx(tensor):
    dense = tensor.detach().contiguous()
    if tensor.dtype == torch.float64:  # which MLX takes for float32 unless it is told
        return mx.array(dense.numpy(), dtype=mx.float64)
    return mx.from_dlpack(dense)


def to_torch(array):
    mx.eval(array)
    return torch.from_dlpack(array)


class _Mlx(Bridged):
    """A layer of MLX's, which ``layer`` makes of the sizes and ``eps``."""

    def why_not(self, x):
        return "" if x.numel() else "MLX documents no empty arrays, on some of which it hangs"

    def vjp(self, x, *parameters):
        layer = self.layer(*self.sizes, eps=self.eps)

        def function(x, *parameters):
            layer.update(dict(zip(("weight", "bias"), parameters, strict=False)))
            return layer(x)

        given = [to_mlx(each) for each in (x, *parameters)]

        def gradients(grad_out):
            _, found = mx.vjp(function, given, [to_mlx(grad_out)])
            return [to_torch(each) for each in found]

        return to_torch(function(*given)), gradients


class _Fast(_Mlx):
    """A layer of which MLX documents that it adds up in 32-bit precision."""

    def why_not(self, x):
        is_wide = x.dtype == torch.float64
        return "MLX's fast norms compute in float32" if is_wide else super().why_not(x)


class LayerNorm(_Fast):
    layer = nn.LayerNorm


class RMSNorm(_Fast):
    biased, layer = False, nn.RMSNorm


class GroupNorm(_Fast):
    channels_last = True

    @staticmethod
    def layer(groups, channels, eps):
        return nn.GroupNorm(groups, channels, eps, pytorch_compatible=True)


class BatchNorm(_Mlx):
    channels_last, layer = True, nn.BatchNorm

    def why_not(self, x):
        if not 2 <= x.ndim <= 4:
            return "MLX's batch norm has two to four axes"
        has_one = x.numel() == x.shape[1]
        needed = "MLX's batch norm needs more than one value per channel"
        return needed if has_one else super().why_not(x)
