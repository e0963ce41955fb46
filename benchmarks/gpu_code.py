"""The machine code of the GPU's plans: registers and instructions, without a GPU.

    python benchmarks/gpu_code.py [--write]

Compiles the kernels of some plans for compute capability 9.0 by the Triton that is installed, takes
them apart by the tools that come with it, and prints a table. --write puts it into the file of that
version, benchmarks/results/gpu-code-triton-VERSION.csv, which the tests hold new kernels against.
"""

from __future__ import annotations

import argparse
import csv
import re
import subprocess
import sys
import tempfile
from collections.abc import Hashable, Iterator
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from triton_programs import OVER_TENSORS, arguments, schedule_of

RESULTS = Path(__file__).parent / "results"
#: The compute capability that the table is of: an H100's and an H200's.
ARCHITECTURE = 90
#: Operators, shapes and numbers of groups: of convolutional networks, and of diffusion models'
#: U-Nets.
IMAGES = (
    ("batch_norm_backward", (32, 256, 56, 56), 1), ("batch_norm", (32, 256, 56, 56), 1),
    ("batch_norm_backward", (32, 2048, 7, 7), 1), ("batch_norm", (32, 2048, 7, 7), 1),
    ("evaluation", (32, 256, 56, 56), 1),
    ("group_norm_backward", (8, 640, 32, 32), 32), ("group_norm", (8, 640, 32, 32), 32),
    ("group_norm_backward", (8, 1280, 16, 16), 32), ("group_norm", (8, 1280, 16, 16), 32),
    ("group_norm_backward", (8, 1280, 8, 8), 32), ("group_norm", (8, 1280, 8, 8), 32),
)  # fmt: skip
#: The rows of language models: of queries and keys, and of hidden states.
LENGTHS = (768, 1024, 1536, 2560, 3584, 4096, 5120, 6144, 8192, 16384)
ROWS = ((131072, 128), *((4096, length) for length in LENGTHS))
CASES = (
    *IMAGES,
    *((name, shape, 1) for name in ("layer_norm_backward", "rms_norm_backward") for shape in ROWS),
    *((name, shape, 1) for name in ("layer_norm", "rms_norm") for shape in ROWS),
)
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
    """A row of the table: a plan's launch, and its code.

    Attributes:
        plan, launch: the plan's words, and the launch's number and word.
        programs, warps: the number of programs, and of warps of each.
        registers, local, shared: see :class:`Code`.
        instructions: the number of all instructions that are no padding.
        each, fp64: the loop's instructions for each element of a thread, and those of the float64
            pipe among them; None for a kernel that reads no tensors.
        spills: the instructions in the loop that save or restore registers.
    """

    plan: str
    launch: str
    programs: int
    warps: int
    registers: int
    local: int
    shared: int
    instructions: int
    each: float | None
    fp64: float | None
    spills: int


#: The columns of which a kernel should have as little as it can.
COSTS = ("registers", "local", "shared", "instructions", "each", "fp64", "spills")


def launches() -> Iterator[tuple[str, str, Any]]:
    """All plans' launches, with the plans' words and their own."""
    for name, shape, groups in CASES:
        for dtype in DTYPES:
            for layout in ("contiguous", "channels_last") if len(shape) > 2 else ("contiguous",):
                made = schedule_of(name, **arguments(name, shape, dtype, layout, groups=groups))
                plan = f"{name} {'x'.join(map(str, shape))} {dtype} {layout}"
                for number, launch in enumerate(made.launches):
                    yield plan, f"{number} {launch.word}", launch


def kernel_of(launch: Any) -> Hashable:
    """What a launch's kernel is compiled from; launches of many shapes share one."""
    return launch.kernel, launch.config, launch.warps, len(launch.arguments.axes)


def elements_of(launch: Any) -> float:
    """The elements of a thread: of a tile, or of a whole line or channel without its padding."""
    config, sizes = launch.config, launch.arguments.sizes
    positions = config.positions
    if launch.kernel == "groups" and config.resident and sizes.parts == 1:
        positions = sizes.positions // (config.sharing or 1) * sizes.sharing
    return positions * config.channels / (32 * launch.warps)  # type: ignore[no-any-return]


def row_of(plan: str, word: str, launch: Any, code: Code) -> Row:
    """The row of a launch."""
    each = fp64 = None
    if launch.kernel in OVER_TENSORS:
        elements = elements_of(launch)
        each = round(len(code.loop) / elements, 2)
        fp64 = round(sum(bool(FP64.match(name)) for name in code.loop) / elements, 2)
    return Row(
        plan,
        word,
        launch.programs,
        launch.warps,
        code.registers,
        code.local,
        code.shared,
        sum(name != "NOP" for name in code.instructions),
        each,
        fp64,
        sum(bool(SPILLS.match(name)) for name in code.loop),
    )


def path_of(version: str) -> Path:
    """The file of the table of a version of Triton."""
    return RESULTS / f"gpu-code-triton-{version}.csv"


def read(version: str) -> dict[tuple[str, str], Row]:
    """The rows of a version's table, by plan and launch."""
    with path_of(version).open(newline="") as file:
        table = {}
        for cells in csv.DictReader(file):
            plan, launch = cells.pop("plan"), cells.pop("launch")
            numbers = {name: float(cell) if cell else None for name, cell in cells.items()}
            table[plan, launch] = Row(plan, launch, **numbers)  # type: ignore[arg-type]
        return table


def main() -> None:
    """Print the table, or write it."""
    import triton

    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--write", action="store_true", help="write the table to the version's file"
    )
    writes = parser.parse_args().write
    out = path_of(triton.__version__).open("w") if writes else sys.stdout
    rows = csv.DictWriter(out, [field.name for field in fields(Row)], lineterminator="\n")
    rows.writeheader()
    codes: dict[Hashable, Code] = {}
    with tempfile.TemporaryDirectory() as folder:
        for plan, word, launch in launches():
            kernel = kernel_of(launch)
            if kernel not in codes:
                codes[kernel] = code_of(launch, ARCHITECTURE, Path(folder))
            rows.writerow(asdict(row_of(plan, word, launch, codes[kernel])))
            out.flush()


if __name__ == "__main__":
    main()
