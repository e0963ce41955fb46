"""PyTorch's own operators on the CPU, by normgrad: for models whose code is not to be touched.

Kernels belong to the process: while any thread is inside :func:`override`, every thread uses ours.
What decides is when an operator is called, not when it was recorded: a backward pass that runs
after the context was left uses PyTorch's own. Compiled code calls what it was compiled to: with
the "aot_eager" backend the same operators, with "inductor" code of its own from the start.
"""

from __future__ import annotations

import contextlib
import threading
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from torch import Tensor
from torch.library import _scoped_library

from .. import contract, operators
from .kernels import check_sizes
from .untraced import untraced


def _within_ranks(tensor: Tensor) -> Tensor:
    """A tensor of more axes than normgrad's with its last axes in one."""
    return tensor if tensor.dim() <= contract.MAX_RANK else tensor.flatten(2)


def _as_input(grad_input: Tensor | None, input: Tensor) -> Tensor | None:
    return grad_input if grad_input is None else grad_input.reshape(input.shape)


def _native_batch_norm_backward(
    grad_out: Tensor,
    input: Tensor,
    weight: Tensor | None,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    save_mean: Tensor | None,
    save_invstd: Tensor | None,
    train: bool,
    eps: float,
    output_mask: Sequence[bool],
) -> tuple[Tensor | None, ...]:
    grad_input, *rest = operators.batch_norm_backward(
        _within_ranks(grad_out), _within_ranks(input), weight, running_mean, running_var,
        save_mean, save_invstd,
        training=train, eps=eps, output_mask=tuple(output_mask),  # type: ignore[arg-type]
    )  # fmt: skip
    return _as_input(grad_input, input), *rest


def _native_group_norm_backward(
    grad_out: Tensor,
    input: Tensor,
    mean: Tensor,
    rstd: Tensor,
    weight: Tensor | None,
    N: int,  # noqa: N803 - ATen's names
    C: int,  # noqa: N803
    HxW: int,  # noqa: N803
    group: int,
    output_mask: Sequence[bool],
) -> tuple[Tensor | None, ...]:
    check_sizes(input, N, C, HxW)
    grad_input, *rest = operators.group_norm_backward(
        _within_ranks(grad_out), _within_ranks(input), mean, rstd, weight, num_groups=group,
        output_mask=tuple(output_mask),  # type: ignore[arg-type]
    )  # fmt: skip
    return _as_input(grad_input, input), *rest


def _batch_norm_stats(input: Tensor, eps: float) -> tuple[Tensor, ...]:
    return tuple(operators.batch_norm_stats(_within_ranks(input), eps=eps))


def _batch_norm_elemt(
    input: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    mean: Tensor,
    invstd: Tensor,
    eps: float,
) -> Tensor:
    output = operators.batch_norm_elemt(_within_ranks(input), weight, bias, mean, invstd)
    return output.reshape(input.shape)


def _batch_norm_gather_stats_with_counts(
    input: Tensor,
    mean: Tensor,
    invstd: Tensor,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    momentum: float,
    eps: float,
    counts: Tensor,
) -> tuple[Tensor, ...]:
    """Like ATen's, it writes to the running statistics."""
    mean, invstd, *_ = operators.batch_norm_gather_stats_with_counts(
        _within_ranks(input), mean, invstd, running_mean, running_var, counts,
        momentum=momentum, eps=eps, out=(None, None, running_mean, running_var),
    )  # fmt: skip
    return mean, invstd


def _batch_norm_backward_reduce(
    grad_out: Tensor,
    input: Tensor,
    mean: Tensor,
    invstd: Tensor,
    weight: Tensor | None,
    input_g: bool,
    weight_g: bool,
    bias_g: bool,
) -> tuple[Tensor | None, ...]:
    return tuple(
        operators.batch_norm_backward_reduce(
            _within_ranks(grad_out), _within_ranks(input), mean, invstd, weight,
            input_g=input_g, weight_g=weight_g, bias_g=bias_g,
        )
    )  # fmt: skip


def _batch_norm_backward_elemt(
    grad_out: Tensor,
    input: Tensor,
    mean: Tensor,
    invstd: Tensor,
    weight: Tensor | None,
    sum_dy: Tensor,
    sum_dy_xmu: Tensor,
    count: Tensor,
) -> Tensor | None:
    grad_input = operators.batch_norm_backward_elemt(
        _within_ranks(grad_out),
        _within_ranks(input),
        mean,
        invstd,
        weight,
        sum_dy,
        sum_dy_xmu,
        count,
    )
    return _as_input(grad_input, input)


#: ATen's operators and what computes them; the first two replace PyTorch's kernels, the others have
#: none on the CPU.
KERNELS: dict[str, Callable[..., Any]] = {
    "native_batch_norm_backward": _native_batch_norm_backward,
    "native_group_norm_backward": _native_group_norm_backward,
    "batch_norm_stats": _batch_norm_stats,
    "batch_norm_elemt": _batch_norm_elemt,
    "batch_norm_gather_stats_with_counts": _batch_norm_gather_stats_with_counts,
    "batch_norm_backward_reduce": _batch_norm_backward_reduce,
    "batch_norm_backward_elemt": _batch_norm_backward_elemt,
}

_lock = threading.Lock()
_users = 0
_registered = contextlib.ExitStack()


def _enter() -> None:
    global _users
    with _lock:
        if _users == 0:
            library = _registered.enter_context(_scoped_library("aten", "IMPL"))
            with warnings.catch_warnings():
                # That a kernel is replaced is what was asked for.
                warnings.filterwarnings("ignore", r"(?s).*[Oo]verriding a previously registered")
                for name, kernel in KERNELS.items():
                    library.impl(name, untraced(kernel), "CPU")
        _users += 1


def _leave() -> None:
    global _users
    with _lock:
        _users -= 1
        if _users == 0:
            _registered.close()


@contextlib.contextmanager
def override() -> Iterator[None]:
    """A context in which PyTorch's own operators on the CPU are normgrad's.

    These are the backward passes of batch norm and group norm, and with them instance norm's; the
    operators of synchronised batch norm, which PyTorch has for CUDA alone, are there in addition.
    It can be nested, and entered by several threads: PyTorch's own come back when the last leaves.
    """
    _enter()
    try:
        yield
    finally:
        _leave()


_installed: list[contextlib.ExitStack] = []


def install() -> contextlib.ExitStack:
    """Do what :func:`override` does from here on.

    Returns:
        What ends it by its ``close()``, or at the end of a ``with``; :func:`uninstall` ends all.
    """
    handle = contextlib.ExitStack()
    handle.enter_context(override())
    _installed.append(handle)
    return handle


def uninstall() -> None:
    """End what every :func:`install` began. Contexts of :func:`override` stay as they are."""
    while _installed:
        _installed.pop().close()
