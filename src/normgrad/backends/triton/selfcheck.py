"""The check of the kernels on each kind of GPU, at their first use there.

They compute norms of random matrices, and gradients, on that GPU, and the results are compared with
the float64 oracle in units of the error bound. The verdict is kept on disk for later processes.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from contextlib import suppress
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

from ...declarations.problem import PLACES, WORKSPACE, Problem, Role, Vector
from ...operators import precision, reference
from ...operators.reference import Exact
from ...support import cache
from ...support.forks import KernelError
from ...tensors import dtypes
from ...tensors.dtypes import DType
from ...tensors.strides import Axis, round_up
from . import runtime, schedule
from .device import Device

_logger = logging.getLogger("normgrad")
_lock = threading.Lock()
#: What is wrong on each kind of GPU; "" if nothing is.
_known: dict[Device, str] = {}


def _versions() -> str:
    import torch
    import triton

    return f"Triton {triton.__version__} and PyTorch {torch.__version__}"


def path_of(name: str) -> Path:
    """The file of the verdict on these kernels, with these versions, on GPUs of this name."""
    sources = sorted(Path(__file__).parent.glob("*.py"))
    digest = cache.digest_of(sources, f"{name}, {_versions()}".encode())
    return cache.folder() / cache.GPU / f"{digest[:16]}.txt"


def read(name: str) -> str | None:
    """What is wrong by the verdict on disk, "" if nothing; None without a whole file."""
    with suppress(OSError):  # there may be no folder
        path = path_of(name)
        content = cache.unseal(path, cache.read(path) or b"")
        return None if content is None else content.decode()
    return None


def settled(index: int, device: Device) -> bool:
    """Whether the kernels are known to be right on a GPU; they are checked if there is no verdict.

    Args:
        index: the GPU's index.
        device: the description of the same GPU.

    Returns:
        False if the caller has to ask again later: while a CUDA graph is captured or a program is
        traced, since results cannot be read then.

    Raises:
        KernelError: the kernels give wrong results there. An exception that ends the check early
            propagates, and leaves no verdict.
    """
    name = device.name
    with _lock:
        wrong = _known.get(device, read(name))
        if wrong is None:
            if _is_recorded(index):
                return False
            lock = path_of(name).stem
            with cache.alone(cache.GPU, lock, f"checks GPU kernels for {name}"):
                wrong = read(name)
                wrong = _checked(index, device) if wrong is None else wrong
        _known[device] = wrong
    if wrong:
        raise KernelError(
            f"cuda:{index}: kernels that give wrong results on {name}, with {_versions()} "
            f"({wrong}); allowed: another device. Please report it, with what `normgrad info` "
            f"shows; delete {path_of(name)} to have the next process check again"
        )
    return True


def _checked(index: int, device: Device) -> str:
    """Check a GPU, and write the verdict to disk."""
    # A warning is visible without logging configuration, and the check takes as long as compiling
    # the kernels.
    _logger.warning("checking GPU kernels once for %s", device.name)
    wrong, path = check(index, device), path_of(device.name)
    with suppress(OSError):  # then every process checks
        cache.write(path, cache.seal(path, wrong.encode()))
    return wrong


def _is_recorded(index: int) -> bool:
    """Whether PyTorch captures, traces or fakes calls rather than executing them."""
    import torch

    if torch.compiler.is_compiling() or torch._C._len_torch_dispatch_stack():
        return True
    with torch.cuda.device(index):
        return bool(torch.cuda.is_current_stream_capturing())


def check(index: int | None, device: Device) -> str:
    """What is wrong on a GPU, or by Triton's interpreter for None; "" if nothing."""
    wrong = [text for norm in norms(device) for text in outside(*trial(*norm), index, device)]
    return f"{len(wrong)} results, such as {'; '.join(wrong[:3])}" if wrong else ""


def norms(device: Device) -> Iterator[tuple[str, int, str, int, DType]]:
    """The arguments of all trials: of matrices that a program holds, and of some in parts.

    The rows that it holds are of two tiles; there are also rows that it reads again.
    """
    names = ("layer_norm", 0), ("batch_norm", 0), ("batch_norm", 1)
    sizes = (
        (5 * device.persistent // 8, dtypes.float32),
        (4 * device.persistent + 8, dtypes.bfloat16),
    )
    for name, way, size in product(names, ("", "_backward"), sizes):
        yield *name, way, *size
    yield "layer_norm", 0, "_backward", 3 * device.persistent // 2, dtypes.bfloat16


def trial(
    norm: str, axis: int, way: str, size: int, dtype: DType
) -> tuple[str, Problem, dict[Role, Any], dict[Role, tuple[str, Exact]]]:
    """A norm of a matrix, or its gradients, with eight rows or channels along an axis.

    Returns its text, its problem and inputs, and the names and exact values of its results.
    """
    shape, by_row, eps = [size, size], norm == "layer_norm", 1e-5
    shape[axis] = 8
    options: dict[str, Any] = {"training": True, "channel_axis": axis}
    random = np.random.default_rng(1)
    dy, x = (random.standard_normal((2, *shape)) + 0.3).astype(dtype.numpy)
    weight, bias = random.standard_normal((2, size if by_row else 8)).astype(np.float32)
    inputs = {Role.INPUT: x, Role.WEIGHT: weight, Role.BIAS: bias}
    roles: tuple[Role, ...] = Role.RESULT, Role.OUT_MEAN, Role.OUT_INVSTD
    if by_row:
        exact = reference.layer_norm(x, size, weight, bias, eps=eps)
    else:
        exact = reference.batch_norm(x, weight, bias, eps=eps, **options)
    if way:
        _, mean, invstd = (each.value.astype(np.float32) for each in exact.values())
        inputs = {Role.GRAD_OUT: dy, Role.INPUT: x, Role.WEIGHT: weight}
        inputs |= {Role.MEAN: mean, Role.INVSTD: invstd}
        roles = Role.RESULT, Role.GRAD_WEIGHT, Role.GRAD_BIAS
        if by_row:
            given: tuple[Any, ...] = dy, x, mean, invstd, weight
            exact = reference.layer_norm_backward(*given, normalized_shape=size)
        else:
            given = dy, x, weight, None, None, mean, invstd
            exact = reference.batch_norm_backward(*given, **options)
    axes = [Axis(shape[0], (shape[1],) * 3), Axis(shape[1], (1,) * 3)]
    problem = Problem(
        *(dtype, dtype, dtype),
        sets=Axis(1, (0, 0, 0)),
        outer=(),
        channel=axes.pop(axis),
        inner=axes[0],
        vectors={
            role: Vector(dtypes.float32, 1) for role in (*inputs, *roles) if role > Role.RESULT
        },
        forward=not way,
        grouped=by_row and bool(way),
        by_row=by_row,
        eps=eps,
        divisor=size,
        missing_mean=not way,
        missing_invstd=not way,
    )
    text = f"{norm}{way} in {dtype.name} of shape {tuple(shape)}"
    return text, problem, inputs, dict(zip(roles, exact.items(), strict=True))


def outside(
    text: str,
    problem: Problem,
    inputs: dict[Role, Any],
    exact: dict[Role, tuple[str, Exact]],
    index: int | None,
    device: Device,
) -> Iterator[str]:
    """Describe each result of a trial whose error exceeds its bound."""
    import torch

    def there(array: Any) -> Any:
        memory = torch.from_numpy(array.reshape(-1).view(np.uint8))
        return memory if index is None else memory.to(f"cuda:{index}")

    made, arrays = schedule.build(problem, device), {**inputs}
    for role, (_, value) in exact.items():
        dtype = problem.grad_out if role == Role.RESULT else dtypes.float32
        arrays[role] = np.full_like(value.value, np.nan, dtype.numpy)
    tensors = {role: there(array) for role, array in arrays.items()}
    workspace = there(np.empty(made.workspace_size + schedule.ALIGNMENT, np.uint8))
    addresses = [0] * PLACES
    for role, tensor in tensors.items():
        addresses[role] = tensor.data_ptr()
    addresses[Role.GRAD_OUT] = addresses[Role.GRAD_OUT] or addresses[Role.INPUT]
    addresses[WORKSPACE] = round_up(workspace.data_ptr(), schedule.ALIGNMENT)
    runtime.Runner(made, index).run(addresses)
    for role, (name, value) in exact.items():
        result = tensors[role].cpu().numpy().view(arrays[role].dtype).reshape(value.value.shape)
        units = precision.error(result, value, problem.arithmetic).max()
        if units > 1:
            yield f"{text}, by '{made.path}': {name} is off by {units:.3g} times its bound"
