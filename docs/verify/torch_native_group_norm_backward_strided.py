"""`aten::native_group_norm_backward` reads a strided weight as if it were dense, on CPUs.

So grad_input is silently wrong. The operator is undocumented; `functional.group_norm` passes a
dense weight. Later sources make vectors contiguous themselves
(https://github.com/pytorch/pytorch/pull/186414). Seen in torch 2.13.0+cpu.
"""

import sys

import torch

torch.manual_seed(0)
grad_out, x, strided = torch.randn(2, 4, 3), torch.randn(2, 4, 3), torch.arange(8.0)[::2]
mean, rstd, sizes = torch.zeros(2, 2), torch.ones(2, 2), (2, 4, 3, 2, [True] * 3)
computed, right = (
    torch.ops.aten.native_group_norm_backward(grad_out, x, mean, rstd, weight, *sizes)[0]
    for weight in (strided, strided.contiguous())
)
print("computed", computed[0, :, 0].tolist(), "right", right[0, :, 0].tolist())
sys.exit(int(not torch.allclose(computed, right)))
