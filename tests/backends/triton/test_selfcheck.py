"""The check of the kernels at their first use: what it computes, when, and what it remembers."""

from __future__ import annotations

import fcntl
import json
import os
import re
import threading
import time
from contextlib import nullcontext
from datetime import date

import pytest
from support import FULL, INTERPRETED, make, run

from normgrad import cache, loading, notices, plans
from normgrad.backends import choice
from normgrad.backends.triton import selfcheck
from normgrad.backends.triton.device import INTERPRETED as MADE_UP
from normgrad.backends.triton.device import Device
from normgrad.cli import info
from normgrad.testing import FORWARD, GRADIENTS

torch = pytest.importorskip("torch")
pytest.importorskip("triton")

from normgrad.backends.triton import small_cases  # noqa: E402

GPU = Device("NVIDIA Made-Up (80 GB)")
CHECK = selfcheck.check
GOOD = selfcheck.Verdict("2026-11-22", 34, "")
BAD = selfcheck.Verdict("2026-11-22", 34, "batch_norm_stats in float32: mean is off by 5 times")


# What it computes


#: Where tests are not interpreted, the CPU's kernels compute; compiling all of them takes long.
long = pytest.mark.skipif(not (INTERPRETED or FULL), reason="by nox -s full")


def test_every_operator_in_both_dtypes_and_layouts():
    cases = small_cases.cases(MADE_UP.persistent)
    looks = {(case.kind, case.dtype, case.layout) for case in cases}
    assert looks == {
        (kind, *look)
        for kind in (*GRADIENTS, *FORWARD)
        for look in (("float32", "contiguous"), ("bfloat16", "channels_last"))
    }
    assert len(cases) == len(looks) + 2
    assert len({case.kind for case in cases if len(case.shape) == 2}) == 2


def few(monkeypatch, *kinds):
    """Have a check look at the cases of some kinds only: an interpreter takes long for all."""
    real = small_cases.cases
    monkeypatch.setattr(
        small_cases, "cases", lambda held: [case for case in real(held) if case.kind in kinds]
    )


@long
def test_our_results_are_within_their_bound(monkeypatch):
    """By Triton's interpreter where tests are, else by the CPU's kernels; none of it is kept.

    Triton's kernels are those of one pass and of two, in either look.
    """
    made = []

    def plan(*arguments, **named):
        made.append(real(*arguments, **named))
        return made[-1]

    real = small_cases.plan
    monkeypatch.setattr(small_cases, "plan", plan)
    monkeypatch.setattr(plans, "_plans", {})
    monkeypatch.setattr(plans, "_ready", {})
    verdict = selfcheck.check("cpu", MADE_UP)
    assert verdict == selfcheck.Verdict(date.today().isoformat(), 34, "")
    assert plans._plans == {}
    ways = {re.match(r"triton (one pass|two passes) (rows|columns)", each.path) for each in made}
    assert not INTERPRETED or {way.groups() for way in ways if way} == {
        ("one pass", "rows"), ("one pass", "columns"),
        ("two passes", "rows"), ("two passes", "columns"),
    }  # fmt: skip


@long
def test_wrong_results_are_named(monkeypatch):
    class Wrong:
        """A plan whose last result is too large."""

        def __init__(self, plan):
            self.path, self.out_is_tensor, self._plan = "its path", plan.out_is_tensor, plan

        def run(self, **tensors):
            result = self._plan.run(**tensors)
            (result if self.out_is_tensor else result[-1]).mul_(1.5)
            return result

    def plan(name, **arguments):
        made = real(name, **arguments)
        return Wrong(made) if name in wrong else made

    real = small_cases.plan
    monkeypatch.setattr(small_cases, "plan", plan)
    few(monkeypatch, "train", "elemt", "stats", "group_norm")
    wrong = ("batch_norm_backward_elemt",)
    failure = selfcheck.check("cpu", MADE_UP).failure
    number = r"[\d.e+]+ times its bound"
    assert re.fullmatch(
        r"batch_norm_backward_elemt \(elemt\) in float32, contiguous, of shape \(3, 8, 5, 7\), by "
        rf"'its path': grad_input is off by {number}; "
        r"batch_norm_backward_elemt \(elemt\) in bfloat16, channels_last, of shape \(2, 4, 256\), "
        rf"by 'its path': grad_input is off by {number}",
        failure,
    )
    wrong = ("batch_norm_stats", "group_norm_backward")
    failure = selfcheck.check("cpu", MADE_UP).failure
    assert failure.count("times its bound") == 3
    assert "group_norm_backward (group_norm) in bfloat16" in failure
    assert failure.endswith("; and 2 results more")


def test_a_result_that_is_no_number(monkeypatch):
    def plan(name, **arguments):
        made = real(name, **arguments)
        run = made.run
        made.run = lambda **tensors: [each.fill_(torch.nan) for each in run(**tensors)]
        return made

    real = small_cases.plan
    monkeypatch.setattr(small_cases, "plan", plan)
    found = small_cases.outside(small_cases.cases(64)[0], "cpu")
    assert [words.partition("': ")[2] for words in found] == [
        f"{name} is off by inf times its bound"
        for name in ("grad_input", "grad_weight", "grad_bias")
    ]


# When it does, and what it remembers


@pytest.fixture
def checks(monkeypatch, tmp_path):
    """The checks made, by their devices; what comes of them is ``checks.verdict``."""

    class Checks(list):
        verdict = GOOD

        def new_process(self):
            monkeypatch.setattr(selfcheck, "_known", {})

        def check(self, where, device):
            self.append((where, device))
            return self.verdict

    made = Checks()
    made.new_process()
    monkeypatch.setenv(cache.VARIABLE, str(tmp_path / "new" / "folder"))
    monkeypatch.setattr(selfcheck, "check", made.check)
    monkeypatch.setattr(selfcheck, "_is_recorded", lambda where: False)
    return made


def test_it_is_made_once(checks, tmp_path, caplog):
    path = selfcheck.path_of(GPU.name)
    assert path == tmp_path / "new" / "folder" / cache.GPU / "nvidia-made-up-80-gb.json"
    assert selfcheck.read(GPU.name) is None
    for _ in range(2):
        for _ in range(2):
            assert selfcheck.settled("cuda:1", GPU)
        assert checks == [("cuda:1", GPU)]
        checks.new_process()
    files = sorted(file.name for file in path.parent.iterdir())
    assert files == [path.name, "nvidia-made-up-80-gb.lock"]
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
            with pytest.raises(loading.KernelError) as caught:
                selfcheck.settled("cuda:0", GPU)
            messages.append(str(caught.value))
        checks.new_process()
    assert len(checks) == 1
    versions = f"Triton {info.version('triton')} and PyTorch {info.version('torch')}"
    assert set(messages) == {
        f"cuda:0: kernels that give wrong results on NVIDIA Made-Up (80 GB), with {versions} "
        "(checked on 2026-11-22: batch_norm_stats in float32: mean is off by 5 times); allowed: "
        "another device. Please report it, with what `normgrad info` shows; delete "
        f"{selfcheck.path_of(GPU.name)} to have the next process check again"
    }
    selfcheck.path_of(GPU.name).unlink()
    checks.verdict = GOOD
    assert selfcheck.settled("cuda:0", GPU)


@pytest.mark.parametrize("changed", ["torch", "triton", "normgrad", "sources"])
def test_a_verdict_on_something_else_is_none(checks, monkeypatch, changed):
    assert selfcheck.settled("cuda:0", GPU)
    checks.new_process()
    if changed == "sources":
        monkeypatch.setattr(selfcheck, "_sources", lambda: "others")
    else:
        version = selfcheck._version
        monkeypatch.setattr(
            selfcheck, "_version", lambda each: "0.0" if each == changed else version(each)
        )
    assert selfcheck.read(GPU.name) is None
    assert selfcheck.settled("cuda:0", GPU)
    assert len(checks) == 2
    assert selfcheck.read(GPU.name) == GOOD


def test_the_sources_are_this_backend_s(monkeypatch, tmp_path):
    monkeypatch.setattr(selfcheck, "__file__", str(tmp_path / "selfcheck.py"))
    sources = selfcheck._sources.__wrapped__
    (tmp_path / "kernels.py").write_text("a = 1")
    first = sources()
    (tmp_path / "notes.txt").write_text("nothing")
    assert sources() == first
    (tmp_path / "kernels.py").write_text("a = 2")
    assert sources() != first


def test_gpus_of_other_names_have_other_files(checks):
    other = Device("NVIDIA Other")
    for device in (GPU, other):
        assert selfcheck.settled("cuda:0", device)
    checks.new_process()
    for device in (GPU, other):
        assert selfcheck.settled("cuda:0", device)
    assert [device for _, device in checks] == [GPU, other]


@pytest.mark.parametrize(
    "content",
    [
        b"", b"{", b"null", b"[]", b"7", b'"text"', b"\xff\xfe", b"{}", b'{"subject": 1}',
        b'{"subject": {"gpu": []}}', b"[" * 100_000, "no cases", "no number", "infinitely many",
    ],
    ids=lambda content: str(content)[:30],
)  # fmt: skip
def test_what_is_no_verdict(checks, content):
    path = selfcheck.path_of(GPU.name)
    assert selfcheck.settled("cuda:0", GPU)
    if isinstance(content, str):
        found = json.loads(path.read_text())
        del found["cases"]
        cases = {"no number": {"cases": "many"}, "infinitely many": {"cases": float("inf")}}
        content = json.dumps(found | cases.get(content, {})).encode()
    path.write_bytes(content)
    checks.new_process()
    assert selfcheck.read(GPU.name) is None
    assert selfcheck.settled("cuda:0", GPU)
    assert len(checks) == 2
    assert selfcheck.read(GPU.name) == GOOD


def test_a_folder_that_cannot_be_written(checks, monkeypatch, tmp_path):
    (tmp_path / "file").write_text("not a folder")
    monkeypatch.setenv(cache.VARIABLE, str(tmp_path / "file" / "folder"))
    for process in (1, 2):
        for _ in range(2):
            assert selfcheck.settled("cuda:0", GPU)
        assert len(checks) == process
        checks.new_process()
    checks.verdict = BAD
    for _ in range(2):
        with pytest.raises(loading.KernelError):
            selfcheck.settled("cuda:0", GPU)
    assert len(checks) == 3
    assert (tmp_path / "file").read_text() == "not a folder"


def test_a_pipe_in_the_lock_s_place(checks):
    """Nobody waits for whoever writes to it."""
    path = selfcheck.path_of(GPU.name).with_suffix(".lock")
    path.parent.mkdir(parents=True)
    os.mkfifo(path)
    assert selfcheck.settled("cuda:0", GPU)
    assert len(checks) == 1


def test_it_waits_where_calls_are_recorded(checks, monkeypatch):
    monkeypatch.setattr(selfcheck, "_is_recorded", lambda where: where == "cuda:1")
    assert not selfcheck.settled("cuda:1", GPU)
    assert checks == []
    assert selfcheck.settled("cuda:0", GPU)
    assert selfcheck.settled("cuda:1", GPU)  # what is known is said there too
    assert len(checks) == 1


def test_what_records_calls(monkeypatch):
    from torch._subclasses.fake_tensor import FakeTensorMode

    entered = []
    capturing = False
    monkeypatch.setattr(torch.cuda, "device", lambda where: entered.append(where) or nullcontext())
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: capturing)
    assert not selfcheck._is_recorded("cuda:1")
    capturing = True
    assert selfcheck._is_recorded("cuda:1")
    capturing = False
    with FakeTensorMode():
        assert selfcheck._is_recorded("cuda:1")
    monkeypatch.setattr(torch.compiler, "is_compiling", lambda: True)
    assert selfcheck._is_recorded("cuda:1")
    assert entered == ["cuda:1"] * 2


def test_its_own_plans_are_not_checked(checks, monkeypatch):
    inside = []

    def check(where, device):
        inside.append(selfcheck.settled(where, device))
        return GOOD

    monkeypatch.setattr(selfcheck, "check", check)
    assert selfcheck.settled("cuda:0", GPU)
    assert inside == [False]


@pytest.mark.skipif(not INTERPRETED, reason="kernels are not interpreted")
def test_a_first_call_checks_before_it_computes(checks, monkeypatch):
    """The whole way, as if the interpreter were a GPU: its own plans come by the same backend."""

    def check(where, device):
        checks.append(device)
        return CHECK("cpu", device)

    few(monkeypatch, "train", "forward_group_norm")
    monkeypatch.setattr(selfcheck, "check", check)
    backend = choice._Triton(None)
    backend._checked = False
    monkeypatch.setattr(choice, "_triton", lambda index: backend)
    monkeypatch.setattr(plans, "_plans", {})
    monkeypatch.setattr(plans, "_ready", {})
    run(make("train", (3, 4, 5)))
    assert checks == [MADE_UP]
    assert backend._checked


def test_other_processes_wait_for_one_check(checks, caplog, monkeypatch):
    """A lock that another process holds; its verdict is read once it has the result."""
    monkeypatch.delenv(notices.QUIET, raising=False)
    path = selfcheck.path_of(GPU.name)
    path.parent.mkdir(mode=0o700, parents=True)
    with path.with_suffix(".lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        thread = threading.Thread(target=selfcheck.settled, args=("cuda:0", GPU))
        thread.start()
        while not caplog.records:
            time.sleep(0.01)
        assert caplog.records[0].getMessage() == (
            "waiting for another process that checks GPU kernels for NVIDIA Made-Up (80 GB)"
        )
        selfcheck._write(GPU, GOOD)
    thread.join(60)
    assert not thread.is_alive()
    assert checks == []


def test_many_threads_wait_for_one_check(checks, monkeypatch):
    started, go_on = threading.Event(), threading.Event()

    def check(where, device):
        started.set()
        assert go_on.wait(60)
        return checks.check(where, device)

    monkeypatch.setattr(selfcheck, "check", check)
    found = []
    threads = [
        threading.Thread(target=lambda: found.append(selfcheck.settled("cuda:0", GPU)))
        for _ in range(8)
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
    def check(where, device):
        raise error

    monkeypatch.setattr(selfcheck, "check", check)
    with pytest.raises(error):
        selfcheck.settled("cuda:0", GPU)
    assert selfcheck.read(GPU.name) is None
    monkeypatch.setattr(selfcheck, "check", checks.check)
    assert selfcheck.settled("cuda:0", GPU)
    assert len(checks) == 1


# What info says


def test_what_info_says(checks, monkeypatch):
    path = selfcheck.path_of(GPU.name)
    assert info.gpu_kernels(GPU.name) == (
        f"not checked yet: the first use does, and keeps the verdict as {path}"
    )
    assert selfcheck.settled("cuda:0", GPU)
    again = f"(delete {path} to check again)"
    assert info.gpu_kernels(GPU.name) == (
        f"checked on 2026-11-22: all 34 cases within the bound {again}"
    )
    path.unlink()
    checks.new_process()
    checks.verdict = BAD
    with pytest.raises(loading.KernelError):
        selfcheck.settled("cuda:0", GPU)
    assert info.gpu_kernels(GPU.name) == f"checked on 2026-11-22: {BAD.failure} {again}"
