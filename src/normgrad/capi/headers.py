"""From the list of signatures to C: the headers, and the libraries' trampolines."""

from __future__ import annotations

import re
import textwrap
from enum import IntEnum

from .declarations import HEADERS, RECENT_MESSAGES, digest, functions_of
from .signatures import Function, Header

_WIDTH = 100


def header_text(header: Header) -> str:
    """A header, for C and C++."""
    guard = "NORMGRAD_" + re.sub(r"\W", "_", header.path).upper()
    parts = [
        "// Made by `normgrad capi build`.",
        f"#ifndef {guard}\n#define {guard}",
        "\n".join(f"#include {each}" for each in header.includes),
        *[each if isinstance(each, str) else _enum(each) for each in header.types],
    ]
    if header.functions:
        parts += [
            '#ifdef __cplusplus\nextern "C" {\n#endif',
            "\n".join(f"{_wrapped(each.prototype)};" for each in header.functions),
            "#ifdef __cplusplus\n}\n#endif",
        ]
    return "\n\n".join([*parts, "#endif"]) + "\n"


def _enum(kind: type[IntEnum]) -> str:
    values = ",\n".join(f"    {value.name} = {value:d}" for value in kind)
    return f"typedef enum {kind.__name__} {{\n{values}\n}} {kind.__name__};"


def _wrapped(line: str) -> str:
    return "\n".join(textwrap.wrap(line, _WIDTH, subsequent_indent="    "))


def library_text(library: str) -> str:
    """A library: for each function a trampoline through a table that Python fills.

    Python is started, if nothing else has, at the first call; where that fails, functions return
    their type's failure.
    """
    functions = functions_of(library)
    includes = [
        f'#include "{header.path}"'
        for header in HEADERS
        if any(each.lib == library for each in header.functions)
    ]
    return "\n\n".join(
        [
            "// Made by `normgrad capi build`.",
            "\n".join([*includes, '#include "boot.h"']),
            f"static void *table[{len(functions)}];",
            f'static struct normgrad_library library = {{"{library}", "{digest()}", table, 0}};',
            *[_trampoline(index, each) for index, each in enumerate(functions)],
            "",
        ]
    )


def _trampoline(index: int, function: Function) -> str:
    """The result is the type's failure unless Python writes another.

    The text of the last error is C's own, and can be read where Python cannot be entered.
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
