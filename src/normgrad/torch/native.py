"""The C++ module that computes eager calls on plain tensors: how it is built and loaded.

Until it is loaded its functions stand here as well; they compute nothing, so that PyTorch does.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from importlib.machinery import ExtensionFileLoader
from importlib.util import module_from_spec, spec_from_file_location
from typing import Any

from ..operators.by_name import PLANNED
from ..support import notices, threads, torch_build
from ..support.compilers import BuildError
from ..support.settings import SettingError
from ..tensors import frameworks

_NAME = f"{__package__}._native"

#: Whether a line has said that the module is missing.
_is_mentioned = False


def _mention(reason: str) -> None:
    """Log, once, that PyTorch computes; not if the environment turns the module off."""
    global _is_mentioned
    if not _is_mentioned and torch_build.is_on():
        _is_mentioned = True
        notices.say("PyTorch computes normgrad's layers, since their C++ library is %s", reason)


def _absent(*arguments: Any) -> Any:
    """Compute nothing, in the place of a function of the module."""
    _mention(torch_build.missing() or "not loaded")
    return NotImplemented


#: The norms, of the arguments of PyTorch's functions in their order. NotImplemented is the result
#: where PyTorch's function has to compute, or to refuse, the call.
batch_norm: Callable[..., Any] = _absent
group_norm: Callable[..., Any] = _absent
layer_norm: Callable[..., Any] = _absent
rms_norm: Callable[..., Any] = _absent
#: Whether a mode, transform or tracer has to see this thread's calls.
has_observers: Callable[[], Any] = _absent

#: The module once it is loaded.
module: Any = None


def load() -> None:
    """Load the module if it is built, and the environment does not turn it off."""
    global module
    if module is not None or torch_build.missing() is not None:
        return
    path = str(torch_build.path())
    spec = spec_from_file_location(_NAME, path, loader=ExtensionFileLoader(_NAME, path))
    assert spec is not None
    assert spec.loader is not None
    try:
        made = module_from_spec(spec)
        spec.loader.exec_module(made)
    except ImportError as error:
        _mention(f"not loaded: {error}")
        return
    from . import native_plans

    made.connect(native_plans.plan)
    threads.subscribe(made.set_threads)
    for name in ("batch_norm", "group_norm", "layer_norm", "rms_norm", "has_observers"):
        setattr(sys.modules[__name__], name, getattr(made, name))
    numbers = {
        (name, updates): made.add_operator(name + native_plans.UPDATES * updates)
        for name in PLANNED
        for updates in (False, True)
    }

    def compute(
        name: str, updates: bool, tensors: tuple[Any, ...], choices: tuple[Any, ...]
    ) -> Any:
        return made.compute(numbers[name, updates], tensors, choices)

    frameworks.compute_in_cpp = compute
    frameworks.prepare_in_cpp = native_plans.prepare
    module = made
    frameworks.of_torch()  # whose tensors functions know from then on


def build_and_load() -> None:
    """Load the module, and build it before if that has not been done and is possible."""
    if module is not None or not torch_build.is_on():
        return
    if torch_build.missing() is not None:
        notices.say("normgrad builds the C++ library of its layers, which takes some 25 s, once")
        try:
            torch_build.build()
        except (BuildError, SettingError, OSError) as error:
            _mention(f"not built: {error}")
            return
    load()
