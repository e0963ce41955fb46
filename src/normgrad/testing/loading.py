"""The loader of implementations, the suites for them by name, and what runs a case."""

from __future__ import annotations

import ctypes
import importlib
import os
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import normgrad

from ..operators.by_name import FUNCTIONS
from ..support.machine import version
from ..tensors import devices
from . import aclnn_libraries, infiniop_libraries, modules, own
from .c_functions import Functions
from .cases import Case, Topic
from .judging import Judged, judge
from .libraries import Library
from .operator_suite import cases
from .outcomes import wrong
from .subjects import NO_PARAMETER, Implementation, Subject, SubjectError

#: The suites, by :attr:`.subjects.Implementation.suite`: functions that return a suite's cases, or
#: a quick run's part of them, for an implementation with these facts.
SUITES: Mapping[str, Callable[[bool, Mapping[str, str]], tuple[Any, ...]]] = {
    "operators": lambda quick, facts: cases(quick),
    "infiniop": infiniop_libraries.cases,
    "aclnn": aclnn_libraries.cases,
    "modules": modules.cases,
}

#: The dialects that a shared library may speak.
_DIALECTS = (infiniop_libraries.Infiniop, aclnn_libraries.Aclnn)

#: Loads a library, and makes its functions visible to those loaded later.
_load_globally = partial(ctypes.CDLL, mode=ctypes.RTLD_GLOBAL)

#: The file name of a shared library.
_LIBRARY = re.compile(r".*\.so(\.\d+)*")


def cases_of(subject: Implementation, quick: bool = False) -> tuple[Case, ...]:
    """The cases of an implementation's suite, or a quick run's part of them."""
    return (*SUITES[subject.suite](quick, subject.facts), *own.cases(subject.declared, quick))


def run(case: Case, operators: Any) -> Judged:
    """Run a case on an implementation and return its verdict.

    Args:
        case: one of :func:`normgrad.testing.cases`; for a library, one of its suite in ``SUITES``.
        operators: an object or class as :class:`Subject` takes it, or what :func:`load` returns.
    """
    subject = operators if isinstance(operators, Implementation) else Subject("it", operators)
    judged = judge(case, subject.run(case), subject.strict)
    if judged.absent and case.topic is Topic.PLAIN and judged.absent.startswith(NO_PARAMETER):
        # Every caller needs what the plain call needs.
        fault = wrong(f"{case.operator} lacks a parameter", f"{judged.absent}: {case.call()}")
        return Judged(case, (fault,))
    return judged.beside(_plain(subject, case.kind)) if judged.said else judged


def _plain(subject: Implementation, kind: str) -> Judged | None:
    """The verdict on the plain call of a kind, which is run once."""
    if kind not in subject.plain:
        plain = (e for e in cases_of(subject, True) if (e.topic, e.kind) == (Topic.PLAIN, kind))
        found = (judge(each, subject.run(each), subject.strict) for each in plain)
        subject.plain[kind] = next(found, None)
    judged: Judged | None = subject.plain[kind]
    return judged


def specs_of(spec: str) -> list[str]:
    """The name of an implementation on each device: for "normgrad", the CPU and all GPUs."""
    if spec != "normgrad" or devices.unusable() is not None or find_spec("torch") is None:
        return [spec]
    import torch

    return [spec, *(f"{spec}:cuda:{index}" for index in range(torch.cuda.device_count()))]


def load(spec: str, declared: Sequence[own.Operator] = ()) -> Implementation:
    """Load the implementation of a name.

    Args:
        declared: further operators, for which it may have functions.
        spec: "normgrad" or "normgrad:cuda:0"; "torch" for PyTorch's own kernels; the path of a
            shared library that speaks infiniop or aclnn; "module:Name" for an object, a class or a
            class of ``torch.nn.Module`` in a module that can be imported, or "module" for the
            module itself.

    Raises:
        SubjectError: the name is of no implementation, or of one that cannot be used.
    """
    name, _, device = spec.partition(":")
    if name == "normgrad" and (device in ("", "cpu") or device.startswith("cuda")):
        return _ours(device or "cpu")
    if spec == "torch":
        try:
            from . import aten
        except ModuleNotFoundError as error:
            raise SubjectError(f"torch: {error}") from None
        return Subject(f"torch {version('torch')}", aten.operators())
    if _LIBRARY.fullmatch(spec) or (os.sep in spec and not spec.endswith(".py")):
        return _library(spec)
    target = _import_target(spec)
    torch = sys.modules.get("torch")  # which has been imported where there is a module of its
    if torch is not None and isinstance(target, type) and issubclass(target, torch.nn.Module):
        return modules.Module(spec, target)
    return Subject(spec, target, declared=declared)


def _ours(device: str) -> Subject:
    """normgrad's operators on a device."""
    if device != "cpu":
        try:
            import torch  # noqa: F401 - normgrad knows GPUs only once torch is imported

            device = devices.full_name(device)
        except ModuleNotFoundError:
            reason = f"device: {device!r}, without PyTorch; allowed: cpu"
            raise SubjectError(f"normgrad:{device}: {reason}") from None
        except (TypeError, ValueError) as error:
            raise SubjectError(f"normgrad:{device}: {error}") from None
    operators = SimpleNamespace(
        **{name: getattr(normgrad, name) for name in FUNCTIONS},
        set_num_threads=normgrad.set_num_threads,
        framework="numpy" if device == "cpu" else "torch",
        device=device,
    )
    return Subject(f"normgrad ({device})", operators, strict=True)


def module_of(spec: str) -> Any:
    """The module of "module:Name", or None for what is no Python object."""
    module = spec.partition(":")[0]
    if spec == "torch" or module == "normgrad" or _LIBRARY.fullmatch(spec) or os.sep in spec:
        return None
    if spec.endswith(".py"):
        allowed = "its module and a name in it, such as mine:Ops"
        raise SubjectError(f"{spec}: a file; allowed: {allowed}")
    if not all(module.split(".")):  # a name with an empty part is a relative one
        raise SubjectError(f"{spec!r}: no module; allowed: module:Name")
    if "" not in sys.path:  # find modules in the current folder, as ``python -m`` does
        sys.path.insert(0, "")
    try:
        return importlib.import_module(module)
    except (Exception, SystemExit) as error:
        reason = f"{type(error).__name__}: {error}"
        raise SubjectError(f"{spec}: cannot import {module}: {reason}") from error


def _import_target(spec: str) -> Any:
    """The object "module:Name", or the module itself."""
    module, _, attribute = spec.partition(":")
    target: Any = module_of(spec)
    for name in attribute.split(".") if attribute else ():
        if not hasattr(target, name):
            raise SubjectError(f"{spec}: {module} has no {attribute}")
        target = getattr(target, name)
    return target


def _library(path: str) -> Library:
    """Open a shared library that speaks a dialect."""
    file = Path(path).absolute()
    if not file.is_file():
        raise SubjectError(f"{path}: no such file; allowed: a shared library")
    library = _open(file, [name for dialect in _DIALECTS for name in dialect.companions])
    for dialect in _DIALECTS:
        if any(hasattr(library, name) for name in dialect.markers):
            break
    else:
        markers = " or ".join(dialect.markers[0] for dialect in _DIALECTS)
        allowed = f"a library with {markers}, or a Python class that calls it, as module:Name"
        raise SubjectError(f"{path}: neither dialect's functions; allowed: {allowed}")
    libraries = [library]
    # Look for a companion elsewhere only if it is not beside the library.
    for folder in (f"{file.parent}/", ""):
        for name in dialect.companions:
            with suppress(OSError):
                libraries.append(_load_globally(folder + name))
        functions = Functions(dialect.libraries, libraries)
        missing = [name for name in dialect.needed if name not in functions]
        if not missing:
            return Library(path, dialect, functions)
    raise SubjectError(
        f"{path}: no {missing[0]}; allowed: a library that has it, itself or in "
        f"{' or '.join(dialect.companions)} in its folder or on the loader's path"
    )


def _open(file: Path, companions: list[str]) -> ctypes.CDLL:
    # The library may need others beside it, where the loader does not look, and those yet others.
    beside = [path for name in companions if (path := file.parent / name).is_file()]
    for _ in range(1 + len(beside)):
        try:
            return _load_globally(str(file))
        except OSError as error:
            reason = error
        for path in beside:
            with suppress(OSError):
                _load_globally(str(path))
    raise SubjectError(f"{file}: cannot be loaded: {reason}")
