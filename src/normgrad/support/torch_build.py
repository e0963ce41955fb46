"""The build of the C++ library for PyTorch, and where it is; without importing PyTorch.

The library depends on the build of PyTorch, the kind of processor and its sources. A wheel for a
platform brings the one for the PyTorch beside which it was built; for others the library is built
once, into the cache folder.
"""

from __future__ import annotations

import os
import platform
import re
import sys
import sysconfig
import tempfile
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path

from . import cache, compilers
from .compilers import BuildError
from .settings import SettingError, words

#: The environment variable that turns the library off ("0").
VARIABLE = "NORMGRAD_TORCH_EXTENSION"

#: The environment variable with more flags of the compiler, for builds with a sanitizer.
_MORE_FLAGS = "NORMGRAD_TORCH_FLAGS"

_SOURCES = Path(__file__).parents[1] / "torch" / "csrc"
#: The folder of a wheel's library in the package.
PACKAGED = _SOURCES.parent / "lib" / cache.TORCH
#: The source that includes the others.
_MAIN = "module.cpp"
#: OpenMP's functions are those of PyTorch's own runtime, so that nothing is linked for them.
_FLAGS = ("-O2", "-std=c++20", "-fPIC", "-shared", "-fvisibility=hidden", "-fopenmp", "-w")
_LIBRARIES = ("-ltorch_python", "-ltorch_cpu", "-lc10")


def _flags() -> tuple[str, ...]:
    return (*_FLAGS, *words(_MORE_FLAGS))


def _prefix() -> str:
    """The start of the library's name: PyTorch's full version and commit, Python's, the processor.

    PyTorch's ``version.py`` has both, and importing it takes seconds. Builds from several commits
    may have one version, and builds from one commit several.
    """
    spec = None
    with suppress(ValueError):  # sys.modules has something else of that name
        spec = find_spec("torch")
    if spec is None or spec.origin is None:
        raise BuildError("PyTorch is not installed; `pip install torch`")
    facts = Path(spec.origin).with_name("version.py").read_text()
    build = re.findall(r"^(?:__version__|git_version)\b.*?= *['\"]([\w.+-]+)['\"]", facts, re.M)
    return "-".join(("torch", *build, str(sys.implementation.cache_tag), platform.machine(), ""))


def path() -> Path:
    """The library for this PyTorch: the package's, or the cache's, which may not be built yet.

    Raises:
        BuildError: PyTorch is not installed.
        SettingError, OSError: a variable is wrong, or a file cannot be read.
    """
    digest = cache.digest_of(sorted(_SOURCES.iterdir()), repr(_flags()).encode())
    name = f"{_prefix()}{digest[:16]}.so"
    packaged = PACKAGED / name
    is_packaged = packaged.is_file() and cache.unseal(packaged, packaged.read_bytes()) is not None
    return packaged if is_packaged else cache.folder() / cache.TORCH / name


def is_on() -> bool:
    """Whether the environment lets the library be used."""
    setting = os.environ.get(VARIABLE, "1")
    if setting not in ("0", "1"):
        raise SettingError(f"{VARIABLE}: {setting!r}; allowed: 0 or 1")
    return setting == "1"


def missing() -> str | None:
    """The reason why there is no library that may be loaded; None if there is one."""
    try:
        if not is_on():
            return f"turned off by {VARIABLE}=0"
        return None if _is_there(path()) else "not built; `normgrad warmup` builds it"
    except (BuildError, SettingError, OSError) as error:
        return f"not there: {error}"


def _is_there(library: Path) -> bool:
    """Whether the library that :func:`path` gives is there, may be read, and is sealed.

    A library that lost its end would end the process that loads it.
    """
    if library.parent == PACKAGED:
        return True
    return cache.unseal(library, cache.read(library) or b"") is not None


def build() -> Path:
    """Compile the C++ library for this PyTorch into the cache folder, unless it is there.

    It takes some 25 s of one core. Processes that import ``normgrad.torch`` afterwards use it. If
    another process builds it already, the call waits for that one.

    Returns:
        The library's path.

    Raises:
        BuildError: PyTorch is not installed, this is not Linux, there is no C++ compiler, or it
            fails.
        SettingError: a variable for the cache folder, the compiler or its flags is wrong.
        OSError: the cache folder cannot be written.
    """
    library = path()
    if _is_there(library):
        return library
    if not sys.platform.startswith("linux"):
        raise BuildError(f"the library for PyTorch on {sys.platform}; allowed: Linux")
    compiler = compilers.find("C++")
    with cache.alone(cache.TORCH, "build", "builds the C++ library of PyTorch's layers"):
        if not _is_there(library):
            _compile(library, compiler)
    return library


def _compile(library: Path, compiler: list[str]) -> None:
    """Compile the library, and remove those that were made from other sources."""
    from torch.utils import cpp_extension

    cache.make_folder(library.parent)  # before compiling, which takes half a minute
    folders = [f"-I{folder}" for folder in cpp_extension.include_paths()]
    folders.append(f"-I{sysconfig.get_path('include')}")
    folders += [f"-L{folder}" for folder in cpp_extension.library_paths()]
    with tempfile.TemporaryDirectory() as work:
        out = Path(work) / library.name
        source = str(_SOURCES / _MAIN)
        command = [*compiler, *_flags(), *folders, source, "-o", str(out), *_LIBRARIES]
        compilers.run(command, Path(work), "the library for PyTorch")
        cache.write(library, cache.seal(library, out.read_bytes()))
    for old in library.parent.glob(f"{_prefix()}*.so"):
        if old != library:
            old.unlink()
