"""A process that makes calls of the C libraries, as it is told: a crash ends it and nothing else.

It is started with the folder of the libraries, reads a case a line as a Python literal, and answers
with a line: what every call returned. Memory is allocated by the libraries, and named by number.
"""

from __future__ import annotations

import ast
import ctypes
import sys
from pathlib import Path
from typing import Any

from normgrad.dialects.c.declarations import DIALECTS, HEADERS


class Libraries:
    """Every function that the libraries export, by name."""

    def __init__(self, folder: Path) -> None:
        libraries = {
            name: ctypes.CDLL(str(folder / f"lib{name}.so"))
            for dialect in DIALECTS
            for name in dialect.libraries
        }
        self._found: dict[str, Any] = {}
        for header in HEADERS:
            for each in header.functions:
                function = getattr(libraries[each.library], each.name)
                function.restype, function.argtypes = each.result, each.arguments
                self._found[each.name] = function

    def __call__(self, name: str, arguments: list[Any]) -> Any:
        return self._found[name](*arguments)


class Case:
    """One case's values: what its calls have made, by name."""

    def __init__(self, libraries: Libraries) -> None:
        self._libraries = libraries
        self._cells: dict[str, ctypes.c_void_p] = {}
        self._arrays: list[Any] = []

    def value(self, told: Any) -> Any:
        """An argument: a plain number, or a pair that says what it is."""
        if not isinstance(told, tuple):
            return told
        kind, what = told
        if kind == "made":  # what a call has made
            return self._cells.setdefault(what, ctypes.c_void_p()).value
        if kind == "count":
            return self._cells.setdefault(what, ctypes.c_void_p()).value or 0
        if kind == "at":  # where a call writes what it makes
            return ctypes.addressof(self._cells.setdefault(what, ctypes.c_void_p()))
        if kind == "behind":  # in a block, so many bytes from its start
            name, offset = what
            start = self._cells.setdefault(name, ctypes.c_void_p()).value
            return None if start is None else start + offset
        assert kind in ("int64", "bool", "bytes"), kind
        if kind == "bytes":
            array: Any = ctypes.create_string_buffer(what, len(what))
        else:
            item = ctypes.c_int64 if kind == "int64" else ctypes.c_bool
            array = (item * max(1, len(what)))(*what)
        self._arrays.append(array)
        return ctypes.addressof(array)

    def run(self, steps: list[Any]) -> list[Any]:
        """The results of all calls, and the bytes that are asked for."""
        results = []
        for step in steps:
            if step[0] == "read":
                _, name, size = step
                start = self._cells.setdefault(name, ctypes.c_void_p()).value
                results.append(b"" if start is None else ctypes.string_at(start, size))
                continue
            name, arguments, *kept = step
            result = self._libraries(name, [self.value(each) for each in arguments])
            if kept:
                self._cells[kept[0]] = ctypes.c_void_p(result)
                result = 0 if result else None
            # A NaN is no literal.
            results.append(str(result) if isinstance(result, float) else result)
        return results


def main() -> None:
    """Answer until there are no more cases."""
    libraries = Libraries(Path(sys.argv[1]))
    for line in sys.stdin:
        print(repr(Case(libraries).run(ast.literal_eval(line))), flush=True)


if __name__ == "__main__":
    main()
