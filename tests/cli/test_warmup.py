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
    # Rows have six operations and three along them, columns seven, for four dtypes, and moments of
    # half data; what moves tiles for nine pairs of dtypes; two drivers, a team, tasks, those in
    # tiles, and seven units of arithmetic.
    assert len(names) == (6 + 3 + 7) * 4 + 2 * 2 + 9 + 5 + 7
