"""`functional.batch_norm` reads a strided weight as if it were dense, for channels-last inputs.

So grad_input is silently wrong on CPUs, and an expanded weight is read past its end; the output and
the other gradients are right.

Nothing is documented that excludes a strided weight:
https://pytorch.org/docs/stable/generated/torch.nn.functional.batch_norm.html. Seen in
torch 2.13.0+cpu.
"""

import sys

import torch

torch.manual_seed(0)
x = torch.randn(2, 4, 3, 3).contiguous(memory_format=torch.channels_last).requires_grad_()
grad_out = torch.randn(2, 4, 3, 3).contiguous(memory_format=torch.channels_last)
strided = torch.arange(8.0)[::2]  # 0, 2, 4, 6
grads = []
for weight in (strided, strided.contiguous()):
    y = torch.nn.functional.batch_norm(x, None, None, weight, training=True)
    grads += torch.autograd.grad(y, x, grad_out)
print("computed", grads[0][0, :, 0, 0].tolist(), "right", grads[1][0, :, 0, 0].tolist())
sys.exit(int(not torch.allclose(*grads)))
