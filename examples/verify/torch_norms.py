"""PyTorch's layers, eager and compiled by inductor: `--module torch_norms:CompiledLayerNorm`.

PyTorch's operators, with statistics and masks, are `--backend torch`.
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
