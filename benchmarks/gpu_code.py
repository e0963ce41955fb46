"""The machine code of the GPU's plans: registers and instructions, without a GPU.

    python benchmarks/gpu_code.py [--write]

Compiles the kernels of some plans for compute capability 9.0 by the Triton that is installed, takes
them apart by the tools that come with it, and prints a table; --write puts it into
benchmarks/results/gpu-code.csv, which the tests hold new kernels against.
"""

from __future__ import annotations

import argparse
import csv
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from triton_programs import OVER_TENSORS, arguments, schedule_of

FILE = Path(__file__).parent / "results" / "gpu-code.csv"
#: The compute capability that the table is of: an H100's and an H200's.
ARCHITECTURE = 90
#: Operators, shapes and numbers of groups: of convolutional networks, of a diffusion model's U-Net
#: (read once, and twice), and rows of language models.
CASES = (
    ("batch_norm_backward", (32, 256, 56, 56), 1), ("batch_norm", (32, 256, 56, 56), 1),
    ("batch_norm_backward", (32, 2048, 7, 7), 1), ("evaluation", (32, 256, 56, 56), 1),
    ("group_norm_backward", (8, 640, 32, 32), 32), ("group_norm", (8, 640, 32, 32), 32),
    ("group_norm_backward", (8, 1280, 8, 8), 32), ("group_norm", (8, 1280, 8, 8), 32),
    ("group_norm_backward", (131072, 128), 1), ("group_norm_backward", (4096, 768), 1),
    ("group_norm_backward", (8192, 4096), 1), ("group_norm_backward", (4096, 8192), 1),
    ("group_norm_backward", (4096, 16384), 1), ("group_norm", (4096, 768), 1),
    ("group_norm", (8192, 4096), 1), ("group_norm", (4096, 16384), 1),
)  # fmt: skip
DTYPES = ("float32", "bfloat16")
#: An instruction: its address, predicate, name and operands.
LINE = re.compile(r"/\*([0-9a-f]{4,})\*/\s+(?:@!?U?P\w+\s+)?([A-Z][\w.]*)\s*([^;]*);")
#: The instructions that the pipe of float64 arithmetic executes, and conversions to and from it.
FP64 = re.compile(r"D(ADD|MUL|FMA|SETP|MNMX)|F2F\..*F64|MUFU\.\w+64H")
#: The instructions that move registers to and from a thread's own memory.
SPILLS = re.compile(r"STL|LDL")


@dataclass(frozen=True)
class Code:
    """A kernel's machine code.

    Attributes:
        instructions: the names of all instructions, in order.
        loop: those of the innermost loop that reads tensors, or all if there is none.
        registers, shared, local: the registers of a thread, and the bytes of shared memory of a
            program and of a thread's own memory.
    """

    instructions: tuple[str, ...]
    loop: tuple[str, ...]
    registers: int
    shared: int
    local: int


def code_of(launch: Any, architecture: int, folder: Path) -> Code:
    """The machine code of a launch's kernel."""
    import triton
    from triton.backends.compiler import GPUTarget

    from normgrad.backends.triton import runtime

    binary = folder / "kernel.cubin"
    made = runtime.compiled(launch, launch.config, GPUTarget("cuda", architecture, 32))
    binary.write_bytes(made.asm["cubin"])
    tool = triton.knobs.nvidia.cuobjdump.path
    run = subprocess.run(
        [tool, "-sass", "-res-usage", binary], capture_output=True, text=True, check=True
    )
    used = re.search(r"REG:(\d+) STACK:(\d+) SHARED:(\d+) LOCAL:(\d+)", run.stdout)
    assert used, run.stdout[:1000]
    registers, stack, shared, local = map(int, used.groups())
    lines = [(int(at, 16), name, rest) for at, name, rest in LINE.findall(run.stdout)]
    return Code(
        tuple(name for _, name, _ in lines),
        _loop(lines),
        registers,
        shared + made.metadata.shared,
        stack + local,
    )


def _loop(lines: list[tuple[int, str, str]]) -> tuple[str, ...]:
    """The longest of the innermost loops that read global memory."""
    loops = []
    for at, name, rest in lines:
        target = re.search(r"0x([0-9a-f]+)", rest) if name.startswith("BRA") else None
        if target and int(target[1], 16) < at:
            first = int(target[1], 16)
            inside = [name for address, name, _ in lines if first <= address <= at]
            if any(name.startswith("LDG") for name in inside):
                loops.append((first, at, inside))
    innermost = [
        inside
        for first, last, inside in loops
        if not any(other[:2] != (first, last) and first <= other[0] and other[1] <= last
                   for other in loops)
    ]  # fmt: skip
    names = max(innermost, key=len, default=[name for _, name, _ in lines])
    return tuple(name for name in names if name != "NOP")


@dataclass(frozen=True)
class Row:
    """A row of the table: a plan's launch, and its code by element of a tile.

    Attributes:
        plan, launch: the plan's words, and the launch's number and word.
        registers, local: see :class:`Code`.
        instructions, fp64: the loop's instructions for each element of a thread, and those of the
            float64 pipe among them.
        spills: the instructions in the loop that save or restore registers.
    """

    plan: str
    launch: str
    registers: int
    local: int
    instructions: float
    fp64: float
    spills: int


def plans() -> Iterator[tuple[str, Any]]:
    """The plans of the table, with their words."""
    for name, shape, groups in CASES:
        for dtype in DTYPES:
            for layout in ("contiguous", "channels_last") if len(shape) > 2 else ("contiguous",):
                made = schedule_of(name, **arguments(name, shape, dtype, layout, groups=groups))
                yield f"{name} {'x'.join(map(str, shape))} {dtype} {layout}", made


def launches() -> Iterator[tuple[str, str, Any]]:
    """The launches over tensors of all plans, each kernel once."""
    known = set()
    for plan, made in plans():
        for number, launch in enumerate(made.launches):
            key = launch.kernel, launch.config, launch.warps
            if launch.kernel in OVER_TENSORS and key not in known:
                known.add(key)
                yield plan, f"{number} {launch.word}", launch


def row_of(plan: str, word: str, launch: Any) -> Row:
    """The row of a launch."""
    with tempfile.TemporaryDirectory() as folder:
        code = code_of(launch, ARCHITECTURE, Path(folder))
    each = launch.config.positions * launch.config.channels / (32 * launch.warps)
    return Row(
        plan,
        word,
        code.registers,
        code.local,
        round(len(code.loop) / each, 2),
        round(sum(bool(FP64.match(name)) for name in code.loop) / each, 2),
        sum(bool(SPILLS.match(name)) for name in code.loop),
    )


def read() -> tuple[str, list[Row]]:
    """The version of Triton that the table in the file is of, and its rows."""
    with FILE.open() as file:
        version = next(file).removeprefix("# Triton ").strip()
        return version, [
            Row(row[0], row[1], int(row[2]), int(row[3]), float(row[4]), float(row[5]), int(row[6]))
            for row in [*csv.reader(file)][1:]
        ]


def main() -> None:
    """Print the table, or write it."""
    import triton

    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--write", action="store_true", help=f"put it into {FILE.name}")
    writes = parser.parse_args().write
    out = FILE.open("w") if writes else sys.stdout
    print(f"# Triton {triton.__version__}", file=out)
    rows = csv.writer(out, lineterminator="\n")
    rows.writerow(Row.__dataclass_fields__)
    for launch in launches():
        rows.writerow(vars(row_of(*launch)).values())
        out.flush()


if __name__ == "__main__":
    main()
