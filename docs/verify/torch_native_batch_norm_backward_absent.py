"""`aten::native_batch_norm_backward` crashes (SIGSEGV) if its statistics are absent, on CPUs.

Its schema declares them as optional: `Tensor? save_mean, Tensor? save_invstd`; what their absence
means is documented nowhere, and layers always pass them. For the same crash of the forward operator
in evaluation an error was chosen: https://github.com/pytorch/pytorch/pull/194031. Seen in torch
2.13.0+cpu.
"""

import torch

print("right: an error", flush=True)
x = torch.randn(8, 3)
absent = (None, None, None, None, None)  # weight, running_mean, running_var, save_mean, save_invstd
found = torch.ops.aten.native_batch_norm_backward(x, x, *absent, True, 1e-5, [True] * 3)
print("computed:", found[0][0].tolist())
