"""Plans: a plan is an operator that is prepared for everything but the data.

A plan is made from shapes, strides, dtypes and a device. It determines its workspace and its steps,
and can run any number of times, from any number of threads. A run checks the tensors' memory and
allocates the outputs that the caller did not provide.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from functools import cached_property, partial
from itertools import compress
from operator import gt, itemgetter
from typing import Any

from ..backends import NativeSchedule, choice
from ..declarations import contract, lowering
from ..declarations.contract import Operator, Specs
from ..declarations.options import Options
from ..declarations.problem import DATA, OTHERS, PLACES, WORKSPACE, Role
from ..support import memory
from ..tensors import devices, frameworks
from ..tensors.frameworks import COUNTED, Framework
from ..tensors.specs import TensorSpec
from . import workspaces
from .arguments import Arguments, out_tuple
from .overlap import Place, check
from .workspaces import Scratch

#: What makes a new result: its index, its place, a function, and the index of the input that the
#: function takes, or None for any.
_Maker = tuple[int, Place, Callable[[Any], Any], int | None]
#: The module of functions that autograd records, and those that have an operator's name.
_RECORDING = "normgrad.torch.functional"
_RECORDED = ("batch_norm", "group_norm", "layer_norm", "rms_norm")


def _describe(spec: TensorSpec | None) -> str:
    if spec is None:
        return "None"
    return f"{spec.dtype} with shape {spec.shape} and strides {spec.strides}"


def _fits(spec: TensorSpec | None, expected: TensorSpec | None) -> bool:
    """Whether a tensor has the plan's spec; a tensor without elements may have any strides."""
    if spec is None or expected is None or spec.elements:
        return spec == expected
    return (spec.shape, spec.dtype) == (expected.shape, expected.dtype)


class Plan:
    """An operator prepared for tensors of given specs; :func:`normgrad.plan` makes it.

    Attributes:
        name: the operator's name.
        workspace_size: the bytes of scratch memory that :meth:`run` needs; 0 if none.
        output_specs: the specs of the results, None where masked off.
        device: the device of its tensors, such as "cpu" or "cuda:0".
        input_names, output_names: the names of the operator's inputs and outputs.
    """

    def __init__(
        self,
        operator: Operator,
        options: Options,
        specs: Mapping[str, TensorSpec | None],
        outputs: Specs,
        names: Mapping[str, str] | None = None,
        device: str = devices.CPU,
        read_next: bool = False,
    ) -> None:
        """Prepare the operator for specs that :func:`.declarations.contract.check` accepts.

        ``outputs`` are the specs of the outputs to compute. ``names`` are other names of inputs and
        outputs, which :meth:`run` uses in its messages. ``read_next`` is as in
        :class:`.declarations.problem.Problem`.
        """
        names = names or {}
        present = contract.present_inputs(operator, options, specs)
        self.name = operator.name
        self.device = device
        self._on_gpu = device != devices.CPU
        self._operator = operator
        self.input_names = operator.names
        self._expected = tuple(map(specs.get, self.input_names))
        self._results = operator.outputs(options)
        self.output_names = tuple([output.name for output in self._results])
        self.output_specs = tuple([outputs.get(output.name) for output in self._results])
        self._backend = backend = choice.of(device)
        problem = lowering.problem(operator, options, present, outputs, read_next)
        schedule: Any = backend.build(problem)
        self._schedule = schedule
        self._computes = backend.computes(schedule)
        self.workspace_size = size = schedule.workspace_size
        self._borrows = not self._on_gpu and 0 < size <= workspaces.SPARE_BYTES
        self.runner: Any = None
        #: What runs the plan in C++ on tensors like those of an earlier run; None if nothing does.
        self._in_cpp: Callable[[tuple[Any, ...]], Any] | None = None
        #: The signature of the last run that was checked, if its tensors were plain.
        self._fitting: Hashable = None
        self._makers: dict[Framework, list[_Maker]] = {}
        self._roles = operator.roles(options)
        self._present = present
        self._titles = names
        self._unread = problem.input_is_grad_out

    @cached_property
    def inputs(self) -> tuple[Place | None, ...]:
        """The places of all inputs, even unread ones: no output may share their memory."""
        others = iter(range(OTHERS, PLACES))
        inputs: list[Place | None] = []
        for name, spec in zip(self.input_names, self._expected, strict=True):
            if spec is None:
                inputs.append(None)
                continue
            role: int | None = self._roles.get(name) if name in self._present else None
            if role is None or (role is Role.INPUT and self._unread):
                role = next(others)
            inputs.append(Place(role, self._titles.get(name, name), spec, *spec.reach))
        return tuple(inputs)

    @cached_property
    def outputs(self) -> tuple[Place | None, ...]:
        """The places of the outputs; None where masked off."""
        return tuple(
            None
            if spec is None
            else Place(
                int(self._roles[output.name]),
                self._titles.get(output.name) or self._operator.out_name(index, output),
                spec,
                *spec.reach,
                [self._titles.get(name, name) for name in output.in_place],
            )
            for index, (output, spec) in enumerate(
                zip(self._results, self.output_specs, strict=True)
            )
        )

    def __repr__(self) -> str:
        given = zip(self.input_names, self._expected, strict=True)
        inputs = [f"{name} {spec.dtype} {spec.shape}" for name, spec in given if spec]
        return f"<Plan of {self.name} on {self.device}: {', '.join(inputs)}>"

    @property
    def alignment(self) -> int:
        """The alignment in bytes of the first byte that is used of a workspace."""
        return self._backend.alignment

    @property
    def path(self) -> str:
        """A description of the steps: the kernels and the arithmetic of each."""
        return self._schedule.path  # type: ignore[no-any-return]

    @property
    def out_is_tensor(self) -> bool:
        """Whether ``out`` in :meth:`run` is one tensor rather than a tuple."""
        return self._operator.out_is_tensor

    @property
    def reads_input(self) -> bool:
        """Whether any wanted output depends on ``input``; if none does, it is not read."""
        return not self._unread and self._computes

    def run(self, *tensors: Any, out: Any = None, workspace: Any = None, **named: Any) -> Any:
        """Compute on tensors that have the plan's specs.

        Args:
            tensors, named: the operator's tensors, by position or by name, as in its function.
            out: as in its function; None, or None entries, for new tensors.
            workspace: a writable, contiguous buffer or PyTorch tensor of at least
                ``workspace_size`` bytes, with any alignment; for a plan on a GPU, a tensor on that
                GPU. None to allocate it. If ``out`` is given too, the call allocates nothing else
                whose size depends on the tensors.

        Returns:
            What the operator's function returns.

        Raises:
            TypeError: something that is not a tensor, or an unknown argument.
            ValueError: a tensor with another spec than the plan's, or on another device;
                overlapping outputs; a workspace that is too small; a PyTorch tensor that requires a
                gradient, which would be lost.
        """
        if named or len(tensors) != len(self.input_names):
            tensors = self._in_order(tensors, named)
        if self._in_cpp is not None and out is None and workspace is None:
            results = self._in_cpp(tensors)
            if results is not NotImplemented:
                return self._operator.result(results)
        arguments = Arguments(tensors, out_tuple(self._operator, out))
        seen = arguments.signature
        if seen is None or seen != self._fitting or not self.holds(arguments):
            self._open(arguments)
            if arguments.is_direct:
                self._fitting = seen
                if frameworks.prepare_in_cpp is not None and type(tensors[0]) in COUNTED:
                    self._in_cpp = frameworks.prepare_in_cpp(self, tensors)
        return self.run_checked(arguments, workspace)

    def bind(self, *tensors: Any, out: Any = None, workspace: Any = None, **named: Any) -> Bound:
        """Check tensors once, to compute on their memory many times.

        Args:
            tensors, named, out, workspace: as in :meth:`run`. What is None is allocated once.

        Returns:
            A function without arguments, which computes from what the inputs then hold and returns
            the same results each time, with new values.

        Raises:
            TypeError, ValueError: as :meth:`run`; and for an input that can only be read as a copy.
        """
        tensors = self._in_order(tensors, named)
        arguments = Arguments(tensors, out_tuple(self._operator, out))
        self._open(arguments)
        places = (*self.inputs, *self.outputs)
        for place, each in zip(places, arguments.open_tensors or (), strict=True):
            if place is not None and each is not None and each.original is not None:
                raise ValueError(
                    f"{place.name}: a tensor that is read as a copy; allowed: plain memory, whose "
                    "contents later calls read"
                )
        return Bound(self, arguments, workspace)

    def _in_order(self, tensors: tuple[Any, ...], named: Mapping[str, Any]) -> tuple[Any, ...]:
        """Put tensors that are passed by position or by name in the operator's order."""
        names = self.input_names
        values = {**dict(zip(names, tensors, strict=False)), **named} if tensors else named
        if len(tensors) > len(names):
            raise TypeError(f"run: {len(tensors)} tensors; allowed: {', '.join(names)}")
        if len(values) < len(tensors) + len(named) or not values.keys() <= {*names}:
            for name in named:
                if name not in names:
                    allowed = ", ".join(names)
                    raise TypeError(f"{name}: no tensor of {self.name}; allowed: {allowed}")
            name = next(name for name in names[: len(tensors)] if name in named)
            raise TypeError(f"{name}: given twice, by position and by name")
        return tuple(map(values.get, names))

    def _open(self, arguments: Arguments) -> None:
        """Open a call's tensors; a ValueError if one differs from the plan's device or specs."""
        arguments.open(self._operator, self._results)
        if arguments.device != self.device:
            raise ValueError(
                f"{arguments.first}: on device {arguments.device}; allowed: {self.device}, as in "
                "the plan"
            )
        specs = arguments.specs
        tensors = [
            (name, specs[name], expected)
            for name, expected in zip(self.input_names, self._expected, strict=True)
        ]
        tensors += [
            (place.name, specs[output.name], place.spec)
            for output, place in zip(self._results, self.outputs, strict=True)
            if place is not None and specs[output.name] is not None
        ]
        for name, spec, expected in tensors:
            if not _fits(spec, expected):
                raise ValueError(
                    f"{name}: {_describe(spec)}; allowed: {_describe(expected)}, as in the plan"
                )

    @cached_property
    def _ends(self) -> tuple[int, ...]:
        """The bytes that each input and output needs from its first element on."""
        return tuple(place.high if place else 0 for place in (*self.inputs, *self.outputs))

    @cached_property
    def in_slots(self) -> Callable[[Sequence[int]], tuple[int, ...]]:
        """Puts the addresses of inputs, outputs and workspace, and then a 0, in a run's order."""
        places = (*self.inputs, *self.outputs)
        order = [len(places) + 1] * PLACES
        for index, place in enumerate(places):
            if place is not None:
                order[place.slot] = index
        order[WORKSPACE] = len(places)
        if self._unread:
            order[Role.INPUT] = order[Role.GRAD_OUT]
        if order[Role.GRAD_OUT] > len(places):
            order[Role.GRAD_OUT] = order[Role.INPUT]
        return itemgetter(*order)

    def holds(self, call: Arguments) -> bool:
        """Whether no storage is too small for its tensor, of the plan's specs."""
        return not any(map(gt, self._ends, call.rooms))

    def run_checked(self, call: Arguments, workspace: Any) -> Any:
        """Compute on tensors that have the plan's specs, after checking their memory."""
        borrows = workspace is None and self._borrows
        scratch = workspaces.borrow() if borrows else self._scratch(workspace)
        results, addresses, is_callers = self.memory_of(call, scratch)
        self._compute(addresses)
        if borrows:
            workspaces.give_back(scratch)
        if True in is_callers:
            frameworks.count_writes(compress(call.tensors[len(self.input_names) :], is_callers))
        return self.result_of(call, results, is_callers)

    def memory_of(
        self, call: Arguments, scratch: Scratch
    ) -> tuple[list[Any], list[int], list[bool]]:
        """The results of a call, all addresses, and which results are the caller's.

        All memory is checked, and results that the caller did not provide are made.
        """
        if call.open_tensors and call.framework.lost(call.tensors):
            self._refuse_lost(call)
        first, used = len(self.input_names), scratch.used
        results = list(call.values[first:])
        makers = self._makers.get(call.framework) or self._makers_of(call.framework)
        for index in self._absent:
            results[index] = None
        is_callers = [value is not None for value in results]
        if True in is_callers or used or call.open_tensors or self._on_gpu:
            check(call, self.inputs, self.outputs, used, self._on_gpu)
        addresses = [*call.addresses, scratch.start, 0]
        for index, place, make, like in makers:
            if not is_callers[index]:
                try:
                    results[index] = new = make(call.like if like is None else call.tensors[like])
                except (MemoryError, RuntimeError):
                    with memory.allocating(self._results[index].name, place.spec.nbytes):
                        raise
                addresses[first + index] = frameworks.address_of(new)
        return results, addresses, is_callers

    def result_of(self, call: Arguments, results: list[Any], is_callers: list[bool]) -> Any:
        """What the caller gets of a call's results."""
        if call.open_tensors:
            for index, *_ in self._makers[call.framework]:
                if not is_callers[index]:
                    results[index] = call.framework.result(results[index], call.like)
        return self._operator.result(results)

    def _refuse_lost(self, call: Arguments) -> None:
        """Raise a ValueError that names a tensor whose derivative the call would lose, if one is.

        Outputs that are masked off do not count.
        """
        recording = f"{_RECORDING}.{self.name}" if self.name in _RECORDED else ""
        titles = [self._titles.get(name, name) for name in self.input_names]
        places = [place and place.name for place in self.outputs]
        for name, tensor in zip((*titles, *places), call.tensors, strict=True):
            if name is not None:
                call.framework.keep_derivatives(name, tensor, recording)

    def run_at(self, addresses: Sequence[int], owners: Sequence[Any], workspace: Any) -> None:
        """Compute on the CPU's memory at addresses, at which there are tensors of the plan's specs.

        Args:
            addresses: the addresses of the first elements of the inputs and then of the outputs; 0
                where absent.
            owners: what keeps the memory alive, in the same order; None where absent.
            workspace: as in :meth:`run`; not None if a workspace is needed.
        """
        scratch = self._scratch(workspace)
        check(Arguments.at(addresses, owners), self.inputs, self.outputs, scratch.used, False)
        self._compute((*addresses, scratch.start, 0))

    def _compute(self, addresses: Sequence[int]) -> None:
        """Run the kernels on the addresses of inputs, outputs and workspace, and then a 0."""
        if self._computes:
            self._prepared().run(self.in_slots(addresses))

    def _prepared(self) -> Any:
        """The runner, with its kernels loaded."""
        if self.runner is None:
            self.runner = self._backend.runner(self._schedule)
        return self.runner

    def team(self) -> tuple[int, int]:
        """The threads of a run without Python on the CPU: see :class:`.backends.cpu.teams.Team`."""
        team: tuple[int, int] = self._prepared().team()
        return team

    def native(self, addresses: Mapping[int, int]) -> NativeSchedule | None:
        """The schedule for code that runs it without Python; None if only Python can run it.

        ``addresses`` are those of the inputs, by their slots. Those of results are multiples of the
        largest alignment that kernels are compiled for.
        """
        if not self._computes:
            return NativeSchedule([], [], 0)
        data = [addresses.get(role, 0) for role in DATA]
        if self._unread:
            data[Role.INPUT] = data[Role.GRAD_OUT]
        data[Role.GRAD_OUT] = data[Role.GRAD_OUT] or data[Role.INPUT]
        schedule: NativeSchedule | None = self._prepared().native(data)
        return schedule

    @cached_property
    def _absent(self) -> tuple[int, ...]:
        """The indices of results that are not computed; their entries of ``out`` are ignored."""
        return tuple(index for index, place in enumerate(self.outputs) if place is None)

    def _makers_of(self, framework: Framework) -> list[_Maker]:
        """What makes new results, if possible of an input that has the result's spec."""
        makers = []
        for index, place in enumerate(self.outputs):
            if place is not None:
                alike = framework.is_known and place.spec in self._expected
                like = self._expected.index(place.spec) if alike else None
                make = framework.maker(place.spec, self.device, alike)
                makers.append((index, place, make, like))
        self._makers[framework] = makers
        return makers

    def _scratch(self, workspace: Any) -> Scratch:
        """The caller's workspace, or a new one."""
        size, alignment = self.workspace_size, self._backend.alignment
        if not size:
            return Scratch()
        if workspace is None:
            return workspaces.new(size, alignment, self.device)
        return workspaces.given(size, alignment, workspace, self.device)


class Bound:
    """A plan with the memory that it computes on; :meth:`Plan.bind` makes it.

    Attributes:
        plan: the plan.
    """

    def __init__(self, plan: Plan, call: Arguments, workspace: Any) -> None:
        """Check a call's memory, and make the results that it lacks."""
        self.plan = plan
        count, scratch = len(plan.input_names), plan._scratch(workspace)
        results, addresses, is_callers = plan.memory_of(call, scratch)
        outputs = [
            theirs if is_theirs else new
            for theirs, new, is_theirs in zip(
                call.tensors[count:], results, is_callers, strict=True
            )
        ]
        tensors = (*call.tensors[:count], *outputs, scratch.owner)
        names = [place and place.name for place in (*plan.inputs, *plan.outputs)]
        #: PyTorch's tensors, each with its name and address, since a storage can be resized.
        self._movable = [
            (name, each.data_ptr, each.data_ptr())
            for name, each in zip((*names, "workspace"), tensors, strict=True)
            if type(each) in COUNTED
        ]
        #: What keeps all memory alive, and in its place.
        self._owners = call.values, tensors, [*map(frameworks.pin, tensors)]
        self._outputs = [each for each in outputs if each is not None]
        self._compute = partial(plan._compute, addresses)
        self._result = plan.result_of(call, results, is_callers)

    def __call__(self) -> Any:
        """Compute again on the same memory.

        Raises:
            ValueError: a tensor's memory is not where it was, as after a resize.
        """
        for name, locate, address in self._movable:
            if locate() != address:
                raise ValueError(f"{name}: its memory was moved; allowed: that which was bound")
        self._compute()
        frameworks.count_writes(self._outputs)
        return self._result
