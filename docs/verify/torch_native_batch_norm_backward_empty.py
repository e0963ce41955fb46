"""`aten::native_batch_norm_backward` crashes (SIGFPE) if there are no samples, on CPUs.

The operator is undocumented. Layers do not call it with empty tensors: `torch.batch_norm` gives
zeros, which are right. Seen in torch 2.13.0+cpu.
"""

import torch

norm = torch.nn.BatchNorm1d(3)
norm(torch.zeros(0, 3, requires_grad=True)).sum().backward()
print("right:", norm.weight.grad.tolist(), norm.bias.grad.tolist(), flush=True)

empty, vector = torch.zeros(0, 3), torch.ones(3)
statistics = (vector, None, None, vector, vector)
found = torch.ops.aten.native_batch_norm_backward(empty, empty, *statistics, True, 1e-5, [True] * 3)
print("computed:", *(each.tolist() for each in found[1:]))
