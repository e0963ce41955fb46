"""The build of the C libraries, and the compiler flags for programs that use them."""

from __future__ import annotations

import importlib.util
import json
import os
import shlex
import sys
import sysconfig
import tempfile
from collections.abc import Callable
from importlib import resources
from pathlib import Path

from .. import __version__, compilers
from ..compilers import BuildError
from ..writing import replacing
from .declarations import DIALECTS, HEADERS, Dialect
from .headers import header_text, library_text

#: The library that starts Python for the others.
_BOOT = "normgrad_capi"

#: All libraries that are compiled.
LIBRARIES = (_BOOT, *(each for dialect in DIALECTS for each in dialect.libraries))

#: Links for names in the vendors' build files: folders of libraries, and the libraries over which
#: some versions distribute the operators and the runtime.
_LINKS = {
    "lib64": "lib",
    **{f"lib/libopapi_{part}.so": "libopapi.so" for part in ("nn", "math")},
    **{
        f"lib/lib{part}.so": "libascendcl.so"
        for part in ("acl_op_compiler", "acl_tdt_channel", "msprofiler")
    },
}

#: The script that the vendors' scripts source before they build and run a program.
_SETENV = """\
ASCEND_HOME_PATH=$(cd "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")/.." && pwd)
export ASCEND_HOME_PATH ASCEND_TOOLKIT_HOME="$ASCEND_HOME_PATH"
export LD_LIBRARY_PATH="$ASCEND_HOME_PATH/lib64${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}"
"""

_FLAGS = ("-std=gnu11", "-O2", "-fPIC", "-shared", "-fvisibility=hidden", "-Wall", "-Wextra")

#: The packages that the libraries import besides the standard library.
_PACKAGES = ("normgrad", "numpy", "llvmlite", "ml_dtypes", "platformdirs")
#: The package that compiles kernels, where there is none for this processor.
_COMPILER = "numba"


def build(out: Path, advance: Callable[[str], object] = lambda name: None) -> None:
    """Compile the libraries of both dialects, and write headers and pkg-config files.

    Args:
        out: the folder, which is created if it does not exist. Each file in it is replaced
            atomically.
        advance: a function that is called with each library's name when the library is done.

    Raises:
        BuildError: there is no compiler, shared libpython or Python header, or this is not Linux.
        OSError: the folder cannot be written.
    """
    if not sys.platform.startswith("linux"):
        raise BuildError(f"C libraries for {sys.platform}; allowed: Linux")
    compiler, baked = compilers.find("C"), _baked()
    include_python = [f"-I{path}" for path in _python_headers()]
    out = out.resolve()
    for header in HEADERS:
        _write(out / "include" / header.path, header_text(header))
    (out / "lib").mkdir(parents=True, exist_ok=True)
    # The folder is on the same file system as the results, so that files can be moved there.
    with tempfile.TemporaryDirectory(prefix=".build-", dir=out) as folder:
        work = Path(folder)
        (work / "baked.h").write_text(baked, "utf-8")
        sources = resources.files(__package__)
        for name in ("boot.h", "boot.c"):
            (work / name).write_text(sources.joinpath(name).read_text("utf-8"), "utf-8")
        _compile(compiler, work, _BOOT, "boot.c", [*include_python, "-ldl", "-lm", "-pthread"])
        advance(_BOOT)
        include = f"-I{out / 'include'}"
        for dialect in DIALECTS:
            # As the vendors' do, each library needs those below it, so that `dlsym` finds their
            # functions through its handle too.
            needed = [f"-L{work}", "-Wl,--no-as-needed", f"-l{_BOOT}", "-Wl,-rpath,$ORIGIN"]
            for library in reversed(dialect.libraries):
                (work / f"{library}.c").write_text(library_text(library), "utf-8")
                _compile(compiler, work, library, f"{library}.c", [include, *needed])
                needed.append(f"-l{library}")
                advance(library)
        for name in LIBRARIES:
            (work / _file_name(name)).replace(out / "lib" / _file_name(name))
    for link, target in _LINKS.items():
        _link(out / link, target)
    _write(out / "bin" / "setenv.bash", _SETENV)
    _link(out / "set_env.sh", "bin/setenv.bash")
    for dialect in DIALECTS:
        _write(out / "lib" / "pkgconfig" / f"normgrad-{dialect.name}.pc", _pkg_config(dialect))


def flags(out: Path, dialect: Dialect) -> str:
    """A shell's flags to compile and link a program with; BuildError without the libraries."""
    out = out.resolve()
    for library in dialect.libraries:
        path = out / "lib" / _file_name(library)
        if not path.exists():
            raise BuildError(f"no {path}; build it with `normgrad capi build --out {out}`")
    lib = out / "lib"
    # -Wl would split a path at its commas.
    rpath = (
        ["-Xlinker", "-rpath", "-Xlinker", str(lib)] if "," in str(lib) else [f"-Wl,-rpath,{lib}"]
    )
    parts = [f"-I{out / 'include'}", f"-L{lib}", *rpath, *_links(dialect)]
    return " ".join(shlex.quote(part) for part in parts)


def _links(dialect: Dialect) -> list[str]:
    return [f"-l{library}" for library in dialect.libraries]


def _file_name(library: str) -> str:
    return f"lib{library}.so"


def _pkg_config(dialect: Dialect) -> str:
    return (
        "prefix=${pcfiledir}/../..\n"
        "includedir=${prefix}/include\n"
        "libdir=${prefix}/lib\n\n"
        f"Name: normgrad-{dialect.name}\n"
        f"Description: {dialect.description}\n"
        f"Version: {__version__}\n"
        "Cflags: -I${includedir}\n"
        f"Libs: -L${{libdir}} -Wl,-rpath,${{libdir}} {' '.join(_links(dialect))}\n"
    )


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with replacing(path) as file:
        file.write(text.encode())


def _link(path: Path, target: str) -> None:
    """Make a symbolic link, and replace the old one if it exists."""
    if path.is_symlink():
        path.unlink()
    path.symlink_to(target)


def _compile(compiler: list[str], work: Path, library: str, source: str, extra: list[str]) -> None:
    target = _file_name(library)
    # Once Python is started, it calls back into the library, which must not be unloaded then.
    link = [f"-Wl,-soname,{target}", "-Wl,-z,nodelete"]
    command = [*compiler, *_FLAGS, source, "-o", target, "-I.", *link, *extra]
    compilers.run(command, work, target)


def _python_headers() -> list[str]:
    paths = [sysconfig.get_path("include"), sysconfig.get_path("platinclude")]
    folders = [path for path in dict.fromkeys(paths) if path]
    if not any((Path(path) / "Python.h").exists() for path in folders):
        raise BuildError(
            f"no Python.h in {' or '.join(folders)}; install Python's headers, such as with "
            "`apt install python3-dev`"
        )
    return folders


def _libpython() -> Path:
    variables = sysconfig.get_config_vars()
    version = f"{variables['py_version_short']}{variables.get('abiflags', '')}"
    name = str(variables.get("INSTSONAME") or "")
    if ".so" not in name:
        name = f"libpython{version}.so.1.0"
    lib = str(variables.get("LIBDIR") or "")
    folders = [Path(sys.base_prefix) / "lib"]
    if lib:
        folders += Path(lib), Path(lib) / str(variables.get("MULTIARCH") or "")
    for folder in folders:
        if (folder / name).exists():
            return (folder / name).resolve()
    raise BuildError(
        f"{sys.executable} has no shared library ({name}); install it, such as with "
        f"`apt install libpython{version}`, or use a Python that was built with --enable-shared "
        "(`PYTHON_CONFIGURE_OPTS=--enable-shared pyenv install`)"
    )


def _search_path() -> list[str]:
    """The folders where an embedded Python finds the standard library and the packages."""
    folders = [Path(os.__file__).parent]
    for name in ("math", "_ctypes"):  # extension modules of the standard library
        spec = importlib.util.find_spec(name)
        if spec is not None and spec.has_location and spec.origin:
            folders.append(Path(spec.origin).parent)
    for name in (*_PACKAGES, _COMPILER):
        spec = importlib.util.find_spec(name)
        if spec is None or not spec.origin:
            if name == _COMPILER:
                continue
            raise BuildError(f"no module {name}; install normgrad anew")
        folders.append(Path(spec.origin).parents[1])
    return list(dict.fromkeys(str(folder.resolve()) for folder in folders))


def _baked() -> str:
    """The header with the paths and the version for starting Python."""
    paths = _search_path()
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    values = {
        "BAKED_VERSION": _c_string(version),
        "BAKED_LIBPYTHON": _c_string(str(_libpython())),
        "BAKED_HOME": _c_string(sys.base_prefix),
        "BAKED_EXECUTABLE": _c_string(sys.executable),
        "BAKED_PATHS": ", ".join(_c_string(path) for path in paths),
        "BAKED_SYS_PATH": _c_string(json.dumps(paths)),
    }
    return "".join(f"#define {name} {value}\n" for name, value in values.items())


def _c_string(text: str) -> str:
    """A C string literal, with a path's bytes in the file system's encoding."""
    escaped = (
        chr(byte) if 32 <= byte < 127 and chr(byte) not in '"\\?' else f"\\{byte:03o}"
        for byte in os.fsencode(text)
    )
    return f'"{"".join(escaped)}"'
