"""normgrad beside oneDNN's batch norm and XLA's fused norms, alternating in one process.

    python benchmarks/peers.py [--threads N] [--csv FILE]

oneDNN's kernels are those that PyTorch runs on its tensors for oneDNN (``to_mkldnn``), in the
layout of the input. XLA compiles the formulas in jax.numpy and their vjp; its cases need the
package jax. All are float32 and contiguous, and results are compared before they are timed.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

#: Batch norm's and layer norm's inputs, as in ResNet-50 at batch 32 and in transformers.
IMAGES = ((32, 64, 56, 56), (32, 256, 28, 28), (32, 1024, 14, 14), (8, 64, 112, 112))
ROWS = ((8192, 768), (4096, 4096), (16384, 128))
SECONDS = 2.0

Call = Callable[[], Any]


def one_dnn(x: Any, dy: Any, w: Any, b: Any) -> dict[str, Call]:
    """oneDNN's calls of batch norm in training."""
    import torch

    aten = torch.ops.aten
    there, gradient = x.to_mkldnn(), dy.to_mkldnn()
    running = torch.zeros_like(w), torch.ones_like(w)
    saved = aten.native_batch_norm(there, w, b, *running, True, 0.1, 1e-5)[1:]
    return {
        "forward": lambda: aten.native_batch_norm(there, w, b, *running, True, 0.1, 1e-5),
        "gradients": lambda: aten.native_batch_norm_backward(
            gradient, there, w, *running, *saved, True, 1e-5, [True, True, True]
        ),
    }


def xla(axes: tuple[int, ...], *arrays: Any) -> dict[str, Call]:
    """XLA's calls of the formula whose statistics are over these axes."""
    import jax
    import jax.numpy as jnp

    x, dy, w, b = (jnp.asarray(each.numpy()) for each in arrays)
    shape = (1, -1, 1, 1) if x.ndim == 4 else (1, -1)

    def norm(x: Any, w: Any, b: Any) -> Any:
        mean, variance = x.mean(axes, keepdims=True), x.var(axes, keepdims=True)
        return (x - mean) * jax.lax.rsqrt(variance + 1e-5) * w.reshape(shape) + b.reshape(shape)

    forward = jax.jit(norm)
    # The residuals are arguments, as in a training step that is compiled in two parts.
    _, pull = jax.vjp(norm, x, w, b)
    backward = jax.jit(lambda pull, dy: pull(dy))
    return {
        "forward": lambda: forward(x, w, b).block_until_ready(),
        "gradients": lambda: jax.block_until_ready(backward(pull, dy)),
    }


def ours(x: Any, dy: Any, w: Any, b: Any) -> dict[str, Call]:
    """normgrad's public functions."""
    import normgrad

    if x.ndim == 4:
        mean, invstd = normgrad.batch_norm_stats(x, eps=1e-5)
        return {
            "forward": lambda: normgrad.batch_norm(x, w, b, training=True, eps=1e-5),
            "gradients": lambda: normgrad.batch_norm_backward(
                dy, x, w, save_mean=mean, save_invstd=invstd, training=True, eps=1e-5
            ),
        }
    forward = normgrad.layer_norm(x, x.shape[1], w, b)
    return {
        "forward": lambda: normgrad.layer_norm(x, x.shape[1], w, b),
        "gradients": lambda: normgrad.layer_norm_backward(
            dy, x, forward.mean, forward.rstd, w, normalized_shape=x.shape[1]
        ),
    }


def measured(shape: tuple[int, ...]) -> dict[str, dict[str, float]]:
    """Milliseconds of each contender, by what is computed."""
    import torch

    from normgrad.bench import timing

    torch.manual_seed(0)
    x, dy = torch.randn(shape), torch.randn(shape)
    w, b = torch.rand(shape[1]) + 0.5, torch.randn(shape[1])
    contenders = {"ours": ours(x, dy, w, b)}
    if len(shape) == 4:
        contenders["oneDNN"] = one_dnn(x, dy, w, b)
    if importlib.util.find_spec("jax"):
        contenders["XLA"] = xla((0, 2, 3) if len(shape) == 4 else (1,), x, dy, w, b)
    found = {}
    for what in ("forward", "gradients"):
        calls = {name: each[what] for name, each in contenders.items()}
        results = {name: first(call()) for name, call in calls.items()}
        for name, value in results.items():
            torch.testing.assert_close(value, results["ours"], rtol=1e-3, atol=1e-3, msg=name)
        times = timing.measure(calls, SECONDS, settle=timing.SETTLE_SECONDS)
        found[what] = {name: 1e3 * seconds for name, seconds in times.medians.items()}
    return found


def first(results: Any) -> Any:
    """The first result, y or dx, as a dense tensor of PyTorch's."""
    import numpy as np
    import torch

    value = results[0] if isinstance(results, (tuple, list)) else results
    if not isinstance(value, torch.Tensor):
        return torch.from_numpy(np.array(value))
    return value.to_dense() if value.is_mkldnn else value


def main() -> None:
    """Time all cases, print a table, and write it as CSV if wanted."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--csv", type=Path, help="also write the times to this file")
    options = parser.parse_args()
    # XLA takes its threads when it starts: those of the cores that the process may use.
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: options.threads])
    os.environ["OMP_NUM_THREADS"] = str(options.threads)
    import torch

    torch.set_num_threads(options.threads)
    lines = ["case,ours_ms,onednn_ms,xla_ms,onednn,xla"]
    print(
        "| case | normgrad, ms | oneDNN / normgrad | XLA / normgrad |\n| --- | ---: | ---: | ---: |"
    )
    for shape in (*IMAGES, *ROWS):
        for what, times in measured(shape).items():
            name = f"{'batch' if len(shape) == 4 else 'layer'} norm {shape}, {what}"
            peers = [times.get(peer) for peer in ("oneDNN", "XLA")]
            ratios = ["–" if t is None else f"{t / times['ours']:.2f}" for t in peers]
            print(f"| {name} | {times['ours']:.2f} | {' | '.join(ratios)} |", flush=True)
            cells = ["" if t is None else f"{t:.4g}" for t in (times["ours"], *peers)]
            lines.append(",".join((f'"{name}"', *cells, *ratios)))
    if options.csv:
        options.csv.write_text("\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
