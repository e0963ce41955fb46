"""The same results on processors that lack instructions of this one."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from llvmlite import binding as llvm

from normgrad.support import cache

pytestmark = [
    pytest.mark.cpu,
    pytest.mark.skipif(platform.machine() != "x86_64", reason="x86-64's processors are compared"),
]

#: What LLVM calls them, with instructions that tell whether this machine can stand in for them.
PROCESSORS = {
    "ivybridge": ("avx", "f16c"),
    "haswell": ("avx2", "f16c", "fma"),
    "x86-64-v4": ("avx512f", "avx512bw", "avx512dq", "avx512vl"),
    "znver4": ("avx512f", "avx512bw", "avx512dq", "avx512vl", "avx512bf16", "avx512vbmi"),
}
FUSED = ("haswell", "x86-64-v4", "znver4")
PROGRAM = Path(__file__).with_name("processor_program.py")


def run(processor: str, folder: Path) -> list[str]:
    environment = {
        **os.environ,
        "NUMBA_CPU_NAME": processor,
        "NUMBA_CPU_FEATURES": "",
        cache.VARIABLE: str(folder),
        "PYTHONPATH": os.pathsep.join(sys.path),
    }
    done = subprocess.run(
        [sys.executable, PROGRAM], capture_output=True, text=True, env=environment, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout.splitlines()


def test_a_processor_that_cannot_convert_float16(tmp_path):
    environment = {
        **os.environ, "NUMBA_CPU_NAME": "nehalem", "NUMBA_CPU_FEATURES": "",
        cache.VARIABLE: str(tmp_path), "PYTHONPATH": os.pathsep.join(sys.path),
    }  # fmt: skip
    script = (
        "import numpy as np, normgrad as ng; x = np.ones((2, 3)); ng.batch_norm(x, training=True)"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, env=environment, check=False
    )
    assert done.stderr.splitlines()[-1] == (
        "normgrad.support.forks.KernelError: this processor (nehalem) cannot convert float16; "
        "allowed: one with F16C, as all of x86-64 since 2012 have it (in QEMU: -cpu max)"
    )


@pytest.mark.full
def test_results_are_the_same_to_the_bit(tmp_path):
    """Conversions of half types on all of them; sums and products on those that fuse, or not."""
    here = llvm.get_host_cpu_features()
    there = [name for name, needs in PROCESSORS.items() if all(here.get(need) for need in needs)]
    if len(there) < 2:
        pytest.skip("this machine can stand in for one processor alone")
    with ThreadPoolExecutor(2) as pool:
        found = dict(zip(there, pool.map(lambda name: run(name, tmp_path), there), strict=True))
    assert len({lines[0] for lines in found.values()}) == 1
    for fused in (True, False):
        computed = {tuple(found[name][1:]) for name in there if (name in FUSED) is fused}
        assert len(computed) <= 1
