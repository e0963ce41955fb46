"""The plans of C++: from a call's tensors and other arguments to numbers that C++ reads.

C++ asks for a plan at the first call of a kind, and takes it as the result of the question. A plan
follows from the tensors' specs alone, and making one computes nothing.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cache
from itertools import groupby
from operator import itemgetter
from typing import Any

import torch
from torch import Tensor

from ..declarations import contract
from ..declarations.contract import OUTPUT, Operator
from ..declarations.options import Options
from ..declarations.problem import WORKSPACE, Role
from ..operators.by_name import PLANNED, device_of, spec_of
from ..plans.plan import Plan
from ..support import notices
from ..tensors import devices, dtypes
from ..tensors.specs import TensorSpec
from ..tensors.strides import channels_last_strides, contiguous_strides
from ..tensors.symbolic import Program, SymInt
from . import native

#: What follows the name of an operator whose function updates running statistics in place.
UPDATES = "_"


def plan(
    name: str,
    memory_format: torch.memory_format | None,
    tensors: tuple[Any, ...],
    choices: tuple[Any, ...],
    open_sizes: tuple[tuple[int, int], ...] = (),
) -> dict[str, Any] | None:
    """The description of a call's plan; None where PyTorch, or Python, has to compute the call.

    Args:
        name: the operator's name; with :data:`UPDATES`, if its function updates running statistics
            in place.
        memory_format: for an operator that is called by a layer, PyTorch's format of the layer's
            output; then running statistics are updated in place, and what normgrad does not support
            is PyTorch's. None for an operator that a function calls.
        tensors: plain tensors, in the order of the operator's inputs; None where absent.
        choices: the other arguments, in the order of the operator's options.
        open_sizes: the sizes that the plan leaves open, each by a tensor's index and its axis; such
            tensors are dense.

    Raises:
        TypeError, ValueError: as the operator's function, unless a layer calls.
        KernelError: the kernels cannot be compiled.
    """
    is_layer = memory_format is not None
    operator = PLANNED[name.removesuffix(UPDATES)]
    if is_layer:
        operator = _of_layer(operator)
    try:
        options = operator.read_options(*choices)
        values = dict(zip(operator.names, tensors, strict=True))
        device = device_of(values)
        specs = {
            each.name: spec_of(each.name, values[each.name], each.kind) for each in operator.inputs
        }
        program = _open(specs, operator, open_sizes) if open_sizes else None
        overwritten: dict[str, str] = {}
        if is_layer or name.endswith(UPDATES):
            outputs, inputs = operator.all_outputs, operator.names
            overwritten = {outputs[new].name: inputs[old] for new, old in operator.running}
        given = {new: specs[old] for new, old in overwritten.items()}
        if memory_format is not None and not operator.is_gradient:
            given |= _outputs_of_layer(operator, options, specs, memory_format)
        checked = contract.check(operator, options, specs, given)
        if is_layer and given and _is_left_to_pytorch(operator, options, specs):
            return None
    except (TypeError, ValueError):
        if is_layer:
            return None
        raise
    if is_layer and device != devices.CPU and not _is_right_on(device):
        return None
    made = Plan(operator, options, specs, checked, device=device, read_next=is_layer)
    return _describe(made, tensors, overwritten, program)


def prepare(plan: Plan, tensors: tuple[Tensor | None, ...]) -> Callable[..., Any] | None:
    """What runs a plan in C++ on plain tensors of the same specs; None for one on a GPU.

    It takes a tuple of tensors, and returns NotImplemented where C++ does not compute on them.
    """
    if plan.device != devices.CPU:
        return None
    description = _describe(plan, tensors, {}, None)
    return None if description is None else native.module.Prepared(description, tensors)


def _open(
    specs: dict[str, TensorSpec | None],
    operator: Operator,
    open_sizes: tuple[tuple[int, int], ...],
) -> Program:
    """Put symbols in the place of open sizes, and return the program that has them."""
    program = Program()
    for index, axes in groupby(open_sizes, itemgetter(0)):
        name = operator.names[index]
        spec = specs[name]
        assert spec is not None
        shape: list[Any] = [*spec.shape]
        for _, axis in axes:
            shape[axis] = program.open(shape[axis])
        is_contiguous = spec.strides == contiguous_strides(spec.shape)
        specs[name] = TensorSpec(shape, spec.dtype, _dense(shape, is_contiguous))
    return program


def _dense(shape: Sequence[int], is_contiguous: bool) -> tuple[int, ...]:
    """The strides of a contiguous tensor, or of a channels-last one."""
    if is_contiguous:
        return contiguous_strides(shape)
    return channels_last_strides(shape)


@cache
def _of_layer(operator: Operator) -> Operator:
    """An operator as layers call it: a gradient computes a mean that is absent."""
    inputs = [
        each._replace(required=each.required and each.role is not Role.MEAN)
        for each in operator.inputs
    ]
    return replace(operator, inputs=tuple(inputs))


def _is_left_to_pytorch(
    operator: Operator, options: Options, specs: Mapping[str, TensorSpec | None]
) -> bool:
    """Whether PyTorch's layer has a rule or an error of its own for what normgrad would compute."""
    input, *others = [spec for spec in specs.values() if spec is not None]
    if input.elements == 0:
        return True
    if input.dtype is dtypes.float64 and any(spec.dtype is not input.dtype for spec in others):
        return True
    if operator.name == "group_norm":  # it refuses one sample with one value per group
        return input.elements == options.num_groups
    if operator.name != "batch_norm":
        return False
    absent = [specs[name] is None for name in ("running_mean", "running_var")]
    if not options.training:
        return any(absent)
    one_each = input.elements == input.shape[1]
    return absent[0] != absent[1] or one_each or options.eps == 0


def _outputs_of_layer(
    operator: Operator,
    options: Options,
    specs: Mapping[str, TensorSpec | None],
    memory_format: torch.memory_format,
) -> dict[str, TensorSpec | None]:
    """The specs of outputs for which a layer has a rule of its own.

    PyTorch's output is contiguous, or channels-last if the input is, and programs that call
    ``view`` on it rely on that. normgrad's has its axes in the input's order in memory. Statistics
    are float64, so that the backward pass has them as exact as the forward pass.
    """
    present = contract.present_inputs(operator, options, specs)
    shapes, input = contract.shapes_of(operator, options, present), specs["input"]
    assert input is not None
    strides = _dense(input.shape, memory_format is torch.contiguous_format)
    output = TensorSpec(input.shape, input.dtype, strides)
    statistics = {
        each.name: TensorSpec(shapes[each.kind], dtypes.float64)
        for each in operator.all_outputs
        if each.role in (Role.OUT_MEAN, Role.OUT_INVSTD)
    }
    return {OUTPUT.name: output, **statistics}


#: Whether C++ computes on a GPU what PyTorch does, by the GPU's name; held while one is tried, when
#: the thread that tries it takes it to be right.
_verdicts: dict[str, bool] = {}
_trying = threading.RLock()


def _is_right_on(device: str) -> bool:
    """Whether C++ computes each norm on a GPU; tried at the first layer's call there.

    C++ makes the launches itself, by CUDA's driver, so that drivers decide too.
    """
    if torch.cuda.is_current_stream_capturing():
        return True  # no trial can run now, and kernels that are not loaded yet raise an error
    with _trying:
        if device not in _verdicts:
            _verdicts[device] = True
            try:
                _verdicts[device] = all(agrees(name, device) for name in NORMS)
            except RuntimeError:  # of CUDA's driver
                _verdicts[device] = False
            if not _verdicts[device]:
                notices.say("PyTorch computes normgrad's layers on %s: C++ failed a trial", device)
        return _verdicts[device]


#: The norms of layers, with their calls in a trial.
NORMS: dict[str, Callable[..., Any]] = {
    "batch_norm": lambda norm, x, w, b: norm(x, None, None, w, b, True, 0.1, 1e-5),
    "group_norm": lambda norm, x, w, b: norm(x, 2, w, b, 1e-5),
    "layer_norm": lambda norm, x, w, b: norm(x, (6,), w, b, 1e-5),
    "rms_norm": lambda norm, x, w, b: norm(x, (6,), w, 1e-5),
}


def agrees(name: str, device: str) -> bool:
    """Whether C++ computes a norm and its gradients on a device as PyTorch does in float64."""
    results = []
    with torch.inference_mode(False), torch.enable_grad(), torch.autocast("cuda", enabled=False):
        for norm, dtype in (
            (getattr(native, name), torch.float32),
            (getattr(torch.nn.functional, name), torch.float64),
        ):
            values = torch.arange(5 * 6 * 7 * 6.0, dtype=dtype, device=device).sin()
            x = values.reshape(5, 6, 7, 6).requires_grad_()
            w, b = (values[k : k + 6].clone().requires_grad_() for k in range(2))
            y = NORMS[name](norm, x, w, b)
            if y is NotImplemented:
                return False
            dy = x.detach().cos()
            gradients = torch.autograd.grad(y, (x, w, b), dy, materialize_grads=True)
            results.append((y, *gradients))
    return all(
        torch.allclose(ours.double(), theirs, rtol=1e-4, atol=1e-4)
        for ours, theirs in zip(*results, strict=True)
    )


def _team() -> int:
    """The address of the table of PyTorch's threads."""
    from ..backends.cpu import teams

    return teams.team(native.module.TEAM, 2).address


def _describe(
    plan: Plan,
    tensors: tuple[Tensor | None, ...],
    overwritten: Mapping[str, str],
    program: Program | None,
) -> dict[str, Any] | None:
    """A plan as plans.h has it.

    Its results are their slots, the indices of what they overwrite, and their dtypes. Its numbers
    are those of block, steps, workspace, and each result's sizes and strides. If they depend on
    open sizes, they are 0, and among the symbols, with their row, column and instruction.
    """
    slots = [-1 if place is None else place.slot for place in plan.inputs]
    pairs = zip(slots, tensors, strict=True)
    schedule = plan.native({slot: value.data_ptr() for slot, value in pairs if value is not None})
    if schedule is None:
        return None
    results: list[tuple[int, int, torch.dtype]] = []
    numbers = [schedule.block, schedule.steps, [plan.workspace_size]]
    for place, name in zip(plan.outputs, plan.output_names, strict=True):
        if place is None:
            results.append((-1, -1, torch.float32))
            numbers += [[], []]
            continue
        old = overwritten.get(name)
        index = -1 if old is None else plan.input_names.index(old)
        results.append((place.slot, index, getattr(torch, place.spec.dtype.name)))
        numbers += [[*place.spec.shape], [*place.spec.strides]]
    symbols = [
        (row, column, number.index)
        for row, line in enumerate(numbers)
        for column, number in enumerate(line)
        if isinstance(number, SymInt)
    ]
    for row, column, _ in symbols:
        numbers[row][column] = 0
    return {
        "driver": schedule.driver,
        "team": _team() if schedule.parallel else 0,
        "launcher": schedule.launcher,
        "step_count": schedule.step_count,
        "alignment": plan.alignment,
        "workspace_slot": WORKSPACE,
        "slots": slots,
        "results": results,
        "numbers": numbers,
        "symbols": symbols,
        "program": program.words if program else [],
    }
