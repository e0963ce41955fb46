"""Gather the calls to time on a case: normgrad's, torch's, and one bound by memory bandwidth.

On a GPU, successive calls use different copies of the tensors: otherwise a call would find in L2
what the call before left there, which does not happen in training. torch's contender is its own
operator, or if it has none the fastest composition of others; on a GPU it is the fastest of torch's
own operator, cuDNN's, and a composition that torch.compile compiles. A call that fails, or that
disagrees with normgrad's results, is not timed, and the reason is kept.
"""

from __future__ import annotations

import inspect
import itertools
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import torch

import normgrad
from normgrad.bench import timing
from normgrad.bench.timing import Call
from normgrad.operators.by_name import FUNCTIONS, PLANNED

from . import compositions, data, steps
from .data import Data, arguments
from .device import Device
from .results import TIMES
from .suite import Case, Operator, Part

#: The name of torch.compile's contender in tables and files.
COMPILED = "torch.compile"
#: Rounds that choose the fastest of several contenders.
TRIALS = 3

#: How far a contender's results may be from normgrad's, relative to the largest element: 8 unit
#: roundoffs for halves, which some contenders round three times, and 2¹³ for float32, in which
#: contenders sum up to millions of terms. A kernel that computes something else is further off.
AGREE = {torch.float32: 2**-11, torch.bfloat16: 2**-5, torch.float16: 2**-8}


class Ready(NamedTuple):
    """The calls that are timed on a case, and why other contenders were left out, by name.

    The calls, in the order in which they run: "ours", the public function with new outputs, a
    layer's or model's step, or aclnn's phase; "plan", a bound plan; "numpy", the public function on
    NumPy arrays; "torch", torch's contender, with new outputs; "bound", the memory traffic. The
    names of the last two are empty where there is none, and so is ``path``, the plan's way through
    the kernels in words.
    """

    calls: Mapping[str, Call]
    contender: str
    bound: str
    path: str
    failed: Mapping[str, str]


def tensors(case: Case, device: Device) -> list[Data]:
    """A case's tensors, in as many copies as the device needs."""
    return [data.make(case, seed, device.name) for seed in range(device.copies(case.tensor_bytes))]


def planned(case: Case, data: Data) -> normgrad.Plan:
    """The plan for a case's tensors, and for all of the same shapes, dtypes and layouts."""
    named, options = arguments(case, data)
    return normgrad.plan(case.operator.function, **named, **options)


def ours(case: Case, data: Data, plan: normgrad.Plan) -> dict[str, Call]:
    """normgrad's calls: the public function, a bound plan, and for the part "calls" NumPy's too."""
    function = FUNCTIONS[case.operator.function]
    given, options = arguments(case, data)
    absent = dict.fromkeys(PLANNED[case.operator.function].names)
    inputs = {**absent, **given}
    out = plan.run(*inputs.values())

    # The tensors that a call updates in place.
    running = ("running_mean", "running_var") if case.operator is Operator.FORWARD else ()

    def public(tensors: Mapping[str, Any]) -> Call:
        new = {"out": (None, None, None, *(tensors[name] for name in running))} if running else {}
        # Pass tensors by position, as in the calls of torch's operators.
        bound = inspect.signature(function).bind(**tensors, **options, **new)
        return partial(function, *bound.args, **bound.kwargs)

    if running:
        out = (*out[:3], *(inputs[name] for name in running))
    workspace = torch.empty(plan.workspace_size, dtype=torch.uint8, device=data.input.device)
    calls: dict[str, Call] = {
        "ours": public(inputs),
        "plan": plan.bind(*inputs.values(), out=out, workspace=workspace),
    }
    if case.part is Part.CALLS:
        arrays = {name: value.numpy().copy() for name, value in given.items()}
        calls["numpy"] = public({**absent, **arrays})
    return calls


def memory_bound(case: Case, data: Data) -> tuple[str, Call]:
    """A call with the operator's memory traffic and as little arithmetic as possible."""
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
    """All memory of a tensor's storage, as one vector that torch reads at full speed.

    torch sums halves one by one, but MKL reads their memory if it is viewed as float64. The values
    and the result do not matter.
    """
    dtype = torch.float32 if tensor.dtype == torch.float32 else torch.float64
    storage = tensor.untyped_storage()
    whole = torch.empty(0, dtype=torch.uint8, device=tensor.device).set_(storage)
    usable = whole.numel() // dtype.itemsize * dtype.itemsize
    return whole[:usable].view(dtype)


def theirs(case: Case, data: Data, on_gpu: bool, compile_: bool) -> list[Mapping[str, Call]]:
    """torch's calls by name, in groups; a group counts only if no call of an earlier one works."""
    if case.part is Part.ACLNN:
        return []
    if case.part is Part.NEW_SIZES:
        name = f"torch.nn.{case.operator.function}"
        return [{name: steps.new_sizes_step(False, case, data)}]
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


#: normgrad's one call for the parts that time no single operator.
_WHOLE: Mapping[Part, Callable[[Case, Data], Call]] = {
    Part.LAYERS: partial(steps.layer_step, True),
    Part.NEW_SIZES: partial(steps.new_sizes_step, True),
    Part.STEPS: partial(steps.model_step, True),
    Part.ACLNN: steps.phase_1,
}


def gather(case: Case, tensors: Sequence[Data], device: Device, compile_: bool = False) -> Ready:
    """Prepare all calls to time on a case, each of which then has run once on each copy.

    ``compile_`` is whether torch.compile competes, on a GPU. An error of normgrad's call is raised.
    """
    bound = path = ""
    if case.part is Part.STEPS:
        tensors = tensors[:1]  # the model's activations displace one another in L2 anyway
    if case.part in _WHOLE:
        mine = [{"ours": _WHOLE[case.part](case, one)} for one in tensors]
    else:
        plan = planned(case, tensors[0])
        path = plan.path
        mine = [ours(case, one, plan) for one in tensors]
        for calls, one in zip(mine, tensors, strict=True):
            bound, calls["bound"] = memory_bound(case, one)
    wanted = _results(case, mine[0]["ours"]())
    # CUDA's kernels round parameters' gradients to x's dtype, even if the result is float32.
    rounded = getattr(torch, case.dtype) if device.kind == "cuda" else torch.float32
    if compile_:
        torch.compiler.reset()  # torch limits the number of compilations, over all cases
    offers = [theirs(case, one, device.kind == "cuda", compile_) for one in tensors]
    found: dict[str, Call] = {}
    failed: dict[str, str] = {}
    for group in zip(*offers, strict=True):
        for name, first in group[0].items():
            try:
                wrong = disagreement(_results(case, first()), wanted, rounded)
                if wrong is None:
                    found[name] = in_turn(group, name)
            except Exception as error:  # a contender may raise anything
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
    """Run each copy's call of this name once, and return a call that cycles through them."""
    calls = [one[name] for one in each]
    for call in calls:
        call()
    if len(calls) == 1:
        return calls[0]
    turns = itertools.cycle(calls)
    return lambda: next(turns)()


def reason(error: BaseException) -> str:
    """An error's class and the first line of its message."""
    text = next((line.strip() for line in str(error).splitlines() if line.strip()), "")
    return f"{type(error).__name__}: {text}"[:200] if text else type(error).__name__


def _results(case: Case, results: Any) -> list[Any]:
    """The results to compare: not the running statistics, which every run updates again."""
    given = [results] if hasattr(results, "shape") else list(results)
    # torch sums layer norm's parameter gradients in x's dtype, so halves are far from normgrad's.
    if case.part is Part.ROWS and case.dtype != "float32":
        return given[:1]
    if case.operator.function in ("LayerNorm", "RMSNorm") and case.dtype != "float32":
        return given[:2]
    # Of batch norm's forward pass, compare y, mean and invstd.
    return given[:3] if case.operator.part is Part.FORWARD else given


def disagreement(
    theirs: Sequence[Any], mine: Sequence[Any], rounded: torch.dtype = torch.float32
) -> str | None:
    """Describe the first output that differs from normgrad's beyond roundoff; None if none does.

    ``rounded`` is a dtype to which a contender may have rounded outputs of a wider one. Outputs
    that either side leaves out, or that have no elements, are not compared.
    """
    for index, (other, own) in enumerate(zip(theirs, mine, strict=False)):
        if other is None or own is None or not own.numel() or not other.numel():
            continue
        if other.numel() != own.numel():
            shapes = f"{tuple(other.shape)} instead of {tuple(own.shape)}"
            return f"disagrees: output {index} has shape {shapes}"
        dtypes = other.dtype, own.dtype, rounded
        allowed = max(AGREE.get(each, AGREE[torch.float32]) for each in dtypes)
        own = own.detach().float()
        scale = own.abs().max().item()
        off = (other.detach().float().reshape(own.shape) - own).abs().max().item()
        if not off <= allowed * scale:  # also true if either is NaN
            return f"disagrees: output {index} is off by more than {allowed:.2g} of the largest"
    return None
