"""Every kernel, compiled for GPUs that need not be there: registers, spills, shared memory, loads.

A launch's kernel is compiled as it is before it is launched: from the same words, by the same
function.
"""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
from triton_programs import A100, CASES, H200, arguments, program_of, programs

triton = pytest.importorskip("triton")

if triton.knobs.runtime.interpret:
    pytest.skip("kernels are interpreted", allow_module_level=True)

from normgrad.backends.triton import runtime  # noqa: E402

#: Of a thread's registers, what a program of so many warps may use at most.
REGISTERS = 65536
#: Shared memory of a program, in bytes: what there is on the least of the chips.
SHARED = 48 << 10

DEVICES = {"sm_80": A100, "sm_90": H200}


def target(device: Any) -> Any:
    from triton.backends.compiler import GPUTarget

    major, minor = device.capability
    return GPUTarget("cuda", 10 * major + minor, 32)


def compiled(launch: Any, device: Any) -> Any:
    return runtime.compiled(launch, launch.config, target(device))


def report(kernel: Any, device: Any, folder: Path) -> dict[str, int]:
    """What ptxas says a kernel uses."""
    from triton.backends.nvidia.compiler import get_ptxas

    major, minor = device.capability
    source = folder / "kernel.ptx"
    source.write_text(kernel.asm["ptx"])
    suffix = "a" if major >= 9 else ""
    run = subprocess.run(
        [
            get_ptxas(10 * major + minor).path, "-v", f"--gpu-name=sm_{major}{minor}{suffix}",
            str(source), "-o", os.devnull,
        ],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    numbers = re.search(
        r"(\d+) bytes spill stores, (\d+) bytes spill loads.*?Used (\d+) registers",
        run.stderr,
        re.S,
    )
    assert numbers, run.stderr
    stores, loads, registers = map(int, numbers.groups())
    return {"spills": stores + loads, "registers": registers, "shared": kernel.metadata.shared}


@pytest.mark.parametrize("dtype", ["bfloat16", "float32", "float64"])
@pytest.mark.parametrize("architecture", DEVICES)
def test_registers_spills_and_shared_memory(architecture, dtype, tmp_path):
    device = DEVICES[architecture]
    seen = set()
    wrong = []
    for name, program in programs(device, dtype):
        for launch in program.launches:
            key = launch.kernel, launch.config, launch.warps
            if key in seen:
                continue
            seen.add(key)
            used = report(compiled(launch, device), device, tmp_path)
            threads = 32 * launch.warps
            if used["spills"] or used["registers"] * threads > REGISTERS or used["shared"] > SHARED:
                wrong.append((name, program.path, launch.kernel, used))
    assert len(seen) > 40
    assert not wrong, "\n".join(map(str, wrong))


def accesses(launch: Any, device: Any) -> set[str]:
    """How a kernel reads and writes memory, in PTX: "ld.v4.b32"."""
    ptx = compiled(launch, device).asm["ptx"]
    found = re.findall(r"\b(ld|st)\.global[\w.:]*?((?:\.v\d)?\.[bfu]\d+)\b", ptx)
    return {kind + width for kind, width in found}


@pytest.mark.parametrize("layout", ["contiguous", "channels_last"])
@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32"])
@pytest.mark.parametrize("name", ["batch_norm_backward", "evaluation", "batch_norm"])
def test_a_thread_reads_and_writes_16_bytes_at_once(name, dtype, layout):
    program = program_of(name, **arguments(name, (256, 64, 56, 56), dtype, layout))
    found = set().union(*(accesses(launch, H200) for launch in program.launches))
    assert {"ld.v4.b32", "st.v4.b32"} <= found
    # Halves are never read one by one; a pilot's first element is.
    single = {"ld.b16", "st.b16"} & found
    assert single <= ({"ld.b16"} if name == "batch_norm" else set())


def test_tensors_that_are_not_aligned_are_read_as_they_can_be():
    program = program_of(
        "batch_norm_backward", **arguments("batch_norm_backward", (256, 64, 56, 56), "bfloat16")
    )
    launch = program.launches[-1]
    for address, vector in ((16, 8), (8, 4), (4, 2), (2, 1)):
        config = runtime.aligned(launch.config, (address, address, address))
        assert [tensor.vector for tensor in (config.dy, config.x, config.dx)] == [vector] * 3
    # float64 at an odd multiple of 4 bytes, which a view of bytes can be.
    wide = launch.config._replace(x=launch.config.x._replace(code=1, vector=2))
    assert runtime.aligned(wide, (16, 4, 16)).x.vector == 1


def test_there_are_no_atomics():
    for dtype in ("bfloat16", "float64"):
        for name, program in programs(H200, dtype):
            for launch in program.launches:
                ptx = compiled(launch, H200).asm["ptx"]
                assert not re.search(r"\b(?:atom|red)\.", ptx), (name, launch.kernel)


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
        for launch in program_of(name, **arguments(name, shape, "bfloat16")).launches:
            found = configs.setdefault((launch.kernel, launch.word), set())
            found.add((launch.config, launch.warps))
    # Tiles follow the groups of group norm, and what positions divide by.
    most = 7 if "group" in name else 4
    assert all(len(found) <= most for found in configs.values())


def test_each_device_has_kernels_of_its_own():
    """What a kernel is launched by is loaded on one of them."""
    program = program_of(
        "batch_norm_backward", **arguments("batch_norm_backward", (8, 64, 14, 14), "bfloat16")
    )
    (launch,) = program.launches
    first, again, second = (
        runtime.compiled(launch, launch.config, target(H200), index) for index in (0, 0, 1)
    )
    assert first is again
    assert first is not second
