"""Count the network traffic of synchronised batch norm with 2 to 1024 ranks, without a network.

    python benchmarks/distributed.py [--csv FILE] [--latency US] [--bandwidth GBS]

PyTorch's fake process group replaces the other ranks: this process is rank 0 of them, runs a
forward and a backward pass of every batch norm layer of ResNet-50, and counts every collective
where it is called. Combining all ranks' statistics, whose time grows with the number of ranks, is
measured. The time of the collectives is not measured but computed, for a ring each of whose steps
takes a latency and its bytes over a bandwidth.
"""

from __future__ import annotations

import argparse
import dataclasses
import statistics
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from measuring import results
from torch.testing._internal.distributed.fake_pg import FakeStore

import normgrad.torch as nt
from normgrad.cli.info import cpu_name
from normgrad.operators.sync_batch_norm import batch_norm_gather_stats_with_counts
from normgrad.torch import collectives

#: The channels of ResNet-50's batch norms, in order.
LAYERS: list[int] = [64]
for width, blocks in ((64, 3), (128, 4), (256, 6), (512, 3)):
    LAYERS += [width, width, 4 * width] * blocks + [4 * width]
RANKS = tuple(2**power for power in range(1, 11))
ROUNDS = 9


@dataclasses.dataclass(frozen=True)
class Row:
    """One size of group; the fields are the file's columns.

    Attributes:
        ranks: in the group.
        collectives: in a forward and backward pass of all layers.
        values: that a rank hands over to them.
        sent_bytes: that a rank sends in a ring, and receives.
        gather_us: measured, putting all ranks' statistics together, all layers.
        model_us: the collectives by the model.
    """

    ranks: int
    collectives: int
    values: int
    sent_bytes: int
    gather_us: float
    model_us: float


def counted(ranks: int) -> list[tuple[str, int, int]]:
    """The collectives of a step: which, how many values, how many bytes each."""
    seen: list[tuple[str, int, int]] = []
    real = collectives.all_gather, collectives.all_reduce

    def gather(what: str, values: Any, group: Any) -> Any:
        seen.append(("all-gather", values.numel(), values.element_size()))
        return real[0](what, values, group)

    def reduce(what: str, values: Any, group: Any) -> Any:
        seen.append(("all-reduce", values.numel(), values.element_size()))
        return real[1](what, values, group)

    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=ranks)
    collectives.all_gather, collectives.all_reduce = gather, reduce
    try:
        layers = [nt.nn.SyncBatchNorm(channels) for channels in LAYERS]
        inputs = [torch.randn(2, channels, 2, 2, requires_grad=True) for channels in LAYERS]
        for _ in range(2):  # the first has the check of the ranks' agreement in it
            seen.clear()
            for layer, x in zip(layers, inputs, strict=True):
                layer(x).sum().backward()
        return list(seen)
    finally:
        collectives.all_gather, collectives.all_reduce = real
        dist.destroy_process_group()


def gathering(ranks: int) -> float:
    """Microseconds to put all ranks' statistics together, for all layers; the median of some."""
    work = []
    for channels in LAYERS:
        everyone = torch.rand(ranks, 2 * channels + 1, dtype=torch.float64) + 0.5
        running = torch.zeros(channels), torch.ones(channels)
        counts = torch.full((ranks,), 8)
        x = torch.empty(0, channels)
        work.append((x, everyone[:, :channels], everyone[:, channels:-1], *running, counts))
    times = []
    for _ in range(ROUNDS + 1):
        begin = time.perf_counter()
        for arguments in work:
            batch_norm_gather_stats_with_counts(*arguments, momentum=0.1, eps=1e-5)
        times.append(time.perf_counter() - begin)
    return 1e6 * statistics.median(times[1:])


def row(ranks: int, latency: float, bandwidth: float) -> Row:
    """A group's row."""
    seen = counted(ranks)
    sent = steps = 0
    for kind, values, size in seen:
        if kind == "all-gather":
            sent += (ranks - 1) * values * size
            steps += ranks - 1
        else:
            sent += 2 * (ranks - 1) * values * size // ranks
            steps += 2 * (ranks - 1)
    return Row(
        ranks=ranks,
        collectives=len(seen),
        values=sum(values for _, values, _ in seen),
        sent_bytes=sent,
        gather_us=gathering(ranks),
        model_us=steps * latency + sent / bandwidth / 1e3,
    )


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--csv", type=Path, help="a file for the figures")
    parser.add_argument(
        "--latency", type=float, default=5.0, help="the latency of a ring's step, in µs"
    )
    parser.add_argument(
        "--bandwidth", type=float, default=25.0, help="the bandwidth of a rank, in 10⁹ bytes/s"
    )
    options = parser.parse_args()
    rows = []
    print("| ranks | collectives | values | sent by a rank | merging | model |")
    print("| ---: | ---: | ---: | ---: | ---: | ---: |")
    for ranks in RANKS:
        found = row(ranks, options.latency, options.bandwidth)
        rows.append(found)
        print(
            f"| {found.ranks} | {found.collectives} | {found.values:,} | "
            f"{results.spelled_bytes(found.sent_bytes)} | {found.gather_us / 1e3:.2f} ms | "
            f"{found.model_us / 1e3:.2f} ms |",
            flush=True,
        )
    if options.csv:
        command = f"benchmarks/distributed.py, {options.latency} µs, {options.bandwidth} GB/s"
        facts = results.facts(cpu_name(), command)
        results.write(options.csv, results.table_of(facts, list(map(dataclasses.asdict, rows))))


if __name__ == "__main__":
    main()
