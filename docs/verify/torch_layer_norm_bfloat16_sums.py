"""`nn.LayerNorm` adds up its parameters' gradients row by row in bfloat16 on CPUs.

So they stop growing: under autocast, 16,384 rows in 2 threads give the float32 bias 2,152 for
18,997. The error grows with the rows of a thread, from a few hundred on.

The precision of these sums is documented nowhere. `torch.amp` says that "other ops, like
reductions, often require the dynamic range of float32" (https://pytorch.org/docs/stable/amp.html);
`torch.sum`, and batch and group norm on the same device, add up bfloat16 in float32.
Seen in torch 2.13.0+cpu.
"""

import sys

import torch

torch.manual_seed(0)
torch.set_num_threads(2)
linear, norm = torch.nn.Linear(64, 64), torch.nn.LayerNorm(64)
with torch.autocast("cpu", torch.bfloat16):
    x = linear(torch.randn(16384, 64)).detach()
    y = norm(x)
    (y + y.square() / 2).sum().backward()

weight, bias = (each.detach().double().requires_grad_() for each in (norm.weight, norm.bias))
y = torch.nn.functional.layer_norm(x.double(), (64,), weight, bias)
(y + y.square() / 2).sum().backward()
wrong = 0
for name, computed, right in (("bias", norm.bias, bias), ("weight", norm.weight, weight)):
    print(f"{name}: computed {computed.grad[:3].tolist()}, right {right.grad[:3].tolist()}")
    wrong = max(wrong, (computed.grad - right.grad).norm() / right.grad.norm())
sys.exit(int(wrong > 0.02))  # bfloat16 rounds by at most 0.4 %
