"""Linking units into the shared libraries that wheels for a platform bring (packaged.py).

    python -m normgrad.backends.cpu.linking LEVEL FOLDER [UNIT...]

compiles these units, or all that can be linked, for a level of x86-64, and links them with the C
compiler. It needs a process of its own, since Numba must know the level before it is imported.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from ...capi.build import c_compiler
from . import packaged, units

#: Numba's functions for Python's errors, which units refer to but never call.
_NUMBAS = (
    *("NRT_Free", "numba_do_raise", "numba_gil_ensure", "numba_gil_release", "numba_unpickle"),
    "numba_runtime_build_excinfo_struct",
)

#: The C source that is linked to the units. It runs on any x86-64.
_BESIDE = """\
#include <stdlib.h>
const char {sources}[] = "{digest}";
int {runs_here}(void) {{
    __builtin_cpu_init();
    return {supports};
}}
"""
_NEVER = '__attribute__((visibility("hidden"))) void {}(void) {{ abort(); }}\n'

_FLAGS = ("-O2", "-fPIC", "-shared", "-s", "-Wall", "-Werror", "-Wl,-z,text", "-Wl,-z,now")


def build(level: str, folder: Path, chosen: Sequence[str] = ()) -> None:
    """Make a level's library in a folder, of some units or of all that can be linked.

    Raises:
        BuildError: there is no C compiler.
        subprocess.CalledProcessError: the C compiler failed.
    """
    processor, *beside = level.split("+")
    features = ",".join(f"+{name}" for name in beside)
    os.environ.update(NUMBA_CPU_NAME=processor, NUMBA_CPU_FEATURES=features)
    from . import kernels

    # The unit that starts Numba's threads cannot be linked without Numba.
    chosen = chosen or [unit for unit in kernels.SOURCES if unit != units.NUMBA]
    with tempfile.TemporaryDirectory() as work:
        made = [Path(work, f"{packaged.symbol(unit)}.o") for unit in chosen]
        for unit, file in zip(chosen, made, strict=True):
            file.write_bytes(_object(processor, features, unit))
        source = Path(work, "beside.c")
        text = _BESIDE.format(
            sources=packaged.SOURCES,
            digest=packaged.sources(),
            runs_here=packaged.RUNS_HERE,
            supports=" && ".join(
                f'__builtin_cpu_supports("{name}")' for name in (processor, *beside)
            ),
        )
        source.write_text(text + "".join(map(_NEVER.format, _NUMBAS)), "utf-8")
        command = [*c_compiler(), *_FLAGS, str(source), *map(str, made), "-o"]
        subprocess.run([*command, str(folder / packaged.file_of(level))], check=True)


def _object(processor: str, features: str, unit: str) -> bytes:
    """An object file with one symbol: a unit's, compiled for a processor with more features."""
    from llvmlite import binding as llvm

    from . import kernels

    made = kernels.c_function(unit)
    made.compile()
    module = llvm.parse_assembly(made.inspect_llvm())
    for value in (*module.functions, *module.global_variables):
        if value.name == made.native_name:
            value.name = packaged.symbol(unit)
        elif not value.is_declaration:
            value.linkage = "internal"
    machine = llvm.Target.from_triple(module.triple).create_target_machine(
        cpu=processor, features=features, opt=3, reloc="pic", codemodel="small"
    )
    return bytes(machine.emit_object(module))


if __name__ == "__main__":
    build(sys.argv[1], Path(sys.argv[2]), sys.argv[3:])
