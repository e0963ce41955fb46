"""Plans and the cache of plans: a plan is an operator that is prepared for everything but the data.

A plan is made from shapes, strides, dtypes and a device. It determines its workspace and its steps,
and can run any number of times, from any number of threads. A public function finds its plan in the
cache, allocates the outputs that the caller did not provide, and runs the plan.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from contextlib import suppress
from functools import cached_property
from typing import Any, NoReturn, TypeVar

from . import contract, devices, frameworks, layout, memory, native, views
from .arguments import Arguments, out_entries, out_tuple
from .backends import choice
from .contract import Operator, Specs
from .options import Options
from .overlap import Place, check, used
from .problem import OTHERS, PLACES, WORKSPACE, Role
from .tensor import TensorSpec
from .workspaces import scratch

_K = TypeVar("_K", bound=Hashable)
_T = TypeVar("_T")

#: The number of plans that are kept; a training loop needs one for each layer's shape.
CACHE_SIZE = 4096


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
        """Prepare the operator for specs that :func:`.contract.check` accepts.

        ``outputs`` are the specs of all wanted outputs. ``names`` are other names of inputs and
        outputs, which :meth:`run` uses in its messages. ``read_next`` is as in
        :class:`.problem.Problem`.
        """
        names = names or {}
        present = contract.counted(operator, options, specs)
        self.name = operator.name
        self.device = device
        self._operator = operator
        self._names = operator.names
        self._expected = tuple(map(specs.get, self._names))
        self._wanted = operator.outputs(options)
        self.output_specs = tuple([outputs.get(output.name) for output in self._wanted])
        self._backend = backend = choice.of(device)
        problem = views.problem(operator, options, present, outputs, read_next)
        self._program: Any = backend.build(problem)
        self.workspace_size = self._program.workspace_size
        self._runner: Any = None
        #: What compiled code needs to run the plan; None before it has stored a call's signature.
        self.ready: native.Ready | None = None
        self._enter: Callable[..., Any] = native.nothing_known

        self._roles = operator.roles(options)
        self._present = present
        self._shown = names
        self._unread = problem.input_is_grad_out

    @cached_property
    def _inputs(self) -> tuple[Place | None, ...]:
        """The places of all inputs, even unread ones: no output may share their memory."""
        others = iter(range(OTHERS, PLACES))
        inputs: list[Place | None] = []
        for name, spec in zip(self._names, self._expected, strict=True):
            if spec is None:
                inputs.append(None)
                continue
            role: int | None = self._roles.get(name) if name in self._present else None
            if role is None or (role is Role.INPUT and self._unread):
                role = next(others)
            inputs.append(Place(role, self._shown.get(name, name), spec, *spec.reach))
        return tuple(inputs)

    @cached_property
    def _outputs(self) -> tuple[Place | None, ...]:
        """The places of the outputs; None where masked off."""
        return tuple(
            None
            if spec is None
            else Place(
                int(self._roles[output.name]),
                self._shown.get(output.name) or self._operator.out_name(index, output),
                spec,
                *spec.reach,
                [self._shown.get(name, name) for name in output.in_place],
            )
            for index, (output, spec) in enumerate(
                zip(self._wanted, self.output_specs, strict=True)
            )
        )

    @property
    def path(self) -> str:
        """A description of the steps: the kernels and the arithmetic of each."""
        return self._program.path  # type: ignore[no-any-return]

    @property
    def out_is_tensor(self) -> bool:
        """Whether ``out`` in :meth:`run` is one tensor rather than a tuple."""
        return self._operator.out_is_tensor

    @property
    def reads_input(self) -> bool:
        """Whether any wanted output depends on ``input``; if none does, it is not read."""
        return not self._unread and self._backend.computes(self._program)

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
                overlapping outputs; a workspace that is too small.
        """
        if named or len(tensors) != len(self._names):
            tensors = self._in_order(tensors, named)
        given = out_tuple(self._operator, out)
        again = self._enter(self.ready, tensors, given, workspace)
        if again is not None:
            return self._operator.result(again)
        given = out_entries(self._wanted, given)
        arguments = Arguments(self._operator, self._wanted, tensors, given)
        self._compare(arguments)
        return self.run_checked(arguments, workspace)

    def _in_order(self, tensors: tuple[Any, ...], named: Mapping[str, Any]) -> tuple[Any, ...]:
        """Put the tensors passed to :meth:`run`, by position or by name, in the operator's order.

        Raises:
            TypeError: too many tensors, an unknown name, or one tensor passed twice.
        """
        names = self._names
        values = {**dict(zip(names, tensors, strict=False)), **named} if tensors else named
        if len(values) < len(tensors) + len(named) or not values.keys() <= {*names}:
            self._refuse(tensors, named)
        return tuple(map(values.get, names))

    def _refuse(self, tensors: tuple[Any, ...], named: Mapping[str, Any]) -> NoReturn:
        """Raise the TypeError of :meth:`_in_order`."""
        names, allowed = self._names, ", ".join(self._names)
        if len(tensors) > len(names):
            raise TypeError(f"run: {len(tensors)} tensors; allowed: {allowed}")
        for name in named:
            if name not in names:
                raise TypeError(f"{name}: no tensor of {self.name}; allowed: {allowed}")
        name = next(name for name in names[: len(tensors)] if name in named)
        raise TypeError(f"{name}: given twice, by position and by name")

    def _learn(self, arguments: Arguments, results: Sequence[Any]) -> None:
        """Store the signature of these tensors in the entry table, if opening converted none.

        Compiled code can then run calls of the same signature without Python's checks.
        """
        both = zip(arguments.values, arguments.tensors, strict=True)
        if self._runner is None or any(value is not plain for value, plain in both):
            return
        makers: list[tuple[Callable[[Any], Any] | None, int, bool]] = []
        for place in self._outputs:
            if place is None:
                makers.append((None, 0, False))
                continue
            spec = place.spec
            alike = spec in self._expected
            made = arguments.framework.maker(spec, alike, self.device)
            plain = arguments.framework.is_plain(spec, self.device)
            makers.append((made, self._expected.index(spec) if alike else 0, plain))
        tensors = arguments.values[: len(self._names)]
        ready = self._runner.learn(tensors, tuple(results), makers)
        if ready is not None:
            # In this order: given no plan, compiled code would answer with the call's key.
            self.ready, self._enter = ready, self._runner.enter

    def _compare(self, arguments: Arguments) -> None:
        """Raise a ValueError if a tensor differs from the plan's device or specs."""
        if arguments.device != self.device:
            raise ValueError(
                f"{arguments.first}: on device {arguments.device}; allowed: {self.device}, as in "
                "the plan"
            )
        specs = arguments.specs
        for name, expected in zip(self._names, self._expected, strict=True):
            spec = specs[name]
            if not _fits(spec, expected):
                raise ValueError(
                    f"{name}: {_describe(spec)}; allowed: {_describe(expected)}, as in the plan"
                )
        for output, place in zip(self._wanted, self._outputs, strict=True):
            spec = specs[output.name]
            if spec is not None and place is not None and not _fits(spec, place.spec):
                raise ValueError(
                    f"{place.name}: {_describe(spec)}; allowed: {_describe(place.spec)}, as in the "
                    "plan"
                )

    def run_checked(self, arguments: Arguments, workspace: Any, counts: bool = True) -> Any:
        """Compute on tensors that have the plan's specs, after checking their memory.

        ``counts`` is whether writes to the caller's results are counted for autograd.
        """
        framework, like = arguments.framework, arguments.like
        inputs, outputs = self._inputs, self._outputs
        addresses = [0] * PLACES
        for place, address in zip((*inputs, *outputs), arguments.addresses, strict=True):
            if place is not None:
                addresses[place.slot] = address
        if self._unread:
            addresses[Role.INPUT] = addresses[Role.GRAD_OUT]
        addresses[Role.GRAD_OUT] = addresses[Role.GRAD_OUT] or addresses[Role.INPUT]
        results = list(arguments.values[len(inputs) :])
        made: dict[int, Any] = {}
        for index, place in enumerate(outputs):
            if place is None:
                results[index] = None
            elif results[index] is None:
                with memory.allocating(self._wanted[index].name, place.spec.nbytes):
                    made[index] = framework.new(place.spec, self.device, like)
                addresses[place.slot] = frameworks.address_of(made[index])
        given = None
        if self.workspace_size:
            alignment = self._backend.alignment
            start, _owner = scratch(self.workspace_size, alignment, workspace, self.device)
            addresses[WORKSPACE] = start
            if workspace is not None:
                given = layout.Region(start, (used(self.workspace_size, alignment),), (1,), 1)

        check(arguments, inputs, outputs, given)
        if self._backend.computes(self._program):
            if self._runner is None:
                self._runner = self._backend.runner(self._program, inputs, outputs)
            self._runner.run(addresses)

        if counts:
            frameworks.written(arguments.tensors[len(inputs) :])
        for index, new in made.items():
            results[index] = framework.result(new, like)
        self._learn(arguments, results)
        return self._operator.result(results)


_plans: dict[Hashable, Plan] = {}
#: The plans that compiled code can run: by (operator's name, ``read_next``), then by call's key.
_ready: dict[tuple[str, bool], dict[bytes, native.Ready]] = {}


def keep(cache: dict[_K, _T], key: _K, value: _T) -> None:
    """Add a value to a cache, and remove the oldest values if the cache is full."""
    while len(cache) >= CACHE_SIZE:
        with suppress(StopIteration, RuntimeError):  # another thread changed the cache
            cache.pop(next(iter(cache)), None)
    cache[key] = value


def call(
    operator: Operator,
    tensors: tuple[Any, ...],
    out: Any,
    choices: tuple[Any, ...],
    read_next: bool = False,
    counts: bool = True,
) -> Any:
    """Compute an operator on behalf of its public function.

    ``choices`` are the arguments that are not tensors; ``read_next`` is as in
    :class:`.problem.Problem`, and ``counts`` as in :meth:`Plan.run_checked`.
    """
    given = out_tuple(operator, out)
    more = () if counts else (True,)
    again = native.answer(ready_plans(operator, read_next), tensors, given, choices, *more)
    if again is not None:
        return operator.result(again)
    options = operator.read_options(*choices)
    outputs = operator.outputs(options)
    arguments = Arguments(operator, outputs, tensors, out_entries(outputs, given))
    key = (operator.name, options, read_next, arguments.key)
    plan = _plans.get(key)
    if plan is None:
        specs = arguments.specs
        wanted = contract.check(operator, options, specs, specs)
        plan = Plan(operator, options, specs, wanted, device=arguments.device, read_next=read_next)
        keep(_plans, key, plan)
    result = plan.run_checked(arguments, None, counts)
    if plan.ready is not None:
        seen = native.answer(None, tensors, given, choices)
        if seen is not None:
            keep(ready_plans(operator, read_next), seen, plan.ready)
    return result


def ready_plans(operator: Operator, read_next: bool) -> dict[bytes, native.Ready]:
    """The plans of an operator's earlier calls, by the keys that ``native.answer`` returns."""
    return _ready.setdefault((operator.name, read_next), {})
