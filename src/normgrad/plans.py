"""Plans: an operator with everything decided but the data.

A plan is made from shapes, strides and dtypes. It knows its workspace and its way through the
kernels, and runs any number of times, from any number of threads. The public functions are: find
the plan in the cache, allocate what the caller did not give, run.
"""

from __future__ import annotations

import inspect
from collections.abc import Hashable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from . import frameworks, layout
from .backends.cpu import program as cpu
from .frameworks import Framework
from .machine import this_machine
from .memory import check_writable
from .problem import Role
from .tensor import TensorSpec

if TYPE_CHECKING:
    from .backends.cpu.runtime import Runner
    from .operators.contract import Operator, Options, Output

#: Plans kept; a training loop needs one for each layer's shape.
CACHE_SIZE = 4096

#: Places in a kernel's list of addresses.
_SLOTS = len(Role) + 1
_WORKSPACE = len(Role)


def _describe(spec: TensorSpec | None) -> str:
    if spec is None:
        return "None"
    return f"{spec.dtype} with shape {spec.shape} and strides {spec.strides}"


class Plan:
    """An operator bound to the specs of its tensors; made by :func:`normgrad.plan`.

    Attributes:
        name: the operator's name.
        workspace_size: how many bytes of scratch memory :meth:`run` needs; 0 if none.
        output_specs: the specs of the results, None where masked off.
        path: the way through the kernels that was chosen, in words.
    """

    def __init__(
        self,
        operator: Operator,
        options: Options,
        specs: Mapping[str, TensorSpec | None],
        out_specs: Mapping[str, TensorSpec | None],
    ) -> None:
        from .operators import contract

        present = contract.check_inputs(operator, options, specs)
        outputs = contract.check_outputs(operator, options, present, out_specs)
        self.name = operator.name
        self._operator = operator
        self._inputs = tuple(specs.get(parameter.name) for parameter in operator.parameters)
        self._outputs = operator.outputs(options)
        self.output_specs = tuple(outputs.get(output.name) for output in self._outputs)
        self._program = cpu.build(operator.problem(options, present, outputs), this_machine())
        self.workspace_size = self._program.workspace_size
        self.path = self._program.path
        self._runner: Runner | None = None
        # What has been compared with the plan's specs and found equal, in each framework's terms.
        self._known: set[Hashable] = set()

        roles = operator.roles(options)
        self._input_slots = tuple(
            (index, int(roles[parameter.name]))
            for index, parameter in enumerate(operator.parameters)
            if parameter.name in present and parameter.name in roles
        )
        self._output_slots = tuple(
            (index, int(roles[output.name]))
            for index, output in enumerate(self._outputs)
            if output.wanted
        )

    def run(self, *tensors: Any, out: Any = None, workspace: Any = None, **named: Any) -> Any:
        """Compute on tensors that look as the plan says.

        Args:
            tensors, named: the operator's tensors, by position or by name, as in its function.
            out: as in its function; None, or None entries, for new tensors.
            workspace: a writable, contiguous buffer or PyTorch tensor of at least
                ``workspace_size`` bytes, with any alignment; None to allocate it. Nothing else
                that grows with the tensors is allocated when ``out`` is given.

        Returns:
            What the operator's function returns.

        Raises:
            TypeError: something that is no tensor, or an unknown argument.
            ValueError: a tensor unlike the plan's, overlapping outputs, a small workspace.
        """
        names = [parameter.name for parameter in self._operator.parameters]
        if len(tensors) > len(names):
            raise TypeError(f"run: {len(tensors)} tensors; allowed: {', '.join(names)}")
        values = dict(zip(names, tensors, strict=False))
        for name, value in named.items():
            if name not in names:
                raise TypeError(f"{name}: no tensor of {self.name}; allowed: {', '.join(names)}")
            if name in values:
                raise TypeError(f"{name}: given twice, by position and by name")
            values[name] = value
        given = _out_entries(self._operator, self._outputs, out)
        arguments = _Arguments(
            self._operator, self._outputs, [values.get(name) for name in names], given
        )
        self._check(arguments)
        return self._run(arguments, workspace)

    def _check(self, arguments: _Arguments) -> None:
        """Compare the tensors with the plan's specs, once for each look they can have."""
        key = arguments.key()
        if key in self._known:
            return
        specs, out_specs = arguments.specs()
        for parameter, expected in zip(self._operator.parameters, self._inputs, strict=True):
            spec = specs.get(parameter.name)
            if spec != expected:
                raise ValueError(
                    f"{parameter.name}: {_describe(spec)}; allowed: {_describe(expected)}, as in "
                    "the plan"
                )
        for index, (output, expected) in enumerate(
            zip(self._outputs, self.output_specs, strict=True)
        ):
            spec = out_specs.get(output.name)
            if output.wanted and spec is not None and spec != expected:
                raise ValueError(
                    f"{self._operator.out_name(index, output)}: {_describe(spec)}; allowed: "
                    f"{_describe(expected)}, as in the plan"
                )
        if len(self._known) < CACHE_SIZE:
            self._known.add(key)

    def _run(self, arguments: _Arguments, workspace: Any) -> Any:
        framework, opened = arguments.framework, arguments.opened
        operator = self._operator
        addresses = [0] * _SLOTS
        for index, slot in self._input_slots:
            name = operator.parameters[index].name
            addresses[slot] = framework.address(name, opened[index])
        self._check_memory(arguments, addresses)

        results: list[Any] = [None] * len(self._outputs)
        given: list[tuple[int, int]] = []
        for index, slot in self._output_slots:
            spec = self.output_specs[index]
            assert spec is not None
            value = arguments.out[index]
            if value is not None:
                given.append((index, slot))
            results[index] = value
        if given:
            self._check_given(arguments, given, addresses)
        scratch, keep = self._workspace(workspace, arguments, given, addresses)
        addresses[_WORKSPACE] = scratch
        for index, slot in self._output_slots:
            if results[index] is None:
                spec = self.output_specs[index]
                assert spec is not None
                results[index] = framework.empty(spec)
                addresses[slot] = framework.address("out", results[index])
        if self._program.input_is_grad_out:
            addresses[Role.INPUT] = addresses[Role.GRAD_OUT]
        if self._program.steps:
            if self._runner is None:
                from .backends.cpu.runtime import Runner

                self._runner = Runner(self._program)
            self._runner.run(addresses)
        del keep
        like = arguments.like
        for index, _ in self._output_slots:
            if arguments.out[index] is not None:
                framework.wrote(results[index])
                results[index] = arguments.given[index]
            else:
                results[index] = framework.result(results[index], like)
        return operator.result(results)

    def _check_memory(self, arguments: _Arguments, addresses: Sequence[int]) -> None:
        for index, slot in self._input_slots:
            spec = self._inputs[index]
            if addresses[slot] == 0 and spec is not None and spec.elements:
                name = self._operator.parameters[index].name
                raise TypeError(
                    f"{name}: a {type(arguments.opened[index]).__name__} without memory; allowed: "
                    "a tensor with data"
                )

    def _check_given(
        self, arguments: _Arguments, given: Sequence[tuple[int, int]], addresses: list[int]
    ) -> None:
        """The caller's outputs: writable, and apart from everything else (see :meth:`_apart`)."""
        framework = arguments.framework
        for index, slot in given:
            name = self._operator.out_name(index, self._outputs[index])
            spec = self.output_specs[index]
            assert spec is not None
            framework.check_writable(name, arguments.out[index], spec)
            addresses[slot] = framework.address(name, arguments.out[index])
        regions = self._input_regions(arguments)
        for index, slot in given:
            output = self._outputs[index]
            spec = self.output_specs[index]
            assert spec is not None
            name = self._operator.out_name(index, output)
            region = spec.region(addresses[slot])
            for other_name, other, other_spec in regions:
                same = (
                    output.name == "grad_input"
                    and other_name in ("grad_out", "input")
                    and (other, other_spec) == (region, spec)
                )
                if not same and layout.overlap(region, other):
                    raise ValueError(
                        f"{name}: shares memory with {other_name}; allowed: memory of its own"
                        + (
                            ", or all of grad_out or input with the same strides and dtype"
                            if output.name == "grad_input"
                            else ""
                        )
                    )
            regions.append((name, region, spec))

    def _input_regions(self, arguments: _Arguments) -> list[tuple[str, layout.Region, TensorSpec]]:
        """The memory of every input, those that take no part in the arithmetic too."""
        regions = []
        for parameter, spec, value in zip(
            self._operator.parameters, self._inputs, arguments.opened, strict=True
        ):
            if spec is not None:
                address = arguments.framework.address(parameter.name, value)
                regions.append((parameter.name, spec.region(address), spec))
        return regions

    def _workspace(
        self,
        workspace: Any,
        arguments: _Arguments,
        given: Sequence[tuple[int, int]],
        addresses: Sequence[int],
    ) -> tuple[int, Any]:
        """The aligned address of the scratch memory, and what keeps it alive."""
        if self.workspace_size == 0:
            return 0, None
        if workspace is None:
            buffer = np.empty(self.workspace_size, np.uint8)
            start = buffer.ctypes.data
        else:
            start, size, buffer = _buffer(workspace)
            if size < self.workspace_size:
                raise ValueError(
                    f"workspace: {size} bytes; allowed: at least {self.workspace_size}"
                )
            region = layout.Region(start, (self.workspace_size,), (1,), 1)
            check_writable("workspace", region)
            others = self._input_regions(arguments)
            for index, slot in given:
                spec = self.output_specs[index]
                assert spec is not None
                name = self._operator.out_name(index, self._outputs[index])
                others.append((name, spec.region(addresses[slot]), spec))
            for name, other, _ in others:
                if layout.overlap(region, other):
                    raise ValueError(
                        f"workspace: shares memory with {name}; allowed: memory of its own"
                    )
        return -(-start // cpu.ALIGNMENT) * cpu.ALIGNMENT, buffer


def _buffer(workspace: Any) -> tuple[int, int, Any]:
    """Address, size in bytes and owner of a caller's scratch memory."""
    if hasattr(workspace, "data_ptr"):
        if workspace.device.type != "cpu" or not workspace.is_contiguous():
            raise ValueError("workspace: not a contiguous CPU tensor; allowed: a contiguous one")
        return workspace.data_ptr(), workspace.numel() * workspace.element_size(), workspace
    try:
        view = memoryview(workspace)
    except TypeError:
        raise TypeError(
            f"workspace: a {type(workspace).__name__}; allowed: a writable buffer"
        ) from None
    if view.readonly or not view.c_contiguous:
        raise ValueError(
            "workspace: read-only or not contiguous; allowed: a writable, contiguous buffer"
        )
    array = np.frombuffer(view.cast("B") if view.nbytes else b"", np.uint8)
    return array.ctypes.data, view.nbytes, array


def _out_entries(operator: Operator, outputs: Sequence[Output], out: Any) -> Sequence[Any]:
    """The caller's tensors for the wanted outputs, one entry for each result."""
    if operator.out_is_tensor:
        return (out,)
    if out is None:
        return (None,) * len(outputs)
    allowed = f"a tuple of {len(outputs)} tensors or Nones"
    if not isinstance(out, (tuple, list)):
        raise TypeError(f"out: a {type(out).__name__}; allowed: {allowed}")
    if len(out) != len(outputs):
        raise ValueError(f"out: {len(out)} entries; allowed: {allowed}")
    return [value if output.wanted else None for value, output in zip(out, outputs, strict=True)]


class _Arguments:
    """One call's tensors: opened, of one framework, on the CPU."""

    def __init__(
        self,
        operator: Operator,
        outputs: Sequence[Output],
        values: Sequence[Any],
        given: Sequence[Any],
    ) -> None:
        self._operator = operator
        self._outputs = outputs
        # Whatever is there decides the framework; a required tensor that is not is found missing
        # when the specs are checked.
        named = zip(operator.parameters, values, strict=True)
        first: tuple[str, Any] = next(
            ((parameter.name, value) for parameter, value in named if value is not None),
            (operator.parameters[0].name, None),
        )
        self.like = first[1]
        self.framework: Framework = frameworks.of(*first)
        self.given = given
        self.opened = [
            None if value is None else self._open(parameter.name, value, writing=False)
            for parameter, value in zip(operator.parameters, values, strict=True)
        ]
        self.out = [
            None
            if value is None
            else self._open(operator.out_name(index, outputs[index]), value, writing=True)
            for index, value in enumerate(given)
        ]

    def _open(self, name: str, value: Any, writing: bool) -> Any:
        framework = frameworks.of(name, value)
        if framework is not self.framework:
            raise TypeError(
                f"{name}: a {framework.name} among {self.framework.name}s; allowed: one kind for "
                "all arguments"
            )
        device = framework.device(name, value)
        if device != "cpu":
            raise ValueError(f"{name}: on device {device}; allowed: cpu")
        return framework.opened(name, value, writing)

    def key(self) -> Hashable:
        """Everything the plan depends on."""
        key = self.framework.key
        return (
            self.framework,
            *[None if value is None else key(value) for value in self.opened],
            *[None if value is None else key(value) for value in self.out],
        )

    def specs(self) -> tuple[dict[str, TensorSpec | None], dict[str, TensorSpec | None]]:
        """The inputs' and outputs' specs, by name."""
        spec = self.framework.spec
        inputs = {
            parameter.name: None if value is None else spec(parameter.name, value)
            for parameter, value in zip(self._operator.parameters, self.opened, strict=True)
        }
        return inputs, {
            output.name: None
            if value is None
            else spec(self._operator.out_name(index, output), value)
            for index, (output, value) in enumerate(zip(self._outputs, self.out, strict=True))
        }


_plans: dict[Hashable, Plan] = {}


def call(operator: Operator, options: Options, tensors: Sequence[Any], out: Any) -> Any:
    """What the public functions do."""
    outputs = operator.outputs(options)
    arguments = _Arguments(operator, outputs, tensors, _out_entries(operator, outputs, out))
    key = (operator.name, options, arguments.key())
    plan = _plans.get(key)
    if plan is None:
        plan = Plan(operator, options, *arguments.specs())
        while len(_plans) >= CACHE_SIZE:
            _plans.pop(next(iter(_plans)), None)
        _plans[key] = plan
    return plan._run(arguments, None)


def plan(name: str, /, *, out: Any = None, **arguments: Any) -> Plan:
    """Plan an operator from what its tensors look like.

    Args:
        name: "batch_norm_backward", "batch_norm_backward_reduce", "batch_norm_backward_elemt" or
            "group_norm_backward".
        arguments: the operator's arguments by keyword. In the place of a tensor stands a
            :class:`TensorSpec`, or an array or tensor whose data are not looked at.
        out: the same for the outputs; None, or None entries, for outputs in the input's layout.

    Returns:
        A plan that runs on any tensors of that look.

    Raises:
        TypeError: an unknown or missing argument, or a dtype.
        ValueError: an unknown operator, a shape, or an output that overlaps itself.
    """
    from . import operators

    operator = operators.OPERATORS.get(name)
    if operator is None:
        raise ValueError(f"name: {name!r}; allowed: {', '.join(operators.OPERATORS)}")
    function = getattr(operators, name)
    specs: dict[str, TensorSpec | None] = {
        parameter.name: None for parameter in operator.parameters
    }
    choices = {**function.__kwdefaults__}
    del choices["out"]
    known = inspect.signature(function).parameters
    for argument, value in arguments.items():
        if argument in specs:
            specs[argument] = _as_spec(argument, value)
        elif argument in known:
            choices[argument] = value
        else:
            raise TypeError(f"{argument}: no argument of {name}; allowed: {', '.join(known)}")
    for argument, parameter in known.items():
        if parameter.kind is parameter.KEYWORD_ONLY and argument not in (*choices, "out"):
            raise TypeError(f"{argument}: missing; {name} has no default for it")
    options = operator.read_options(**choices)
    outputs = operator.outputs(options)
    entries = _out_entries(operator, outputs, out)
    out_specs = {
        output.name: _as_spec(operator.out_name(index, output), value)
        for index, (output, value) in enumerate(zip(outputs, entries, strict=True))
    }
    return Plan(operator, options, specs, out_specs)


def _as_spec(name: str, value: Any) -> TensorSpec | None:
    if value is None or isinstance(value, TensorSpec):
        return value
    framework = frameworks.of(name, value)
    return framework.spec(name, framework.opened(name, value, writing=False))
