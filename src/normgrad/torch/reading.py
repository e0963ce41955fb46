"""What the code of a class's ``forward`` depends on beside the layer's values and its input.

Trials show what a ``forward`` computes now. They show what it always computes only if it reads
nothing that may change unseen, and changes nothing itself. Its code is read before it is called, so
that no trial runs code that records or prints.
"""

from __future__ import annotations

import builtins
import dis
from collections import ChainMap
from collections.abc import Iterator
from functools import cache
from importlib.util import find_spec
from types import BuiltinFunctionType, CodeType, FunctionType, ModuleType
from typing import Any, NamedTuple

import torch

#: Packages and modules whose code depends on nothing that changes while a program runs.
_TRUSTED = {
    "builtins", "torch", "math", "operator", "typing", "abc", "numbers", "functools", "collections",
    # These say which packages are installed.
    "diffusers.utils.import_utils", "transformers.utils.import_utils", "timm.layers.fast_norm",
}  # fmt: skip
#: The built-in functions that neither read nor change anything but their arguments.
_BUILTINS = {
    "abs", "all", "any", "enumerate", "isinstance", "issubclass", "len", "max", "min", "pow",
    "round", "sorted", "sum",
}  # fmt: skip
#: The attributes that give access to others by computed names.
_TABLES = {"__dict__", "__getattribute__", "__setattr__", "__delattr__"}


class Obstacle(NamedTuple):
    """What of a class's code no trial can judge.

    Attributes:
        clause: what it does, for users.
        acts: whether a call might change or show something.
        attribute: its name, if it is an attribute of the class.
    """

    clause: str
    acts: bool
    attribute: str | None = None


class Reading(NamedTuple):
    """What the code of a class's ``forward`` depends on.

    Attributes:
        names: the names of attributes that it reads, of the layer or of other objects.
        obstacles: what of it no trial can judge.
    """

    names: frozenset[str]
    obstacles: tuple[Obstacle, ...]


def is_constant(value: Any) -> bool:
    """Whether a value cannot change without being replaced."""
    return all(type(part) in _CONSTANTS for part in (value if type(value) is tuple else (value,)))


#: The types of such values, and of tuples' parts.
_CONSTANTS = (int, float, bool, str, torch.Size, torch.dtype, type(None))


@cache
def read(kind: type) -> Reading:
    """Read a class's ``forward``, and the functions and methods that it names."""
    reader = _Reader()
    reader.read_attributes(kind, {"forward", "__getattr__", "__getattribute__"})
    return Reading(frozenset(reader.names), tuple(reader.obstacles))


class _Reader:
    """The state of one reading."""

    def __init__(self) -> None:
        self.names: set[str] = set()
        self.obstacles: list[Obstacle] = []
        self._read: list[FunctionType] = []
        #: The classes and modules that have been named, and the names that were looked up in each.
        self._holders: dict[Any, set[str]] = {}

    def read_attributes(self, kind: type, names: set[str]) -> None:
        """Read a class's attributes, and what these name, until there are no more names."""
        self._look_up(kind, names)
        while True:
            for holder, known in [*self._holders.items()]:
                if new := self.names - known:
                    self._look_up(holder, new)
                    break
            else:
                return

    def _look_up(self, holder: Any, names: set[str]) -> None:
        """Read the attributes of a class or a module that have these names."""
        self._holders.setdefault(holder, set()).update(names)
        is_class = isinstance(holder, type)
        for scope in holder.__mro__ if is_class else (holder,):
            if _is_trusted(scope.__module__ if is_class else scope.__name__):
                continue
            for name in sorted(names & vars(scope).keys()):
                if is_class:
                    self._judge(f"class attribute {name}", vars(scope)[name], name)
                else:
                    self._judge(f"global {name}", vars(scope)[name])

    def _judge(self, what: str, value: Any, attribute: str | None = None) -> None:
        """Read a value that is code; any other may change."""
        if isinstance(value, (staticmethod, classmethod)):
            value = value.__func__
        elif isinstance(value, property):
            value = value.fget
        if isinstance(value, FunctionType):
            self._read_function(value)
        elif isinstance(value, ModuleType):
            if not _is_trusted(value.__name__):
                self._holders.setdefault(value, set())
        elif isinstance(value, type):
            if not _is_trusted(value.__module__):
                code = {name for name, one in vars(value).items() if callable(one)}
                if value not in self._holders:
                    self._look_up(value, code)
        elif isinstance(value, BuiltinFunctionType):
            module = value.__module__ or ""
            if not (value.__name__ in _BUILTINS if module == "builtins" else _is_trusted(module)):
                self._object(f"calls {value.__name__}")
        else:
            clause = f"reads the {what}, which may change"
            self.obstacles.append(Obstacle(clause, not is_constant(value), attribute))

    def _object(self, clause: str) -> None:
        self.obstacles.append(Obstacle(clause, True))

    def _read_function(self, function: FunctionType) -> None:
        if any(function is one for one in self._read):
            return
        self._read.append(function)
        cells = zip(function.__code__.co_freevars, function.__closure__ or (), strict=True)
        if _is_trusted(function.__globals__.get("__name__", "")):
            for _, cell in cells:  # a decorator of PyTorch's has the function in its closure
                if isinstance(inner := _content(cell), FunctionType):
                    self._read_function(inner)
            return
        for name, cell in cells:
            if name != "__class__":
                self._judge(f"variable {name}", _content(cell))
        scope = ChainMap(function.__globals__, vars(builtins))
        for instruction in _instructions(function.__code__):
            name = instruction.argval
            if instruction.opname in ("LOAD_GLOBAL", "LOAD_NAME"):
                if name in scope:
                    self._judge(f"global {name}", scope[name])
            elif instruction.opname in ("LOAD_ATTR", "LOAD_METHOD", "LOAD_SUPER_ATTR"):
                self.names.add(name)
                if name in _TABLES:
                    self._object(f"reads {name}")
            elif instruction.opname in ("STORE_ATTR", "DELETE_ATTR"):
                self._object(f"sets the attribute {name}")
            elif instruction.opname in ("STORE_GLOBAL", "DELETE_GLOBAL"):
                self._object(f"sets the global {name}")
            elif instruction.opname == "IMPORT_NAME":
                top = name.partition(".")[0]
                if not top or (top not in _TRUSTED and find_spec(top) is not None):
                    self._object(f"imports {name or 'a module'}")


def _is_trusted(module: str) -> bool:
    return module in _TRUSTED or module.partition(".")[0] in _TRUSTED


def _content(cell: Any) -> Any:
    """What a variable of a closure holds."""
    try:
        return cell.cell_contents
    except ValueError:  # nothing yet
        return None


def _instructions(code: CodeType) -> Iterator[dis.Instruction]:
    """The instructions of a function's code, and of the functions inside it."""
    yield from dis.get_instructions(code)
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _instructions(constant)
