"""Who runs on a case's data: normgrad, torch, and what memory itself allows.

On a GPU each call takes the next of several copies of the tensors every time: what a call finds in
L2 because the one before it left it there, a training does not find there. torch's are its own
operators, or where it has none the fastest composition of others; on a GPU the fastest of its own,
cuDNN's and a composition that torch.compile compiles. What cannot be run, or computes something
else than ours, is not timed, and the reason is kept.
"""

from __future__ import annotations

import inspect
import itertools
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import torch

import normgrad

from ..operators.by_name import PLANNED
from . import compositions, data, steps, timing
from .data import Data, arguments
from .device import Device
from .results import TIMES
from .suite import Case, Operator, Part
from .timing import Call

#: What torch.compile's is called in tables and files.
COMPILED = "torch.compile"
#: Rounds that choose the fastest of several.
TRIALS = 3

#: How far a contender's results may be from ours, in terms of the largest of them: 8 units of
#: roundoff of halves, which some round three times on the way, and 2¹³ of float32, in which others
#: sum up to millions of terms. A kernel that computes something else is further off.
AGREE = {torch.float32: 2**-11, torch.bfloat16: 2**-5, torch.float16: 2**-8}


class Ready(NamedTuple):
    """What is timed on a case, and what is not.

    Attributes:
        calls: by name, in the order in which they run: "ours", the public function with new
            outputs, a layer's or model's step, or aclnn's phase; "plan", a plan's run with outputs
            and workspace given; "numpy", the public function on NumPy arrays, in calls alone;
            "torch", the same from torch, with new outputs; "bound", the memory's part of the work.
        contender: what torch computes with; empty where it has nothing of the kind.
        bound: what stands for the memory; empty where nothing does.
        path: the plan's way through the kernels, in words.
        failed: why others were left out, by name.
    """

    calls: Mapping[str, Call]
    contender: str
    bound: str
    path: str
    failed: Mapping[str, str]


def tensors(case: Case, device: Device) -> list[Data]:
    """A case's tensors, in as many copies as a device wants."""
    return [data.make(case, seed, device.name) for seed in range(device.copies(case.tensor_bytes))]


def _updated(case: Case, named: Mapping[str, Any]) -> tuple[Any, ...] | None:
    """What ``out`` has to say for new outputs, where a call updates tensors of the caller's."""
    if case.operator is not Operator.FORWARD:
        return None
    return (None, None, None, named["running_mean"], named["running_var"])


def planned(case: Case, data: Data) -> normgrad.Plan:
    """The plan for a case's tensors, and for all that look like them."""
    named, options = arguments(case, data)
    return normgrad.plan(case.operator.function, **named, **options)


def ours(case: Case, data: Data, plan: normgrad.Plan) -> dict[str, Call]:
    """Our calls on a case's data: the public function and a plan's run; in calls NumPy's too."""
    function = getattr(normgrad, case.operator.function)
    named, options = arguments(case, data)
    # By position, as torch's operators are called.
    takes = inspect.signature(function).parameters.values()
    front = [one.name for one in takes if one.kind is one.POSITIONAL_OR_KEYWORD]
    inputs = [named.get(parameter.name) for parameter in PLANNED[case.operator.function].parameters]
    out, updated = plan.run(*inputs), _updated(case, named)
    if updated is not None:
        out = (*out[:3], *updated[3:])
    workspace = torch.empty(plan.workspace_size, dtype=torch.uint8, device=data.input.device)

    def public(named: Mapping[str, Any]) -> Call:
        updated = _updated(case, named)
        new = {} if updated is None else {"out": updated}
        given = {**options, **named}
        placed = [given.pop(name, None) for name in front]
        return partial(function, *placed, **given, **new)

    calls: dict[str, Call] = {
        "ours": public(named),
        "plan": partial(plan.run, *inputs, out=out, workspace=workspace),
    }
    if case.part is Part.CALLS:
        calls["numpy"] = public({name: value.numpy().copy() for name, value in named.items()})
    return calls


def memory_bound(case: Case, data: Data) -> tuple[str, Call]:
    """The same traffic as the operator's, with as little arithmetic as there can be."""
    dy, x = data.grad_out, data.input
    if case.operator in (Operator.REDUCE, Operator.STATS):
        flat_x = _flat(x)
        flat_dy = flat_x if case.operator is Operator.STATS else _flat(dy)
        return "read: torch.dot over the memory", partial(torch.dot, flat_dy, flat_x)
    out = torch.empty_like(x)  # dense, with x's order of axes
    if case.operator is Operator.EVAL_INPUT:
        return "scale: torch.mul(dy, 3, out=)", partial(torch.mul, dy, 3, out=out)
    if case.operator.streams == 2:
        return "scale: torch.mul(x, 3, out=)", partial(torch.mul, x, 3, out=out)
    return "triad: torch.add(x, dy, out=)", partial(torch.add, x, dy, out=out)


def _flat(tensor: Any) -> Any:
    """All the memory a tensor lies in, as one row of numbers that torch reads at full speed.

    torch adds halves up one by one; as float64 their memory is read by MKL. What the numbers are
    does not matter, nor what comes out.
    """
    dtype = torch.float32 if tensor.dtype == torch.float32 else torch.float64
    storage = tensor.untyped_storage()
    whole = torch.empty(0, dtype=torch.uint8, device=tensor.device).set_(storage)
    usable = whole.numel() // dtype.itemsize * dtype.itemsize
    return whole[:usable].view(dtype)


def theirs(case: Case, data: Data, on_gpu: bool, compile_: bool) -> list[Mapping[str, Call]]:
    """torch's calls by name, in groups: those of a group count if no call of one before it does."""
    if case.part is Part.ACLNN:
        return []
    if case.part is Part.LAYERS:
        name = f"torch.nn.{case.operator.function}"
        return [{name: steps.layer_step(False, case, data)}]
    if case.part is Part.STEPS:
        return [{"torch.nn": steps.model_step(False, case, data)}]
    kernels = compositions.kernels(case, data, on_gpu)
    composed = compositions.composed(case, data)
    if not on_gpu:
        return [kernels, composed]
    if compile_:
        plain = next(call for name, call in composed.items() if "aten::" not in name)
        kernels[COMPILED] = torch.compile(plain, dynamic=False, fullgraph=True)
    return [kernels]


#: Ours, where it is no operator.
_WHOLE: Mapping[Part, Callable[[Case, Data], Call]] = {
    Part.LAYERS: partial(steps.layer_step, True),
    Part.STEPS: partial(steps.model_step, True),
    Part.ACLNN: steps.phase_1,
}


def gather(case: Case, tensors: Sequence[Data], device: Device, compile_: bool = False) -> Ready:
    """Make ready everything that is timed on a case; each has run once on each copy.

    Args:
        case: what is computed.
        tensors: the copies of its tensors.
        device: where they are.
        compile_: whether torch.compile competes, on a GPU.

    Raises:
        Exception: ours cannot compute it, whatever the reason.
    """
    bound = path = ""
    if case.part is Part.STEPS:
        tensors = tensors[:1]  # its activations go through L2 by themselves
    if case.part in _WHOLE:
        mine = [{"ours": _WHOLE[case.part](case, one)} for one in tensors]
    else:
        plan = planned(case, tensors[0])
        path = plan.path
        mine = [ours(case, one, plan) for one in tensors]
        for calls, one in zip(mine, tensors, strict=True):
            bound, calls["bound"] = memory_bound(case, one)
    wanted = _results(case, mine[0]["ours"]())
    if compile_:
        torch.compiler.reset()  # what is compiled for other cases counts towards a limit
    offers = [theirs(case, one, device.kind == "cuda", compile_) for one in tensors]
    found: dict[str, Call] = {}
    failed: dict[str, str] = {}
    for group in zip(*offers, strict=True):
        for name, first in group[0].items():
            try:
                wrong = disagreement(_results(case, first()), wanted)
                if wrong is None:
                    found[name] = in_turn(group, name)
            except Exception as error:  # of any kind: it is not ours
                wrong = reason(error)
            if wrong is not None:
                failed[name] = wrong
        if found:
            break
    contender = next(iter(found), "")
    if len(found) > 1:
        trial = timing.measure(found, rounds=TRIALS, stopwatch=device.seconds).medians
        contender = min(trial, key=trial.__getitem__)
    made = {name: in_turn(mine, name) for name in mine[0]}
    if found:
        made["torch"] = found[contender]
    return Ready(
        {name: made[name] for name in TIMES if name in made}, contender, bound, path, failed
    )


def in_turn(each: Sequence[Mapping[str, Call]], name: str) -> Call:
    """The calls of that name, the next one every time; each runs once."""
    calls = [one[name] for one in each]
    for call in calls:
        call()
    if len(calls) == 1:
        return calls[0]
    turns = itertools.cycle(calls)
    return lambda: next(turns)()


def reason(error: BaseException) -> str:
    """An error on one line, without what others put after it."""
    text = next((line.strip() for line in str(error).splitlines() if line.strip()), "")
    return f"{type(error).__name__}: {text}"[:200] if text else type(error).__name__


def _results(case: Case, results: Any) -> list[Any]:
    """What all give alike: not the running statistics, which each updates as often as it runs."""
    given = [results] if hasattr(results, "shape") else list(results)
    if case.part is Part.ROWS and case.dtype != "float32":
        # torch adds up layer norm's gradients of parameters in x's dtype, and so far from ours.
        return given[:1]
    # Of batch norm's forward pass there are y, mean and invstd.
    return given[:3] if case.operator.part is Part.FORWARD else given


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
        allowed = max(AGREE.get(each.dtype, AGREE[torch.float32]) for each in (other, own))
        own = own.detach().float()
        scale = own.abs().max().item()
        off = (other.detach().float().reshape(own.shape) - own).abs().max().item()
        if not off <= allowed * scale:  # nor if either is not a number
            return f"disagrees: output {index} is off by more than {allowed:.2g} of the largest"
    return None
