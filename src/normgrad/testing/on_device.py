"""Small cases of every operator, compared with the oracle where our kernels compute: on a GPU."""

from __future__ import annotations

from .. import precision
from ..operators.by_name import plan
from .cases import Case, Topic
from .subjects import CONVERSIONS
from .tensors import FORWARD, GRADIENTS


def cases(held: int) -> list[Case]:
    """Small cases of every operator, in both dtypes, layouts and, where there is a choice, passes.

    What takes time is compiling, so there are not all combinations: what one operator has in
    float32 the next has in bfloat16.

    Args:
        held: as many elements as a program of the GPU can hold. A second case of each operator has
            more than that of each channel, and of each group. Group norm has rows besides.
    """
    shapes = ((3, 8, 5, 7), (2, 4, held))
    looks = (("float32", "contiguous"), ("bfloat16", "channels_last"))
    found = []
    for kind in (*GRADIENTS, *FORWARD):
        groups = 2 if "group" in kind else 1
        for shape, (dtype, layout) in zip(shapes, looks, strict=True):
            found.append(Case(Topic.VALUES, kind, shape, dtype, layout=layout, groups=groups))
        if groups > 1:
            found.append(Case(Topic.VALUES, kind, (9, 202), groups=groups))
        looks = looks[::-1]
    return found


def outside(case: Case, device: str) -> list[str]:
    """The results that are further from the oracle's than their bound, each in words.

    Args:
        case: without ``out`` or masks.
        device: where our kernels compute, as PyTorch calls it.
    """
    to, back = CONVERSIONS["torch"](device)
    call = case.call()
    tensors = {name: None if value is None else to(value) for name, value in call.tensors.items()}
    made = plan(call.name, **tensors, **call.options)
    ours = made.run(**tensors)
    exact = call.exact()
    found = []
    for name, value in zip(call.results, [ours] if made.out_is_tensor else ours, strict=True):
        if value is None:
            continue
        units = precision.error(back(value), exact[name], call.arithmetic).max()
        if units > 1:
            found.append(
                f"{call.name} ({case.kind}) in {case.dtype}, {case.layout}, of shape {case.shape}, "
                f"by '{made.path}': {name} is off by {units:.3g} times its bound"
            )
    return found
