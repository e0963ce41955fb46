"""`mlx.nn.BatchNorm` rounds mean and variance to float16 or bfloat16 before it normalises by them.

So its output is off by up to |mean| / std / 512 in bfloat16, in a whole channel alike: by a third
of a deviation where |mean| is 100 deviations, though parameters and output are float32. Group norm
is, too, unless it is `pytorch_compatible`; `nn.LayerNorm` is right.

Documented is (x - E[x]) / sqrt(Var[x] + eps), and of the precision nothing:
https://ml-explore.github.io/mlx/build/html/python/nn/_autosummary/mlx.nn.BatchNorm.html. Seen in
mlx 0.32.4, on the CPU.
"""

import sys

import mlx.core as mx
import numpy as np
from mlx import nn

noise, wrong = np.random.default_rng(0).standard_normal((256, 4)), False
for mean in (1.05, 10.05, 100.2):
    x = mx.array((noise + mean).astype(np.float32)).astype(mx.bfloat16)
    computed, wide = (np.array(nn.BatchNorm(4)(each)) for each in (x, x.astype(mx.float32)))
    exact = np.array(x.astype(mx.float32)).astype(np.float64)
    right = (exact - exact.mean(0)) / np.sqrt(exact.var(0) + 1e-5)
    off, near = (abs(each - right).max() for each in (computed, wide))
    print(f"{mean=}: off by up to {off:.3f} deviations, of the same data in float32 {near:.1e}")
    wrong |= off > 0.1
sys.exit(int(wrong))
