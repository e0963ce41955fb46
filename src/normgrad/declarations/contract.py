"""The tables that declare operators, and the engine that checks calls against them.

An operator lists its inputs and outputs. Each has a kind, which stands for a shape and a set of
dtypes. All checks are made on specs, before anything is computed or written. What the vendors' APIs
allow is in contracts of their own (:mod:`normgrad.dialects.rules`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from functools import cached_property, lru_cache
from math import prod
from operator import itemgetter
from typing import Any, NamedTuple

from ..tensors import dtypes
from ..tensors.dtypes import DType
from ..tensors.specs import TensorSpec, naming
from ..tensors.strides import dense_like, overlaps_itself
from .options import OPTIONS, Options, mask
from .problem import Role

MIN_RANK, MAX_RANK = 2, 8

Specs = Mapping[str, TensorSpec]


class Kind(Enum):
    """The kind of a tensor, from which its shape and allowed dtypes follow."""

    DATA = "the shape of input"
    CHANNEL = "the channels of input"
    GROUP = "samples by groups"
    COUNT = "any shape"
    RANKS = "a row for each of counts, by the channels of input"
    ROW = "the rows of input, with ones in the place of normalized_shape"
    POSITION = "normalized_shape"

    @property
    def dtypes(self) -> tuple[DType, ...]:
        """The dtypes that such a tensor may have."""
        return dtypes.COUNTS if self is Kind.COUNT else dtypes.FLOATS


class Input(NamedTuple):
    """The declaration of an input tensor.

    Attributes:
        name, kind, required: the name, the kind, and whether the tensor must be given.
        role: the tensor's role in a backend's problem; or a pair of roles, the first in training
            and the second in evaluation. A tensor whose role is None takes no part in the
            arithmetic.
        is_variance: whether a backend makes 1/std of it.
        may_be_empty: whether a tensor of length 0 counts as absent if it has no role.
    """

    name: str
    kind: Kind
    role: Role | tuple[Role | None, Role | None] | None = None
    required: bool = False
    is_variance: bool = False
    may_be_empty: bool = False

    def role_in(self, options: Options) -> Role | None:
        """The tensor's role in a backend's problem, under these options."""
        if isinstance(self.role, tuple):
            return self.role[0 if options.training else 1]
        return self.role


class Output(NamedTuple):
    """The declaration of an output tensor.

    Attributes:
        name, kind, role: the name, the kind, and the role in a backend's problem.
        dtype_from: the output takes the dtype of the first of these inputs that is present, and in
            use under the options. If all are absent, the output does not exist.
        mask: the index of the mask's entry that says whether to compute the output.
        in_evaluation: whether the output exists in evaluation.
        is_wide: whether its dtype is that of the arithmetic.
        in_place: the inputs that the output may overwrite, by having exactly their memory.
        is_wanted: whether to compute the output; :meth:`Operator.outputs` sets it.
    """

    name: str
    kind: Kind
    role: Role
    dtype_from: tuple[str, ...] = ("input",)
    mask: int | None = None
    in_evaluation: bool = True
    is_wide: bool = False
    in_place: tuple[str, ...] = ()
    is_wanted: bool = True


#: The first two inputs and the first output of every gradient.
GRAD_OUT = Input("grad_out", Kind.DATA, Role.GRAD_OUT, required=True)
INPUT = Input("input", Kind.DATA, Role.INPUT, required=True)
GRAD_INPUT = Output("grad_input", Kind.DATA, Role.RESULT, mask=0, in_place=("grad_out", "input"))
#: The first output of every forward pass.
OUTPUT = Output("output", Kind.DATA, Role.RESULT, in_place=("input",))
#: The updated running statistics: each exists if the old one is given, and may overwrite it.
NEW_RUNNING = tuple(
    Output(f"new_{name}", Kind.CHANNEL, role, (name,), in_place=(name,))
    for name, role in (
        ("running_mean", Role.OUT_RUNNING_MEAN),
        ("running_var", Role.OUT_RUNNING_VAR),
    )
)


@dataclass(frozen=True, eq=False)
class Operator:
    """The declaration of an operator.

    Attributes:
        name: as in the public API.
        inputs: the tensors, in the order of the function's arguments.
        options: the names of the other arguments, in the order of the function's; see ``OPTIONS``.
        all_outputs: the results, in their order.
        result: the function that makes the caller's result from the outputs; by default the first.
        statistics: the kind of the groups that have one mean and 1/std each: a channel, a group of
            a sample's channels, or a row (then each position in a row has its own parameters).
        is_centred: whether 1/std is that of x − mean, rather than of x itself.
        has_constant_statistics: whether a gradient's statistics are constants, as in evaluation,
            rather than functions of x. If there is the option ``training``, it decides.
        has_own_eps: whether eps may be None, which means the machine epsilon of the arithmetic's
            type.
    """

    name: str
    inputs: tuple[Input, ...]
    options: tuple[str, ...]
    all_outputs: tuple[Output, ...]
    result: Callable[[Sequence[Any]], Any] = itemgetter(0)
    statistics: Kind = Kind.CHANNEL
    is_centred: bool = True
    has_constant_statistics: bool = False
    has_own_eps: bool = False

    def __post_init__(self) -> None:
        """Refuse names that the declaration does not know."""
        for subject, names, known in (
            ("options", self.options, OPTIONS),
            *((each.name, each.dtype_from, self.names) for each in self.all_outputs),
        ):
            unknown = [name for name in names if name not in known]
            if unknown:
                allowed = ", ".join(known)
                raise ValueError(
                    f"{self.name}: {subject}: {', '.join(unknown)}; allowed: {allowed}"
                )

    @property
    def is_gradient(self) -> bool:
        """Whether the operator is a gradient, which takes ``grad_out``."""
        return self.inputs[0] == GRAD_OUT

    @cached_property
    def names(self) -> tuple[str, ...]:
        """The names of the inputs."""
        return tuple(each.name for each in self.inputs)

    @cached_property
    def out_is_tensor(self) -> bool:
        """Whether there is one output, so that ``out`` is a tensor rather than a tuple."""
        return len(self.all_outputs) == 1

    @cached_property
    def gathers(self) -> bool:
        """Whether the operator combines the statistics of several ranks."""
        return any(each.kind is Kind.RANKS for each in self.inputs)

    @cached_property
    def running(self) -> tuple[tuple[int, int], ...]:
        """The indices of new running statistics among outputs, and of the old ones among inputs."""
        roles = (Role.OUT_RUNNING_MEAN, Role.OUT_RUNNING_VAR)
        return tuple(
            (index, self.names.index(output.in_place[0]))
            for index, output in enumerate(self.all_outputs)
            if output.role in roles
        )

    def of_variance(self, name: str) -> Operator:
        """The same operator, except that the named input holds variances rather than 1/std."""
        inputs = tuple(
            each._replace(is_variance=each.is_variance or each.name == name) for each in self.inputs
        )
        return replace(self, inputs=inputs)

    def read_options(self, *values: Any, **keywords: Any) -> Options:
        """Check the arguments that are not tensors, by position or by name."""
        options: dict[str, Any] = {}
        for name, value in {**dict(zip(self.options, values, strict=False)), **keywords}.items():
            read = OPTIONS[name]
            if read is mask:
                masked = [output.name for output in self.all_outputs if output.mask is not None]
                options["mask"] = mask(name, value, masked)
            elif name == "eps" and value is None and self.has_own_eps:
                options[name] = None
            elif name in Options._fields:
                options[name] = read(name, value)
            else:
                options["mask"] = (*options.get("mask", ()), read(name, value))
        return Options(**options)

    @lru_cache(maxsize=256)  # noqa: B019 - there are as many operators as are declared
    def outputs(self, options: Options) -> tuple[Output, ...]:
        """The outputs under these options; ``is_wanted`` of each is set."""
        idle = {
            each.name
            for each in self.inputs
            if isinstance(each.role, tuple) and each.role_in(options) is None
        }
        return tuple(
            output._replace(
                is_wanted=(output.mask is None or options.mask[output.mask])
                and (options.training or output.in_evaluation),
                dtype_from=tuple(name for name in output.dtype_from if name not in idle),
            )
            for output in self.all_outputs
        )

    @lru_cache(maxsize=256)  # noqa: B019 - there are as many operators as are declared
    def roles(self, options: Options) -> Mapping[str, Role]:
        """The roles of the inputs and outputs that take part in the arithmetic."""
        inputs = ((each.name, each.role_in(options)) for each in self.inputs)
        outputs = ((output.name, output.role) for output in self.all_outputs)
        return {name: role for name, role in (*inputs, *outputs) if role is not None}

    def out_name(self, index: int, output: Output) -> str:
        """The name of a tensor of ``out`` in messages."""
        return f"out ({output.name})" if self.out_is_tensor else f"out[{index}] ({output.name})"


def _check_dtype(name: str, dtype: DType, allowed: Sequence[DType]) -> None:
    if dtype not in allowed:
        raise dtypes.unsupported(name, dtype, allowed)


def _check_shape(name: str, shape: tuple[int, ...], allowed: tuple[int, ...], why: str) -> None:
    if shape != allowed:
        raise ValueError(f"{name}: shape {shape}; allowed: {allowed}, {why}")


def axis_of(options: Options, rank: int) -> int:
    """The channel axis of so many axes, counted from the front."""
    axis = options.channel_axis
    if not -rank <= axis < rank:
        raise ValueError(f"channel_axis: {axis}; allowed: {-rank} to {rank - 1} for {rank} axes")
    return axis % rank


def shapes_of(
    operator: Operator, options: Options, present: Mapping[str, Any]
) -> dict[Kind, tuple[int, ...]]:
    """The shape of each kind of tensor, from the input's shape and the counts' elements.

    ``present`` are specs or tensors.
    """
    shape = tuple(present["input"].shape)
    if operator.statistics is Kind.ROW:
        sizes = options.normalized_shape
        rows = len(shape) - len(sizes)
        if shape[max(0, rows) :] != sizes:
            raise ValueError(
                f"normalized_shape: {sizes}; allowed: the last axes of input's shape {shape}"
            )
        of_rows = (*shape[:rows], *[1] * len(sizes))
        return {Kind.DATA: shape, Kind.ROW: of_rows, Kind.POSITION: sizes}
    axis = axis_of(options, len(shape))
    channels = shape[axis]
    shapes: dict[Kind, tuple[int, ...]] = {Kind.DATA: shape, Kind.CHANNEL: (channels,)}
    if operator.statistics is Kind.GROUP:
        groups = options.num_groups
        if axis == 0:
            raise ValueError(
                f"channel_axis: {options.channel_axis}; allowed: any axis but the first, which is "
                "the batch"
            )
        if groups <= 0 or channels % groups:
            raise ValueError(
                f"num_groups: {groups}; allowed: a positive divisor of the {channels} channels"
            )
        shapes[Kind.GROUP] = (shape[0], groups)
    if operator.gathers:
        shapes[Kind.RANKS] = (prod(present["counts"].shape), channels)
    return shapes


def present_inputs(
    operator: Operator, options: Options, specs: Mapping[str, Any]
) -> dict[str, Any]:
    """The inputs that are present, by name; ``may_be_empty`` inputs of length 0 count as absent.

    ``specs`` are specs or tensors.
    """
    return {
        each.name: spec
        for each in operator.inputs
        if (spec := specs.get(each.name)) is not None
        and not (spec.shape == (0,) and each.may_be_empty and each.role_in(options) is None)
    }


def check(
    operator: Operator,
    options: Options,
    specs: Mapping[str, TensorSpec | None],
    out_specs: Mapping[str, TensorSpec | None],
) -> dict[str, TensorSpec]:
    """Check all specs of a call, and return the specs of the outputs to compute.

    An output without one in ``out_specs`` gets a dense spec in the input's layout.
    """
    for each in operator.inputs:
        spec = specs.get(each.name)
        if spec is not None:
            _check_dtype(each.name, spec.dtype, each.kind.dtypes)
        elif each.required:
            raise TypeError(f"{each.name}: None; allowed: a tensor")
    present: Specs = present_inputs(operator, options, specs)
    data = present["input"]
    least = 1 if operator.statistics is Kind.ROW else MIN_RANK
    if not least <= data.rank <= MAX_RANK:
        raise ValueError(
            f"input: {data.rank} axes, shape {data.shape}; allowed: {least} to {MAX_RANK}"
        )
    shapes = shapes_of(operator, options, present)
    for name, kind in ((each.name, each.kind) for each in operator.inputs):
        spec = present.get(name)
        if spec is None:
            continue
        if kind is not Kind.COUNT:
            _check_shape(name, spec.shape, shapes[kind], kind.value)
        elif spec.rank > MAX_RANK:
            raise ValueError(f"{name}: {spec.rank} axes; allowed: at most {MAX_RANK}")

    outputs: dict[str, TensorSpec] = {}
    for index, output in enumerate(operator.outputs(options)):
        dtype = next((present[name].dtype for name in output.dtype_from if name in present), None)
        if not output.is_wanted or dtype is None:
            continue
        shape = shapes[output.kind]
        spec = out_specs.get(output.name)
        if spec is None:
            if output.is_wide:
                dtype = dtypes.arithmetic(dtype)
            strides = dense_like(data.shape, data.strides) if output.kind is Kind.DATA else None
            with naming(output.name):
                spec = TensorSpec(shape, dtype, strides)
        else:
            name = operator.out_name(index, output)
            _check_dtype(name, spec.dtype, output.kind.dtypes)
            _check_shape(name, spec.shape, shape, output.kind.value)
            if overlaps_itself(spec.shape, spec.strides):
                raise ValueError(
                    f"{name}: shape {spec.shape} with strides {spec.strides} names some elements "
                    "twice; allowed: one place in memory for each"
                )
        outputs[output.name] = spec
    return outputs
