"""The reduction of operators to problems, whose tensors have axes (set, outer, channel, inner)."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from ..tensors import dtypes
from ..tensors.dtypes import DType
from ..tensors.specs import TensorSpec
from ..tensors.strides import Axis, merge_axes
from . import contract
from .contract import Kind, Operator, Specs
from .options import Options
from .problem import STATISTICS, VECTORS, Problem, Role, Vector

#: The placeholder for an absent axis.
ONE = Axis(1, (1, 1, 1))


def own_eps(data: DType) -> float:
    """The eps of RMS norm that None means: the machine epsilon of the arithmetic's type.

    The data alone decide; a weight of another dtype does not.
    """
    return 2 * dtypes.arithmetic(data).unit_roundoff


def problem(
    operator: Operator, options: Options, specs: Specs, outputs: Specs, read_next: bool = False
) -> Problem:
    """Make an operator's problem from the specs of its inputs and outputs.

    It has dy in the place of x if :attr:`.problem.Problem.input_is_grad_out` allows that.
    ``read_next`` is as in :class:`.problem.Problem`.
    """
    roles = operator.roles(options)
    by_role = {
        roles[name]: spec for name, spec in (*specs.items(), *outputs.items()) if name in roles
    }
    gathers = operator.gathers
    forward = Role.GRAD_OUT not in by_role and not gathers
    # The tensor that gives dtype and shape: the input, or, if ranks are combined, their means.
    data = by_role[Role.MEAN if gathers else Role.INPUT]
    other = by_role.get(Role.INVSTD if gathers else Role.GRAD_OUT, data)
    result_spec = by_role.get(Role.RESULT)
    # If a vector has two axes, the first runs over sets.
    vectors = {
        role: Vector(spec.dtype, spec.strides[-1], spec.strides[0] if len(spec.strides) > 1 else 0)
        for role, spec in by_role.items()
        if role in VECTORS
    }
    tensors = [other, data, result_spec or data]
    result = Problem(
        other.dtype,
        data.dtype,
        result_spec.dtype if result_spec else None,
        # The axes follow below.
        sets=ONE,
        outer=(),
        channel=ONE,
        inner=ONE,
        vectors=vectors,
        forward=forward,
        constant=not forward and (operator.has_constant_statistics or not options.training),
        grouped=not forward and operator.statistics is not Kind.CHANNEL,
        by_row=operator.statistics is Kind.ROW,
        centred=operator.is_centred,
        gathers=gathers,
        counts=by_role.get(Role.COUNT),
        eps=own_eps(data.dtype) if options.eps is None else options.eps,
        momentum=options.momentum,
        invstd_is_variance=any(
            each.is_variance and each.role_in(options) is Role.INVSTD for each in operator.inputs
        ),
        read_next=read_next,
        missing_mean=options.training and operator.is_centred and Role.MEAN not in by_role,
        missing_invstd=options.training and Role.INVSTD not in by_role,
    )
    if gathers:
        result = result._replace(channel=Axis(data.shape[1], (1, 1, 1)))
    elif result.by_row:
        result = _by_row(result, options, tensors, by_role)
    else:
        result = _by_channel(result, operator, options, tensors)
    return result.reading_one()


def _axes(tensors: Sequence[TensorSpec]) -> list[Axis]:
    """The axes of tensors that all have the same shape."""
    steps = zip(*[tensor.strides for tensor in tensors], strict=True)
    return [*map(Axis, tensors[0].shape, steps)]


def _by_channel(
    problem: Problem, operator: Operator, options: Options, tensors: Sequence[TensorSpec]
) -> Problem:
    """The problem with the axes of batch and group norm: each channel has its own parameters."""
    data, axes = tensors[1], _axes(tensors)
    grouped = operator.statistics is Kind.GROUP
    channel = axes.pop(contract.axis_of(options, data.rank))
    sets = axes.pop(0) if grouped else ONE
    channels = channel.size
    per_group = channels // options.num_groups if grouped else 1
    positions = merge_axes(axes)
    outer, inner = tuple(positions[:-1]), positions[-1] if positions else ONE
    if grouped and problem.forward and channels == 0:
        # Without channels the groups still have statistics, so each group becomes an empty channel.
        outer, channel, inner = (), Axis(options.num_groups, (1, 1, 1)), Axis(0, (1, 1, 1))
    divisor = per_group * (data.elements // max(1, sets.size * channels))
    return problem._replace(
        sets=sets,
        outer=outer,
        channel=channel,
        inner=inner,
        divisor=divisor,
        per_group=max(1, per_group),
    )


def _by_row(
    problem: Problem,
    options: Options,
    tensors: Sequence[TensorSpec],
    specs: dict[Role, TensorSpec],
) -> Problem:
    """The problem with the axes of layer and RMS norm, whose rows have statistics.

    Each position in a row has its own parameters.

    Rows and positions become one axis each if the strides of all tensors and vectors allow it;
    otherwise the remaining axes are outer axes.
    """
    first = tensors[0].rank - len(options.normalized_shape)
    axes = _axes(tensors)

    def merge(some: list[Axis], roles: list[Role]) -> list[Axis]:
        """Merge axes of the tensors and of the vectors in these roles, which begin with them."""
        if any(axis.size == 0 for axis in some):
            return [Axis(0, (1,) * (3 + len(roles)))]
        wider = [
            Axis(axis.size, (*axis.strides, *(specs[role].strides[k] for role in roles)))
            for k, axis in enumerate(some)
        ]
        return merge_axes(wider) or [Axis(1, (0,) * (3 + len(roles)))]

    of_rows = [role for role in problem.vectors if role in STATISTICS]
    of_positions = [role for role in problem.vectors if role not in STATISTICS]
    *outer_rows, rows = merge(axes[:first], of_rows)
    *outer, positions = merge(axes[first:], of_positions)

    def vector(role: Role, roles: list[Role], mine: list[Axis], inner: Axis) -> Vector:
        """A vector with strides along its own axes, and strides of 0 along the other outer axes."""
        k = 3 + roles.index(role)
        steps = tuple(axis.strides[k] for axis in mine)
        none = (0,) * (len(outer_rows) + len(outer) - len(mine))
        along = (*steps, *none) if roles is of_rows else (*none, *steps)
        return Vector(specs[role].dtype, inner.strides[k], 0, along)

    vectors = {role: vector(role, of_rows, outer_rows, rows) for role in of_rows}
    vectors |= {role: vector(role, of_positions, outer, positions) for role in of_positions}

    def of_tensors(axis: Axis) -> Axis:
        return Axis(axis.size, axis.strides[:3])

    return problem._replace(
        sets=Axis(prod(axis.size for axis in outer_rows), (0, 0, 0)),
        outer=tuple(of_tensors(axis) for axis in (*outer_rows, *outer)),
        channel=of_tensors(rows),
        inner=of_tensors(positions),
        vectors=vectors,
        divisor=prod(options.normalized_shape),
        outer_rows=len(outer_rows),
    )
