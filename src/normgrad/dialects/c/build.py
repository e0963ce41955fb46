"""The build of the C libraries, and the compiler flags for programs that use them."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import shlex
import sys
import sysconfig
import tempfile
from pathlib import Path

from ... import __version__
from ...support import compilers
from ...support.compilers import BuildError
from ...support.files import replacing
from .declarations import (
    ABSENT,
    DIALECTS,
    FOLDER,
    HEADERS,
    Dialect,
    absent_source,
    digest,
    operators_source,
    types_source,
)

#: Links for names in the vendors' build files. All libraries of a dialect are one; over the last
#: ones some versions distribute the operators and the runtime.
_LINKS = {
    "lib64": "lib",
    **{
        f"lib/lib{name}.so": f"lib{dialect.library}.so"
        for dialect in DIALECTS
        for name in dialect.libraries
    },
    **{
        f"lib/lib{name}.so": f"lib{DIALECTS[0].library}.so"
        for name in ("opapi_nn", "opapi_math", "acl_op_compiler", "acl_tdt_channel", "msprofiler")
    },
}

#: The script that the vendors' scripts source before they build and run a program.
_SETENV = """\
ASCEND_HOME_PATH=$(cd "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")/.." && pwd)
export ASCEND_HOME_PATH ASCEND_TOOLKIT_HOME="$ASCEND_HOME_PATH"
export LD_LIBRARY_PATH="$ASCEND_HOME_PATH/lib64${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}"
"""

#: What LeakSanitizer leaves out: the memory that Python's other threads keep to the end.
_SUPPRESSIONS = "leak:libpython\nleak:site-packages\nleak:lib-dynload\n"

# Reductions of integers wrap around.
_FLAGS = (
    "-std=gnu11", "-O2", "-fwrapv", "-fPIC", "-fvisibility=hidden", "-Wall", "-Wextra",
)  # fmt: skip

#: The sanitizers that programs and the library can be compiled with. ThreadSanitizer has to see the
#: program's order alone, so the library itself is compiled without it.
SANITIZERS = ("thread", "address", "undefined")

#: The packages that the libraries import besides the standard library.
_PACKAGES = (
    "normgrad", "numpy", "llvmlite", "ml_dtypes", "platformdirs", "typing_extensions",
)  # fmt: skip
#: The package that compiles kernels, where there is none for this processor.
_COMPILER = "numba"


def build(out: Path, sanitize: str | None = None) -> None:
    """Compile the libraries of both dialects, and write headers, pkg-config and CMake files.

    Args:
        out: the folder, which is created if it does not exist. Each file in it is replaced
            atomically.
        sanitize: one of :data:`SANITIZERS`, or None.

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
        _write(out / "include" / header.path, header.text)
    _write(out / "include" / ABSENT, (FOLDER / "include" / ABSENT).read_text("utf-8"))
    (out / "lib").mkdir(parents=True, exist_ok=True)
    # The folder is on the same file system as the results, so that files can be moved there.
    with tempfile.TemporaryDirectory(prefix=".build-", dir=out) as folder:
        work = Path(folder)
        made = {
            "baked.h": baked, "operators.h": operators_source(), "types.h": types_source(),
            "absent.h": absent_source(),
        }  # fmt: skip
        for name, text in made.items():
            (work / name).write_text(text, "utf-8")
        sanitizing = ["-g", "-O1"] if sanitize else []
        if sanitize in ("address", "undefined"):
            sanitizing += [f"-fsanitize={sanitize}"]
        include = ["-I.", f"-I{FOLDER}", f"-I{out / 'include'}", *include_python]
        sources = sorted(str(path) for path in FOLDER.glob("*.c"))
        objects = [f"{Path(source).stem}.o" for source in sources]
        command = [*compiler, *_FLAGS, *sanitizing, *include, "-c", *sources]
        compilers.run(command, work, "the C libraries")
        for dialect in DIALECTS:
            target = _file_name(dialect.library)
            (work / "exports").write_text(_exports(dialect), "utf-8")
            # A library must not be unloaded once it has started Python, which calls it.
            link = [f"-Wl,-soname,{target}", "-Wl,-z,nodelete", "-Wl,--version-script=exports"]
            command = [*compiler, "-shared", *sanitizing, *objects, "-o", target, *link]
            compilers.run([*command, "-ldl", "-lm", "-pthread"], work, target)
            (work / target).replace(out / "lib" / target)
    for name, target in _LINKS.items():
        _link(out / name, target)
    _write(out / "bin" / "setenv.bash", _SETENV)
    _link(out / "set_env.sh", "bin/setenv.bash")
    _write(out / "lib" / "lsan.supp", _SUPPRESSIONS)
    for dialect in DIALECTS:
        _write(out / _pkg_config_path(dialect), _pkg_config(dialect, sanitize))
        name = f"normgrad-{dialect.name}"
        _write(out / "lib" / "cmake" / name / f"{name}-config.cmake", _cmake(dialect, sanitize))


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
    text = (out / _pkg_config_path(dialect)).read_text("utf-8")
    sanitizing = re.findall(r"-fsanitize=\w+ -g", text)[:1]
    parts = [f"-I{out / 'include'}", f"-L{lib}", *rpath, *_links(dialect)]
    return " ".join([*(shlex.quote(part) for part in parts), *sanitizing])


def _links(dialect: Dialect) -> list[str]:
    return [f"-l{library}" for library in dialect.libraries]


def _file_name(library: str) -> str:
    return f"lib{library}.so"


def _exports(dialect: Dialect) -> str:
    """The linker's list of the functions that a dialect's library exports."""
    headers = [header for header in HEADERS if header.library in dialect.libraries]
    names = [each.name for header in headers for each in (*header.functions, *header.stubs)]
    return f"{{ global: {'; '.join(names)}; local: *; }};\n"


def _pkg_config_path(dialect: Dialect) -> Path:
    return Path("lib") / "pkgconfig" / f"normgrad-{dialect.name}.pc"


def _sanitizing(sanitize: str | None) -> str:
    return f" -fsanitize={sanitize} -g" if sanitize else ""


def _pkg_config(dialect: Dialect, sanitize: str | None) -> str:
    more = _sanitizing(sanitize)
    return (
        "prefix=${pcfiledir}/../..\n"
        "includedir=${prefix}/include\n"
        "libdir=${prefix}/lib\n\n"
        f"Name: normgrad-{dialect.name}\n"
        f"Description: {dialect.description}\n"
        f"Version: {__version__}\n"
        f"Cflags: -I${{includedir}}{more}\n"
        f"Libs: -L${{libdir}} -Wl,-rpath,${{libdir}} {' '.join(_links(dialect))}{more}\n"
    )


def _cmake(dialect: Dialect, sanitize: str | None) -> str:
    """The CMake package, whose target is normgrad::aclnn or normgrad::infiniop."""
    target, options = f"normgrad::{dialect.name}", _sanitizing(sanitize).replace(" ", ";")[1:]
    libraries = ";".join(
        f"${{_normgrad}}/lib/{_file_name(library)}" for library in dialect.libraries
    )
    return (
        'get_filename_component(_normgrad "${CMAKE_CURRENT_LIST_DIR}/../../.." ABSOLUTE)\n'
        f"if(NOT TARGET {target})\n"
        f"  add_library({target} INTERFACE IMPORTED)\n"
        f"  set_target_properties({target} PROPERTIES\n"
        '    INTERFACE_INCLUDE_DIRECTORIES "${_normgrad}/include"\n'
        f'    INTERFACE_COMPILE_OPTIONS "{options}"\n'
        f'    INTERFACE_LINK_OPTIONS "{options}"\n'
        f'    INTERFACE_LINK_LIBRARIES "{libraries}")\n'
        "endif()\n"
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
        "BAKED_DIGEST": _c_string(digest()),
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
