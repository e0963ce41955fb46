"""The C++ library: what its absence means, why it is absent, and what it passes to CUDA."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import normgrad  # noqa: E402
from normgrad.backends import NativeSchedule  # noqa: E402
from normgrad.backends.cpu.runtime import Runner  # noqa: E402
from normgrad.backends.triton import cuda_driver  # noqa: E402
from normgrad.declarations.problem import WORKSPACE, Role  # noqa: E402
from normgrad.support import cache, notices, torch_build  # noqa: E402
from normgrad.support.settings import SettingError  # noqa: E402
from normgrad.torch import native  # noqa: E402


def run(program, **environment):
    return subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
    )


def test_tests_use_the_library():
    assert native.module is not None, torch_build.missing()


#: Every layer of PyTorch's and its converted copy, in training, in evaluation and again.
LAYERS = """
import copy, torch, normgrad, normgrad.torch as nt
from normgrad.torch import native
assert native.module is None
kinds = [
    torch.nn.BatchNorm2d(6), torch.nn.BatchNorm2d(6, momentum=None), torch.nn.GroupNorm(3, 6),
    torch.nn.LayerNorm((5, 7)), torch.nn.RMSNorm(7), torch.nn.InstanceNorm2d(6, affine=True),
    torch.nn.InstanceNorm2d(6, track_running_stats=True), nt.convert_sync_batchnorm(
        torch.nn.BatchNorm2d(6)),
]
for theirs in kinds:
    ours = nt.convert(copy.deepcopy(theirs))
    theirs = nt.revert(copy.deepcopy(ours))
    for training in (True, True, False):
        results = []
        for layer in (theirs, ours):
            x = torch.arange(840.0).sin().reshape(4, 6, 5, 7).requires_grad_()
            y = layer.train(training)(x)
            y.backward(x.detach().cos())
            results.append((y, x.grad, *layer.buffers(), *(w.grad for w in layer.parameters())))
        assert all(map(torch.equal, *results)), theirs
x = torch.arange(840.0).sin().reshape(4, 6, 5, 7)
found = normgrad.batch_norm(x, training=True)
assert all(torch.allclose(a, b, atol=1e-5) for a, b in zip(
    found[:3], torch.native_batch_norm(x, None, None, None, None, True, 0.1, 1e-5)))
"""


def test_without_the_library_layers_are_pytorch_s():
    """To the bit, without a word where the user turned it off; normgrad's functions compute."""
    done = run(LAYERS, **{torch_build.VARIABLE: "0", notices.QUIET: ""})
    assert (done.returncode, done.stdout) == (0, ""), done.stderr
    assert "C++ library" not in done.stderr


def test_a_wrong_setting(monkeypatch):
    monkeypatch.setenv(torch_build.VARIABLE, "yes")
    reason = "NORMGRAD_TORCH_EXTENSION: 'yes'; allowed: 0 or 1"
    assert torch_build.missing() == f"not there: {reason}"
    with pytest.raises(SettingError, match=reason):
        torch_build.is_on()


@pytest.fixture
def empty_cache(monkeypatch, tmp_path):
    monkeypatch.setenv(cache.VARIABLE, str(tmp_path))
    return tmp_path


def test_why_there_is_no_library(monkeypatch, empty_cache):
    assert torch_build.missing() == "not built; `normgrad warmup` builds it"
    monkeypatch.setenv(torch_build.VARIABLE, "0")
    assert torch_build.missing() == "turned off by NORMGRAD_TORCH_EXTENSION=0"


def test_layers_without_the_library_say_so_once(tmp_path):
    """In one line. The cache has kernels, but no library."""
    (tmp_path / cache.KERNELS).symlink_to(cache.folder() / cache.KERNELS)
    layer = "nt.nn.LayerNorm(4)(torch.ones(2, 4))"
    program = f"import torch, normgrad.torch as nt\nfor _ in range(3): {layer}"
    done = run(program, **{cache.VARIABLE: str(tmp_path), notices.QUIET: ""})
    assert done.returncode == 0, done.stderr
    assert [line for line in done.stderr.splitlines() if "C++ library" in line] == [
        "PyTorch computes normgrad's layers, since their C++ library is not built; "
        "`normgrad warmup` builds it"
    ]


@pytest.mark.parametrize("whole", [True, pytest.param(False, marks=pytest.mark.full)])
def test_a_damaged_library_is_not_loaded(tmp_path, whole):
    """A file that lost its end, and a sealed one that is no library."""
    built = torch_build.path()
    program = (
        "import torch, normgrad.torch as nt\n"
        "from normgrad.torch import native\n"
        "nt.functional.layer_norm(torch.ones(2, 4), (4,))\n"
        "print(native.module)"
    )
    path = tmp_path / built.relative_to(cache.folder())
    content = b"no library" if whole else built.read_bytes()[:20_000]
    cache.write(path, cache.seal(path, content) if whole else content)
    done = run(program, **{cache.VARIABLE: str(tmp_path), notices.QUIET: ""})
    assert done.stdout == "None\n", (done.stdout, done.stderr)
    assert done.stderr.count("C++ library is not ") == 1
    assert ("not loaded: " in done.stderr) == whole


def test_launches_of_a_gpu_s_kernels(monkeypatch):
    """C++ passes CUDA what the Triton backend describes, in the context of the plan's device.

    Functions of this test take the place of CUDA's, and CPU tensors that of a GPU's.
    """
    normgrad.layer_norm(torch.ones(2, 3), (3,))  # from the first tensor of PyTorch's on, C++ runs
    seen, contexts, statuses, answers = [], [], [], []
    number, words = ctypes.c_int32, ctypes.POINTER(ctypes.c_int64)
    handle, found = ctypes.c_void_p, ctypes.POINTER(ctypes.c_void_p)

    @ctypes.CFUNCTYPE(number, words, ctypes.c_int64, ctypes.POINTER(words), handle)
    def launch(config, kernel, parameters, extra):
        values = [parameters[index][0] for index in range(WORKSPACE + 1 + {7: 2, 9: 3}[kernel])]
        seen.append((config[: cuda_driver.KERNEL], kernel, values, list(contexts)))
        return statuses.pop(0) if statuses else 0

    @ctypes.CFUNCTYPE(number, handle)
    def push(context):
        contexts.append(context)
        return answers.pop(0) if answers else 0

    @ctypes.CFUNCTYPE(number, found)
    def pop(context):
        context[0] = contexts.pop()
        return 0

    @ctypes.CFUNCTYPE(number, number, ctypes.POINTER(ctypes.c_char_p))
    def describe(status, text):
        text[0] = {1: b"invalid argument", 700: b"an illegal address"}[status]
        return 0

    @ctypes.CFUNCTYPE(number, number, found)
    def stream_of(device, stream):
        stream[0] = {5: 17}[device]
        return 0

    rows = np.zeros((2, cuda_driver.LAUNCH_FIELDS), np.int64)
    for row, constants in zip(rows, ((7, 8), (9, 10, 11)), strict=True):
        parameters = [0] * (WORKSPACE + 1) + [*constants]
        row[:4] = 1, 2, 3, 4
        row[cuda_driver.KERNEL], row[cuda_driver.COUNT] = constants[0], len(parameters)
        row[cuda_driver.PARAMETERS :][: len(parameters)] = parameters
    functions = (ctypes.cast(each, handle) for each in (launch, push, pop, describe, stream_of))
    launcher = cuda_driver.Launcher(*functions, 19, 5)
    launches = NativeSchedule(
        [], rows.ravel().tolist(), len(rows), launcher=ctypes.addressof(launcher)
    )
    monkeypatch.setattr(Runner, "native", lambda runner, addresses: launches)
    x, w, b = torch.randn(3, 11, 13), torch.randn(13), torch.randn(13)

    def call():
        return normgrad.layer_norm(x, (13,), w, b)

    made = call()
    assert [(config, kernel, inside) for config, kernel, _, inside in seen] == [
        ([1, 2, 3, 4, 17, 0, 0], 7, [19]),
        ([1, 2, 3, 4, 17, 0, 0], 9, [19]),
    ]
    assert contexts == []
    (first, second) = (values for _, _, values, _ in seen)
    places = {Role.INPUT: x, Role.WEIGHT: w, Role.BIAS: b, Role.RESULT: made[0]}
    assert all(first[role] == tensor.data_ptr() for role, tensor in places.items())
    assert first[Role.GRAD_OUT] == first[Role.INPUT]
    assert first[WORKSPACE + 1 :] == [7, 8]
    assert second == [*first[: WORKSPACE + 1], 9, 10, 11]

    for refused, text in (([1], "invalid argument"), ([0, 700], "an illegal address")):
        statuses[:] = refused
        with pytest.raises(RuntimeError, match=f"^cuda:5: CUDA refused a launch: {text}"):
            call()
        assert contexts == []
    seen.clear()
    answers[:] = [1]
    with pytest.raises(RuntimeError, match=r"^cuda:5: CUDA refused a launch: invalid argument"):
        call()
    assert seen == []
