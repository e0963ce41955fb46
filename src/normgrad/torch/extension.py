"""The C++ library of operators and autograd nodes: how it is built and loaded, and gets plans.

It computes calls on plain tensors by the plans that Python's kernels hand over, without Python.
Without the library Python's kernels compute all calls, with the same bits.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Sequence
from functools import cache as once
from typing import Any

import numpy as np
import torch
from torch import Tensor

from .. import devices, notices, threads, torch_build
from ..compilers import BuildError
from ..plans import Plan
from ..problem import WORKSPACE
from ..settings import SettingError

#: The environment variable with which torchrun numbers a machine's processes.
_LOCAL_RANK = "LOCAL_RANK"


#: The library once it is loaded; until then None, and the reason why it is not.
_library: Any = None
_reason: str | None = None


def load() -> None:
    """Load the library if it is built, and the environment does not turn it off."""
    global _library, _reason
    _reason = torch_build.missing()
    if _reason is not None:
        return
    try:
        library: Any = ctypes.CDLL(str(torch_build.path()))
        library.normgrad_hand_over.argtypes = [ctypes.c_void_p, ctypes.c_int64]
        library.normgrad_use_team.argtypes = [ctypes.c_int64] * 2
        library.normgrad_use_threads.argtypes = [ctypes.c_int64]
    except (OSError, AttributeError) as error:
        _reason = f"not loaded: {error}"
        return
    _library = library
    threads.subscribe(library.normgrad_use_threads)


def is_loaded() -> bool:
    """Whether C++ kernels compute plain calls."""
    return _library is not None


@once
def mention(on_gpu: bool) -> None:
    """Log, once, that layers run without the library, unless the environment turns it off.

    On a GPU, whose kernels are compiled at their first use, build it then too, for later processes:
    this one has its operators already.
    """
    if is_loaded() or not torch_build.is_on():
        return
    if not on_gpu:
        slower = "normgrad's layers run without their C++ library, which is %s"
        notices.say(f"{slower}; small layers take longer", _reason)
    elif os.environ.get(_LOCAL_RANK, "0") == "0":  # one process of each machine is enough
        notices.say("normgrad builds the C++ library of its layers, which later processes use")
        try:
            torch_build.build()
        except (BuildError, SettingError, OSError) as error:
            notices.say("normgrad's layers run without their C++ library: %s", error)


def implement(name: str) -> None:
    """Have C++ compute an operator of schemas.py, whose twin of Python is defined."""
    _library.normgrad_implement(name.encode())


def implement_layers() -> None:
    """Have C++ compute the operators of layers.py that it knows, whose twins are defined."""
    if is_loaded():
        _library.normgrad_implement_layers()


@once
def _stream_of(device: str) -> int:
    """The address of PyTorch's C function that tells a GPU's current stream; 0 for the CPU."""
    if device == devices.CPU:
        return 0
    cuda: Any = ctypes.CDLL("libtorch_cuda.so")
    return ctypes.cast(cuda.aoti_torch_get_current_cuda_stream, ctypes.c_void_p).value or 0


def _team() -> tuple[int, int]:
    """The table of a team of PyTorch's threads, and how many Python has started on this thread."""
    from ..backends.cpu import teams

    team = teams.ready()
    if team.size == 1:
        return teams.ALONE
    names = "parallel", "thread_number", "thread_count"
    functions = [getattr(_library, f"normgrad_{name}") for name in names]
    addresses = tuple(ctypes.cast(each, ctypes.c_void_p).value or 0 for each in functions)
    return teams.team(addresses, team.size)


#: The dtypes of results, as in plans.cpp.
_DTYPES = (torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int64)
#: The kinds of results, as in plans.h.
_ABSENT, _NEW, _IN_PLACE = range(3)


def hand_over(
    plan: Plan, names: Sequence[str], tensors: Sequence[Any], results: Sequence[Tensor | None]
) -> None:
    """Give C++ a plan that has just run, if an operator waits for it, for calls like this one.

    ``names`` are those of the operator's tensors in the order in which C++ takes them, ``tensors``
    those of them that a result may be. ``results`` are in the plan's order.
    """
    runner = plan.runner
    if runner is None or not is_loaded() or not _library.normgrad_waits():
        return
    native = runner.native()
    if native is None:
        return
    slots = {place.name: place.slot for place in plan.inputs if place is not None}
    words = [
        native.driver, native.parallel, native.launch, _stream_of(plan.device),
        native.aligned, plan.workspace_size, plan.alignment, WORKSPACE, len(native.steps),
    ]  # fmt: skip
    slots_of = [slots.get(name, -1) for name in names]
    for values in (native.block, native.steps.ravel(), slots_of):
        words += [len(values), *map(int, values)]
    words.append(len(results))
    for place, value in zip(plan.outputs, results, strict=True):
        if value is None:
            words += [_ABSENT, -1, -1, 0, 0, 0, 0]
            continue
        index = next((index for index, other in enumerate(tensors) if other is value), -1)
        words += [
            _NEW if index < 0 else _IN_PLACE, -1 if place is None else place.slot, index,
            _DTYPES.index(value.dtype), value.nbytes, value.dim(), *value.shape, value.dim(),
            *value.stride(),
        ]  # fmt: skip
    if native.parallel:
        _library.normgrad_use_team(*_team())
    table = np.array(words, np.int64)
    _library.normgrad_hand_over(table.ctypes.data, len(words))
