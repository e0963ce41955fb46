"""Who runs on a case's data: normgrad in three ways, torch, and what memory itself allows."""

from __future__ import annotations

import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import normgrad

from ..backends.cpu import openmp
from ..operators.by_name import PLANNED
from . import compositions, layers
from .compositions import EPS, MOMENTUM, Call, Candidates
from .data import Data, load_torch
from .suite import Case, Operator, Part

#: How often each of several compositions is tried before the fastest is taken.
TRIALS = 3


@dataclass(frozen=True)
class Contender:
    """A call to be timed.

    Attributes:
        call: makes it.
        pool: whose threads it runs on. Where ours are not torch's each brings an OpenMP of its own,
            and the threads of one spin for a while after a call, on the other's cores.
    """

    call: Call
    pool: str


@dataclass(frozen=True)
class Contenders:
    """Everything timed on a case, by name, in the order in which it runs.

    Attributes:
        calls: "ours", the public function with new outputs; "out", the same with outputs given;
            "plan", a plan's run with outputs and workspace given; "torch", the same from torch,
            with new outputs; "bound", the memory's part of the work. Of a layer's step there are
            "ours" and "torch" alone.
        torch: what torch computes with.
        bound: what stands for the memory; empty for a layer, as is the path.
        path: the plan's way through the kernels.
    """

    calls: Mapping[str, Contender]
    torch: str
    bound: str
    path: str


def fastest(candidates: Candidates) -> tuple[str, Call]:
    """The first kernel that takes the tensors, or else the fastest composition.

    Raises:
        RuntimeError: torch can do nothing with them.
    """
    for name, call in candidates.kernels.items():
        try:
            call()
        except RuntimeError:  # no such kernel for the CPU, or none for these dtypes
            continue
        return name, call
    times: dict[str, float] = {}
    for name, call in candidates.compositions.items():
        with suppress(RuntimeError):
            times[name] = min(_seconds(call) for _ in range(TRIALS))
    if not times:
        raise RuntimeError("torch has neither a kernel nor a composition for these tensors")
    name = min(times, key=times.__getitem__)
    return name, candidates.compositions[name]


def _seconds(call: Call) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def arguments(case: Case, data: Data) -> tuple[dict[str, Any], dict[str, Any]]:
    """What the public function takes: tensors and options, by name."""
    if case.operator.part is Part.FORWARD:
        return _forward_arguments(case, data)
    both = {"grad_out": data.grad_out, "input": data.input}
    if case.operator is Operator.GROUP_NORM:
        tensors = {**both, "mean": data.mean, "rstd": data.invstd, "gamma": data.weight}
        return tensors, {"num_groups": case.groups}
    statistics = {"mean": data.mean, "invstd": data.invstd, "weight": data.weight}
    if case.operator is Operator.REDUCE:
        return {**both, **statistics}, {}
    if case.operator is Operator.ELEMT:
        sums = {"sum_dy": data.sum_dy, "sum_dy_xmu": data.sum_dy_xmu, "count": data.count}
        return {**both, **statistics, **sums}, {}
    both["weight"] = data.weight
    if case.operator is Operator.TRAIN:
        tensors = {**both, "save_mean": data.mean, "save_invstd": data.invstd}
        return tensors, {"training": True, "eps": EPS}
    tensors = {**both, "running_mean": data.mean, "running_var": data.var}
    options: dict[str, Any] = {"training": False, "eps": EPS}
    if case.operator is Operator.EVAL_INPUT:
        options["output_mask"] = (True, False, False)
    return tensors, options


def _forward_arguments(case: Case, data: Data) -> tuple[dict[str, Any], dict[str, Any]]:
    x = {"input": data.input}
    if case.operator is Operator.STATS:
        return x, {"eps": EPS}
    if case.operator is Operator.FORWARD_GROUP_NORM:
        options = {"num_groups": case.groups, "eps": EPS}
        return {**x, "gamma": data.weight, "beta": data.bias}, options
    affine = {**x, "weight": data.weight, "bias": data.bias}
    if case.operator is Operator.NORMALISE:
        return {**affine, "mean": data.mean, "invstd": data.invstd}, {}
    training = case.operator is Operator.FORWARD
    # They are changed in training, and the data are others' too.
    running = {"running_mean": data.mean.clone(), "running_var": data.var.clone()}
    return {**affine, **running}, {"training": training, "momentum": MOMENTUM, "eps": EPS}


def updated(case: Case, named: dict[str, Any]) -> tuple[Any, ...] | None:
    """What ``out`` has to say for new outputs, where a call updates tensors of the caller's."""
    if case.operator is not Operator.FORWARD:
        return None
    return (None, None, None, named["running_mean"], named["running_var"])


def outputs(
    torch: Any, plan: normgrad.Plan, updated: tuple[Any, ...] | None, device: Any = "cpu"
) -> Any:
    """Tensors for what a plan computes, in the form that ``out`` has: new but for the updated."""
    made = tuple(
        given
        if spec is None or given is not None
        else torch.empty_strided(
            spec.shape, spec.strides, dtype=getattr(torch, spec.dtype.name), device=device
        )
        for spec, given in zip(
            plan.output_specs, updated or [None] * len(plan.output_specs), strict=True
        )
    )
    return made[0] if plan.out_is_tensor else made


def memory_bound(torch: Any, case: Case, data: Data) -> tuple[str, Call]:
    """The same traffic as the operator's, with as little arithmetic as there can be."""
    dy, x = data.grad_out, data.input
    if case.operator in (Operator.REDUCE, Operator.STATS):
        flat_x = _flat(torch, x)
        flat_dy = flat_x if case.operator is Operator.STATS else _flat(torch, dy)
        return "read: torch.dot over the memory", lambda: torch.dot(flat_dy, flat_x)
    out = torch.empty(x.shape, dtype=x.dtype, device=x.device).as_strided(
        x.shape, _dense_strides(x)
    )
    if case.operator.part is Part.FORWARD:
        return "scale: torch.mul(x, 3, out=)", lambda: torch.mul(x, 3, out=out)
    if case.operator is Operator.EVAL_INPUT:
        return "scale: torch.mul(dy, 3, out=)", lambda: torch.mul(dy, 3, out=out)
    return "triad: torch.add(x, dy, out=)", lambda: torch.add(x, dy, out=out)


def _dense_strides(tensor: Any) -> tuple[int, ...]:
    strides = [0] * tensor.dim()
    step = 1
    for axis in sorted(range(tensor.dim()), key=lambda axis: tensor.stride(axis)):
        strides[axis] = step
        step *= tensor.shape[axis]
    return tuple(strides)


def _flat(torch: Any, tensor: Any) -> Any:
    """All the memory a tensor lies in, as one row of numbers that torch reads at full speed.

    torch adds halves up one by one; as float64 their memory is read by MKL. What the numbers are
    does not matter, nor what comes out.
    """
    dtype = torch.float32 if tensor.dtype == torch.float32 else torch.float64
    storage = tensor.untyped_storage()
    whole = torch.empty(0, dtype=torch.uint8, device=tensor.device).set_(storage)
    usable = whole.numel() // dtype.itemsize * dtype.itemsize
    return whole[:usable].view(dtype)


def planned(torch: Any, case: Case, data: Data) -> normgrad.Plan:
    """The plan for a case's tensors, and for all that look like them."""
    named, options = arguments(case, data)
    name, device = case.operator.function, data.input.device
    # The CPU's is what a plan is for where nothing is said.
    options |= {} if device.type == "cpu" else {"device": device.type}
    first = normgrad.plan(name, **named, **options)
    return normgrad.plan(
        name, **named, **options, out=outputs(torch, first, updated(case, named), device)
    )


def ours(torch: Any, case: Case, data: Data, plan: normgrad.Plan) -> dict[str, Call]:
    """Our calls on a case's data: the public function, the same with ``out=``, a plan's run."""
    function = getattr(normgrad, case.operator.function)
    named, options = arguments(case, data)
    device, given = data.input.device, updated(case, named)
    out = outputs(torch, plan, given, device)
    workspace = torch.empty(plan.workspace_size, dtype=torch.uint8, device=device)
    # By position, as torch's operators are called.
    parameters = PLANNED[case.operator.function].parameters
    tensors = [named.get(parameter.name) for parameter in parameters]
    new = {} if given is None else {"out": given}
    return {
        "ours": lambda: function(*tensors, **options, **new),
        "out": lambda: function(*tensors, **options, out=out),
        "plan": lambda: plan.run(*tensors, out=out, workspace=workspace),
    }


def _pool() -> str:
    """Whose threads ours are."""
    return "numba" if openmp.of_torch() is None else "torch"


def gather(case: Case, data: Data) -> Contenders:
    """Make ready everything that is timed on a case; each has run once.

    Raises:
        TorchMissingError: there is no torch.
    """
    torch = load_torch()
    if case.operator.part is Part.LAYERS:
        found = _layers(torch, case, data)
    else:
        plan = planned(torch, case, data)
        calls = ours(torch, case, data, plan)
        theirs, kernel = fastest(compositions.candidates(torch, case, data))
        bound, memory = memory_bound(torch, case, data)
        contenders = {
            **{name: Contender(call, _pool()) for name, call in calls.items()},
            "torch": Contender(kernel, "torch"),
            "bound": Contender(memory, "torch"),
        }
        found = Contenders(contenders, theirs, bound, plan.path)
    for contender in found.calls.values():
        contender.call()
    return found


def _layers(torch: Any, case: Case, data: Data) -> Contenders:
    """A step has no outputs to be given and no plan, and no one call stands for its memory."""
    calls = {
        "ours": Contender(layers.step(torch, layers.OURS, case, data), _pool()),
        "torch": Contender(layers.step(torch, layers.THEIRS, case, data), "torch"),
    }
    return Contenders(calls, f"{layers.THEIRS}.{case.operator.function}", "", "")


def threads(count: int) -> None:
    """How many threads torch uses from here on, and normgrad with it."""
    load_torch().set_num_threads(count)
