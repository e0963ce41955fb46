"""`nn.GroupNorm` loses its variance to cancellation in channels-last tensors on CPUs.

The output is off by 2 % of a deviation where |mean| is 100 deviations, and entirely at 1,000; the
same contiguous tensor is right to 1e-4. The variance is E[x²] − E[x]² in float32.

Documented is (x − E[x]) / sqrt(Var[x] + eps), without a word on memory formats:
https://pytorch.org/docs/stable/generated/torch.nn.GroupNorm.html. For contiguous tensors the same
fault was mended in https://github.com/pytorch/pytorch/issues/40302. Seen in torch 2.13.0+cpu.
"""

import sys

import torch

torch.manual_seed(0)
norm, wrong = torch.nn.GroupNorm(8, 32), False
for mean in (100, 1000, 10000):
    x = torch.randn(2, 32, 16, 16) + mean
    right = torch.nn.functional.group_norm(x.double(), 8)
    last, contiguous = norm(x.contiguous(memory_format=torch.channels_last)), norm(x)
    worst = (last - right).abs().flatten().argmax()
    values = [each.flatten()[worst].item() for each in (last, contiguous, right)]
    print("{}: computed {:.6f}, contiguous {:.6f}, right {:.6f}".format(mean, *values))
    wrong |= not torch.allclose(last.double(), right, atol=1e-5 * mean)
sys.exit(int(wrong))
