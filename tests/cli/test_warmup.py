"""normgrad warmup."""

from __future__ import annotations

from normgrad.backends.cpu import runtime


def test_it_goes_through_everything(cli, monkeypatch):
    done = []
    units = [(f"kernel {number}", lambda number=number: done.append(number)) for number in range(5)]
    monkeypatch.setattr(runtime, "everything", lambda: units)
    result = cli("warmup")
    assert (result.exit_code, result.stderr) == (0, "")
    assert done == [0, 1, 2, 3, 4]
    assert "5, in " in result.stdout


def test_without_a_folder_it_says_so(cli, monkeypatch):
    monkeypatch.setattr(runtime, "cache_folder", lambda: None)
    result = cli("warmup")
    assert (result.exit_code, result.stdout) == (2, "")
    assert "warmup: no folder for compiled kernels can be written" in result.stderr


def test_everything_is_every_kernel_a_program_can_name():
    names = [name for name, _ in runtime.everything()]
    assert len(names) == len(set(names))
    # Rows and columns of four dtypes, tiles of two arithmetics, each with five operations; what
    # copies tiles for seven pairs of dtypes; two drivers and a team, and the channels of two
    # arithmetics, backward and forward.
    assert len(names) == 5 * (4 + 4 + 2) + 7 + 3 + 2 * 2
