"""Run a wheel with kernels for aarch64 in QEMU's emulator, on a machine of another kind.

    python aarch64.py FOLDER WHEEL

The emulated machine is made in FOLDER once: Debian's files, and a virtual environment whose Python
is a script that starts the emulator, so that neither root nor the kernel's binfmt_misc is needed.
The wheel is installed without Numba, and so nothing is compiled. Tested are the results of the
conformance suite's sample, their bits beside those of this machine, and the C programs of
``examples/capi``. Then Numba is installed, and kernels that it compiles there give the same bits.
"""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import bits_program

TESTS = Path(__file__).resolve().parent
EXAMPLES = TESTS.parent / "examples" / "capi"
#: The programs that are needed, and Debian's packages of them.
NEEDED = {
    "qemu-aarch64-static": "qemu-user-static",
    "mmdebstrap": "mmdebstrap",
    "aarch64-linux-gnu-gcc": "gcc-aarch64-linux-gnu",
    "aarch64-linux-gnu-g++": "g++-aarch64-linux-gnu",
}
SUITE, PYTHON = "bookworm", "3.11"
PACKAGES = ("python3", "libpython3-dev", "libstdc++6")
LEVEL = "armv8-a"
PROGRAMS = {
    "batch_norm_backward.c": "aclnn",
    "sync_batch_norm.cpp": "aclnn",
    "group_norm_backward.cpp": "aclnn",
    "infiniop_batch_norm_backward.c": "infiniop",
}
#: A call whose kernels are compiled by the emulated Numba, which takes minutes.
COMPILED = "train/float32/channels_last"


def run(*command: object, reads: bool = False, **variables: str) -> str:
    """Run a command, and show what it writes, or return its standard output if that is read."""
    words = [str(word) for word in command]
    print("+", shlex.join(words), flush=True)
    environment, output = {**os.environ, **variables}, subprocess.PIPE if reads else None
    done = subprocess.run(words, stdout=output, text=True, check=True, env=environment)
    return done.stdout or ""


class Machine:
    """The emulated machine, in a folder."""

    def __init__(self, folder: Path) -> None:
        self.root, self.environment = folder / "root", folder / "environment"
        self.cache = folder / "cache"
        self.packages = self.environment / "lib" / f"python{PYTHON}" / "site-packages"
        self.emulator = ("qemu-aarch64-static", "-L", str(self.root))
        if not self.root.exists():
            made = folder / "unfinished"
            packages = ",".join(PACKAGES)
            kind = ("--variant=extract", "--architectures=arm64", f"--include={packages}")
            run("mmdebstrap", *kind, SUITE, made)
            made.rename(self.root)
        python = self.environment / "bin" / "python"
        python.parent.mkdir(parents=True, exist_ok=True)
        home = self.root / "usr" / "bin"
        (self.environment / "pyvenv.cfg").write_text(f"home = {home}\n")
        start = shlex.join([*self.emulator, "-0", str(python), f"{home}/python{PYTHON}"])
        python.write_text(f'#!/bin/sh\nexec {start} "$@"\n')
        python.chmod(0o755)
        self.python = python

    def install(self, *packages: object) -> None:
        """Install wheels, with what they need."""
        here = ("--target", self.packages, "--upgrade", "--only-binary=:all:", "-q")
        kinds = [f"--platform=manylinux_2_{minor}_aarch64" for minor in (28, 27, 17)]
        version = f"--python-version={PYTHON}"
        run(sys.executable, "-m", "pip", "install", *here, *kinds, version, *packages)

    def run(self, *arguments: object, reads: bool = False, **variables: str) -> str:
        """Run the emulated Python."""
        kept = {"NORMGRAD_CACHE_DIR": str(self.cache), "PYTHONPATH": str(TESTS), **variables}
        return run(self.python, *arguments, reads=reads, **kept)


def compare_bits(machine: Machine, level: str, *cases: str) -> None:
    """Compare the bits of results with those of this machine, by kernels that it compiles."""
    program = bits_program.__file__
    there = machine.run(program, level, "", *cases, reads=True).splitlines()
    here = run(sys.executable, program, "compiled", "", *cases, reads=True).splitlines()
    different = [a.split()[0] for a, b in zip(there, here, strict=True) if a != b]
    if different:
        sys.exit(f"{len(different)} of {len(here)} calls have other bits: {' '.join(different)}")
    print(f"{len(here)} calls have the bits of this machine")


def run_examples(machine: Machine, work: Path) -> None:
    """Build the C libraries in the emulator by a cross compiler, and run the examples."""
    # Python's header includes another one by its place in Debian's folder.
    compiler = f"aarch64-linux-gnu-gcc -idirafter {shlex.quote(str(machine.root / 'usr/include'))}"
    machine.run("-m", "normgrad", "capi", "build", "--out", work, CC=compiler)
    for name, dialect in PROGRAMS.items():
        flags = machine.run("-m", "normgrad", "capi", "flags", "--out", work, dialect, reads=True)
        compiler = f"aarch64-linux-gnu-{'gcc' if name.endswith('.c') else 'g++'}"
        program = work / Path(name).stem
        run(compiler, EXAMPLES / name, *shlex.split(flags), "-lm", "-o", program)
        run(*machine.emulator, program, NORMGRAD_CACHE_DIR=str(machine.cache))


def main(folder: Path, wheel: Path) -> None:
    """Make the machine, and run everything."""
    lacks = [package for program, package in NEEDED.items() if shutil.which(program) is None]
    if lacks:
        sys.exit(f"programs that are missing; install them with `apt install {' '.join(lacks)}`")
    folder.mkdir(parents=True, exist_ok=True)
    machine = Machine(folder.resolve())
    shutil.rmtree(machine.packages, ignore_errors=True)
    shutil.rmtree(machine.cache, ignore_errors=True)
    machine.install(f"{wheel}[cli]", "pytest")
    machine.run("-m", "normgrad", "info")
    suite = ("-m", "pytest", "-c", os.devnull, "--rootdir=.", "--pyargs", "normgrad.testing")
    machine.run(*suite, "-p", "no:cacheprovider", "--quick", "--bound=1", "-q", "--tb=no")
    compare_bits(machine, LEVEL)
    run_examples(machine, folder.resolve() / "capi")
    machine.install("numba")
    compare_bits(machine, "compiled", COMPILED)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
