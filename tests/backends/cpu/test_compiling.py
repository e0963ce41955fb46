"""Compiling: whoever waits for kernels is told once why, and garbage is left for later."""

from __future__ import annotations

import gc
import io
import logging
import sys

import pytest

from normgrad.backends.cpu import disk, kernels

TOLD = "compiling kernels, which is done once and takes some seconds: they are kept on disk. "


class Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.fixture(autouse=True)
def cold(monkeypatch):
    """A process that has compiled nothing, without kernels on disk, and which is soon impatient."""
    monkeypatch.setattr(disk._Files, "load", lambda files, key: None)
    monkeypatch.setattr(disk._Files, "save", lambda files, key, data: None)
    monkeypatch.setattr(disk, "_compiling", disk._Compiling())
    monkeypatch.setattr(disk, "LONG", 1e-6)


@pytest.fixture
def told(caplog):
    caplog.set_level(logging.INFO, "normgrad")
    return lambda: [record.getMessage() for record in caplog.records if record.name == "normgrad"]


def compile_one():
    kernels.compiled_anew("arithmetic: count")


def test_once_and_while_there_is_something_to_wait_for(monkeypatch, told):
    stderr = Terminal()
    monkeypatch.setattr(sys, "stderr", stderr)
    compile_one()
    assert (told(), stderr.getvalue()) == ([], "")
    compile_one()
    (text,) = told()
    assert text == TOLD + "`normgrad warmup` does it beforehand."
    assert stderr.getvalue() == f"normgrad: {text}\n"
    compile_one()
    assert (told(), stderr.getvalue()) == ([text], f"normgrad: {text}\n")


@pytest.mark.parametrize("stderr", [io.StringIO(), None])
def test_only_a_record_where_there_is_no_terminal(monkeypatch, told, stderr):
    monkeypatch.setattr(sys, "stderr", stderr)
    compile_one()
    compile_one()
    assert len(told()) == 1
    assert not stderr or stderr.getvalue() == ""


def test_a_closed_terminal(monkeypatch, told):
    stderr = Terminal()
    stderr.close()
    monkeypatch.setattr(sys, "stderr", stderr)
    compile_one()
    compile_one()
    assert len(told()) == 1


def test_not_for_a_moment(monkeypatch, told):
    monkeypatch.setattr(disk, "LONG", 60.0)
    compile_one()
    compile_one()
    assert told() == []


def test_not_beforehand(told):
    disk.beforehand()
    compile_one()
    compile_one()
    assert told() == []


def test_not_for_what_is_read_from_disk(monkeypatch, told):
    compile_one()
    compiled = kernels.compiled_anew("arithmetic: count")
    kept = []
    monkeypatch.setattr(disk._Files, "save", lambda files, key, data: kept.append(data))
    compile_one()
    monkeypatch.setattr(disk, "_compiling", disk._Compiling())
    monkeypatch.setattr(disk._Files, "load", lambda files, key: kept[0])
    for _ in range(3):
        assert kernels.compiled_anew("arithmetic: count").cache_hits == 1
    assert disk._compiling._seconds == 0
    assert compiled.cache_hits == 0
    assert len(told()) == 1


def test_what_is_on_disk_is_known_without_compiling(monkeypatch, told):
    monkeypatch.setattr(kernels, "compiled_anew", lambda unit: pytest.fail("compiled"))
    assert not kernels.is_kept("arithmetic: count")
    monkeypatch.setattr(disk._Files, "load", lambda files, key: "kept")
    assert kernels.is_kept("arithmetic: count")
    monkeypatch.setattr(disk._Files, "load", lambda files, key: 1 / 0)
    assert not kernels.is_kept("arithmetic: count")


@pytest.mark.parametrize("enabled", [True, False])
def test_garbage_is_collected_again_afterwards(monkeypatch, enabled):
    during = []
    original = disk.KernelCache.load_overload

    def load(cache, *arguments):
        during.append(gc.isenabled())
        return original(cache, *arguments)

    monkeypatch.setattr(disk.KernelCache, "load_overload", load)
    before = gc.isenabled()
    (gc.enable if enabled else gc.disable)()
    try:
        compile_one()
        assert (during, gc.isenabled()) == ([False], enabled)
    finally:
        (gc.enable if before else gc.disable)()
