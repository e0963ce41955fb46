"""``normgrad info``: versions, settings and hardware of the machine it runs on."""

from __future__ import annotations

import ctypes
import platform
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

import normgrad

from ..backends import choice
from ..support import cache, threads, torch_build
from ..support.forks import KernelError
from ..support.machine import NOT_INSTALLED, this_machine, version
from ..support.settings import SettingError
from ..tensors import devices

Rows = Sequence[tuple[str, str]]

#: The CPU features that matter to the kernels, by LLVM's names.
FEATURES = (
    *("sse4.2", "avx", "avx2", "fma", "f16c", "avx512f", "avx512bw", "avx512vl"),
    *("avx512bf16", "avx512fp16", "amx-bf16"),
    *("neon", "fullfp16", "fp16fml", "bf16", "sve", "sve2"),
)

#: The title of the row with the folder of the compiled kernels.
FOLDER = "kept in"

_PACKAGES = ("numpy", "numba", "llvmlite", "ml_dtypes", "torch", "triton")


def cpu_name(cpuinfo: Path = Path("/proc/cpuinfo")) -> str:
    """The CPU's name by its maker, and LLVM's name for its kind."""
    import llvmlite.binding as llvm

    try:
        lines = cpuinfo.read_text(errors="replace").splitlines()
    except OSError:
        lines = []
    models = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    name = next(models, "") or platform.processor() or platform.machine()
    return f"{name} ({llvm.get_host_cpu_name()})"


def features(flags: Mapping[str, bool]) -> str:
    """The features that matter, from LLVM's map of features."""
    return ", ".join(name for name in FEATURES if flags.get(name)) or "none that matter"


def _cpu() -> Rows:
    import llvmlite.binding as llvm

    machine = this_machine()
    return (
        ("name", cpu_name()),
        ("architecture", platform.machine()),
        ("features", features(llvm.get_host_cpu_features())),
        ("cores", f"{machine.cores} that this process may use"),
        ("L2 cache", f"{machine.l2 / 2**20:g} MiB of one core"),
        ("L3 cache", f"{machine.l3 / 2**20:g} MiB in all"),
    )


def kernels_kept() -> Rows:
    """The source of kernels, which is the package or compilation, and the compiled ones' folder."""
    from ..backends.cpu.objects import store

    level = store.level()
    source = "compilation, once" if level is None else f"the package, for {level}"
    try:
        place = f"{cache.folder()} ({cache.size() / 2**20:.1f} MiB; `normgrad clean` empties it)"
    except (SettingError, OSError) as error:
        place = str(error)
    return (("come from", source), (FOLDER, place))


def _warm() -> str:
    """How many kernels the first calls find compiled, in the package or in the cache folder."""
    from ..backends.cpu.objects import store, units

    every = units.every()
    try:
        missing = len(every) - len(store.find(every))
    except SettingError:  # the folder's row shows the error
        return "none"
    rest = f"; `normgrad warmup` compiles the other {missing}" if missing else ""
    return f"{len(every) - missing} of {len(every)}{rest}"


def _kernels() -> Rows:
    try:
        count = str(threads.get_num_threads())
    except SettingError:  # the backend's row shows the error
        count = "none"
    has_torch = version("torch") != NOT_INSTALLED
    layers = [("layers run", route_of_layers())] if has_torch else []
    number = f"{count} ({threads.VARIABLE} sets the number)"
    return (("threads", number), ("compiled", _warm()), *kernels_kept(), *layers)


def route_of_layers() -> str:
    """Whether PyTorch's layers run by the C++ library, or why not."""
    reason = torch_build.missing()
    return "by the C++ library" if reason is None else f"by PyTorch; the C++ library is {reason}"


def gpus(driver: str = "libcuda.so.1") -> list[str]:
    """The GPUs' names from CUDA's driver, since loading PyTorch takes seconds."""
    count, device, name = ctypes.c_int(), ctypes.c_int(), ctypes.create_string_buffer(256)
    names: list[str] = []
    with suppress(OSError, AttributeError):  # no driver, or one without these functions
        cuda = ctypes.CDLL(driver)
        failed = cuda.cuInit(0) or cuda.cuDeviceGetCount(ctypes.byref(count))
        for index in range(0 if failed else count.value):
            failed = cuda.cuDeviceGet(ctypes.byref(device), index)
            if failed or cuda.cuDeviceGetName(name, len(name), device):
                break
            names.append(name.value.decode(errors="replace"))
    return names


def gpus_unused() -> str | None:
    """The reason why GPUs are not used, as far as it shows without loading PyTorch."""
    for package, title in (("torch", "PyTorch"), ("triton", "Triton")):
        installed = version(package)
        if installed == NOT_INSTALLED:
            return f"{title} is not installed"
        if installed.endswith("+cpu"):
            return f"this {title} is a build for CPUs only"
    return devices.unusable() if "torch" in sys.modules else None


def check_settings() -> None:
    """Check that normgrad can compute on the CPU; else raise a SettingError or KernelError."""
    choice.check()
    threads.get_num_threads()


def _backends() -> Rows:
    try:
        check_settings()
        rows = [("cpu", "usable")]
    except (SettingError, KernelError) as error:
        rows = [("cpu", f"not used: {error}")]
    names = gpus()
    if not names:
        return *rows, ("gpu", "none that CUDA's driver reports")
    reason = gpus_unused()
    verdict = "usable" if reason is None else f"not used: {reason}"
    for index, name in enumerate(names):
        rows.append((f"cuda:{index}", f"{name} ({verdict})"))
        if reason is None:
            rows.append(("its kernels", gpu_kernels(name)))
    return rows


def gpu_kernels(name: str) -> str:
    """The result of the kernels' check on a GPU of this name, and how to repeat the check."""
    from ..backends.triton import selfcheck

    try:
        wrong, path = selfcheck.read(name), selfcheck.path_of(name)
    except (SettingError, OSError) as error:
        return str(error)
    if wrong is None:
        return f"not checked yet: the first use checks it, and stores the verdict in {path}"
    return f"checked: {wrong or 'results are within the bound'} (delete {path} to check again)"


def gather() -> list[tuple[str, Rows]]:
    """All rows, in groups."""
    versions = (
        ("normgrad", normgrad.__version__),
        ("python", f"{platform.python_version()} ({platform.python_implementation()})"),
        *((package, version(package)) for package in _PACKAGES),
    )
    return [
        ("versions", versions),
        ("cpu", _cpu()),
        ("kernels", _kernels()),
        ("backends", _backends()),
    ]
