"""A sample of the tests again without the C++ library; and which way is used, and why."""

from __future__ import annotations

import ctypes
import os
import random
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from normgrad import cache, notices, torch_build  # noqa: E402
from normgrad.backends import NativeSchedule  # noqa: E402
from normgrad.backends.cpu.runtime import Runner  # noqa: E402
from normgrad.backends.triton import cuda_driver  # noqa: E402
from normgrad.compilers import BuildError  # noqa: E402
from normgrad.problem import WORKSPACE, Role  # noqa: E402
from normgrad.torch import extension  # noqa: E402

HERE = Path(__file__).parent
#: The tests of layers and operators that run without the library too, some of each file.
FILES = (
    "test_functional.py", "test_nn.py", "test_ops.py", "test_as_stock.py", "test_by_row.py",
    "test_unusual_tensors.py", "test_derivatives.py",
)  # fmt: skip
SAMPLE = 4
#: Run a sample of some files' tests, from a seed, in the process that has collected them.
SAMPLED = """
import random, sys
import pytest

seed, most, *files = sys.argv[1:]

class Sample:
    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items):
        chosen = []
        for file in files:
            of_file = [item for item in items if item.path.name == file]
            chosen += random.Random(int(seed)).sample(of_file, int(most))
        items[:] = chosen

sys.exit(pytest.main(["-q", "-p", "no:xdist", *files], [Sample()]))
"""


def without_library(*arguments, **options):
    environment = {**os.environ, torch_build.VARIABLE: "0"}
    return subprocess.run(
        [sys.executable, *arguments], env=environment, capture_output=True, text=True, **options
    )


def test_tests_use_the_library():
    assert extension.is_loaded(), torch_build.missing()


def test_a_sample_without_the_library():
    """Some tests of each file, from a seed that the failure prints."""
    seed = random.SystemRandom().randrange(10**6)
    ran = without_library("-c", SAMPLED, str(seed), str(SAMPLE), *FILES, cwd=HERE, timeout=500)
    assert ran.returncode == 0, f"seed {seed}: {ran.stdout[-6000:]} {ran.stderr[-2000:]}"
    counts = re.findall(r"(\d+) (?:passed|skipped)", ran.stdout.splitlines()[-1])
    assert sum(map(int, counts)) == SAMPLE * len(FILES), ran.stdout[-2000:]


BITS = """
import hashlib, torch, normgrad.torch as nt
from normgrad.torch import extension
print(extension.is_loaded())
generator = torch.Generator().manual_seed(5)
layers = [
    nt.nn.BatchNorm2d(6), nt.nn.GroupNorm(3, 6), nt.nn.LayerNorm((5, 7)), nt.nn.RMSNorm(7),
    nt.nn.InstanceNorm2d(6, affine=True), nt.nn.BatchNorm2d(6).eval(),
    nt.nn.BatchNorm2d(6, momentum=None),
]
for layer in layers:
    for dtype in (torch.float32, torch.bfloat16, torch.float64):
        for last in (False, True):
            layer = layer.to(dtype)
            for again in range(2):
                x = torch.randn(4, 6, 5, 7, generator=generator, dtype=torch.float64).to(dtype)
                if last:
                    x = x.to(memory_format=torch.channels_last)
                x.requires_grad_()
                y = layer(x)
                y.backward(torch.randn(y.shape, generator=generator).to(dtype))
            values = [y, x.grad, *layer.buffers(), *(each.grad for each in layer.parameters())]
            digest = hashlib.sha256()
            for value in values:
                digest.update(value.detach().contiguous().view(-1).view(torch.uint8).numpy())
            print(type(layer).__name__, dtype, last, digest.hexdigest())
"""


def test_both_ways_have_the_same_bits(capsys):
    exec(BITS, {})
    without = without_library("-c", BITS)
    assert without.returncode == 0, without.stderr
    first, *rest = capsys.readouterr().out.splitlines()
    assert (first, len(rest)) == ("True", 42)
    assert without.stdout.splitlines() == ["False", *rest]


@pytest.fixture
def empty_cache(monkeypatch, tmp_path):
    monkeypatch.setenv(cache.VARIABLE, str(tmp_path))
    return tmp_path


def test_why_there_is_no_library(monkeypatch, empty_cache):
    assert torch_build.missing() == "not built; `normgrad warmup` builds it"
    monkeypatch.setenv(torch_build.VARIABLE, "0")
    assert torch_build.missing() == "turned off by NORMGRAD_TORCH_EXTENSION=0"


def test_layers_without_the_library_say_so_once(monkeypatch, tmp_path):
    """In one line. The cache has kernels, but no library."""
    (tmp_path / cache.KERNELS).symlink_to(cache.folder() / cache.KERNELS)
    monkeypatch.setenv(cache.VARIABLE, str(tmp_path))
    layer = "nt.nn.LayerNorm(4)(torch.ones(2, 4))"
    program = f"import torch, normgrad.torch as nt\nfor _ in range(3): {layer}"
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, notices.QUIET: ""},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert len([line for line in done.stderr.splitlines() if "C++ library" in line]) == 1


def test_a_gpu_s_first_use_builds_the_library(monkeypatch, caplog):
    """For later processes, once for each machine; without a compiler one line says why not."""
    monkeypatch.delenv(notices.QUIET)
    monkeypatch.setattr(extension, "_library", None)
    built = []
    monkeypatch.setattr(torch_build, "build", lambda: built.append(1))
    say_once = extension.mention.__wrapped__
    monkeypatch.setenv("LOCAL_RANK", "1")
    say_once(on_gpu=True)
    assert (built, caplog.messages) == ([], [])
    monkeypatch.setenv("LOCAL_RANK", "0")
    say_once(on_gpu=True)
    assert built == [1]
    assert caplog.messages == [
        "normgrad builds the C++ library of its layers, which later processes use"
    ]

    def fail():
        raise BuildError("no C++ compiler")

    monkeypatch.setattr(torch_build, "build", fail)
    say_once(on_gpu=True)
    assert caplog.messages[-1] == (
        "normgrad's layers run without their C++ library: no C++ compiler"
    )


def test_launches_of_a_gpu_s_kernels(monkeypatch):
    """C++ passes CUDA what the Triton backend describes; refused launches are Python's to make.

    A function of this test takes the place of CUDA's, and CPU tensors that of a GPU's.
    """
    seen, statuses = [], []
    words = ctypes.POINTER(ctypes.c_int64)

    @ctypes.CFUNCTYPE(ctypes.c_int32, words, ctypes.c_int64, ctypes.POINTER(words), ctypes.c_void_p)
    def launch(config, kernel, parameters, extra):
        constants = 2 + len(seen) % 2
        values = [parameters[index][0] for index in range(WORKSPACE + 1 + constants)]
        seen.append((config[: cuda_driver.CONFIG_FIELDS], kernel, values))
        return statuses.pop(0) if statuses else 0

    steps = np.zeros((2, cuda_driver.LAUNCH_FIELDS), np.int64)
    for row, constants in zip(steps, ((7, 8), (9, 10, 11)), strict=True):
        row[: cuda_driver.CONFIG_STREAM] = 1, 2, 3, 4
        row[cuda_driver.KERNEL], row[cuda_driver.CONSTANT_COUNT] = (
            1000 + constants[0],
            len(constants),
        )
        row[cuda_driver.CONSTANTS : cuda_driver.CONSTANTS + len(constants)] = constants
    address = ctypes.cast(launch, ctypes.c_void_p).value
    launches = NativeSchedule(np.zeros(0, np.int64), steps, launch=address)
    monkeypatch.setattr(Runner, "native", lambda runner: launches)
    call = torch.ops.normgrad.native_layer_norm.default
    x, w, b = torch.randn(3, 11, 13), torch.randn(13), torch.randn(13)
    expected = call(x, [13], w, b, 1e-5)
    assert not seen
    made = call(x, [13], w, b, 1e-5)
    assert [(config, kernel) for config, kernel, _ in seen] == [
        ([1, 2, 3, 4, 0, 0, 0], 1007),
        ([1, 2, 3, 4, 0, 0, 0], 1009),
    ]
    (first, second) = (values for _, _, values in seen)
    places = {Role.INPUT: x, Role.WEIGHT: w, Role.BIAS: b, Role.RESULT: made[0]}
    assert all(first[role] == tensor.data_ptr() for role, tensor in places.items())
    assert first[Role.GRAD_OUT] == first[Role.INPUT]
    assert first[WORKSPACE + 1 :] == [7, 8]
    assert second == [*first[: WORKSPACE + 1], 9, 10, 11]

    statuses[:] = [1]
    again = call(x, [13], w, b, 1e-5)
    assert all(map(torch.equal, again, expected))
    statuses[:] = [0, 700]
    with pytest.raises(RuntimeError, match="normgrad: CUDA refused a launch with status 700"):
        call(x, [13], w, b, 1e-5)
