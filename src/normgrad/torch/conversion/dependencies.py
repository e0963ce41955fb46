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
from itertools import chain
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
    """Read a class's ``forward``, and the functions, classes and modules that it names."""
    names = {"forward", "__getattr__", "__getattribute__"}
    obstacles: dict[Obstacle, None] = {}
    reached: list[Any] = [kind]
    size = 0
    while size < len(names) + len(reached):  # a new name may be an attribute of all that is reached
        size = len(names) + len(reached)
        for one in reached:
            own = set()
            if isinstance(one, FunctionType) and not _is_trusted(one):
                names |= _named(one, "LOAD_ATTR", "LOAD_METHOD", "LOAD_SUPER_ATTR")
                obstacles |= dict.fromkeys(_acts(one))
            elif isinstance(one, type) and one is not kind:  # whose object may be made and called
                own = {name for name, value in vars(one).items() if callable(value)}
            for what, name, value in _referents(one, names | own):
                if isinstance(value, (FunctionType, ModuleType, type)):
                    if all(value is not each for each in (*reached, *kind.__mro__)):
                        reached.append(value)
                elif not isinstance(value, BuiltinFunctionType):
                    clause = f"reads the {what} {name}, which may change"
                    attribute = name if what == _ATTRIBUTE else None
                    obstacles[Obstacle(clause, not is_constant(value), attribute)] = None
                elif not (
                    _is_trusted(value) if value.__module__ != "builtins" else name in _BUILTINS
                ):
                    obstacles[Obstacle(f"calls {name}", True)] = None
    return Reading(frozenset(names), tuple(obstacles))


_ATTRIBUTE = "class attribute"


def _referents(one: Any, names: set[str]) -> Iterator[tuple[str, str, Any]]:
    """What a function names; or what of a class or module has one of these names."""
    if not isinstance(one, FunctionType):
        what, scopes = (_ATTRIBUTE, one.__mro__) if isinstance(one, type) else ("global", (one,))
        for scope in scopes:
            for name in () if _is_trusted(scope) else sorted(names & vars(scope).keys()):
                value = vars(scope)[name]
                if isinstance(value, (staticmethod, classmethod)):
                    value = value.__func__
                yield what, name, value.fget if isinstance(value, property) else value
        return
    is_trusted = _is_trusted(one)
    for name, cell in zip(one.__code__.co_freevars, one.__closure__ or (), strict=True):
        value = _content(cell)
        # A decorator of PyTorch's has the function in its closure.
        if name != "__class__" and (not is_trusted or isinstance(value, FunctionType)):
            yield "variable", name, value
    scope = ChainMap(one.__globals__, vars(builtins))
    for name in () if is_trusted else sorted(_named(one, "LOAD_GLOBAL", "LOAD_NAME")):
        if name in scope:
            yield "global", name, scope[name]


def _acts(function: FunctionType) -> Iterator[Obstacle]:
    """What a function's own code changes, or may reach by names that it computes."""
    for name in _named(function, "STORE_ATTR", "DELETE_ATTR"):
        yield Obstacle(f"sets the attribute {name}", True)
    for name in _named(function, "STORE_GLOBAL", "DELETE_GLOBAL"):
        yield Obstacle(f"sets the global {name}", True)
    for name in _named(function, "LOAD_ATTR", "LOAD_METHOD") & _TABLES:
        yield Obstacle(f"reads {name}", True)
    for name in _named(function, "IMPORT_NAME"):
        top = name.partition(".")[0]
        if not top or (top not in _TRUSTED and find_spec(top) is not None):
            yield Obstacle(f"imports {name or 'a module'}", True)


def _is_trusted(one: Any) -> bool:
    """Whether a function, class or module is of a package or module that is trusted."""
    if isinstance(one, FunctionType):
        home = one.__globals__.get("__name__")
    else:
        home = one.__name__ if isinstance(one, ModuleType) else one.__module__
    return home in _TRUSTED or str(home).partition(".")[0] in _TRUSTED


def _content(cell: Any) -> Any:
    """What a variable of a closure holds."""
    try:
        return cell.cell_contents
    except ValueError:  # nothing yet
        return None


def _named(function: FunctionType, *operations: str) -> set[str]:
    """The names in instructions of a function's code, and of functions inside it."""
    codes = [function.__code__]
    for code in codes:
        codes += [constant for constant in code.co_consts if isinstance(constant, CodeType)]
    instructions = chain.from_iterable(map(dis.get_instructions, codes))
    return {each.argval for each in instructions if each.opname in operations}
