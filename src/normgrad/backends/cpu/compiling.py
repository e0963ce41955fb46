"""Compiling what runs: C functions, kept on disk, some of which Python calls by itself."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

from numba.core.ccallback import CFunc

from ...loading import compiling
from .disk import cache_for


def compiled(function: Any, signature: Any, parallel: bool = False) -> CFunc:
    """A C function, compiled or from the disk."""
    made = CFunc(
        function,
        (signature.args, signature.return_type),
        locals={},
        options={"error_model": "numpy", "nopython": True, "parallel": parallel},
    )
    made._cache = cache_for(function)
    with compiling():
        made.compile()
    return made


class _Method(ctypes.Structure):
    """Python's PyMethodDef."""

    _fields_ = (
        ("name", ctypes.c_char_p),
        ("function", ctypes.c_void_p),
        ("flags", ctypes.c_int),
        ("doc", ctypes.c_char_p),
    )


#: A function that takes its arguments as an array: METH_FASTCALL.
_FASTCALL = 0x80
#: Functions' definitions, which Python does not keep.
_methods: dict[str, tuple[CFunc, _Method]] = {}


def python_function(name: str, function: CFunc, owner: Any) -> Callable[..., Any]:
    """A function that Python calls without anything between; it gets its owner too."""
    if name not in _methods:
        _methods[name] = function, _Method(name.encode(), function.address, _FASTCALL, None)
    make = ctypes.PYFUNCTYPE(
        ctypes.py_object, ctypes.POINTER(_Method), ctypes.py_object, ctypes.c_void_p
    )(("PyCFunction_NewEx", ctypes.pythonapi))
    made: Callable[..., Any] = make(ctypes.byref(_methods[name][1]), owner, None)
    return made
