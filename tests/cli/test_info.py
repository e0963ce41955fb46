"""`normgrad info`, `--version`, the help, and what is said of wrong usage."""

import re
import shutil
import subprocess
import sys
from importlib import metadata

import pytest

import normgrad
from normgrad.backends.cpu import target
from normgrad.backends.cpu.objects import store, units
from normgrad.cli import info
from normgrad.operators.by_name import OPERATORS
from normgrad.support import cache
from normgrad.support.machine import this_machine


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
    assert found["kept in"].startswith(str(cache.folder()))
    assert found["cpu"] == "usable"
    if not info.gpus():
        assert found["gpu"] == "none that CUDA's driver reports"
    assert "\x1b" not in result.stdout


DRIVER = """
#include <string.h>
int cuInit(unsigned flags) { return STATUS; }
int cuDeviceGetCount(int *count) { *count = 2; return 0; }
int cuDeviceGet(int *device, int index) { *device = index + 40; return 0; }
int cuDeviceGetName(char *name, int size, int device) {
    strncpy(name, device == 40 ? "Big GPU" : "Small GPU", size);
    return 0;
}
"""


@pytest.mark.parametrize(("status", "names"), [(0, ["Big GPU", "Small GPU"]), (100, [])])
def test_gpus_by_the_driver(tmp_path, status, names):
    if shutil.which("cc") is None:
        pytest.skip("no C compiler")
    (tmp_path / "driver.c").write_text(DRIVER.replace("STATUS", str(status)))
    library = tmp_path / "libcuda.so"
    subprocess.run(
        ["cc", "-shared", "-fPIC", "-o", library, tmp_path / "driver.c"], check=True, timeout=60
    )
    assert info.gpus(str(library)) == names
    assert info.gpus(str(tmp_path / "none.so")) == []
    assert info.gpus("libc.so.6") == []


def test_whether_gpus_are_used(monkeypatch):
    versions = {"torch": "2.13.0", "triton": "3.9.0"}
    monkeypatch.setattr(info, "gpus", lambda: ["Big GPU", "Small GPU"])
    monkeypatch.setattr(info, "version", lambda package: versions[package])
    monkeypatch.setattr(info.devices, "unusable", lambda: "it is too old")
    monkeypatch.delitem(sys.modules, "torch", raising=False)
    monkeypatch.setattr(info, "gpu_kernels", lambda name: f"what is known of {name}")
    assert list(info._backends()) == [
        ("cpu", "usable"),
        ("cuda:0", "Big GPU (usable)"), ("its kernels", "what is known of Big GPU"),
        ("cuda:1", "Small GPU (usable)"), ("its kernels", "what is known of Small GPU"),
    ]  # fmt: skip

    def reason():
        (_, (device, shown), (other, _)) = info._backends()
        assert (device, other) == ("cuda:0", "cuda:1")
        return shown

    monkeypatch.setitem(sys.modules, "torch", object())
    assert reason() == "Big GPU (not used: it is too old)"
    versions["triton"] = "not installed"
    assert reason() == "Big GPU (not used: Triton is not installed)"
    versions["torch"] = "2.13.0+cpu"
    assert reason() == "Big GPU (not used: this PyTorch is a build for CPUs only)"
    versions["torch"] = "not installed"
    assert reason() == "Big GPU (not used: PyTorch is not installed)"


def test_whether_the_cpu_is_used(cli, monkeypatch):
    monkeypatch.setattr(store, "_numba", lambda: None)
    monkeypatch.setattr(store, "level", lambda: None)
    result = cli("info")
    assert (result.exit_code, result.stderr) == (0, "")
    why = f"this processor ({target.processor().name}) has none of the levels"
    assert re.search(rf"^ backends   cpu +not used: {re.escape(why)} ", result.stdout, re.M)


def test_info_loads_no_pytorch():
    code = "import sys; from normgrad.cli import info; info.gather(); print('torch' in sys.modules)"
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=120
    )
    assert result.stdout == "False\n"


def test_where_kernels_are_kept(tmp_path, monkeypatch):
    monkeypatch.setenv(cache.VARIABLE, str(tmp_path))
    empty = f"{tmp_path} (0.0 MiB; `normgrad clean` empties it)"
    assert dict(info.kernels_kept())[info.FOLDER] == empty
    cache.write(tmp_path / cache.KERNELS / f"{0:016}" / "kernel.o", bytes(3 << 20))
    assert dict(info.kernels_kept())[info.FOLDER] == empty.replace("0.0", "3.0")
    monkeypatch.setenv(cache.VARIABLE, "here")
    assert dict(info.kernels_kept())[info.FOLDER] == (
        "NORMGRAD_CACHE_DIR: 'here'; allowed: the absolute path of a folder"
    )


def test_clean_removes_what_normgrad_keeps_and_no_more(cli, tmp_path, monkeypatch):
    monkeypatch.setenv(cache.VARIABLE, str(tmp_path))
    """The user's folders there may have any name."""
    mine = [tmp_path / "mine", tmp_path / cache.KERNELS / "cuda", tmp_path / cache.GPU / "a.cu"]
    for path in mine:
        cache.write(path, b"")
    cache.write(tmp_path / cache.KERNELS / f"{0:016}" / "kernel.o", bytes(3 << 20))
    for suffix in ("txt", "json"):  # as now and before
        cache.write(tmp_path / cache.GPU / f"0123456789abcdef.{suffix}", b"")
    with cache.alone(cache.TORCH, "build", "works"):
        pass
    for size in ("3.0", "0.0"):
        result = cli("clean")
        assert (result.exit_code, result.stderr) == (0, "")
        assert result.stdout.split() == ["removed", str(tmp_path), size, "MiB"]
        assert {path for path in tmp_path.rglob("*") if path.is_file()} == {*mine}
    monkeypatch.setenv(cache.VARIABLE, "here")
    result = cli("clean")
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr == (
        "normgrad: NORMGRAD_CACHE_DIR: 'here'; allowed: the absolute path of a folder\n"
    )


def test_how_many_kernels_are_compiled(cli, tmp_path, monkeypatch):
    monkeypatch.setenv(cache.VARIABLE, str(tmp_path))
    every = len(units.every())

    def shown():
        return re.search(r"compiled +(.*?) *$", cli("info").stdout, re.M)[1]

    assert shown() == f"0 of {every}; `normgrad warmup` compiles the other {every}"
    store.keep(units.DRIVER, b"machine code")
    assert shown() == f"1 of {every}; `normgrad warmup` compiles the other {every - 1}"
    monkeypatch.setattr(store, "find", lambda units: dict.fromkeys(units, b"brought"))
    assert shown() == f"{every} of {every}"


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


@pytest.mark.parametrize(
    "command", ["run", "bench", "warmup", "verify", "aclnn contract", "capi build", "capi flags"]
)
def test_help_cuts_no_name(cli, monkeypatch, command):
    monkeypatch.setenv("COLUMNS", "80")
    shown = cli(*command.split(), "--help").stdout
    assert max(map(len, shown.splitlines())) == 80
    assert "…" not in shown


def test_help_says_what_a_file_must_contain(cli):
    shown = " ".join(cli("run", "--help").stdout.split())
    assert 'np.savez("layer.npz", operator="batch_norm_backward", training=True' in shown
    assert 'metadata={"operator": "group_norm_backward", "num_groups": "32"}' in shown
    for operator in OPERATORS.values():
        first, *_ = (parameter.name for parameter in operator.inputs)
        assert f"{operator.name}: {first}," in shown
    assert "mean, rstd, [weight]; num_groups, [output_mask], [channel_axis]" in shown
    assert "[save_invstd]; training, [eps], [output_mask], [channel_axis]" in shown


@pytest.mark.parametrize("arguments", [(), ("aclnn",), ("capi",)])
def test_without_a_command_there_is_help(cli, arguments):
    """A flag's line shows no type."""
    result = cli(*arguments)
    assert "Usage: " in result.output
    assert "Commands" in result.output
    assert "<bool>" not in result.output + cli("bench", "--help").stdout


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
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
