"""Rows and small layers on a GPU beside PyTorch, torch.compile and Liger.

    python benchmarks/gpu_peers.py

Prints two tables as CSV. For RMS norm and layer norm of (M, N): the times of both passes in µs, and
the TB/s of what has to pass through memory, two tensors forward and three backward. For small
layers: the time of a step on the host, by calls one after the other and in a CUDA graph.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "src"))

#: Rows of language models, of queries and keys, and of vision models.
SHAPES = ((16384, 768), (4096, 4096), (16384, 4096), (8192, 8192), (4096, 16384), (131072, 128))
#: The shapes of the layers that wait for the host.
LAYERS = {"BatchNorm2d": (16, 64, 16, 16), "GroupNorm": (16, 64, 16, 16), "LayerNorm": (256, 1024)}


def ways(kind: str, tensors: Any) -> dict[str, Callable[[], Any]]:
    """The libraries' calls of a norm over rows, by their names."""
    import torch
    import torch.nn.functional as stock

    import normgrad.torch.functional as ours

    x, *both = tensors
    name = f"{kind}_norm"
    functions = {
        "normgrad": getattr(ours, name),
        "torch": getattr(stock, name),
        "torch.compile": torch.compile(getattr(stock, name), dynamic=False),
    }
    calls: dict[str, Callable[[], Any]] = {
        way: lambda function=function: function(x, x.shape[-1:], *both, eps=1e-6)  # type: ignore[misc]
        for way, function in functions.items()
    }
    try:
        from liger_kernel.ops.layer_norm import LigerLayerNormFunction
        from liger_kernel.ops.rms_norm import LigerRMSNormFunction
    except ImportError:
        return calls
    if kind == "layer":
        calls["liger"] = lambda: LigerLayerNormFunction.apply(x, *both, 1e-6)
    else:
        calls["liger"] = lambda: LigerRMSNormFunction.apply(x, *both, 1e-6, 0.0, "llama", False)
    return calls


def rows() -> None:
    """Print the table of rows."""
    import torch
    from triton.testing import do_bench

    print("norm,rows,columns,dtype,library,forward_us,forward_tb_s,backward_us,backward_tb_s")
    for kind in ("rms", "layer"):
        for shape in SHAPES:
            for dtype in (torch.bfloat16, torch.float32):
                torch._dynamo.reset()
                x = torch.randn(shape, device="cuda", dtype=dtype, requires_grad=True)
                parameters = [
                    torch.rand(shape[1], device="cuda", dtype=dtype).requires_grad_()
                    for _ in range(1 + (kind == "layer"))
                ]
                dy = torch.randn_like(x)
                for way, call in ways(kind, (x, *parameters)).items():
                    y = call()

                    arguments = {
                        "outputs": y, "inputs": (x, *parameters), "grad_outputs": dy,
                        "retain_graph": True,
                    }  # fmt: skip
                    backward = partial(torch.autograd.grad, **arguments)
                    times = [
                        do_bench(each, warmup=5, rep=25, return_mode="median")
                        for each in (call, backward)
                    ]
                    words = [kind, *shape, str(dtype).removeprefix("torch."), way]
                    for tensors, milliseconds in zip((2, 3), times, strict=True):
                        speed = tensors * x.nbytes / milliseconds / 1e9
                        words += [f"{1e3 * milliseconds:.1f}", f"{speed:.2f}"]
                    print(*words, sep=",", flush=True)


def host() -> None:
    """Print the table of small layers."""
    import torch

    import normgrad.torch.nn as ours

    print("layer,library,eager_us,graph_us")
    for name, shape in LAYERS.items():
        arguments: tuple[Any, ...] = {"BatchNorm2d": (64,), "GroupNorm": (8, 64)}.get(name, (1024,))
        x = torch.randn(shape, device="cuda", requires_grad=True)
        dy = torch.randn_like(x)
        for library, module in {"torch": torch.nn, "normgrad": ours}.items():
            layer = getattr(module, name)(*arguments).cuda()

            def step(layer: Any = layer, x: Any = x, dy: Any = dy) -> None:
                layer(x).backward(dy)

            for _ in range(20):
                step()
            eager = per_call(step)
            graph = torch.cuda.CUDAGraph()
            stream = torch.cuda.Stream()
            with torch.cuda.stream(stream):
                step()
            torch.cuda.synchronize()
            with torch.cuda.graph(graph, stream=stream):
                step()
            print(name, library, f"{eager:.1f}", f"{per_call(graph.replay):.1f}", sep=",")


def per_call(call: Callable[[], None], count: int = 500) -> float:
    """The median time of a call in µs, of several runs of some calls."""
    import torch

    found = []
    for _ in range(7):
        torch.cuda.synchronize()
        start = time.perf_counter()
        for _ in range(count):
            call()
        torch.cuda.synchronize()
        found.append((time.perf_counter() - start) / count * 1e6)
    return sorted(found)[len(found) // 2]


if __name__ == "__main__":
    host()
    rows()
