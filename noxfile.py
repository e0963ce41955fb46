"""Sessions for developers; `nox -l` lists them. CI runs the same commands without nox."""

import re
import shutil
from collections.abc import Sequence
from pathlib import Path

import nox

nox.options.sessions = ["lint", "tests"]
nox.options.error_on_missing_interpreters = False
nox.options.default_venv_backend = "venv"


@nox.session(python=["3.10", "3.11", "3.12", "3.13", "3.14"])
def tests(session: nox.Session) -> None:
    """The test suite; against torch where `nox -s tests -- torch` asks for it."""
    session.install("-e", ".[cli]", "-r", "requirements/test.txt")
    arguments = list(session.posargs)
    if "torch" in arguments:
        arguments.remove("torch")
        session.install("-r", "requirements/torch.txt")
    session.run("pytest", "-n", "auto", *arguments)


@nox.session
def full(session: nox.Session) -> None:
    """All cases of all tests, of which CI runs a sample; the GPU's kernels by the interpreter."""
    session.install("-e", ".[cli]", "-r", "requirements/test.txt", "-r", "requirements/torch.txt")
    session.install("-r", "requirements/triton.txt")
    whole = {"NORMGRAD_FULL": "1"}
    session.run("pytest", "-n", "auto", env=whole)
    interpreted = {"NORMGRAD_BACKEND": "triton", "TRITON_INTERPRET": "1", **whole}
    kernels = ("tests/operators", "tests/backends/triton")
    session.run("pytest", "-n", "auto", *kernels, env=interpreted)


@nox.session
def least_triton(session: nox.Session) -> None:
    """The GPU's kernels by the least version of Triton, compared with that version's table."""
    session.install("-e", ".", "-r", "requirements/test.txt", "triton==3.6.0")
    session.run("pytest", "tests/backends/triton/test_compiled.py", "-k", "table", *session.posargs)


@nox.session
def models(session: nox.Session) -> None:
    """Conversion tried on models of public libraries, in other tools, and by ONNX exporters."""
    session.install("-e", ".[cli]", "-r", "requirements/test.txt", "-r", "requirements/torch.txt")
    session.install("-r", "requirements/models.txt")
    # Alone: what they say they need is another build of PyTorch's.
    alone = ("torchvision==0.28.0", "timm==1.0.31", "segmentation_models_pytorch==0.6.0")
    tools = ("monai==1.6.1", "opacus==1.6.0", "accelerate==1.15.0", "lightning==2.6.6")
    session.install("--no-deps", *alone, *tools, "torchmetrics", "ultralytics==8.4.190")
    tests = ("tests/models", "tests/pytorch/conversion/test_model.py")
    session.run("pytest", *tests, *session.posargs, env={"NORMGRAD_MODELS": "1"})


@nox.session
def valgrind(session: nox.Session) -> None:
    """The C libraries' misuse programs under valgrind: no invalid access."""
    session.install("-e", ".[cli]", "-r", "requirements/test.txt")
    session.run(
        "pytest", "-n", "auto", "tests/dialects/c/test_misuse.py", env={"NORMGRAD_VALGRIND": "1"}
    )


#: The tests whose calls the C++ library for PyTorch computes.
_IN_CPP = (
    "test_operators",
    "test_first_calls",
    "test_functional",
    "test_nn",
    "test_as_stock",
    "test_unusual_tensors",
)


@nox.session
def sanitize(session: nox.Session) -> None:
    """Tests of PyTorch's layers, with a C++ library that AddressSanitizer and UBSan watch."""
    session.install("-e", ".[cli]", "-r", "requirements/test.txt", "-r", "requirements/torch.txt")
    # C++'s own library comes too: exceptions that pass through Python's are not found without it.
    names = ("asan", "ubsan", "stdc++")
    runtimes = [
        str(session.run("g++", f"-print-file-name=lib{name}.so", silent=True, external=True))
        for name in names
    ]
    kinds = "-fsanitize=address,undefined -fno-sanitize-recover=undefined"
    build = {
        "CXX": "g++",
        "NORMGRAD_CACHE_DIR": str(Path(session.create_tmp()).resolve()),
        "NORMGRAD_TORCH_FLAGS": f"-g -fno-omit-frame-pointer {kinds}",
    }
    session.run("python", "-c", "import normgrad.torch; normgrad.torch.build()", env=build)
    watched = {
        **build,
        "LD_PRELOAD": " ".join(map(str.strip, runtimes)),
        "ASAN_OPTIONS": "detect_leaks=0",  # Python keeps memory until its process ends
        "UBSAN_OPTIONS": "print_stacktrace=1",
    }
    files = [f"tests/pytorch/{name}.py" for name in _IN_CPP]
    session.run("pytest", "-p", "no:xdist", *files, *session.posargs, env=watched)


@nox.session
def stress(session: nox.Session) -> None:
    """A minute of sixteen threads at once, and more ends of processes."""
    session.install("-e", ".[cli]", "-r", "requirements/test.txt", "-r", "requirements/torch.txt")
    session.run("pytest", "tests/faults", env={"NORMGRAD_STRESS": "1"})


@nox.session
def fuzz(session: nox.Session) -> None:
    """100,000 cases of hostile input, and ten minutes of atheris on what `normgrad run` reads.

    What is given after -- goes to pytest, such as tests/fuzz/test_plans.py.
    """
    session.install("-e", ".[cli]", "-r", "requirements/test.txt", "-r", "requirements/torch.txt")
    what = session.posargs or ["tests/fuzz"]
    session.run("pytest", "-n", "auto", "--hypothesis-profile=fuzz", *what)
    try:
        session.install("--only-binary", "atheris", "-r", "requirements/fuzz.txt")
    except nox.command.CommandFailed:
        session.warn("no wheel of atheris for this Python: what reads files was not fuzzed")
        return
    seconds = f"-max_total_time={10 * 60}"
    corpus = session.create_tmp()
    session.run("python", "tests/fuzz/files_harness.py", f"{corpus}/corpus", seconds)


@nox.session
def lint(session: nox.Session) -> None:
    """ruff and mypy."""
    session.install("-e", ".[cli]", "-r", "requirements/lint.txt")
    session.run("ruff", "check", ".")
    session.run("ruff", "format", "--check", ".")
    session.run("mypy")


@nox.session
def types(session: nox.Session) -> None:
    """pyright, beside PyTorch, on the types of results and on the documents' Python."""
    session.install("-e", ".[cli]", "-r", "requirements/test.txt", "-r", "requirements/torch.txt")
    session.install("-r", "requirements/triton.txt", "pyright[nodejs]==1.1.414")
    pages = Path(session.create_tmp()).resolve() / "pages"
    shutil.rmtree(pages, ignore_errors=True)
    session.run("python", "tests/typed_pages.py", str(pages))
    results = Path("tests/tensors/test_types.py").resolve()
    with session.chdir(pages):  # where it looks for what pages import from their own files
        session.run("pyright", str(results), ".")


@nox.session
def docs(session: nox.Session) -> None:
    """The documents' site, in build/site; a warning is an error."""
    # The linters' ruff sets the signatures.
    session.install("-r", "requirements/docs.txt", "-r", "requirements/lint.txt")
    session.run("mkdocs", "build", "--strict")


#: A gradient, by the installed package.
_GRADIENT = """
import numpy, normgrad
x = numpy.ones((2, 3, 4), numpy.float32)
assert normgrad.batch_norm_backward(x, x, training=True).grad_bias.tolist() == [8, 8, 8]
"""


#: What a wheel for a platform is for: its object files need the C library's memset and memcpy.
_TAG = "py3-none-manylinux_2_17_{}"
#: What prints the levels of an architecture that there are kernels for.
_LEVELS = (
    "from normgrad.backends.cpu.target import LEVELS; "
    "print(*(name for name, level in LEVELS.items() if level.architecture == '{}'))"
)
#: What builds the library for the PyTorch that is installed.
_LIBRARY = "from normgrad.support.torch_build import build; build()"
_MOST_BYTES = 20_000_000


def _with_kernels(session: nox.Session, wheel: Path, architecture: str) -> Path:
    """A wheel for an architecture beside a pure one, with kernels, without Numba.

    That for x86-64 has PyTorch's library too, which only a compiler on such a machine makes.
    """
    session.install(str(wheel))
    work = Path(session.create_tmp()) / "unpacked"
    shutil.rmtree(work, ignore_errors=True)
    session.run("wheel", "unpack", str(wheel), "--dest", str(work))
    (content,) = work.iterdir()
    folder = str(content / "normgrad/backends/cpu/machine_code")
    levels = session.run("python", "-c", _LEVELS.format(architecture), silent=True)
    for level in str(levels).split():
        session.run("python", "-m", "normgrad.backends.cpu.objects.packing", level, folder)
    if architecture == "x86_64":
        session.install("-r", "requirements/torch.txt")
        kept = Path(session.create_tmp()) / "library"
        session.run("python", "-c", _LIBRARY, env={"NORMGRAD_CACHE_DIR": str(kept.resolve())})
        without_lock = shutil.ignore_patterns("*.lock")
        shutil.copytree(kept / "torch", content / "normgrad/torch/lib/torch", ignore=without_lock)
    tag = _TAG.format(architecture)
    (about,) = content.glob("*.dist-info/WHEEL")
    text = about.read_text().replace("Root-Is-Purelib: true", "Root-Is-Purelib: false")
    about.write_text(text.replace("Tag: py3-none-any", f"Tag: {tag}"))
    (needs,) = content.glob("*.dist-info/METADATA")
    numba = re.compile("^(Requires-Dist: )numba.*$", re.M)
    text, count = numba.subn(r"\1llvmlite>=0.45", needs.read_text(), count=1)
    if count != 1 or "extra == 'compile'" not in text.replace('"', "'"):
        session.error(f"{needs.name} does not name Numba as expected")
    needs.write_text(text)
    session.run("wheel", "pack", str(content), "--dest-dir", str(wheel.parent))
    (made,) = wheel.parent.glob(f"*-{tag}.whl")
    return made


@nox.session
def aarch64(session: nox.Session) -> None:
    """A wheel for Arm machines, made on this one and run in QEMU's emulator."""
    session.install("-r", "requirements/release.txt")
    dist = Path(session.create_tmp()).resolve() / "dist"
    shutil.rmtree(dist, ignore_errors=True)
    session.run("python", "-m", "build", "--wheel", "--outdir", str(dist))
    (pure,) = dist.glob("*.whl")
    wheel = _with_kernels(session, pure, "aarch64")
    folder = session.cache_dir.resolve() / "aarch64"
    session.run("python", "tests/aarch64.py", str(folder), str(wheel))


@nox.session
def package(session: nox.Session) -> None:
    """The wheels and the sdist, each tried in a fresh environment without the source tree."""
    session.install("-r", "requirements/release.txt")
    dist = Path("dist").resolve()
    shutil.rmtree(dist, ignore_errors=True)
    session.run("python", "-m", "build", "--outdir", str(dist))
    (pure,) = dist.glob("*.whl")
    arm = _with_kernels(session, pure, "aarch64")
    platform = _with_kernels(session, pure, "x86_64")
    archives = sorted(dist.iterdir())
    session.run("twine", "check", "--strict", *map(str, archives))
    captured = Path("examples/digits/batch_norm_bfloat16.safetensors").resolve()
    for archive in archives:
        size = archive.stat().st_size
        session.log(f"{archive.name}: {size:,} bytes")
        if size > _MOST_BYTES:
            session.error(f"{archive.name} has {size:,} bytes; allowed: {_MOST_BYTES:,}")
        if archive == arm:
            continue  # what it has is tried by the session aarch64
        alone = "assert importlib.util.find_spec('numba') is None" if archive == platform else ""
        commands = [
            ("pip", "install", "--quiet", str(archive)),
            ("python", "-W", "error", "-c", f"import importlib.util; {alone}\n{_GRADIENT}"),
            ("pip", "install", "--quiet", f"{archive}[cli]"),
            ("normgrad", "--version"),
            ("python", "-W", "error", "-c", _GRADIENT),
            ("normgrad", "run", str(captured)),
            ("normgrad", "capi", "build", "--out", "capi"),
        ]
        if archive == platform:
            torch, *programs = (
                str(Path(name).resolve())
                for name in (
                    "requirements/torch.txt",
                    "tests/bits_program.py",
                    "benchmarks/first_step.py",
                )
            )
            commands += [
                ("normgrad", "info"),
                ("pip", "install", "--quiet", "-r", torch),
                ("python", programs[1], "--limit"),
                ("python", "-c", "import normgrad.torch; print(normgrad.torch.build())"),
                ("pip", "install", "--quiet", f"{archive}[compile]"),
                ("python", programs[0], "compare"),
            ]
        _try(session, archive.name, commands)


def _try(session: nox.Session, name: str, commands: Sequence[Sequence[str]]) -> None:
    """Run commands in a fresh environment, without the source tree."""
    folder = Path(session.create_tmp()).resolve() / "tried" / name
    shutil.rmtree(folder, ignore_errors=True)
    session.run("python", "-m", "venv", str(folder))
    with session.chdir(folder):
        for program, *arguments in commands:
            session.run(
                str(folder / "bin" / program), *arguments, env={"PYTHONPATH": None}, external=True
            )
