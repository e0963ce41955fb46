"""The C code that is generated from the list of functions: headers, and the trampolines."""

from __future__ import annotations

import re
import textwrap
from enum import IntEnum

from .declarations import HEADERS, RECENT_MESSAGES, digest, functions_of, stubs_of
from .signatures import Function, Header

_WIDTH = 100


def header_text(header: Header) -> str:
    """The text of a header for C and C++."""
    guard = "NORMGRAD_" + re.sub(r"\W", "_", header.path).upper()
    parts = [
        "// Made by `normgrad capi build`.",
        f"#ifndef {guard}\n#define {guard}",
        "\n".join(f"#include {each}" for each in header.includes),
        *[each if isinstance(each, str) else _enum(each) for each in header.types],
    ]
    if header.functions or header.stubs:
        parts += [
            '#ifdef __cplusplus\nextern "C" {\n#endif',
            "\n".join(f"{_wrapped(each.prototype)};" for each in header.functions),
            "\n".join(each.declaration for each in header.stubs),
            "#ifdef __cplusplus\n}\n#endif",
        ]
    return "\n\n".join([*parts, "#endif"]) + "\n"


def _enum(kind: type[IntEnum]) -> str:
    values = ",\n".join(f"    {value.name} = {value:d}" for value in kind)
    return f"typedef enum {kind.__name__} {{\n{values}\n}} {kind.__name__};"


def _wrapped(line: str) -> str:
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
            *[each.definition([one.name for one in functions]) for each in stubs],
            "",
        ]
    )


def _trampoline(index: int, function: Function) -> str:
    """The C source of a function, which returns its type's failure unless Python writes a result.

    The functions for the last error's text do not call Python, so that they work without it.
    """
    prototype = _wrapped(f"EXPORTED {function.prototype}")
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
        f"{textwrap.indent(_wrapped(call), '    ')}\n"
        "    normgrad_capi_leave();\n"
        "    return result;\n}"
    )
