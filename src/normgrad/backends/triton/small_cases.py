"""Compare normgrad's results for small cases of every operator on a GPU with the oracle."""

from __future__ import annotations

from ... import precision
from ...operators.by_name import plan
from ...testing.cases import Case, Topic
from ...testing.conversions import outputs, to_torch
from ...testing.tensors import FORWARD, GRADIENTS


def cases(capacity: int) -> list[Case]:
    """Small cases of every operator, in both dtypes, layouts and, where there is a choice, passes.

    Compilation takes most of the time, so not all combinations occur: operators alternate between
    float32 and bfloat16 for the same shape.

    Args:
        capacity: the number of elements that one GPU program can hold. The second case of each
            operator has more per channel and per group. Group norm has a third case, of two axes.
    """
    shapes = ((3, 8, 5, 7), (2, 4, capacity))
    formats = (("float32", "contiguous"), ("bfloat16", "channels_last"))
    selection = []
    for kind in (*GRADIENTS, *FORWARD):
        groups = 2 if "group" in kind else 1
        for shape, (dtype, layout) in zip(shapes, formats, strict=True):
            selection.append(Case(Topic.VALUES, kind, shape, dtype, layout=layout, groups=groups))
        if groups > 1:
            selection.append(Case(Topic.VALUES, kind, (9, 202), groups=groups))
        formats = formats[::-1]
    return selection


def outside(case: Case, device: str) -> list[str]:
    """Describe each result of a case without ``out`` or masks whose error exceeds its bound."""
    call = case.call()
    tensors = {
        name: None if value is None else to_torch(value, device).tensor
        for name, value in call.tensors.items()
    }
    plan_there = plan(call.name, **tensors, **call.options)
    results, exact, texts = outputs(call, plan_there.run(**tensors)), call.exact(), []
    for name, value in results.items():
        units = precision.error(value, exact[name], call.arithmetic).max()
        if units > 1:
            texts.append(
                f"{call.name} ({case.kind}) in {case.dtype}, {case.layout}, of shape {case.shape}, "
                f"by '{plan_there.path}': {name} is off by {units:.3g} times its bound"
            )
    return texts
