"""Communication between ranks: collectives of torch.distributed, with errors that name them.

A collective that fails (a rank died, or did not join it within the group's timeout) raises a
RuntimeError on every remaining rank; the message names the collective, the rank and the group. As
usual in torch.distributed, the group is unusable afterwards.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor


def default_group() -> Any:
    """The group of all ranks, or None if torch.distributed is not initialised."""
    if dist.is_available() and dist.is_initialized():
        return dist.group.WORLD
    return None


def name_of(group: Any) -> str:
    """A group's name, which is a constant in traced programs; :func:`by_name` finds it."""
    return str(group.group_name)


def size(group: Any) -> int:
    """The number of ranks in a group, of which this rank must be one."""
    ranks: int = dist.get_world_size(group)
    if ranks < 1:
        raise ValueError(
            "process_group: a group of which this rank is not; allowed: one that it is of"
        )
    return ranks


def by_name(name: str) -> Any:
    """The group with this name."""
    try:
        return torch._C._distributed_c10d._resolve_process_group(name)
    except Exception as error:
        raise RuntimeError(
            f"process group {name!r}: {error}; allowed: a group of this process that was not "
            "destroyed"
        ) from None


@contextmanager
def _naming(operation: str, group: Any) -> Iterator[None]:
    """A context that adds the operation, the rank and the group to the message of a failure."""
    try:
        yield
    except RuntimeError as error:
        raise RuntimeError(
            f"{operation} failed on rank {dist.get_rank(group)} of the {size(group)} in group "
            f"{name_of(group)!r}: {error}"
        ) from error


def _described(values: Tensor) -> str:
    return f"{values.numel()} {str(values.dtype).removeprefix('torch.')} values"


# Newer versions of PyTorch have renamed all_gather_into_tensor.
_all_gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor


def all_gather(what: str, values: Tensor, group: Any) -> Tensor:
    """Gather all ranks' values in a matrix with one row per rank.

    ``values`` have the shape (K,), with the same K and dtype on all ranks.
    """
    ranks = size(group)
    gathered = values.new_empty(ranks * values.numel())
    with _naming(f"{what}: all-gather of {_described(values)}", group):
        _all_gather(gathered, values, group=group)
    return gathered.view(ranks, values.numel())


def all_reduce(what: str, values: Tensor, group: Any) -> Tensor:
    """Replace the values, in place, by their sum over all ranks."""
    with _naming(f"{what}: all-reduce of {_described(values)}", group):
        dist.all_reduce(values, group=group)
    return values


def gather_objects(what: str, value: Any, group: Any) -> list[Any]:
    """Gather one Python object from each rank."""
    objects: list[Any] = [None] * size(group)
    with _naming(f"{what}: all-gather", group):
        dist.all_gather_object(objects, value, group=group)
    return objects
