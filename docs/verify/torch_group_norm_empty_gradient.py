"""`nn.GroupNorm` gives its weight a gradient of NaN if its input has no positions.

The sum of nothing is 0, which `nn.BatchNorm1d` gives for the same input, and `nn.GroupNorm` itself
for a batch of no samples and for its bias. What it does is documented nowhere.
Seen in torch 2.13.0+cpu; later sources return zeros.
"""

import sys

import torch

computed, right = torch.nn.GroupNorm(2, 4), torch.nn.BatchNorm1d(4)
for norm in (computed, right):
    norm(torch.zeros(2, 4, 0, requires_grad=True)).sum().backward()
print("computed", computed.weight.grad.tolist(), "right", right.weight.grad.tolist())
sys.exit(int(computed.weight.grad.isnan().any()))
