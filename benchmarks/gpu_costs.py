"""Compute the memory traffic of the GPU's plans for shapes of real models, without a GPU.

    python benchmarks/gpu_costs.py [--write]

Prints a table; --write puts it into docs/performance/gpus.md. Everything follows from the plans for
an NVIDIA H200, launch by launch; nothing is computed, compiled or timed.
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from triton_programs import OVER_TENSORS, arguments, schedule_of

from normgrad.backends.triton.config import ABSENT, COLUMNS, OUTPUTS, RESULT, SUMS, TOTALS, slot
from normgrad.backends.triton.launches import Launch
from normgrad.backends.triton.layouts import ITEMSIZES
from normgrad.backends.triton.schedule import Schedule
from normgrad.declarations.problem import Role

DOCUMENT = Path(__file__).parent.parent / "docs" / "performance" / "gpus.md"
#: What the table stands between.
BEGIN, END = "<!-- costs: begin -->", "<!-- costs: end -->"

#: ResNet-50's batch norms at batch 32.
RESNET = [
    *((32, c, 112, 112) for c in (64,)), *((32, c, 56, 56) for c in (64, 128, 256)),
    *((32, c, 28, 28) for c in (128, 512)), *((32, c, 14, 14) for c in (256, 1024)),
    *((32, c, 7, 7) for c in (512, 2048)),
]  # fmt: skip
#: Group norms of 32 groups in a diffusion model's U-Net, at batch 8.
UNET = [
    *((8, c, 64, 64) for c in (320, 640, 960)), *((8, c, 32, 32) for c in (320, 640, 1280)),
    *((8, c, 16, 16) for c in (640, 1280, 2560)), *((8, c, 8, 8) for c in (1280, 1920, 2560)),
]  # fmt: skip
#: A process's share of a detection model's batch norms, in two halves around an all-reduce.
SYNCHRONISED = [(2, 64, 400, 608), (2, 256, 200, 304), (2, 256, 100, 152), (4, 512, 64, 64)]
GROUPS = 32
#: Layer norms of language models, as group norms of one group.
ROWS = [(4096, 768), (8192, 4096), (4096, 16384)]
CASES = [
    *(("batch_norm_backward", shape) for shape in RESNET),
    *(("group_norm_backward", shape) for shape in (*UNET, *ROWS)),
    *(("batch_norm_backward_reduce", shape) for shape in SYNCHRONISED),
    *(("batch_norm_backward_elemt", shape) for shape in SYNCHRONISED),
]
LAYOUTS = ("contiguous", "channels-last")
DTYPES = ("float32", "bfloat16")


@dataclass(frozen=True)
class Cost:
    """What a plan moves and launches.

    Attributes:
        passes: how many times dx's bytes have to pass through memory as dy, x and dx: 5 in two
            passes, 3 in one.
        moved: the bytes that are read and written, over those.
        again: the bytes that are read but for dy and x once a pass, over those: sums of parts and
            per-channel vectors, by every program that wants them.
        program: the least that a program reads of dy and x, in bytes.
        launches: how many.
    """

    passes: int
    moved: float
    again: float
    program: int
    launches: int

    def __str__(self) -> str:
        kib = self.program // 1024
        return (
            f"{self.passes}T × {self.moved:.3f}, {100 * self.again:.1f} %, {kib} KiB, "
            f"{self.launches}"
        )


def planned(name: str, shape: tuple[int, ...], dtype: str, layout: str) -> Schedule:
    """An operator's program, everything given and asked for."""
    look = layout.replace("-", "_")
    groups = 1 if shape in ROWS else GROUPS
    return schedule_of(name, **arguments(name, shape, dtype, look, groups=groups))


#: The vectors that statistics have, and those that parameters have.
STATISTICS = (Role.MEAN, Role.INVSTD)
PARAMETERS = tuple(
    role for role in Role if Role.WEIGHT <= role <= Role.RUNNING_VAR and role not in STATISTICS
)


def _each(launch: Launch, roles: tuple[Role, ...]) -> int:
    """The bytes of an element of each of these inputs that there are."""
    codes = (launch.config.vectors >> (3 * slot(role)) & ABSENT for role in roles)
    return sum(ITEMSIZES[code] for code in codes if code != ABSENT)


def _vectors(launch: Launch) -> tuple[float, float]:
    """The bytes that a launch reads of both, each program for itself what it needs."""
    config, sizes = launch.config, launch.arguments.sizes
    channels = sizes.sets * sizes.channels
    over_tensors = launch.kernel in OVER_TENSORS
    # Each program over a part of a channel reads for itself what belongs to the channel.
    parts = sizes.parts if over_tensors else 1
    statistics = channels * parts * _each(launch, STATISTICS) / sizes.per_group
    if config.sharing:
        # And what the parameters are of its piece of some lines.
        parameters = over_tensors * launch.programs // parts * sizes.positions // config.sharing
    else:
        parameters = channels * parts
    return statistics, parameters * _each(launch, PARAMETERS)


def _data(launch: Launch, passes: str) -> tuple[int, int]:
    """The bytes of each element that a launch reads of dy and x, and writes of dx.

    A launch that reads groups twice, in a plan of one pass, finds them in a cache again.
    """
    config = launch.config
    if launch.kernel not in OVER_TENSORS:
        return 0, 0
    read = ITEMSIZES[config.x.code]
    if not config.forward:
        read += ITEMSIZES[config.dy.code]
    if not config.resident and passes == "two passes":
        read *= 2
    return read, ITEMSIZES[config.dx.code] if config.stores & RESULT else 0


def _beside(launch: Launch) -> tuple[float, float]:
    """The bytes of all else that a launch reads and writes."""
    config, sizes = launch.config, launch.arguments.sizes
    channels = sizes.sets * sizes.channels
    wide = 8 if config.wide else 4
    sums = sizes.parts * channels * 2 * (wide if config.short else 8)
    statistics, parameters = _vectors(launch)
    vectors = statistics + parameters
    stored = sums if config.stores & SUMS else 0.0
    columns = 0.0
    if config.sharing and (config.stores & COLUMNS or config.parameters):
        columns = sizes.slots * sizes.sets * sizes.positions // config.sharing * 2 * wide
    if config.stores & COLUMNS:
        # Of the chains that share a slot each but the first reads what is there, and writes it.
        folds = min(config.chains, -(-sizes.each // config.chain))
        stored += (2 * folds - 1) * columns
    # Every program that writes reads the sums of all parts of its channels.
    again = sizes.parts * sizes.summed * channels * 2 * 8 * bool(config.from_sums)
    of_parameters = columns if config.sharing else statistics + sums
    return {
        "combine_parameters": (of_parameters, 0),
        "combine_parts": (vectors + sums, 16 * channels if config.stores & TOTALS else 0),
        "sums": (vectors, 0 if config.stores & OUTPUTS else sums),
        "write": (vectors + again, 0),
        "groups": (vectors, stored),
    }[launch.kernel]


def cost(made: Schedule) -> Cost:
    """What a program moves and launches."""
    sizes = made.launches[0].arguments.sizes
    padded = made.launches[0].config.sharing or 1
    elements = sizes.sets * sizes.channels * sizes.positions // padded * sizes.sharing
    over_tensors = [launch for launch in made.launches if launch.kernel in OVER_TENSORS]
    data = sum(sum(_data(launch, made.passes)) for launch in over_tensors)
    read, written = map(sum, zip(*map(_beside, made.launches), strict=True))
    least = []
    for launch in over_tensors:
        # All parts but the last are of this length, and all tiles but the last of this width.
        part = launch.arguments.sizes
        channels = part.step * part.each if launch.config.resident else part.per_group * part.each
        positions = part.positions if not launch.config.resident else min(part.part, part.positions)
        least.append(positions * channels * _data(launch, made.passes)[0])
    return Cost(
        data // ITEMSIZES[made.launches[0].config.dx.code],
        1 + (read + written) / (data * elements),
        read / (data * elements),
        min(least),
        len(made.launches),
    )


def table() -> str:
    """The table as it stands in docs/performance/gpus.md."""
    kinds = [(layout, dtype) for dtype in DTYPES for layout in LAYOUTS]
    head = ["operator", "shape", *(f"{dtype}, {layout}" for layout, dtype in kinds)]
    lines = [head, ["---"] * len(head)]
    for name, shape in CASES:
        row = [f"`{name}`", "×".join(map(str, shape))]
        for layout, dtype in kinds:
            row.append(str(cost(planned(name, shape, dtype, layout))))
        lines.append(row)
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def written(document: str) -> str:
    """The document with today's table."""
    before, _, rest = document.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n{table()}{END}{after}"


def main() -> None:
    """Print the table, or put it where it belongs."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--write", action="store_true", help="write the table to docs/performance/gpus.md"
    )
    if parser.parse_args().write:
        DOCUMENT.write_text(written(DOCUMENT.read_text()))
    else:
        print(table(), end="")


if __name__ == "__main__":
    main()
