"""Compiled kernels to carry to a machine with a GPU, where compiling takes most of a first run.

    python benchmarks/gpu_cache.py plan [FILTER]     # by a Python with PyTorch
    python benchmarks/gpu_cache.py pack              # by a Python with the other machine's Triton
    python benchmarks/gpu_cache.py unpack            # there; benchmarks/gpu_check.sh does it

`plan` lists the kernels that the self-check, tests/gpu and the benchmark's cases launch on an H200,
in build/gpu-kernels.pickle; FILTER is as the benchmark's --filter. `pack` compiles them for compute
capability 9.0 into build/gpu-cache.tar.xz, and `unpack` puts them into the folder of Triton's cache
(TRITON_CACHE_DIR, else ~/.triton/cache).

Triton finds a kernel by a digest of the following, which must be the same on both machines;
otherwise `unpack` says what differs, and unpacks nothing.

- Triton's version and files: its Python files, and its library, of which each version of Python has
  its own, so Python's minor version too (PyTorch's is of no consequence);
- the version that ptxas prints: the wheel's, unless TRITON_PTXAS_PATH names another;
- the compute capability, and the options: those of `backends/triton/runtime.py`, and what
  PTXAS_OPTIONS, TRITON_OVERRIDE_ARCH, TRITON_LIBDEVICE_PATH (the file's content) and TRITON_DEBUG
  add to them;
- variables that Triton reads while it compiles, such as DISABLE_LLVM_OPT;
- the kernels' source text and line numbers, so the same checkout. In Triton 3.6 it also depends on
  the functions whose digests a process computed before: see `JITCallable.cache_key` there.

Triton's own files of an entry name each other by absolute paths; `unpack` writes those anew.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import pickle
import sys
import tarfile
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import replace
from multiprocessing import get_context
from pathlib import Path
from typing import Any
from unittest import mock

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "src"), str(ROOT / "tests"), str(ROOT / "benchmarks")]

KERNELS = ROOT / "build" / "gpu-kernels.pickle"
ARCHIVE = ROOT / "build" / "gpu-cache.tar.xz"
#: The member of the archive that says what its kernels were compiled by.
MADE_BY = "made-by.json"
#: What launching reads of an entry; the other files are stages of the compilation.
NEEDED = (".json", ".ptx", ".cubin")
#: Tests of tests/gpu whose tensors are too large for this machine's memory.
TOO_LARGE = "larger_than or more_than"


def target() -> Any:
    """The GPU that kernels are compiled for."""
    from gpu_code import ARCHITECTURE
    from triton.backends.compiler import GPUTarget

    return GPUTarget("cuda", ARCHITECTURE, 32)


def made_by() -> dict[str, str]:
    """What Triton's digest of a kernel is made of, apart from the kernel."""
    import triton
    from triton._C.libtriton import get_cache_invalidating_env_vars
    from triton.compiler.compiler import make_backend
    from triton.runtime.cache import triton_key

    from normgrad.backends.triton import runtime
    from normgrad.support import cache

    sources = sorted(Path(runtime.__file__).parent.glob("*.py"))
    backend = make_backend(target())
    return {
        "Python": "{}.{}".format(*sys.version_info),
        "Triton": triton.__version__,
        "Triton's files": hashlib.sha256(triton_key().encode()).hexdigest(),
        "ptxas": backend.hash(),
        "options": backend.parse_options(dict(runtime.OPTIONS)).hash(),
        "variables": str(sorted(get_cache_invalidating_env_vars().items())),
        "kernels": cache.digest_of(sources),
    }


# Plan


class Recorder:
    """A backend that notes what would be launched for tensors on the CPU, and computes nothing."""

    def __init__(self) -> None:
        from normgrad.backends.triton import schedule

        self.alignment = schedule.ALIGNMENT
        self.launches: dict[Any, Any] = {}

    def build(self, problem: Any) -> Any:
        """The schedule for an H200, or for what a test has in its place."""
        from normgrad.backends.triton import device, schedule

        return schedule.build(problem, device.of(0))

    def computes(self, made: Any) -> bool:
        """Whether a schedule launches anything."""
        return bool(made.launches)

    def runner(self, made: Any) -> Any:
        """What notes a schedule's launches when it is run."""

        def run(addresses: Sequence[int]) -> None:
            self.note(made, addresses)

        return mock.Mock(run=run, native=lambda addresses: None)

    def note(self, made: Any, addresses: Sequence[int] = (0, 0, 0)) -> None:
        """Note the launches for tensors at these addresses."""
        from gpu_code import kernel_of

        from normgrad.backends.triton import runtime

        for launch in made.launches:
            aligned = replace(launch, config=runtime.aligned(launch.config, addresses))
            self.launches.setdefault(kernel_of(aligned), aligned)


def specs_of(tensors: dict[str, Any]) -> dict[str, Any]:
    """The specs of PyTorch's tensors."""
    from normgrad import TensorSpec

    return {
        name: None
        if value is None
        else TensorSpec(tuple(value.shape), str(value.dtype).removeprefix("torch."), value.stride())
        for name, value in tensors.items()
    }


def calls(pattern: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """The benchmark's calls: operators, and their specs and options."""
    from measuring import data, suite
    from torch._subclasses.fake_tensor import FakeTensorMode

    for timed in suite.select(suite.on_gpu(suite.suite()), pattern):
        if timed.part in (suite.Part.GRADIENTS, suite.Part.FORWARD, suite.Part.ROWS):
            with FakeTensorMode():  # type: ignore[no-untyped-call]
                tensors, options = data.arguments(timed, data.make(timed))
            yield timed.operator.function, {**specs_of(tensors), **options}


def run_tests(recorder: Recorder) -> None:
    """Run the tests in tests/gpu on the CPU, where they launch nothing and so check nothing."""
    import gpu_tensors
    import pytest

    from normgrad.backends import choice
    from normgrad.backends.triton import device

    nothing = mock.Mock(return_value=0.0)
    stand_ins = {"GPU": "cpu", "only_on_a_gpu": [], "check": nothing, "same": nothing}
    with (
        mock.patch.multiple(gpu_tensors, **stand_ins),
        mock.patch.object(gpu_tensors.to_gpu, "__defaults__", ("cpu",)),
        mock.patch.object(gpu_tensors.tensors_of, "__defaults__", ("cpu",)),
        mock.patch.object(device, "of", return_value=device.Device()),
        mock.patch.object(choice, "of", return_value=recorder),
    ):
        options = ["-q", "-p", "no:cacheprovider", "--assert=plain", "--tb=no", "-rN"]
        options += ["--rootdir", str(ROOT), "-k", f"not ({TOO_LARGE})"]
        pytest.main([str(ROOT / "tests" / "gpu"), *options])


def plan(pattern: str) -> None:
    """List the kernels."""
    from triton_programs import schedule_of

    from normgrad.backends.triton import schedule, selfcheck
    from normgrad.backends.triton.device import Device

    recorder = Recorder()
    device = Device()
    for norm in selfcheck.norms(device):
        recorder.note(schedule.build(selfcheck.trial(*norm)[1], device))
    for name, arguments in calls(pattern):
        recorder.note(schedule_of(name, **arguments))
    print(f"{len(recorder.launches)} kernels of the self-check and the benchmark")
    run_tests(recorder)
    print(f"{len(recorder.launches)} kernels with those of the tests")
    KERNELS.parent.mkdir(exist_ok=True)
    KERNELS.write_bytes(pickle.dumps([*recorder.launches.values()]))


# Pack and unpack


def compile_one(launch: Any) -> str | None:
    """Compile a launch's kernel, and return the name of its entry; None if that is impossible."""
    from normgrad.backends.triton import runtime

    try:
        return str(runtime.compiled(launch, launch.config, target()).hash)
    except Exception as error:
        print(f"left out   {launch.kernel} {launch.config}: {error}", file=sys.stderr)
        return None


def pack(launches: Sequence[Any], archive: Path, processes: int) -> None:
    """Compile the kernels of launches, and write the archive."""
    with tempfile.TemporaryDirectory() as folder:
        with (
            mock.patch.dict(os.environ, TRITON_CACHE_DIR=folder),
            get_context("spawn").Pool(processes) as pool,
        ):
            entries = [*filter(None, pool.imap_unordered(compile_one, launches))]
        Path(folder, MADE_BY).write_text(json.dumps(made_by()))
        with tarfile.open(archive, "w:xz") as tar:
            tar.add(Path(folder, MADE_BY), MADE_BY)
            for path in sorted(Path(folder).glob("*/*")):
                if path.suffix in NEEDED and not path.name.startswith("__grp__"):
                    tar.add(path, path.relative_to(folder))
    print(f"{archive}: {len({*entries})} kernels, {archive.stat().st_size >> 20} MiB")


def unpack(archive: Path) -> None:
    """Put the kernels of an archive into Triton's cache."""
    import triton

    folder = Path(triton.knobs.cache.dir)
    with tarfile.open(archive) as tar:
        there = json.load(tar.extractfile(MADE_BY))  # type: ignore[arg-type]
        here = made_by()
        unequal = [
            f"{name}: {here[name]!r}; allowed: {there[name]!r}, which compiled the kernels"
            for name in here
            if here[name] != there[name]
        ]
        if unequal:
            sys.exit("\n".join(unequal))
        entries: dict[Path, list[str]] = {}
        for member in tar.getmembers():
            if member.name != MADE_BY:
                tar.extract(member, folder, filter="data")
                path = folder / member.name
                entries.setdefault(path.parent, []).append(path.name)
    for entry, names in entries.items():
        (described,) = (name for name in names if name.endswith(".json"))
        group = {"child_paths": {name: str(entry / name) for name in names}}
        (entry / f"__grp__{described}").write_text(json.dumps(group))
    print(f"{folder}: {len(entries)} kernels")


def main() -> None:
    """Do one of the three."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("what", choices=("plan", "pack", "unpack"))
    parser.add_argument("filter", nargs="?", default="", help="the filter of the benchmark's cases")
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    given = parser.parse_args()
    if given.what == "plan":
        plan(given.filter)
    elif given.what == "pack":
        pack(pickle.loads(KERNELS.read_bytes()), ARCHIVE, given.processes)
    else:
        unpack(ARCHIVE)


if __name__ == "__main__":
    main()
