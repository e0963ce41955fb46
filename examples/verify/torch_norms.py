"""PyTorch's layers, eager and by inductor: `normgrad verify torch_norms:CompiledLayerNorm`, say.

PyTorch's operators, with statistics and masks, are `normgrad verify torch`.
"""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional

torch._dynamo.config.recompile_limit = 10_000  # else what follows the eighth shape is not compiled
torch._dynamo.config.accumulated_recompile_limit = 10_000


class LayerNorm(nn.LayerNorm):
    """PyTorch's own."""


class RMSNorm(nn.RMSNorm):
    """PyTorch's own."""


class GroupNorm(nn.GroupNorm):
    """PyTorch's own."""


class BatchNorm(nn.BatchNorm1d):
    """PyTorch's own, for any number of axes."""

    def forward(self, x):
        if x.numel() == x.shape[1]:  # no channels, or an element in each
            raise NotImplementedError("PyTorch needs more than one value per channel")
        return functional.batch_norm(x, None, None, self.weight, self.bias, True, eps=self.eps)


@torch.compile(fullgraph=True)
def _compiled(module, x):
    return module(x)


class _Compiled(nn.Module):
    def __init__(self, *sizes, eps):
        super().__init__()
        self.layer = self.eager(*sizes, eps=eps)

    def forward(self, x):
        return _compiled(self.layer, x)


class CompiledLayerNorm(_Compiled):
    eager = LayerNorm


class CompiledRMSNorm(_Compiled):
    eager = RMSNorm


class CompiledGroupNorm(_Compiled):
    eager = GroupNorm


class CompiledBatchNorm(_Compiled):
    eager = BatchNorm
