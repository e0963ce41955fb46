"""The check of the kernels at their first use: what it computes, when, and what it remembers."""

from __future__ import annotations

import ctypes
import fcntl
import math
import os
import re
import subprocess
import sys
import threading
import time
from contextlib import nullcontext

import numpy as np
import pytest
from common import INTERPRETED, make, run

from normgrad import TensorSpec
from normgrad.backends import choice
from normgrad.backends.triton import runtime, schedule, selfcheck
from normgrad.backends.triton.device import INTERPRETED as MADE_UP
from normgrad.backends.triton.device import Device
from normgrad.cli import info
from normgrad.declarations import contract, lowering
from normgrad.declarations.problem import Role
from normgrad.operators.by_name import PLANNED, choices_of
from normgrad.plans import calls
from normgrad.plans.cache import Cache
from normgrad.support import cache, forks, notices
from normgrad.tensors import dtypes
from normgrad.tensors.strides import Axis

torch = pytest.importorskip("torch")
triton = pytest.importorskip("triton")

GPU = Device("NVIDIA Made-Up (80 GB)")
CHECK = selfcheck.check
GOOD = ""
BAD = "1 results, such as layer_norm in float32: output is off by 5 times its bound"
NORMS = list(selfcheck.norms(MADE_UP))

interpreted = pytest.mark.skipif(not INTERPRETED, reason="kernels are not interpreted")


# What it computes


def test_its_problems_are_those_of_the_operators():
    """But for what plays no part in them: a momentum, an eps without statistics, an axis of one."""
    for norm in NORMS:
        name, axis, way, size, dtype = norm
        _, problem, inputs, exact = selfcheck.trial(*norm)
        operator = PLANNED[name + way]
        choices = {"normalized_shape": size, "training": True, "channel_axis": axis}
        given = {key: value for key, value in choices.items() if key in operator.options}
        options = operator.read_options(**{**choices_of(operator.name), **given})
        specs = {each.name: None for each in operator.inputs}
        for role, array in inputs.items():
            (key,) = (key for key, other in operator.roles(options).items() if other is role)
            kind = dtype.name if role <= Role.INPUT else "float32"
            specs[key] = TensorSpec(array.shape, kind)
        outputs = contract.check(operator, options, specs, {})
        present = contract.present_inputs(operator, options, specs)
        theirs = lowering.problem(operator, options, present, outputs)
        assert problem == theirs._replace(momentum=0.0, eps=1e-5, sets=Axis(1, (0, 0, 0)))
        assert [key for key, _ in exact.values()] == [
            key if role is not Role.OUT_INVSTD or name == "layer_norm" else "invstd"
            for key, role in operator.roles(options).items()
            if role in exact
        ]


@pytest.mark.parametrize("device", [MADE_UP, Device()], ids=["interpreter", "H200"])
def test_it_has_all_kernels_for_tensors(device):
    """In either dtype, layout and number of passes, and with sums in parts.

    For the interpreter these are so few that ``write`` adds them up.
    """
    made = [schedule.build(selfcheck.trial(*norm)[1], device) for norm in selfcheck.norms(device)]
    assert {(each.passes, each.pattern) for each in made} == {
        (passes, pattern)
        for passes in ("one pass", "two passes")
        for pattern in ("rows", "columns")
    }
    kernels = {launch.kernel for each in made for launch in each.launches}
    combining = {"combine_parameters", *(["combine_parts"] if device is not MADE_UP else [])}
    assert kernels == {"sums", "write", "groups", *combining}
    rows = [launch.config for each in made for launch in each.launches if launch.config.next]
    # A line that the interpreter holds is too short for several tiles.
    assert {row.again for row in rows} == {True, device is MADE_UP}


@interpreted
def test_our_results_are_within_their_bound():
    assert selfcheck.check(None, MADE_UP) == ""


@interpreted
@pytest.mark.parametrize(
    ("norm", "text"),
    [
        (NORMS[2], "layer_norm_backward in float32 of shape (8, 160), by 'triton one pass rows "),
        (NORMS[9], "batch_norm in bfloat16 of shape (1032, 8), by 'triton two passes columns "),
    ],
)
def test_wrong_results_are_named(monkeypatch, norm, text):
    """Each result has an error of its own, and so has one that is no number."""
    trial = selfcheck.trial(*norm)
    for role, (name, _) in trial[-1].items():
        for value in (3.0, math.nan):
            is_half = role is Role.RESULT and norm[-1] is dtypes.bfloat16
            bits = dtypes.bfloat16.numpy if is_half else np.float32

            class Wrong(runtime.Runner):
                def run(self, addresses, role=role, value=value, bits=bits):
                    super().run(addresses)
                    first = np.ctypeslib.as_array(
                        (ctypes.c_uint8 * np.dtype(bits).itemsize).from_address(addresses[role])
                    ).view(bits)
                    first[0] = first[0] + value

            monkeypatch.setattr(runtime, "Runner", Wrong)
            (found,) = selfcheck.outside(*trial, None, MADE_UP)
            monkeypatch.undo()
            assert found.startswith(text)
            number = "inf" if math.isnan(value) else r"[\d.e+]+"
            assert re.search(f"': {name} is off by {number} times its bound$", found)


def test_many_wrong_results(monkeypatch):
    monkeypatch.setattr(selfcheck, "outside", lambda *trial: [trial[0]])
    found = selfcheck.check(None, MADE_UP)
    assert found.startswith(
        "13 results, such as layer_norm in float32 of shape (8, 160); layer_norm"
    )
    assert found.count("; ") == 2
    monkeypatch.setattr(selfcheck, "outside", lambda *trial: [])
    assert selfcheck.check(None, MADE_UP) == ""


# When it does, and what it remembers


@pytest.fixture
def checks(monkeypatch, tmp_path):
    """The checks made, by their devices; what comes of them is ``checks.verdict``."""

    class Checks(list):
        verdict = GOOD

        def new_process(self):
            monkeypatch.setattr(selfcheck, "_known", {})

        def check(self, index, device):
            self.append((index, device))
            return self.verdict

    made = Checks()
    made.new_process()
    monkeypatch.setenv(cache.VARIABLE, str(tmp_path / "new" / "folder"))
    monkeypatch.setattr(selfcheck, "check", made.check)
    monkeypatch.setattr(selfcheck, "_is_recorded", lambda index: False)
    return made


def test_it_is_made_once(checks, tmp_path, caplog):
    path = selfcheck.path_of(GPU.name)
    assert path.parent == tmp_path / "new" / "folder" / cache.GPU
    assert re.fullmatch(r"[0-9a-f]{16}\.txt", path.name)
    assert selfcheck.read(GPU.name) is None
    for _ in range(2):
        for _ in range(2):
            assert selfcheck.settled(1, GPU)
        assert checks == [(1, GPU)]
        checks.new_process()
    files = sorted(file.name for file in path.parent.iterdir())
    assert files == sorted((path.name, f"{path.stem}.lock"))
    assert selfcheck.read(GPU.name) == GOOD
    logged = [(each.name, each.levelname, each.getMessage()) for each in caplog.records]
    assert logged == [
        ("normgrad", "WARNING", "checking GPU kernels once for NVIDIA Made-Up (80 GB)")
    ]


def test_a_failure_is_remembered(checks):
    checks.verdict = BAD
    messages = []
    for _ in range(2):
        for _ in range(2):
            with pytest.raises(forks.KernelError) as caught:
                selfcheck.settled(0, GPU)
            messages.append(str(caught.value))
        checks.new_process()
    assert len(checks) == 1
    versions = f"Triton {info.version('triton')} and PyTorch {torch.__version__}"
    assert set(messages) == {
        f"cuda:0: kernels that give wrong results on NVIDIA Made-Up (80 GB), with {versions} (1 "
        "results, such as layer_norm in float32: output is off by 5 times its bound); allowed: "
        "another device. Please report it, with what `normgrad info` shows; delete "
        f"{selfcheck.path_of(GPU.name)} to have the next process check again"
    }
    selfcheck.path_of(GPU.name).unlink()
    checks.verdict = GOOD
    assert selfcheck.settled(0, GPU)


@pytest.mark.parametrize("changed", ["torch", "triton", "sources"])
def test_a_verdict_on_something_else_is_none(checks, monkeypatch, tmp_path, changed):
    assert selfcheck.settled(0, GPU)
    checks.new_process()
    if changed == "sources":
        (tmp_path / "kernels.py").write_text("a = 1")
        monkeypatch.setattr(selfcheck, "__file__", str(tmp_path / "selfcheck.py"))
    else:
        monkeypatch.setattr({"torch": torch, "triton": triton}[changed], "__version__", "9.9.0")
    assert selfcheck.read(GPU.name) is None
    assert selfcheck.settled(0, GPU)
    assert len(checks) == 2
    assert selfcheck.read(GPU.name) == GOOD


def test_the_sources_are_this_backend_s(monkeypatch, tmp_path):
    monkeypatch.setattr(selfcheck, "__file__", str(tmp_path / "selfcheck.py"))
    (tmp_path / "kernels.py").write_text("a = 1")
    first = selfcheck.path_of(GPU.name)
    (tmp_path / "notes.txt").write_text("nothing")
    assert selfcheck.path_of(GPU.name) == first
    (tmp_path / "kernels.py").write_text("a = 2")
    assert selfcheck.path_of(GPU.name) != first


def test_gpus_of_other_names_have_other_files(checks):
    other = Device("NVIDIA Other")
    for device in (GPU, other):
        assert selfcheck.settled(0, device)
    checks.new_process()
    for device in (GPU, other):
        assert selfcheck.settled(0, device)
    assert [device for _, device in checks] == [GPU, other]


@pytest.mark.parametrize("damage", ["empty", "cut", "changed", "of another"])
def test_what_is_no_verdict(checks, damage):
    checks.verdict = BAD
    path, other = selfcheck.path_of(GPU.name), Device("NVIDIA Other")
    for device in (GPU, other):
        with pytest.raises(forks.KernelError):
            selfcheck.settled(0, device)
    whole = path.read_bytes()
    path.write_bytes(
        {
            "empty": b"",
            "cut": whole[1:],
            "changed": whole.replace(b"off by 5", b"off by 6"),
            "of another": selfcheck.path_of(other.name).read_bytes(),
        }[damage]
    )
    checks.new_process()
    checks.verdict = GOOD
    assert selfcheck.read(GPU.name) is None
    assert selfcheck.settled(0, GPU)
    assert len(checks) == 3
    assert selfcheck.read(GPU.name) == GOOD


def test_a_folder_that_cannot_be_written(checks, monkeypatch, tmp_path):
    (tmp_path / "file").write_text("not a folder")
    monkeypatch.setenv(cache.VARIABLE, str(tmp_path / "file" / "folder"))
    for process in (1, 2):
        for _ in range(2):
            assert selfcheck.settled(0, GPU)
        assert len(checks) == process
        checks.new_process()
    checks.verdict = BAD
    for _ in range(2):
        with pytest.raises(forks.KernelError):
            selfcheck.settled(0, GPU)
    assert len(checks) == 3
    assert (tmp_path / "file").read_text() == "not a folder"


def test_a_pipe_in_the_lock_s_place(checks):
    """Nobody waits for whoever writes to it."""
    path = selfcheck.path_of(GPU.name).with_suffix(".lock")
    path.parent.mkdir(parents=True)
    os.mkfifo(path)
    assert selfcheck.settled(0, GPU)
    assert len(checks) == 1


def test_it_waits_where_calls_are_recorded(checks, monkeypatch):
    monkeypatch.setattr(selfcheck, "_is_recorded", lambda index: index == 1)
    assert not selfcheck.settled(1, GPU)
    assert checks == []
    assert selfcheck.settled(0, GPU)
    assert selfcheck.settled(1, GPU)  # what is known is said there too
    assert len(checks) == 1


def test_what_records_calls(monkeypatch):
    from torch._subclasses.fake_tensor import FakeTensorMode

    entered = []
    capturing = False
    monkeypatch.setattr(torch.cuda, "device", lambda index: entered.append(index) or nullcontext())
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: capturing)
    assert not selfcheck._is_recorded(1)
    capturing = True
    assert selfcheck._is_recorded(1)
    capturing = False
    with FakeTensorMode():
        assert selfcheck._is_recorded(1)
    monkeypatch.setattr(torch.compiler, "is_compiling", lambda: True)
    assert selfcheck._is_recorded(1)
    assert entered == [1] * 2


def test_it_needs_no_plans():
    """Its imports end before those of callers: of plans, the operators' functions and the suite."""
    program = (
        "import sys, importlib\n"
        "sys.modules['normgrad.plans.plan'] = sys.modules['normgrad.testing'] = None\n"
        "import pathlib, types\n"
        "package = types.ModuleType('normgrad')\n"
        f"package.__path__ = [{str(next(iter(__import__('normgrad').__path__)))!r}]\n"
        "sys.modules['normgrad'] = package\n"
        "importlib.import_module('normgrad.backends.triton.selfcheck')\n"
        "assert 'normgrad.operators.by_name' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True)


@interpreted
def test_a_first_call_checks_before_it_computes(checks, monkeypatch):
    """The whole way, as if the interpreter were a GPU."""
    backend = choice._Triton(None)
    backend._index = 0
    monkeypatch.setattr(choice, "_triton", lambda index: backend)
    monkeypatch.setattr(calls, "_plans", Cache())
    with monkeypatch.context() as patch:
        real = runtime.Runner
        patch.setattr(runtime, "Runner", lambda schedule, index: real(schedule, None))
        run(make("train", (3, 4, 5)))
    assert checks == [(0, MADE_UP)]
    assert backend._checked


def test_other_processes_wait_for_one_check(checks, caplog, monkeypatch):
    """A lock that another process holds; its verdict is read once it has the result."""
    monkeypatch.delenv(notices.QUIET, raising=False)
    path = selfcheck.path_of(GPU.name)
    path.parent.mkdir(mode=0o700, parents=True)
    with path.with_suffix(".lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        thread = threading.Thread(target=selfcheck.settled, args=(0, GPU))
        thread.start()
        while not caplog.records:
            time.sleep(0.01)
        assert caplog.records[0].getMessage() == (
            "waiting for another process that checks GPU kernels for NVIDIA Made-Up (80 GB)"
        )
        written = selfcheck.path_of(GPU.name)
        cache.write(written, cache.seal(written, GOOD.encode()))
    thread.join(60)
    assert not thread.is_alive()
    assert checks == []


def test_many_threads_wait_for_one_check(checks, monkeypatch):
    started, go_on = threading.Event(), threading.Event()

    def check(index, device):
        started.set()
        assert go_on.wait(60)
        return checks.check(index, device)

    monkeypatch.setattr(selfcheck, "check", check)
    found = []
    threads = [
        threading.Thread(target=lambda: found.append(selfcheck.settled(0, GPU))) for _ in range(8)
    ]
    for thread in threads:
        thread.start()
    assert started.wait(60)
    assert found == []
    go_on.set()
    for thread in threads:
        thread.join(60)
    assert found == [True] * 8
    assert len(checks) == 1


@pytest.mark.parametrize("error", [KeyboardInterrupt, MemoryError])
def test_a_check_that_does_not_end(checks, monkeypatch, error):
    def check(index, device):
        raise error

    monkeypatch.setattr(selfcheck, "check", check)
    with pytest.raises(error):
        selfcheck.settled(0, GPU)
    assert selfcheck.read(GPU.name) is None
    monkeypatch.setattr(selfcheck, "check", checks.check)
    assert selfcheck.settled(0, GPU)
    assert len(checks) == 1


# What info says


def test_what_info_says(checks, monkeypatch):
    path = selfcheck.path_of(GPU.name)
    assert info.gpu_kernels(GPU.name) == (
        f"not checked yet: the first use checks it, and stores the verdict in {path}"
    )
    assert selfcheck.settled(0, GPU)
    again = f"(delete {path} to check again)"
    assert info.gpu_kernels(GPU.name) == f"checked: results are within the bound {again}"
    path.unlink()
    checks.new_process()
    checks.verdict = BAD
    with pytest.raises(forks.KernelError):
        selfcheck.settled(0, GPU)
    assert info.gpu_kernels(GPU.name) == f"checked: {BAD} {again}"
