"""`nn.GroupNorm` crashes (SIGSEGV) in the backward pass of a channels-last input on CPUs.

It does if the input needs no gradient, as a first layer's does; the contiguous tensor is fine.

Documented is nothing that excludes it:
https://pytorch.org/docs/stable/generated/torch.nn.GroupNorm.html. Seen in torch 2.13.0+cpu.
"""

import torch

norm = torch.nn.GroupNorm(2, 4)
x = torch.randn(2, 4, 3, 3)
norm(x).sum().backward()
print("right:", norm.bias.grad.tolist(), flush=True)

norm.zero_grad()
norm(x.contiguous(memory_format=torch.channels_last)).sum().backward()
print("computed:", norm.bias.grad.tolist())
