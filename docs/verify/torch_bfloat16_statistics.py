"""`nn.LayerNorm`, `BatchNorm1d` and `GroupNorm` in bfloat16 differentiate by rounded statistics.

They save mean and 1/std in the parameters' dtype, and what they then take for (x - mean) / std is
off by up to |mean| / std / 512: gradients are wrong of data such as pixels from 0 to 255. Batch
norm's output is, too. With float32 parameters beside the same data all is right.

Documented is (x - E[x]) / sqrt(Var[x] + eps); in which dtype statistics are kept is documented
nowhere: https://pytorch.org/docs/stable/generated/torch.nn.BatchNorm1d.html. Seen in
torch 2.13.0+cpu.
"""

import sys

import torch

torch.manual_seed(0)
data, grad_out, wrong = (torch.randn(64, 256) + 100.2).bfloat16(), torch.rand(64, 256), False
norms = {"LayerNorm": (256,), "BatchNorm1d": (256,), "GroupNorm": (8, 256)}
for name, sizes in norms.items():
    found = []
    for dtype, parameters in (
        (torch.bfloat16, torch.bfloat16),
        (torch.bfloat16, torch.float32),
        (torch.float64, torch.float64),
    ):
        norm = getattr(torch.nn, name)(*sizes, dtype=parameters)
        x = data.to(dtype, copy=True).requires_grad_()
        y = norm(x)
        y.backward(grad_out.bfloat16().to(dtype))
        found.append([each.double() for each in (y, norm.weight.grad, x.grad)])
    for what, computed, wide, right in zip(("output", "weight", "input"), *found, strict=True):
        far, near = (((each - right).norm() / right.norm()).item() for each in (computed, wide))
        print(f"{name}, {what}: {far:.1%} off; by float32 parameters {near:.1%}")
        wrong |= far > 0.05  # bfloat16 rounds by at most 0.4 %
sys.exit(int(wrong))
