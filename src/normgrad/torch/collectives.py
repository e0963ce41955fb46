"""What ranks say to each other: two collectives of torch.distributed, and errors that name them.

A collective that fails (a rank died, or did not come within the group's timeout) raises a
RuntimeError on every rank that is left, with what was asked of whom. The group itself is unusable
afterwards, as is usual.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist

Tensor = torch.Tensor

#: How groups are spoken of where a traced program needs a constant.
GroupName = str


def default_group() -> Any:
    """The group of all ranks, or None where there is none."""
    if dist.is_available() and dist.is_initialized():
        return dist.group.WORLD
    return None


def name_of(group: Any) -> GroupName:
    """A group's name, by which :func:`by_name` finds it."""
    return str(group.group_name)


def by_name(name: GroupName) -> Any:
    """The group of that name.

    Raises:
        RuntimeError: it was destroyed, or belongs to another process.
    """
    try:
        return torch._C._distributed_c10d._resolve_process_group(name)
    except Exception as error:
        raise RuntimeError(
            f"process group {name!r}: {error}; allowed: a group of this process that was not "
            "destroyed"
        ) from None


def _run(what: str, values: Tensor, group: Any, collective: Callable[[], Any]) -> None:
    try:
        collective()
    except RuntimeError as error:
        dtype = str(values.dtype).removeprefix("torch.")
        raise RuntimeError(
            f"{what} of {values.numel()} {dtype} values failed on rank {dist.get_rank(group)} of "
            f"the {dist.get_world_size(group)} in group {name_of(group)!r}: {error}"
        ) from error


# It has got another name.
_all_gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor


def all_gather(what: str, values: Tensor, group: Any) -> Tensor:
    """Every rank's values, a row each.

    Args:
        what: what they are, for messages.
        values: (K,), the same K and dtype on all ranks.
        group: who takes part.

    Raises:
        RuntimeError: it failed.
    """
    ranks = dist.get_world_size(group)
    found = values.new_empty(ranks * values.numel())
    _run(f"{what}: all-gather", values, group, lambda: _all_gather(found, values, group=group))
    return found.view(ranks, values.numel())


def all_reduce(what: str, values: Tensor, group: Any) -> Tensor:
    """The sum of every rank's values, in their place.

    Raises:
        RuntimeError: it failed.
    """
    _run(f"{what}: all-reduce", values, group, lambda: dist.all_reduce(values, group=group))
    return values


class _Sum(torch.autograd.Function):
    """The sum over ranks, differentiable to any order: the gradient's is its own."""

    @staticmethod
    def forward(ctx: Any, values: Tensor, group: Any) -> Tensor:  # type: ignore[override]
        """Sum."""
        ctx.group = group
        return all_reduce("second derivatives", values.contiguous().clone(), group)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:  # type: ignore[override]
        """Sum what every rank's loss asks of this one's part."""
        return _Sum.apply(gradient, ctx.group), None


def differentiable_sum(values: Tensor, group: Any) -> Tensor:
    """The sum of every rank's values, as a function of them.

    Raises:
        RuntimeError: it failed.
    """
    return _Sum.apply(values, group)  # type: ignore[no-any-return]
