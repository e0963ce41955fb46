"""What ranks say to each other: two collectives of torch.distributed, and errors that name them.

A collective that fails (a rank died, or did not come within the group's timeout) raises a
RuntimeError on every rank that is left, with what was asked of whom. The group itself is unusable
afterwards, as is usual.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor


def default_group() -> Any:
    """The group of all ranks, or None where there is none."""
    if dist.is_available() and dist.is_initialized():
        return dist.group.WORLD
    return None


def name_of(group: Any) -> str:
    """A group's name, which is a constant in traced programs; :func:`by_name` finds it."""
    return str(group.group_name)


def size(group: Any) -> int:
    """How many ranks a group has.

    Raises:
        ValueError: this rank is not of it.
    """
    ranks: int = dist.get_world_size(group)
    if ranks < 1:
        raise ValueError(
            "process_group: a group of which this rank is not; allowed: one that it is of"
        )
    return ranks


def by_name(name: str) -> Any:
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


@contextmanager
def _named(what: str, group: Any) -> Iterator[None]:
    """A context in which a failure says what failed."""
    try:
        yield
    except RuntimeError as error:
        raise RuntimeError(
            f"{what} failed on rank {dist.get_rank(group)} of the {size(group)} in group "
            f"{name_of(group)!r}: {error}"
        ) from error


def _described(values: Tensor) -> str:
    return f"{values.numel()} {str(values.dtype).removeprefix('torch.')} values"


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
    ranks = size(group)
    found = values.new_empty(ranks * values.numel())
    with _named(f"{what}: all-gather of {_described(values)}", group):
        _all_gather(found, values, group=group)
    return found.view(ranks, values.numel())


def all_reduce(what: str, values: Tensor, group: Any) -> Tensor:
    """The sum of every rank's values, in their place.

    Raises:
        RuntimeError: it failed.
    """
    with _named(f"{what}: all-reduce of {_described(values)}", group):
        dist.all_reduce(values, group=group)
    return values


def gather_objects(what: str, value: Any, group: Any) -> list[Any]:
    """Every rank's value.

    Raises:
        RuntimeError: it failed.
    """
    found: list[Any] = [None] * size(group)
    with _named(f"{what}: all-gather", group):
        dist.all_gather_object(found, value, group=group)
    return found
