"""Plans: an operator with everything decided but the data.

A plan is made from shapes, strides, dtypes and a device. It knows its workspace and its way through
the kernels, and runs any number of times, from any number of threads. The public functions are:
find the plan in the cache, allocate what the caller did not give, run.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, TypeVar

from . import contract, devices, layout, memory, pages
from .arguments import Arguments, Place, Scratch, out_entries
from .backends import choice
from .backends.cpu import guard
from .backends.cpu import program as cpu
from .contract import Operator, Options
from .problem import Role
from .tensor import TensorSpec

_T = TypeVar("_T")

#: Plans kept; a training loop needs one for each layer's shape.
CACHE_SIZE = 4096

#: Workspaces up to this many bytes are kept, one for each thread, for calls that bring none.
KEPT_SCRATCH = 1 << 20

_IN_PLACE = ", or all of {} with the same strides and dtype"


class _Kept(threading.local):
    scratch: Scratch | None = None
    size = -1


_kept = _Kept()


def _scratch(size: int) -> Scratch:
    """This thread's own workspace. Nothing runs in a thread while it is in a kernel."""
    if size > KEPT_SCRATCH:
        return Scratch(size, cpu.ALIGNMENT)
    if _kept.size < size or _kept.scratch is None:
        _kept.scratch, _kept.size = Scratch(size, cpu.ALIGNMENT), size
    return _kept.scratch


def _describe(spec: TensorSpec | None) -> str:
    if spec is None:
        return "None"
    return f"{spec.dtype} with shape {spec.shape} and strides {spec.strides}"


def _fits(spec: TensorSpec | None, expected: TensorSpec | None) -> bool:
    """Whether a tensor is as the plan says. Without elements its strides say nothing: NumPy has
    some of any kind."""
    if spec is None or expected is None or spec.elements:
        return spec == expected
    return (spec.shape, spec.dtype) == (expected.shape, expected.dtype)


def _check_memory(name: str, spec: TensorSpec | None, value: Any) -> None:
    """Raise a TypeError for a tensor at address 0, unless it has no elements."""
    if spec is not None and spec.elements:
        raise TypeError(
            f"{name}: a {type(value).__name__} without memory; allowed: a tensor with data"
        )


def _check_aligned(place: Place, address: int) -> None:
    """Raise a ValueError for what a GPU cannot read: its error would end all work there."""
    size = place.spec.dtype.itemsize
    if place.spec.elements and address % size:
        raise ValueError(
            f"{place.shown}: {place.spec.dtype} at an address that is no multiple of {size}; "
            "allowed: elements at multiples of their size"
        )


class Plan:
    """An operator bound to the specs of its tensors; made by :func:`normgrad.plan`.

    Attributes:
        name: the operator's name.
        workspace_size: how many bytes of scratch memory :meth:`run` needs; 0 if none.
        output_specs: the specs of the results, None where masked off.
        path: the way through the kernels that was chosen, in words.
        device: where its tensors are, "cpu" or "cuda:0".
    """

    def __init__(
        self,
        operator: Operator,
        options: Options,
        specs: Mapping[str, TensorSpec | None],
        out_specs: Mapping[str, TensorSpec | None],
        names: Mapping[str, str] | None = None,
        device: str = devices.CPU,
    ) -> None:
        """``names`` are what messages of :meth:`run` call inputs and outputs, where not our own."""
        names = names or {}
        present = contract.check_inputs(operator, options, specs)
        outputs = contract.check_outputs(operator, options, present, out_specs)
        self.name = operator.name
        self.device = device
        self._gpu = None if device == devices.CPU else device
        self._operator = operator
        self._names = tuple(parameter.name for parameter in operator.parameters)
        self._inputs = tuple(specs.get(name) for name in self._names)
        self._outputs = operator.outputs(options)
        self.output_specs = tuple(outputs.get(output.name) for output in self._outputs)
        self._backend = backend = choice.of(device)
        self._program: Any = backend.build(operator.problem(options, present, outputs))
        self._computes = backend.computes(self._program)
        self.workspace_size = self._program.workspace_size
        self.path = self._program.path
        self._runner: choice.Runner | None = None
        # Workspaces that are kept from call to call are the CPU's, and aligned for its kernels.
        self._scratch: Callable[[int], Scratch] = _scratch
        if self._gpu or backend.alignment != cpu.ALIGNMENT:
            self._scratch = partial(Scratch, alignment=backend.alignment, device=device)
        # What has been compared with the plan's specs and found equal, in each framework's terms.
        self._known: set[Hashable] = set()

        roles = operator.roles(options)
        self._unread = self._program.input_is_grad_out
        self._has_grad_out = Role.GRAD_OUT in {roles.get(name) for name in present}
        # Every input there is, those too that take no part in the arithmetic: an output must not
        # share their memory.
        others = iter(range(guard.OTHERS, guard.PLACES))
        self._input_slots = tuple(
            (
                index,
                next(others)
                if name not in present
                or name not in roles
                or (self._unread and roles[name] is Role.INPUT)
                else int(roles[name]),
                Place(name, spec, names.get(name)),
            )
            for index, (name, spec) in enumerate(zip(self._names, self._inputs, strict=True))
            if spec is not None
        )
        self._output_slots = tuple(
            (
                index,
                int(roles[output.name]),
                spec,
                Place(operator.out_name(index, output), spec, names.get(output.name)),
            )
            for index, (output, spec) in enumerate(
                zip(self._outputs, self.output_specs, strict=True)
            )
            if spec is not None
        )
        #: What each output may be the very memory of: the inputs' names, and words for them.
        self._in_place = {
            slot: (
                self._outputs[index].in_place,
                _IN_PLACE.format(
                    " or ".join(names.get(name, name) for name in self._outputs[index].in_place)
                ),
            )
            for index, slot, _, _ in self._output_slots
            if self._outputs[index].in_place
        }

    def _new_runner(self) -> choice.Runner:
        return self._backend.runner(
            self._program,
            {slot: place for _, slot, place in self._input_slots},
            {slot: place for _, slot, _, place in self._output_slots},
            {slot: in_place for slot, (in_place, _) in self._in_place.items()},
        )

    @property
    def out_is_tensor(self) -> bool:
        """Whether ``out`` is one tensor rather than a tuple."""
        return self._operator.out_is_tensor

    @property
    def reads_input(self) -> bool:
        """Whether anything that was asked for depends on ``input``; if not, it is not read."""
        return self._computes and not self._unread

    def run(self, *tensors: Any, out: Any = None, workspace: Any = None, **named: Any) -> Any:
        """Compute on tensors that look as the plan says.

        Args:
            tensors, named: the operator's tensors, by position or by name, as in its function.
            out: as in its function; None, or None entries, for new tensors.
            workspace: a writable, contiguous buffer or PyTorch tensor of at least
                ``workspace_size`` bytes, with any alignment; on a GPU a tensor there. None to
                allocate it. Nothing else that grows with the tensors is allocated when ``out`` is
                given.

        Returns:
            What the operator's function returns.

        Raises:
            TypeError: something that is no tensor, or an unknown argument.
            ValueError: a tensor unlike the plan's, or on another device; overlapping outputs, a
                small workspace.
        """
        names = self._names
        if len(tensors) > len(names):
            raise TypeError(f"run: {len(tensors)} tensors; allowed: {', '.join(names)}")
        if named or len(tensors) < len(names):
            values = dict(zip(names, tensors, strict=False))
            for name, value in named.items():
                if name not in names:
                    allowed = ", ".join(names)
                    raise TypeError(f"{name}: no tensor of {self.name}; allowed: {allowed}")
                if name in values:
                    raise TypeError(f"{name}: given twice, by position and by name")
                values[name] = value
            tensors = tuple([values.get(name) for name in names])
        given = out_entries(self._operator, self._outputs, out)
        arguments = Arguments(self._operator, self._outputs, tensors, given)
        if arguments.key is None or arguments.key not in self._known:
            arguments.open()
            if arguments.key not in self._known:
                self._compare(arguments)
                if len(self._known) < CACHE_SIZE:
                    self._known.add(arguments.key)
        return self._run(arguments, workspace)

    def _compare(self, arguments: Arguments) -> None:
        """Compare the tensors with the plan's device and specs."""
        if arguments.device != self.device:
            raise ValueError(
                f"{arguments.first}: on device {arguments.device}; allowed: {self.device}, as in "
                "the plan"
            )
        specs, out_specs = arguments.specs()
        for name, expected in zip(self._names, self._inputs, strict=True):
            spec = specs.get(name)
            if not _fits(spec, expected):
                raise ValueError(
                    f"{name}: {_describe(spec)}; allowed: {_describe(expected)}, as in the plan"
                )
        for index, _, expected, place in self._output_slots:
            spec = out_specs.get(self._outputs[index].name)
            if spec is not None and not _fits(spec, expected):
                raise ValueError(
                    f"{place.name}: {_describe(spec)}; allowed: {_describe(expected)}, as in the "
                    "plan"
                )

    def _run(self, arguments: Arguments, workspace: Any) -> Any:
        framework, out, found = arguments.framework, arguments.out, arguments.addresses
        gpu, like, rooms = self._gpu, arguments.like, arguments.rooms
        if rooms is not None:
            for index, _, place in self._input_slots:
                place.check_room(rooms[index])
            for index, _, _, place in self._output_slots:
                if out[index] is not None:
                    place.check_room(rooms[len(self._names) + index])
        addresses = [0] * guard.PLACES
        for index, slot, _ in self._input_slots:
            addresses[slot] = found[index]
        if self._unread:
            addresses[Role.INPUT] = addresses[Role.GRAD_OUT]
        if not self._has_grad_out:
            addresses[Role.GRAD_OUT] = addresses[Role.INPUT]
        results: list[Any] = [None] * len(out)
        given = 0
        for index, slot, spec, place in self._output_slots:
            if out[index] is None:
                try:
                    new = framework.empty_on(spec, gpu, like) if gpu else framework.empty(spec)
                except MemoryError:
                    raise memory.missing(self._outputs[index].name, spec.nbytes) from None
                results[index] = new
                addresses[slot] = framework.address(place.name, new)
            else:
                given |= 1 << slot
                addresses[slot] = found[len(self._names) + index]
        if self.workspace_size:
            if workspace is None:
                scratch = self._scratch(self.workspace_size)
            else:
                scratch = Scratch(
                    self.workspace_size, self._backend.alignment, workspace, self.device
                )
                given |= 1 << guard.WORKSPACE
            addresses[guard.WORKSPACE] = scratch.address

        if self._computes:
            if self._runner is None:
                self._runner = self._new_runner()
            if not arguments.plain or self._runner.run(addresses, given) != 0:
                # It takes more than addresses to tell interleaved views apart.
                self._check(arguments, addresses, given)
                self._runner.run(addresses, guard.UNGUARDED)
        else:
            self._check(arguments, addresses, given)

        if given:
            framework.wrote([value for value in out if value is not None])
        for index, _, _, _ in self._output_slots:
            if out[index] is not None:
                results[index] = arguments.given[index]
            else:
                results[index] = framework.result(results[index], like)
        return self._operator.result(results)

    def _check(self, arguments: Arguments, addresses: Sequence[int], given: int) -> None:
        """What the guard found wrong, exactly and in words.

        Every tensor has memory. The caller's outputs are writable, and apart from every other
        argument: only grad_input may be the very memory of grad_out or of input.
        """
        framework, out, found = arguments.framework, arguments.out, arguments.addresses
        places: list[tuple[Place, int]] = []
        for index, _, place in self._input_slots:
            if found[index] == 0:
                _check_memory(place.shown, place.spec, arguments.opened[index])
            if self._gpu:
                _check_aligned(place, found[index])
            place.check_readable(framework, arguments.opened[index], found[index])
            places.append((place, found[index]))
        for index, slot, spec, place in self._output_slots:
            if out[index] is None:
                continue
            where = addresses[slot]
            if where == 0:
                _check_memory(place.shown, spec, arguments.given[index])
            if self._gpu:
                _check_aligned(place, where)
            place.check_writable(framework, out[index], where)
            in_place, words = self._in_place.get(slot, ((), ""))
            for other, elsewhere in places:
                if where == elsewhere and other.name in in_place and spec == other.spec:
                    continue
                if place.overlaps(where, other, elsewhere):
                    raise ValueError(
                        f"{place.shown}: shares memory with {other.shown}; allowed: memory of its "
                        f"own{words}"
                    )
            self._check_apart(arguments, place.shown, place.spec.region(where))
            places.append((place, where))
        if given >> guard.WORKSPACE & 1:
            size = guard.used(self.workspace_size, self._backend.alignment)
            start = addresses[guard.WORKSPACE]
            reason = None if self._gpu else pages.unwritable(start, start + size)
            if reason is not None:
                raise ValueError(f"workspace: {reason}")
            region = layout.Region(start, (size,), (1,), 1)
            for other, elsewhere in places:
                if layout.overlap(region, other.spec.region(elsewhere)):
                    raise ValueError(
                        f"workspace: shares memory with {other.shown}; allowed: memory of its own"
                    )
            self._check_apart(arguments, "workspace", region)

    def _check_apart(self, arguments: Arguments, shown: str, region: layout.Region) -> None:
        """That what is written is apart from inputs that were copied too: it would change them."""
        shown_as = {place.name: place.shown for _, _, place in self._input_slots}
        for name, source in arguments.copied.items():
            if layout.overlap(region, source):
                raise ValueError(
                    f"{shown}: shares memory with {shown_as[name]}; allowed: memory of its own"
                )


_plans: dict[Hashable, Plan] = {}


def keep(cache: dict[Hashable, _T], key: Hashable, value: _T) -> None:
    """Remember a value, and forget the oldest where there are too many."""
    while len(cache) >= CACHE_SIZE:
        with suppress(StopIteration, RuntimeError):  # another thread came in between
            cache.pop(next(iter(cache)), None)
    cache[key] = value


def call(operator: Operator, options: Options, tensors: Sequence[Any], out: Any) -> Any:
    """What the public functions do."""
    outputs = operator.outputs(options)
    arguments = Arguments(operator, outputs, tensors, out_entries(operator, outputs, out))
    plan = None
    if arguments.key is not None:
        plan = _plans.get((operator.name, options, arguments.key))
    if plan is None:
        arguments.open()
        key = (operator.name, options, arguments.key)
        plan = _plans.get(key)
        if plan is None:
            plan = Plan(operator, options, *arguments.specs(), device=arguments.device)
            keep(_plans, key, plan)
    return plan._run(arguments, None)
