"""normgrad warmup."""

from __future__ import annotations

import os
import random
import re
import signal
import subprocess
import sys
import time
from importlib.util import find_spec
from pathlib import Path

import pytest

from normgrad.backends.cpu.objects import processes, store, units
from normgrad.cli import warmup as typical
from normgrad.operators.by_name import PLANNED
from normgrad.support import cache, torch_build
from normgrad.tensors import dtypes


def named(programs):
    return {unit for program in programs for unit in units.needed(program)}


@pytest.fixture
def compiled(monkeypatch, tmp_path):
    """What is compiled, to bytes that are no object file, for an empty cache folder."""
    names = []

    def compile_them(units, count, tick):
        for unit in units:
            tick()
            names.append(unit)
            yield unit, b"machine code"

    monkeypatch.setenv(cache.VARIABLE, str(tmp_path / "cache"))
    monkeypatch.setattr(processes, "compiled", compile_them)
    monkeypatch.setattr(store, "level", lambda: None)
    monkeypatch.setattr(torch_build, "build", lambda: None)
    return names


def test_it_goes_through_everything(cli, compiled, tmp_path):
    result = cli("warmup")
    assert (result.exit_code, result.stderr) == (0, "")
    assert compiled == units.every()
    assert f"{len(compiled)}, in " in result.stdout
    assert len([*tmp_path.rglob("*.o")]) == len(compiled)
    layers = "layers run +by the C\\+\\+ library, built in"
    assert bool(re.search(layers, result.stdout)) == bool(find_spec("torch"))


def test_what_is_at_hand_is_not_compiled(cli, compiled, monkeypatch):
    assert cli("warmup", "--dtype", "float32").exit_code == 0
    some = set(compiled)
    compiled.clear()
    result = cli("warmup")
    assert (result.exit_code, result.stderr) == (0, "")
    assert set(compiled) == set(units.every()) - some
    compiled.clear()
    monkeypatch.setattr(store, "level", lambda: "x86-64-v4")
    monkeypatch.setattr(store, "find", lambda units: dict.fromkeys(units, b"brought"))
    result = cli("warmup")
    assert (result.exit_code, result.stderr, compiled) == (0, "", [])
    assert re.search("come from +the package, for x86-64-v4", result.stdout)


def test_without_a_folder_it_says_so(cli, compiled, monkeypatch, tmp_path):
    (tmp_path / "cache").write_bytes(b"")
    result = cli("warmup")
    assert (result.exit_code, result.stdout) == (2, "")
    start = "normgrad: warmup: kernels cannot be stored: [Errno 20] Not a directory: "
    assert result.stderr.startswith(start)
    assert result.stderr.endswith("; set NORMGRAD_CACHE_DIR to a folder that can be written\n")


def test_everything_is_every_kernel_a_program_can_name():
    names = units.every()
    # Rows have six operations and five along them, columns seven, for four dtypes; moments have
    # one for half data; gradients and the forward pass of few positions in columns have one for all
    # but float64; what moves tiles has one for ten pairs of dtypes; and there are the driver, three
    # for threads, tasks, those in tiles, and seven units of arithmetic.
    assert len(names) == (6 + 5 + 7) * 4 + 2 * 2 + 2 * 3 + 10 + 1 + 3 + 2 + 7
    of_cpus = named(typical.schedules([*PLANNED], dtypes.FLOATS, typical.LAYOUTS))
    assert of_cpus == set(names)


def test_every_unit_has_a_source():
    from normgrad.backends.cpu.objects import compiler

    assert set(compiler.sources()) == set(units.every())


# What is asked for

#: What every program takes that is for several threads.
ALWAYS = (
    *("driver", "threads of OpenMP", "begin", "take"),
    "tasks",
)


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
    assert cli("warmup", "--dtype", "float32").exit_code == 0
    one = list(compiled)
    assert cli("warmup", "--dtype", "float32", "--dtype", "float64").exit_code == 0
    both = list(compiled)
    assert set(one) < set(both)
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
    kept = named(typical.schedules([name], [dtype], look[:1]))
    for _ in range(5):
        samples, channels = rng.choice((1, 2, 7, 64)), rng.choice((16, 24, 64, 512, 8000))
        shape = samples, channels, rng.choice((1, 2, 9, 20, 49, 100, 784, 3000, 50_000))
        choices = rng.choice([*typical._choices(name)])
        schedule = typical._schedule(PLANNED[name], choices, shape, look, look, rng.random() < 0.5)
        assert named([schedule]) <= kept, (name, look, shape, choices)


# Processes


@pytest.mark.skipif(not Path("/proc/self").exists(), reason="looks at the system's processes")
def test_an_interrupt_ends_all_processes(tmp_path):
    process = subprocess.Popen(
        [sys.executable, "-m", "normgrad.cli", "warmup"],
        env={**os.environ, cache.VARIABLE: str(tmp_path)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        # Whoever runs the tests in the background of a shell has them ignore interrupts.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )
    started = time.monotonic()
    while not any(tmp_path.rglob("*.o")) and time.monotonic() - started < 60:
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
