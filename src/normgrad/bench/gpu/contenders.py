"""Who runs on a case's tensors: ours in three ways, torch's and others', and a copy.

A contender is a list of calls, one for each copy of the tensors. Of what cannot be made ready, or
computes something else than ours, the reason is kept and nothing is timed.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from .. import compositions, contenders, layers
from ..compositions import EPS, MOMENTUM, Call
from ..data import Data
from ..suite import BFLOAT16, FLOAT16, FLOAT32, Case, Operator, Part
from . import compiled, installed

#: The names of ours, and of the memory's.
OURS, OUT, PLAN, COPY = "ours", "out", "plan", "copy"
MINE = (OURS, OUT, PLAN)

#: How far a contender's results may be from ours, in terms of the largest of them: 8 units of
#: roundoff of halves, which some round three times on the way, and 2¹³ of float32, in which others
#: sum up to millions of terms. A kernel that computes something else is further off.
AGREE = {FLOAT32: 2**-11, BFLOAT16: 2**-5, FLOAT16: 2**-8}

Maker = Callable[[Data], Call]
#: Gives what makes the calls, or None where a contender has nothing for the case.
Offer = Callable[[], "Maker | None"]


class OursFailedError(Exception):
    """Ours cannot compute the case."""


@dataclass(frozen=True)
class Ready:
    """What is timed on a case, and what is not.

    Attributes:
        calls: of each contender, one for each copy of the tensors (the copy has one in all); each
            contender has run once.
        failed: why others were left out, by name.
        path: our plan's way through the kernels; empty for a layer.
    """

    calls: Mapping[str, Sequence[Call]]
    failed: Mapping[str, str]
    path: str


def copies(data: Data, count: int) -> list[Data]:
    """As many copies of a case's x and dy, the first their own; the vectors are the same."""
    return [
        data,
        *(
            replace(data, grad_out=data.grad_out.clone(), input=data.input.clone())
            for _ in range(count - 1)
        ),
    ]


def offers(torch: Any, case: Case, first: Data, without: Sequence[str] = ()) -> dict[str, Offer]:
    """Everybody who may compute the same, by name; nothing runs yet.

    Args:
        torch: the module.
        case: what is to be computed.
        first: its tensors, to see what there is for such.
        without: names that are left out.
    """
    found: dict[str, Offer] = {}
    if case.operator.part is Part.LAYERS:
        found |= _layers(torch, case)
    else:
        for name in compositions.candidates(torch, case, first).kernels:
            found[name] = partial(_kernel, torch, case, name)
        if case.operator in (Operator.TRAIN, Operator.FORWARD):
            backward = "_backward" if case.operator is Operator.TRAIN else ""
            found[f"aten::cudnn_batch_norm{backward}"] = lambda: _cudnn(torch, case)
        found[compiled.NAME] = lambda: compiled.maker(torch, case)
    for name in sorted(installed.found()):
        found[name] = partial(installed.maker, torch, case, name)
    return {name: offer for name, offer in found.items() if name not in without}


def _kernel(torch: Any, case: Case, name: str) -> Maker:
    """torch's own kernel, without cuDNN."""
    return lambda data: compositions.candidates(torch, case, data).kernels[name]


def _cudnn(torch: Any, case: Case) -> Maker:
    """cuDNN's kernel; its backward pass wants what its forward pass has kept."""
    aten = torch.ops.aten

    def forward(data: Data) -> Call:
        running = (data.mean.clone(), data.var.clone())
        given = (data.input, data.weight, data.bias, *running, True, MOMENTUM, EPS)
        return lambda: aten.cudnn_batch_norm(*given)

    if case.operator is Operator.FORWARD:
        return forward
    kept: list[Any] = []

    def backward(data: Data) -> Call:
        if not kept:
            kept.append(forward(data)()[3])
        given = (data.input, data.grad_out, data.weight, None, None, data.mean, data.invstd)
        return lambda: aten.cudnn_batch_norm_backward(*given, EPS, kept[0])

    return backward


def _layers(torch: Any, case: Case) -> dict[str, Offer]:
    name = f"{layers.THEIRS}.{case.operator.function}"

    def make(data: Data) -> Call:
        return layers.step(torch, layers.THEIRS, case, data)

    def without_cudnn(data: Data) -> Call:
        step = make(data)

        def call() -> Any:
            # What the forward pass has chosen the backward pass uses.
            with torch.backends.cudnn.flags(enabled=False):
                return step()

        return call

    found: dict[str, Offer] = {name: lambda: make}
    if case.operator is Operator.LAYER_BATCH_NORM:
        found[f"{name}, cuDNN off"] = lambda: without_cudnn
    return found


def ours(torch: Any, case: Case, tensors: Sequence[Data]) -> tuple[dict[str, list[Call]], str]:
    """Our calls, and the plan's path.

    Raises:
        OursFailedError: they cannot be made, or the first of each cannot be run.
    """
    try:
        if case.operator.part is Part.LAYERS:
            steps = [layers.step(torch, layers.OURS, case, data) for data in tensors]
            calls, path = {OURS: steps}, ""
        else:
            plan = contenders.planned(torch, case, tensors[0])
            each = [contenders.ours(torch, case, data, plan) for data in tensors]
            calls, path = {name: [one[name] for one in each] for name in MINE}, plan.path
        for mine in calls.values():
            mine[0]()
    except MemoryError:
        raise
    except Exception as error:
        raise OursFailedError(reason(error)) from error
    return calls, path


def gather(
    torch: Any, case: Case, tensors: Sequence[Data], copy: Call, without: Sequence[str] = ()
) -> Ready:
    """Make ready everything that is timed on a case.

    Args:
        torch: the module.
        case: what is computed.
        tensors: the copies of its tensors.
        copy: copies a tensor.
        without: names of contenders to leave out.

    Raises:
        OursFailedError: ours cannot compute it, so that there is nothing to compare.
    """
    calls, path = ours(torch, case, tensors)
    failed: dict[str, str] = {}
    wanted = list(_outputs(case, calls[OURS][0]()))
    for name, offer in offers(torch, case, tensors[0], without).items():
        try:
            make = offer()
            if make is None:
                continue
            first = make(tensors[0])
            wrong = disagreement(list(_outputs(case, first())), wanted)
            if wrong is None:
                calls[name] = [first, *map(make, tensors[1:])]
        except Exception as error:  # of any kind: they are others'
            wrong = reason(error)
        if wrong is not None:
            failed[name] = wrong
    copy()
    return Ready({**calls, COPY: [copy]}, failed, path)


def reason(error: BaseException) -> str:
    """An error on one line, without what others put after it."""
    text = next((line.strip() for line in str(error).splitlines() if line.strip()), "")
    return f"{type(error).__name__}: {text}"[:200] if text else type(error).__name__


def _outputs(case: Case, results: Any) -> Iterator[Any]:
    """What all give alike: not the running statistics, which each updates as often as it runs."""
    given = [results] if hasattr(results, "shape") else list(results)
    # Of batch norm's forward pass there are y, mean and invstd.
    return iter(given[:3] if case.operator.part is Part.FORWARD else given)


def disagreement(theirs: Sequence[Any], mine: Sequence[Any]) -> str | None:
    """In which output a contender is further from ours than roundings explain; None for nowhere.

    What either leaves out, and what has no elements, is not compared.
    """
    for index, (other, own) in enumerate(zip(theirs, mine, strict=False)):
        if other is None or own is None or not own.numel() or not other.numel():
            continue
        if other.numel() != own.numel():
            shapes = f"{tuple(other.shape)} instead of {tuple(own.shape)}"
            return f"disagrees: output {index} has shape {shapes}"
        names = (str(tensor.dtype).removeprefix("torch.") for tensor in (other, own))
        allowed = max(AGREE.get(name, AGREE[FLOAT32]) for name in names)
        own = own.detach().float()
        scale = own.abs().max().item()
        off = (other.detach().float().reshape(own.shape) - own).abs().max().item()
        if not off <= allowed * scale:  # nor if either is not a number
            relative = off / scale if scale else math.inf
            return f"disagrees: output {index} is off by {relative:.2g} of the largest"
    return None
