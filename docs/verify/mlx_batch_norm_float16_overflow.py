"""`mlx.nn.BatchNorm` gives NaN in float16 where the sum of a channel exceeds 65,504.

Its `mx.mean` divides a sum that has been rounded to float16, infinity here.

The precision of its statistics is documented nowhere; `nn.RMSNorm`'s documentation says that "the
accumulation for the mean is done in 32-bit precision", and `nn.InstanceNorm` had a similar fault
mended (https://github.com/ml-explore/mlx/issues/4228). Seen in mlx 0.32.4, on the CPU.
"""

import sys

import mlx.core as mx
import numpy as np
from mlx import nn

x = (np.random.default_rng(0).standard_normal((32, 64, 64, 2)) + 1).astype(np.float16)
computed = np.array(nn.BatchNorm(2)(mx.array(x)))
wide = x.astype(np.float64)
right = (wide - wide.mean((0, 1, 2))) / np.sqrt(wide.var((0, 1, 2)) + 1e-5)
print("computed", computed[0, 0, 0], "right", right[0, 0, 0])
sys.exit(int(not np.allclose(computed, right, atol=0.02)))
