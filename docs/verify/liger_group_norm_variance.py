"""Liger-Kernel's `LigerGroupNorm` gives NaN where |mean| is 10,000 deviations, and is off at 1,000.

Its README says "computation is exact—no approximations" (https://github.com/linkedin/Liger-Kernel),
and a comment in the kernel "compute mean and variance using the online algorithm"; the variance is
E[X²] − E[X]² in float32. Seen in liger_kernel 0.8.5 with triton 3.9.0, interpreted.
"""

import os
import sys

import torch

if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"
import triton
from liger_kernel.ops import group_norm
from liger_kernel.transformers.group_norm import LigerGroupNorm

eps, device = 1e-5, "cuda"
if not torch.cuda.is_available():  # what the interpreter lacks
    group_norm.rsqrt = lambda x: triton.language.rsqrt(x)
    eps, device = type("Eps", (float,), {"to": lambda self, _: self})(1e-5), "cpu"
torch.manual_seed(0)
noise, wrong = torch.randn(2, 4, 64), False
for mean in (100, 1000, 10000):
    x = noise + mean
    y = LigerGroupNorm(4, 2, eps=eps).to(device)(x.to(device)).cpu()
    right = torch.nn.functional.group_norm(x.double(), 2, eps=1e-5)
    worst = (y - right).abs().argmax()
    print(f"{mean=}: computed {y.view(-1)[worst]}, right {right.view(-1)[worst]}")
    wrong |= not torch.allclose(y.double(), right, atol=1e-6 * mean)
sys.exit(int(wrong))
