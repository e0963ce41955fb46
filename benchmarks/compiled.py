"""A training step of ResNet-18 under torch.compile: PyTorch's layers, and normgrad's either way.

``python benchmarks/compiled.py [batch|group]``: the time of PyTorch's over each contender's, by
turns, with 2 threads. "kernels" are our own operators; "generated" is what inductor makes of them.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable
from functools import partial

import torch
import torch._functorch.config
from torch import Tensor, nn
from torch._inductor.compile_fx import compile_fx

import normgrad.torch as nt
from normgrad.torch import inductor

ROUNDS = 25


class Block(nn.Module):
    """Two convolutions and what goes past them."""

    def __init__(self, norm: Callable[[int], nn.Module], channels: int, out: int, stride: int):
        super().__init__()
        self.path = nn.Sequential(
            nn.Conv2d(channels, out, 3, stride, 1, bias=False), norm(out), nn.ReLU(inplace=True),
            nn.Conv2d(out, out, 3, 1, 1, bias=False), norm(out),
        )  # fmt: skip
        self.past: nn.Module = nn.Identity()
        if stride != 1 or channels != out:
            self.past = nn.Sequential(nn.Conv2d(channels, out, 1, stride, bias=False), norm(out))

    def forward(self, x: Tensor) -> Tensor:
        """Both, and ReLU."""
        return torch.relu(self.path(x) + self.past(x))


def resnet18(norm: Callable[[int], nn.Module]) -> nn.Module:
    """The network, for 10 classes."""
    layers = [nn.Conv2d(3, 64, 7, 2, 3, bias=False), norm(64), nn.ReLU(), nn.MaxPool2d(3, 2, 1)]
    channels = 64
    for out, stride in ((64, 1), (128, 2), (256, 2), (512, 2)):
        layers += [Block(norm, channels, out, stride), Block(norm, out, out, 1)]
        channels = out
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(512, 10))


def step(model: Callable[[Tensor], Tensor], x: Tensor) -> float:
    """The seconds of one forward and backward pass."""
    start = time.perf_counter()
    model(x).square().mean().backward()
    return time.perf_counter() - start


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
        model = resnet18(norm)
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
        step(compiled[name], x)
    times: dict[str, list[float]] = {name: [] for name in compiled}
    for _ in range(ROUNDS):
        for name, model in compiled.items():
            times[name].append(step(model, x))
    for name, seconds in times.items():
        ratio = statistics.median(a / b for a, b in zip(times["torch"], seconds, strict=True))
        print(f"{name}: {statistics.median(seconds) * 1e3:.1f} ms, torch / it {ratio:.2f}")


if __name__ == "__main__":
    main()
