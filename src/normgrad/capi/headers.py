"""The C code that is generated from the list of functions: headers, and the trampolines."""

from __future__ import annotations

import difflib
import re
import textwrap
from collections.abc import Sequence

from .declarations import HEADERS, RECENT_MESSAGES, digest, functions_of, stubs_of
from .enums import definition
from .signatures import Function, Header

_WIDTH = 100


def header_text(header: Header) -> str:
    """The text of a header for C and C++."""
    guard = "NORMGRAD_" + re.sub(r"\W", "_", header.path).upper()
    includes = [each if each.startswith("<") else f'"{each}"' for each in header.includes.split()]
    parts = [
        "// Made by `normgrad capi build`.",
        f"#ifndef {guard}\n#define {guard}",
        "\n".join(f"#include {each}" for each in includes),
        *[each if isinstance(each, str) else definition(each) for each in header.types],
    ]
    functions = [*header.functions, *header.stubs]
    if functions:
        parts += [
            '#ifdef __cplusplus\nextern "C" {\n#endif',
            "\n".join(f"{_wrap(each.prototype)};" for each in functions),
            "#ifdef __cplusplus\n}\n#endif",
        ]
    return "\n\n".join([*parts, "#endif"]) + "\n"


def _wrap(line: str) -> str:
    return "\n".join(textwrap.wrap(line, _WIDTH, subsequent_indent="    "))


def library_text(library: str) -> str:
    """The C source of a library: a trampoline for each function, and the table for their targets.

    The first call starts Python if it does not run, and lets Python fill the table. If that fails,
    functions return the failure status of their type. Stubs do not call Python.
    """
    functions, stubs = functions_of(library), stubs_of(library)
    includes = [f'#include "{each.path}"' for each in HEADERS if each.library == library]
    return "\n\n".join(
        [
            "// Made by `normgrad capi build`.",
            "\n".join([*includes, '#include "boot.h"']),
            f"static void *table[{max(1, len(functions))}];",
            "__attribute__((unused))\n"
            f'static struct normgrad_library library = {{"{library}", "{digest()}", table, 0}};',
            *[_trampoline(index, each) for index, each in enumerate(functions)],
            *[_stub(each, [one.name for one in functions]) for each in stubs],
            "",
        ]
    )


def _trampoline(index: int, function: Function) -> str:
    """The C source of a function, which returns its type's failure unless Python writes a result.

    The functions for the last error's text do not call Python, so that they work without it.
    """
    prototype = _wrap(f"EXPORTED {function.prototype}")
    if function.name in RECENT_MESSAGES:
        return f"{prototype}\n{{\n    return normgrad_capi_message();\n}}"
    kinds = ", ".join(["void *", *(kind for kind, _ in function.parameters)])
    values = ", ".join(["&result", *(name for _, name in function.parameters)])
    call = f"((void (*)({kinds}))table[{index}])({values});"
    return (
        f"{prototype}\n{{\n"
        f"    {function.returns} result = {function.failure or 0};\n"
        "    if (!normgrad_capi_enter(&library, __func__, __builtin_return_address(0)))\n"
        "        return result;\n"
        f"{textwrap.indent(_wrap(call), '    ')}\n"
        "    normgrad_capi_leave();\n"
        "    return result;\n}"
    )


def _stub(stub: Function, present: Sequence[str]) -> str:
    """The C source of a function that is absent, and names functions that are present."""
    status = stub.failure if stub.is_phase_2 else stub.statuses.absent
    result = "" if stub.returns == "void" else f" {status:d}" if stub.returns_status else " 0"
    there = ", ".join(_similar(stub.name, present))
    return (
        f"EXPORTED {stub.returns} {stub.name}(void)\n{{\n"
        "    static int reported;\n"
        f'    normgrad_capi_absent(__func__, "{there}", &reported);\n'
        f"    return{result};\n}}"
    )


def _similar(name: str, present: Sequence[str]) -> list[str]:
    """All operators for an operator, otherwise the three functions of the most similar names."""
    for family in ("aclnn", "infiniop"):
        if name.startswith(family):
            sizes = [re.fullmatch(rf"({family}.*)GetWorkspaceSize", each) for each in present]
            sizes += [re.fullmatch(r"(infiniop)Get(.*)WorkspaceSize", each) for each in present]
            return ["".join(each.groups()) for each in sizes if each]
    return [*difflib.get_close_matches(name, present, 3, 0), "what `normgrad capi functions` lists"]
