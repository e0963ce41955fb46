"""Kernels compiled for GPUs that need not be there: what their machine code does.

A launch's kernel is compiled as it is before it is launched: from the same words, by the same
function. NORMGRAD_FULL=1 has all of them compiled rather than a sample.
"""

from __future__ import annotations

import re
from dataclasses import asdict, replace
from functools import cache
from pathlib import Path
from typing import Any

import gpu_code
import pytest
from common import FULL, sampled
from gpu_code import code_of, kernel_of
from gpu_costs import CASES as COSTS
from gpu_costs import DTYPES, LAYOUTS, planned
from triton_programs import CASES, H200, OVER_TENSORS, arguments, schedule_of, schedules

from normgrad import TensorSpec
from normgrad.backends.triton.config import COLUMNS, OUTPUTS, RESULT
from normgrad.backends.triton.layouts import ITEMSIZES

triton = pytest.importorskip("triton")

if triton.knobs.runtime.interpret:
    pytest.skip("kernels are interpreted", allow_module_level=True)

from normgrad.backends.triton import runtime  # noqa: E402

#: Of a processor's registers, what a program may use at most.
REGISTERS = 65536
#: Shared memory of a program, in bytes: what there is on the least of the chips.
SHARED = 99 << 10
#: The bytes that a thread may spill of lines, of lines that are read again, and of channels in
#: several tiles; most of them outside of the loop but of lines that are read again. On an H200 rows
#: of 4096 bfloat16 elements took 27 µs with 16 bytes spilled, and 35 with half as many elements per
#: thread and none. Compute capability 12.0 spills most.
SPILLED, SPILLED_AGAIN, SPILLED_OF_CHANNELS = 176, 560, 64
#: Compute capabilities; the first has the most kernels.
ARCHITECTURES = (90, 80, 100, 120)
#: Kernels that are compiled of each list, where not all are.
SAMPLE = 2
#: How machine code calls a load or a store of so many bytes.
WIDTHS = {16: ".128", 8: ".64", 4: "", 2: ".U16"}


def width_of(tensor: Any) -> str:
    """The suffix of what reads or writes a tensor as its plan says."""
    return WIDTHS[tensor.vector * ITEMSIZES[tensor.code]]


def tensors_of(launch: Any) -> tuple[list[Any], list[Any]]:
    """The tensors that a launch reads, and those that it writes."""
    config = launch.config
    if launch.kernel not in OVER_TENSORS:
        return [], []
    read = [config.dy, config.x]
    if config.forward:
        read = [config.x]
    elif config.constant and launch.kernel == "write":
        read = [config.dy]
    return read, [config.dx] if config.stores & RESULT else []


def wrong_with(launch: Any, code: gpu_code.Code, most: int) -> list[str]:
    """What a kernel's machine code does that it must not; it may spill ``most`` bytes."""
    kinds = {name.partition(".")[0] for name in code.instructions}
    wrong = [f"{kind}, an atomic" for kind in kinds & {"ATOM", "ATOMG", "RED", "REDG"}]
    # A cache that does not see what other programs write may serve what nobody writes.
    if any("CONSTANT" in name for name in code.instructions if name.startswith("LDG")):
        wrong.append("non-coherent loads")
    if code.local > most or (kinds & {"STL", "LDL"} and not most):
        wrong.append(f"{code.local} bytes spilled")
    if code.registers * 32 * launch.warps > REGISTERS:
        wrong.append(f"{code.registers} registers for {launch.warps} warps")
    if code.shared > SHARED:
        wrong.append(f"{code.shared} bytes of shared memory")
    config = launch.config
    each = config.positions * config.channels // (32 * launch.warps)
    loads, stores = tensors_of(launch)
    first = len(code.instructions)
    of_outputs = launch.kernel == "write" and config.stores & OUTPUTS
    if len({(tensor.along, tensor.vector) for tensor in (config.dy, config.x, config.dx)}) > 1:
        # What lies differently is turned over, and not all of it is read in vectors.
        return wrong
    for tensor in stores:
        store, count = "STG.E" + width_of(tensor), each // tensor.vector
        if code.instructions.count(store) < count:
            wrong.append(f"fewer than {count} {store}")
        elif (
            count and not config.stores & COLUMNS and not of_outputs
        ):  # else these are stored first
            first = code.instructions.index(store)
    for suffix in {width_of(tensor) for tensor in loads}:
        # What is read ahead goes to shared memory at once.
        loads_of = re.compile(rf"(LDG\.E|LDGSTS\.E(\.BYPASS)?(\.LTC128B)?){re.escape(suffix)}")
        count = sum(each // tensor.vector for tensor in loads if width_of(tensor) == suffix)
        if sum(bool(loads_of.fullmatch(name)) for name in code.instructions[:first]) < count:
            wrong.append(f"fewer than {count} loads{suffix} before the first store")
    return wrong


def distinct(made: Any) -> list[Any]:
    """The launches of programs whose kernels differ."""
    return list({kernel_of(launch): launch for each in made for launch in each.launches}.values())


@cache
def of_costs() -> list[Any]:
    """Those of the plans whose costs are stated."""
    return distinct(
        planned(name, shape, dtype, layout)
        for name, shape in COSTS
        for dtype in DTYPES
        for layout in LAYOUTS
    )


def check(launches: list[Any], architecture: int, folder: Path) -> None:
    for launch in launches:
        code = code_of(launch, architecture, folder)
        most = SPILLED if launch.config.sharing else SPILLED_OF_CHANNELS * bool(launch.config.next)
        if launch.config.again:
            most = SPILLED_AGAIN
        assert wrong_with(launch, code, most) == [], f"{launch.kernel} {launch.config}"


@pytest.mark.parametrize(
    "architecture",
    # Of the first a sample is in the test of the table.
    [pytest.param(ARCHITECTURES[0], marks=pytest.mark.full), *ARCHITECTURES[1:]],
)
def test_machine_code_is_as_plans_say(architecture, tmp_path):
    """No atomics, spills or non-coherent loads; vectors as wide as planned; loads first."""
    launches = of_costs()
    assert len(launches) > 50
    check(sampled(launches, SAMPLE, architecture), architecture, tmp_path)


#: The plans of the table whose kernels are compiled where not all are: two that spill, one that has
#: most instructions for each element, and one that reads a group twice.
HELD = (
    "layer_norm_backward 4096x4096 bfloat16 contiguous",
    "rms_norm_backward 4096x8192 float32 contiguous",
    "batch_norm_backward 32x2048x7x7 bfloat16 contiguous",
    "group_norm_backward 8x1280x16x16 bfloat16 channels_last",
)


def test_code_is_no_longer_than_the_table_says(tmp_path):
    """Registers, memory and instructions, of which there may be fewer."""
    version = triton.__version__
    if not gpu_code.path_of(version).exists():
        pytest.skip(f"no table of Triton {version}")
    renew = f"if that is meant, run `python benchmarks/gpu_code.py --write` by Triton {version}"
    table = gpu_code.read(version)
    launches = {(plan, word): launch for plan, word, launch in gpu_code.launches()}
    assert launches.keys() == table.keys(), renew
    for (plan, word), launch in launches.items():
        row = table[plan, word]
        assert (launch.programs, launch.warps) == (row.programs, row.warps), f"{plan}: {renew}"
        if FULL or (plan in HELD and launch.kernel in OVER_TENSORS):
            code = code_of(launch, gpu_code.ARCHITECTURE, tmp_path)
            found, most = asdict(gpu_code.row_of(plan, word, launch, code)), asdict(row)
            longer = [
                f"{found[name]} {name} rather than {most[name]}"
                for name in gpu_code.COSTS
                if most[name] is not None and found[name] > most[name]
            ]
            assert not longer, f"{plan}, {word}: {', '.join(longer)}; {renew}"
            assert wrong_with(launch, code, row.local) == [], f"{plan}, {word}"


@pytest.mark.parametrize("kind", ["batch_norm", "batch_norm_backward"])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_loops_without_float64_where_it_is_slow(kind, layout, tmp_path):
    slow = replace(H200, fast_float64=False)
    planned = arguments(kind, (32, 256, 56, 56), "float32", layout.replace("-", "_"))
    sums = schedule_of(kind, slow, **planned).launches[0]
    assert not any(map(gpu_code.FP64.match, code_of(sums, 120, tmp_path).loop))


@pytest.mark.parametrize("dtype", ["bfloat16", "float32", "float64"])
@pytest.mark.parametrize("architecture", ARCHITECTURES[:2])
def test_kernels_of_every_kind(architecture, dtype, tmp_path):
    """The same of every operator, of mixed layouts and of float64."""
    launches = distinct(program for _, program in schedules(H200, dtype))
    assert len(launches) > 40
    check(sampled(launches, SAMPLE, f"{architecture} {dtype}"), architecture, tmp_path)


#: Group norms whose programs have many groups: of one channel each, of few, of not quite a power.
MANY_GROUPS = (
    ((256, 512, 1), 512), ((8, 256, 20), 32), ((4096, 64, 17), 32), ((4096, 48, 20), 16),
    ((512, 128, 17), 32), ((64, 96, 20), 32), ((64, 320, 18), 32), ((512, 192, 19), 64),
    ((8, 512, 7, 7), 512),
)  # fmt: skip
#: Group norms that are read line by line: of few and of many elements, of powers and of none.
LINES = (
    ((8, 256, 1), 32), ((65536, 64), 32), ((65536, 48), 16), ((512, 128), 32), ((64, 96, 4), 32),
    ((64, 320, 2), 32), ((512, 192, 3), 64), ((64, 320, 3, 3), 2), ((4096, 12, 16), 2),
    ((4096, 768), 12), ((2048, 2048), 1), ((333, 1023), 1), ((1000, 5120), 1), ((64, 50257), 1),
)  # fmt: skip


@pytest.mark.parametrize(("shape", "groups"), sampled(MANY_GROUPS, 2), ids=str)
def test_programs_that_have_many_groups(shape, groups, tmp_path):
    """Of one channel each, which are held, or of several, which are read twice."""
    made = [
        schedule_of(name, **arguments(name, shape, dtype, groups=groups))
        for name in ("group_norm_backward", "group_norm")
        for dtype in ("bfloat16", "float32")
    ]
    launches = [launch for launch in distinct(made) if launch.kernel == "groups"]
    assert {launch.config.resident for launch in launches} == {shape[1] == groups}
    check(sampled(launches, SAMPLE, f"{shape} {groups}"), ARCHITECTURES[0], tmp_path)


@pytest.mark.parametrize("architecture", sampled(ARCHITECTURES, 2))
@pytest.mark.parametrize(("shape", "groups"), [*sampled(LINES[:-1], 1), LINES[-1]], ids=str)
def test_programs_of_lines(shape, groups, architecture, tmp_path):
    """What a line's positions have of the parameters, and their sums, take registers."""
    made = [
        schedule_of(name, **arguments(name, shape, dtype, layout, groups=groups))
        for name in ("group_norm_backward", "group_norm")
        for dtype in ("bfloat16", "float32", "float64")
        for layout in ("contiguous", "sliced")
    ]
    launches = [launch for launch in distinct(made) if launch.kernel in OVER_TENSORS]
    assert {launch.kernel for launch in launches} <= {"groups", "write"}
    check(sampled(launches, SAMPLE, f"{shape} {groups}"), architecture, tmp_path)


#: Statistics of so many ranks and channels.
RANKS = ((16, 256), (64, 256), (1000, 256), (64, 8))


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize(("ranks", "channels"), sampled(RANKS, 2))
def test_many_ranks(ranks, channels, dtype, tmp_path):
    """Statistics of as many processes as there may be."""
    planned = arguments("batch_norm_gather_stats_with_counts", (8, channels, 4, 4), dtype)
    of_ranks = TensorSpec((ranks, channels), dtype)
    planned |= {"mean": of_ranks, "invstd": of_ranks, "counts": TensorSpec((ranks,), "int32")}
    program = schedule_of("batch_norm_gather_stats_with_counts", **planned)
    check(list(program.launches), ARCHITECTURES[0], tmp_path)


def test_tensors_that_are_not_aligned_are_read_as_they_can_be():
    program = schedule_of(
        "batch_norm_backward", **arguments("batch_norm_backward", (256, 64, 56, 56), "bfloat16")
    )
    launch = program.launches[-1]
    for address, vector in ((16, 8), (8, 4), (4, 2), (2, 1)):
        config = runtime.aligned(launch.config, (address, address, address))
        assert [tensor.vector for tensor in (config.dy, config.x, config.dx)] == [vector] * 3
    # float64 at an odd multiple of 4 bytes, which a view of bytes can be.
    wide = launch.config._replace(x=launch.config.x._replace(code=1, vector=2))
    assert runtime.aligned(wide, (16, 4, 16)).x.vector == 1


#: Of batch norms and group norms in models.
SHAPES = (
    (256, 64, 56, 56), (128, 64, 56, 56), (64, 256, 56, 56), (256, 128, 28, 28), (256, 256, 28, 28),
    (128, 512, 28, 28), (128, 128, 40, 40), (64, 128, 80, 80),
)  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_a_kernel_is_compiled_once_for_many_shapes(name):
    """Models have many shapes; sizes and strides are no part of what is compiled."""
    configs = {}
    for shape in SHAPES:
        for launch in schedule_of(name, **arguments(name, shape, "bfloat16")).launches:
            found = configs.setdefault((launch.kernel, launch.word), set())
            found.add((launch.config, launch.warps))
    # Tiles follow the groups of group norm, and what positions divide by.
    most = 7 if "group" in name else 4
    assert all(len(found) <= most for found in configs.values())
