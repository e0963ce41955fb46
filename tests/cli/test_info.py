"""`normgrad info`, `--version`, the help, and what is said of wrong usage."""

import re
from importlib import metadata

import numba
import pytest

import normgrad
from normgrad.cli import info
from normgrad.machine import this_machine
from normgrad.operators import OPERATORS


def test_info(cli, monkeypatch):
    version = metadata.version

    def without_triton(package):
        if package == "triton":
            raise metadata.PackageNotFoundError(package)
        return version(package)

    monkeypatch.setattr(metadata, "version", without_triton)
    result = cli("info")
    assert (result.exit_code, result.stderr) == (0, "")
    found = dict(re.findall(r"^ .{10} (\S.*?) {2,}(.+?) *$", result.stdout, re.M))
    assert found["normgrad"] == normgrad.__version__
    for package in ("numpy", "numba", "llvmlite", "ml_dtypes"):
        assert found[package] == version(package)
    assert found["triton"] == "not installed"
    machine = this_machine()
    assert found["cores"] == f"{machine.cores} that this process may use"
    assert found["L2 cache"] == f"{machine.l2 / 2**20:g} MiB of one core"
    assert found["L3 cache"] == f"{machine.l3 / 2**20:g} MiB in all"
    assert found["threads"].startswith(f"{normgrad.get_num_threads()} (")
    assert "workqueue" in found["threading layers"]
    assert found["cpu"] == "usable"
    assert found["gpu"] == "no GPU backend in this version"
    assert "\x1b" not in result.stdout


def test_where_kernels_are_kept(tmp_path, monkeypatch):
    monkeypatch.setattr(numba.config, "CACHE_DIR", str(tmp_path))
    assert info.kernel_folder().startswith(str(tmp_path))


def test_features():
    x86 = {"sse4.2": True, "avx2": True, "avx512f": False, "f16c": True, "cx16": True}
    assert info.features(x86) == "sse4.2, avx2, f16c"
    assert info.features({"neon": True, "fullfp16": True, "crc": True}) == "neon, fullfp16"
    assert info.features({}) == "none that matter"


def test_cpu_names(tmp_path):
    cpuinfo = tmp_path / "cpuinfo"
    cpuinfo.write_text("processor\t: 0\nmodel name\t: Some CPU @ 2 GHz\nmodel name\t: Other\n")
    assert re.fullmatch(r"Some CPU @ 2 GHz \(\S+\)", info.cpu_name(cpuinfo))
    cpuinfo.write_text("processor\t: 0\nCPU implementer\t: 0x41\n")
    assert re.fullmatch(r"\S.* \(\S+\)", info.cpu_name(cpuinfo))
    assert re.fullmatch(r"\S.* \(\S+\)", info.cpu_name(tmp_path / "none"))


def test_version(cli):
    result = cli("--version")
    assert (result.exit_code, result.stdout) == (0, f"normgrad {normgrad.__version__}\n")


@pytest.mark.parametrize("arguments", [["--help"], ["run", "--help"], ["info", "--help"]])
def test_help(cli, arguments):
    result = cli(*arguments)
    assert (result.exit_code, result.stderr) == (0, "")
    assert "Usage: " in result.stdout


def test_help_says_what_a_file_must_contain(cli):
    shown = " ".join(cli("run", "--help").stdout.split())
    assert 'np.savez("layer.npz", operator="batch_norm_backward", training=True' in shown
    assert 'metadata={"operator": "group_norm_backward", "num_groups": "32"}' in shown
    for operator in OPERATORS.values():
        first, *_ = (parameter.name for parameter in operator.parameters)
        assert f"{operator.name}: {first}," in shown
    assert "mean, rstd, [gamma]; num_groups, [output_mask], [channel_axis]" in shown
    assert "[save_invstd]; training, [eps], [output_mask], [channel_axis]" in shown


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "Missing command"),
        (("walk",), "No such command"),
        (("run",), "Missing argument"),
        (("run", "x.npz", "--fast"), "No such option"),
        (("run", "x.npz", "--eps", "tiny"), "Invalid value for '--eps'"),
        (("info", "x.npz"), "unexpected extra argument"),
    ],
)
def test_usage(cli, arguments, message):
    result = cli(*arguments)
    assert result.exit_code == 2
    assert result.stdout == ""
    assert message in result.stderr
