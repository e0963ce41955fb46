"""The build of the C++ library for PyTorch, and where it is; without importing PyTorch.

The library depends on PyTorch's version, the kind of processor and its sources. A wheel for a
platform brings the one for the PyTorch beside which it was built; for others the library is built
once, into the cache folder.
"""

from __future__ import annotations

import os
import platform
import shlex
import sys
import tempfile
from importlib import metadata
from pathlib import Path

from . import cache, compilers
from .compilers import BuildError
from .settings import SettingError

#: The environment variable that turns the library off ("0").
VARIABLE = "NORMGRAD_TORCH_EXTENSION"

#: The environment variable with more flags of the compiler, for builds with a sanitizer.
_MORE_FLAGS = "NORMGRAD_TORCH_FLAGS"

_SOURCES = Path(__file__).parent / "torch" / "csrc"
#: The folder of a wheel's library in the package.
PACKAGED = _SOURCES.parent / "lib" / cache.TORCH
#: The source that includes the others.
_MAIN = "operators.cpp"
#: OpenMP's functions are those of PyTorch's own runtime, so that nothing is linked for them.
_FLAGS = ("-O2", "-std=c++20", "-fPIC", "-shared", "-fvisibility=hidden", "-fopenmp", "-w")
_LIBRARIES = ("-ltorch_cpu", "-lc10")


def _flags() -> tuple[str, ...]:
    return (*_FLAGS, *shlex.split(os.environ.get(_MORE_FLAGS, "")))


def _prefix() -> str:
    version = metadata.version("torch").partition("+")[0]  # builds for CUDA have the same C++ API
    return f"torch-{version}-{platform.machine()}-"


def path() -> Path:
    """The library for this PyTorch: the package's, or the cache's, which may not be built yet.

    It raises a PackageNotFoundError if PyTorch is not installed.
    """
    digest = cache.digest_of(sorted(_SOURCES.iterdir()), repr(_flags()).encode())
    name = f"{_prefix()}{digest[:16]}.so"
    packaged = PACKAGED / name
    return packaged if packaged.exists() else cache.folder() / cache.TORCH / name


def is_on() -> bool:
    """Whether the environment lets the library be used."""
    setting = os.environ.get(VARIABLE, "1")
    if setting not in ("0", "1"):
        raise SettingError(f"{VARIABLE}: {setting!r}; allowed: 0 or 1")
    return setting == "1"


def missing() -> str | None:
    """The reason why there is no library that may be loaded; None if there is one."""
    if not is_on():
        return f"turned off by {VARIABLE}=0"
    try:
        return None if _is_whole(path()) else "not built; `normgrad warmup` builds it"
    except (metadata.PackageNotFoundError, OSError, SettingError) as error:
        return f"not there: {error}"


def _is_whole(library: Path) -> bool:
    """Whether the file is there, may be read, and is sealed.

    A library that lost its end would end the process that loads it.
    """
    content = library.read_bytes() if library.parent == PACKAGED else cache.read(library) or b""
    return cache.unseal(library, content) is not None


def build() -> Path:
    """Compile the C++ library for this PyTorch into the cache folder, unless it is there.

    It takes some 25 s of one core. Processes that import ``normgrad.torch`` afterwards use it.

    Returns:
        The library's path.

    Raises:
        BuildError: PyTorch is not installed, this is not Linux, there is no C++ compiler, or it
            fails.
        SettingError, OSError: the cache folder cannot be written, or its variable is wrong.
    """
    try:
        library = path()
    except metadata.PackageNotFoundError:
        raise BuildError("PyTorch is not installed; `pip install torch`") from None
    if _is_whole(library):
        return library
    if not sys.platform.startswith("linux"):
        raise BuildError(f"the library for PyTorch on {sys.platform}; allowed: Linux")
    compiler = compilers.find("C++")
    from torch.utils import cpp_extension

    folders = [f"-I{folder}" for folder in cpp_extension.include_paths()]
    folders += [f"-L{folder}" for folder in cpp_extension.library_paths()]
    with tempfile.TemporaryDirectory() as work:
        out = Path(work) / library.name
        source = str(_SOURCES / _MAIN)
        command = [*compiler, *_flags(), *folders, source, "-o", str(out), *_LIBRARIES]
        compilers.run(command, Path(work), "the library for PyTorch")
        cache.write(library, cache.seal(library, out.read_bytes()))
    for old in library.parent.glob(f"{_prefix()}*.so"):
        if old != library:
            cache.remove(old)
    return library
