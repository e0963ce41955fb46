"""Time synchronised batch norm: two processes over gloo on loopback, one thread each.

    python benchmarks/sync_batch_norm.py [--csv FILE] [--rounds N] [--shape 32x64x56x56 ...]

Each rank alternates training steps, forward and backward, of three layers on a batch of its own:
normgrad's SyncBatchNorm, normgrad's BatchNorm2d and torch's BatchNorm2d. Both ranks start a step
together, and its time is that of the slower rank. PyTorch's SyncBatchNorm is not measured, since it
needs a GPU.
"""

from __future__ import annotations

import argparse
import math
import os
import shlex
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing
from measuring import results
from measuring.suite import spelled

from normgrad.bench import timing
from normgrad.cli import info

RANKS, ROUNDS = 2, 31
SHAPES = ("8x16x8x8", "8x3x224x224", "32x64x56x56", "32x1024x14x14", "32x2048x7x7")
KINDS = (
    *(("float32", "contiguous"), ("float32", "channels-last")),
    *(("bfloat16", "contiguous"), ("bfloat16", "channels-last")),
)
#: So many elements go through a layer in a turn, in one step or in several, but not too many.
TURN_ELEMENTS, MOST_STEPS = 1 << 21, 32
TIMEOUT = timedelta(minutes=2)

Shape = tuple[int, ...]
Turns = dict[str, list[float]]


@dataclass(frozen=True)
class Row:
    """A case; times are microseconds a step, medians over the turns.

    Attributes:
        shape: of each rank's batch.
        dtype: of x and dy; parameters are float32.
        layout: of x and dy.
        ranks, rounds: processes, and turns that each layer had.
        t_sync_us: normgrad's SyncBatchNorm.
        t_batch_norm_us: normgrad's BatchNorm2d.
        t_torch_us: torch's BatchNorm2d.
        overhead_us: t_sync_us - t_batch_norm_us.
        ratio: t_sync_us / t_batch_norm_us.
        spread: interquartile range over median, the largest of the three.
    """

    shape: str
    dtype: str
    layout: str
    ranks: int
    rounds: int
    t_sync_us: float
    t_batch_norm_us: float
    t_torch_us: float
    overhead_us: float
    ratio: float
    spread: float


def steps_of(shape: Shape, dtype: str, layout: str, seed: int) -> dict[str, Callable[[], Any]]:
    """A step of each layer, by name, on tensors that the three share."""
    from normgrad.torch import nn

    torch.manual_seed(seed)
    x, dy = torch.randn((2, *shape)).to(getattr(torch, dtype))
    if layout == "channels-last":
        x, dy = (tensor.contiguous(memory_format=torch.channels_last) for tensor in (x, dy))

    def step(layer: Any) -> Callable[[], Any]:
        leaf = x.detach().requires_grad_()

        def call() -> Any:
            leaf.grad = layer.weight.grad = layer.bias.grad = None
            layer(leaf).backward(dy)
            return leaf.grad

        return call

    return {
        "sync": step(nn.SyncBatchNorm(shape[1])),
        "batch norm": step(nn.BatchNorm2d(shape[1])),
        "torch": step(torch.nn.BatchNorm2d(shape[1])),
    }


def steps_in_a_turn(shape: Shape) -> int:
    """As many on every rank, or they would wait for each other for ever."""
    return min(max(1, TURN_ELEMENTS // math.prod(shape)), MOST_STEPS)


def by_turns(steps: dict[str, Callable[[], Any]], repeats: int, rounds: int) -> Turns:
    """This rank's seconds for a step, for each turn of each layer."""
    times: Turns = {name: [] for name in steps}
    for call in steps.values():
        for _ in range(3):  # compiles, plans, and finds memory
            call()
    for turn in range(rounds):
        for name in list(steps)[:: 1 if turn % 2 == 0 else -1]:
            call = steps[name]
            dist.barrier()
            start = time.perf_counter()
            for _ in range(repeats):
                call()
            times[name].append((time.perf_counter() - start) / repeats)
    return times


def slowest(ranks: Sequence[Turns]) -> Turns:
    """Each turn's time, which is that of the rank that was last."""
    return {name: list(map(max, *(times[name] for times in ranks))) for name in ranks[0]}


def row(shape: Shape, dtype: str, layout: str, turns: Turns) -> Row:
    """A case's row."""
    us = {name: 1e6 * statistics.median(values) for name, values in turns.items()}
    return Row(
        shape=spelled(shape),
        dtype=dtype,
        layout=layout,
        ranks=RANKS,
        rounds=len(turns["sync"]),
        t_sync_us=us["sync"],
        t_batch_norm_us=us["batch norm"],
        t_torch_us=us["torch"],
        overhead_us=us["sync"] - us["batch norm"],
        ratio=us["sync"] / us["batch norm"],
        spread=max(map(timing.spread, turns.values())),
    )


def work(rank: int, folder: str, shapes: Sequence[Shape], rounds: int, answer: Any) -> None:
    """A rank: the first one sends the rows as they come."""
    torch.set_num_threads(1)
    if sys.platform == "linux":
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    store = f"file://{Path(folder, 'store')}"
    dist.init_process_group("gloo", store, TIMEOUT, RANKS, rank)
    for shape in shapes:
        for dtype, layout in KINDS:
            steps = steps_of(shape, dtype, layout, rank)
            mine = by_turns(steps, steps_in_a_turn(shape), rounds)
            everyone: list[Any] = [None] * RANKS
            dist.all_gather_object(everyone, mine)
            if rank == 0:
                answer.put(row(shape, dtype, layout, slowest(everyone)))
    dist.barrier()
    dist.destroy_process_group()


def measure(shapes: Sequence[Shape], rounds: int) -> list[Row]:
    """Start the ranks and print their rows; if one dies the others are ended."""
    answer = torch.multiprocessing.get_context("spawn").SimpleQueue()
    with tempfile.TemporaryDirectory() as folder:
        ranks = torch.multiprocessing.spawn(
            work, (folder, shapes, rounds, answer), RANKS, join=False
        )
        print(HEADER)
        rows: list[Row] = []
        while not ranks.join(0.2):
            rows += printed(answer)
        rows += printed(answer)
    return rows


HEADER = (
    f"{'shape':16} {'dtype':9} {'layout':14} {'sync, µs':>10} {'batch norm':>11} "
    f"{'torch':>10} {'overhead':>9} {'ratio':>6}"
)


def printed(answer: Any) -> list[Row]:
    """The rows that have come, printed."""
    rows = []
    while not answer.empty():
        made = answer.get()
        rows.append(made)
        print(
            f"{made.shape:16} {made.dtype:9} {made.layout:14} {made.t_sync_us:10.1f} "
            f"{made.t_batch_norm_us:11.1f} {made.t_torch_us:10.1f} {made.overhead_us:9.1f} "
            f"{made.ratio:6.2f}",
            flush=True,
        )
    return rows


def shape_of(text: str) -> Shape:
    """A shape as it is spelled in names."""
    shape = tuple(int(size) for size in text.split("x"))
    if len(shape) != 4 or min(shape) < 1:
        raise ValueError(text)
    return shape


def main() -> None:
    """Measure, print, and write a CSV file if one is asked for."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--csv", type=Path, help="also write the figures to this file")
    parser.add_argument(
        "--rounds", type=int, default=ROUNDS, help="the number of steps of each layer"
    )
    parser.add_argument(
        "--shape",
        type=shape_of,
        action="append",
        help="the shape of each rank's batch, instead of the usual ones",
    )
    chosen = parser.parse_args()
    shapes = chosen.shape or [shape_of(shape) for shape in SHAPES]
    # Before the work: they say how busy the machine is.
    facts = results.facts(info.cpu_name(), command(chosen))
    rows = measure(shapes, chosen.rounds)
    if chosen.csv is not None:
        results.write(chosen.csv, results.table_of(facts, list(map(asdict, rows))))


def command(chosen: argparse.Namespace) -> str:
    """What was asked for, without where it was to be written."""
    words = ["python", "benchmarks/sync_batch_norm.py"]
    if chosen.rounds != ROUNDS:
        words += ["--rounds", str(chosen.rounds)]
    for shape in chosen.shape or ():
        words += ["--shape", spelled(shape)]
    return shlex.join(words)


if __name__ == "__main__":
    sys.exit(main())
