"""`torch.native_batch_norm` reads past the end of a weight that is too short, on CPUs.

So it does with the bias and the running statistics, and `native_batch_norm_backward` with its
vectors. The operators are undocumented; `functional.batch_norm` checks the vectors before it calls
them. PyTorch tracks such reads in https://github.com/pytorch/pytorch/issues/195547. Seen in torch
2.13.0+cpu.
"""

import sys

import torch

memory = torch.arange(1.0, 9.0)
x = torch.randn(16, 4)
try:
    y, *_ = torch.native_batch_norm(x, memory[:2], None, None, None, True, 0.1, 1e-5)
    computed = f"4 channels scaled by {y.std(0, unbiased=False).tolist()}"
except RuntimeError as error:
    computed = f"an error, {error}"
print("computed:", computed, "right: an error")
sys.exit(int(not computed.startswith("an error")))
