"""normgrad warmup."""

from __future__ import annotations

import os
import random
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from normgrad import dtypes
from normgrad.backends.cpu import kernels, packaged, processes, units
from normgrad.cli import typical, warmup
from normgrad.machine import Machine
from normgrad.operators.by_name import PLANNED


def named(programs):
    return {unit for program in programs for unit in units.needed(program)}


@pytest.fixture
def compiled(monkeypatch):
    """What would be compiled; all of it counts as on disk."""
    names = []

    def is_kept(unit):
        names.append(unit)
        return True

    monkeypatch.setattr(kernels, "is_kept", is_kept)
    return names


def test_it_goes_through_everything(cli, compiled):
    result = cli("warmup")
    assert (result.exit_code, result.stderr) == (0, "")
    assert compiled == kernels.usable()
    assert f"{len(compiled)}, in " in result.stdout


def test_what_the_package_brings_is_not_compiled(cli, compiled, monkeypatch):
    monkeypatch.setattr(packaged, "address", lambda unit: None if unit == units.NUMBA else 1)
    monkeypatch.setattr(packaged, "library", lambda: ("x86-64-v4", None))
    result = cli("warmup")
    assert (result.exit_code, result.stderr) == (0, "")
    assert compiled == [unit for unit in kernels.usable() if unit == units.NUMBA]
    assert re.search("come from +the package, for x86-64-v4", result.stdout)


def test_without_a_folder_it_says_so(cli, monkeypatch):
    monkeypatch.setattr(kernels, "cache_folder", lambda: None)
    result = cli("warmup")
    assert (result.exit_code, result.stdout) == (2, "")
    assert "warmup: no folder for compiled kernels can be written" in result.stderr


def test_everything_is_every_kernel_a_program_can_name():
    names = [*kernels.SOURCES]
    # Rows have six operations and three along them, columns seven, for four dtypes; moments have
    # one for half data; gradients and the forward pass along rows have one for all but float64;
    # what moves tiles has one for ten pairs of dtypes; and there are the driver, the way to it, two
    # kinds of threads, tasks, those in tiles, seven units of arithmetic, and that for GPUs.
    assert len(names) == (6 + 3 + 7) * 4 + 2 * 2 + 2 * 3 + 10 + 2 + 2 + 2 + 7 + 1
    of_cpus = named(typical.programs([*PLANNED], dtypes.FLOATS, typical.LAYOUTS))
    assert of_cpus == set(names) - {"launch"}


# What is asked for

#: What every program takes that is for several threads.
ALWAYS = ("driver", "entry", "threads of OpenMP", "threads of Numba", "tasks")


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (
            ["--operator", "batch_norm_gather_stats_with_counts"],
            {*ALWAYS, "arithmetic: gather"},
        ),
        (
            ["--operator", "batch_norm_stats", "--layout", "channels-last", "--dtype", "float16"],
            {
                *ALWAYS,
                "arithmetic: channels",
                "moments of columns, float16",
            },
        ),
    ],
)
def test_options_narrow_it(cli, compiled, options, expected):
    assert cli("warmup", *options).exit_code == 0
    assert set(compiled) == expected


def test_options_can_be_given_again(cli, compiled):
    assert cli("warmup", "--dtype", "float32", "--dtype", "float64").exit_code == 0
    both = list(compiled)
    compiled.clear()
    assert cli("warmup", "--dtype", "float32").exit_code == 0
    assert set(compiled) < set(both)
    assert not [name for name in both if "float16" in name]
    assert "tiles of float64 from float32" in both


@pytest.mark.parametrize(
    ("option", "allowed"),
    [
        ("--operator", "batch_norm_backward, batch_norm_backward_reduce, "),
        ("--dtype", "float32, float16, bfloat16, float64\n"),
        ("--layout", "contiguous, channels-last, mixed\n"),
    ],
)
def test_what_there_is_not(cli, compiled, option, allowed):
    result = cli("warmup", option, "nothing")
    assert (result.exit_code, result.stdout, compiled) == (2, "", [])
    assert result.stderr.startswith(f"normgrad: {option}: 'nothing'; allowed: {allowed}")


@pytest.mark.every_case
@pytest.mark.parametrize("seed", range(40))
def test_typical_calls_stand_for_all_of_their_kind(seed):
    rng = random.Random(seed)
    name, dtype = rng.choice([*PLANNED]), rng.choice(dtypes.FLOATS)
    look = rng.choice(typical.LAYOUTS[:2]), dtype
    kept = named(typical.programs([name], [dtype], look[:1]))
    for _ in range(5):
        samples, channels = rng.choice((1, 2, 7, 64)), rng.choice((16, 24, 64, 512, 8000))
        shape = samples, channels, rng.choice((1, 2, 9, 20, 49, 100, 784, 3000, 50_000))
        choices = rng.choice([*typical._choices(name)])
        program = typical._program(PLANNED[name], choices, shape, look, look, rng.random() < 0.5)
        assert named([program]) <= kept, (name, look, shape, choices)


# Processes


#: What compiles fast.
FEW = ("threads of OpenMP", "arithmetic: count", "arithmetic: constant", "arithmetic: weights")


def kept(folder):
    return [path for path in folder.rglob("*.nbc") if path.stat().st_size]


def test_processes_leave_kernels_on_disk(monkeypatch, tmp_path):
    """And where one of them fails, the other goes on."""
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path))
    done = list(processes.compiled([*FEW, "driver of nobody's"], 2))
    assert {*done} == {*FEW}
    assert len(kept(tmp_path)) == len(FEW)


@pytest.fixture
def not_kept(monkeypatch):
    """What is compiled here, of units that are not on disk if their names are numbers."""
    done = []

    def compile_it(unit):
        if unit.isdecimal():
            done.append(unit)

    monkeypatch.setattr(kernels, "compiled", compile_it)
    monkeypatch.setattr(kernels, "is_kept", lambda unit: not unit.isdecimal())
    return done


@pytest.mark.parametrize("executable", ["/nowhere/python", "/bin/false"])
def test_what_processes_fail_to_do_is_done_here(monkeypatch, not_kept, executable):
    """There it fails too, if it fails at all, and says why."""
    monkeypatch.setattr(sys, "executable", executable)
    monkeypatch.setattr(warmup, "this_machine", lambda: Machine(cores=2))
    units = [str(number) for number in range(2 * processes.UNITS)]
    warmup._compile(units, lambda *arguments: None)
    assert not_kept == units


@pytest.mark.parametrize(("cores", "missing"), [(1, 90), (64, 2 * processes.UNITS - 1), (64, 0)])
def test_none_is_started_for_little(monkeypatch, not_kept, cores, missing):
    monkeypatch.setattr(processes, "compiled", lambda *arguments: pytest.fail("processes"))
    monkeypatch.setattr(warmup, "this_machine", lambda: Machine(cores=cores))
    named = []
    units = [*map(str, range(missing)), "kept"]
    warmup._compile(units, lambda name, step=1: named.append(name) if step else None)
    assert sorted(named) == sorted(units)
    assert len(not_kept) == missing


@pytest.mark.skipif(not Path("/proc/self").exists(), reason="looks at the system's processes")
def test_an_interrupt_ends_all_processes(tmp_path):
    process = subprocess.Popen(
        [sys.executable, "-m", "normgrad.cli", "warmup"],
        env={**os.environ, "NUMBA_CACHE_DIR": str(tmp_path)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        # Whoever runs the tests in the background of a shell has them ignore interrupts.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )
    started = time.monotonic()
    while not kept(tmp_path) and time.monotonic() - started < 60:
        assert process.poll() is None
        time.sleep(0.01)
    process.send_signal(signal.SIGINT)
    stdout, stderr = process.communicate(timeout=60)
    assert (process.returncode, stdout, stderr) == (130, b"", b"normgrad: interrupted\n")
    assert others_in(tmp_path) == []


def others_in(folder):
    """The processes that keep kernels in a folder."""
    return [
        path.parent.name
        for path in Path("/proc").glob("[0-9]*/environ")
        if str(folder) in environment(path)
    ]


def environment(path):
    try:
        return path.read_text(errors="replace")
    except OSError:  # gone, or another user's
        return ""
