"""A training step of ResNet-18 under torch.compile: PyTorch's layers, and normgrad's either way.

``python benchmarks/compiled.py [batch|group]``: the time of PyTorch's over each contender's, by
turns, with 2 threads. "kernels" are our own operators; "generated" is what inductor makes of them.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from functools import partial

import torch
import torch._functorch.config
from models import ResNet18
from torch import Tensor, nn
from torch._inductor.compile_fx import compile_fx

import normgrad.torch as nt
from normgrad.bench import timing
from normgrad.torch import inductor

ROUNDS = 25


def step(model: Callable[[Tensor], Tensor], x: Tensor) -> None:
    """One forward and backward pass."""
    model(x).square().mean().backward()


def main() -> None:
    """Compile the three, and time them by turns."""
    torch.set_num_threads(2)
    # What it keeps on disk it finds by a model's own operators, which two contenders share.
    torch._functorch.config.enable_autograd_cache = False
    norm = nn.BatchNorm2d if sys.argv[1:] != ["group"] else lambda count: nn.GroupNorm(32, count)
    x = torch.randn(8, 3, 128, 128)
    formulas = dict(inductor.DECOMPOSITIONS)
    compiled = {}
    for name in ("torch", "kernels", "generated"):
        torch.manual_seed(0)
        model = ResNet18(norm)
        if name != "torch":
            nt.convert(model)
        inductor.DECOMPOSITIONS.clear()
        if name == "generated":
            inductor.DECOMPOSITIONS.update(formulas)
        # A backend of its own, for code is shared by models that look alike to one.
        compiled[name] = torch.compile(model, backend=partial(compile_fx))
        start = time.perf_counter()
        step(compiled[name], x)
        print(f"{name}: compiled in {time.perf_counter() - start:.0f} s", flush=True)
    steps = {name: partial(step, model, x) for name, model in compiled.items()}
    times = timing.measure(steps, rounds=ROUNDS).medians
    for name, seconds in times.items():
        print(f"{name}: {seconds * 1e3:.1f} ms, torch / it {times['torch'] / seconds:.2f}")


if __name__ == "__main__":
    main()
