"""Group norm line by line, for channels with few positions, which would need too many sums.

A *line* consists of the elements that share a statistic: a group's elements in one sample. Lines
take the place of channels, and a group's elements the place of positions, which then have the
parameters. The workspace has sums per line, and per parameter over several lines at once. Layer
norm is computed in the same way: its rows are lines.
"""

from __future__ import annotations

from itertools import pairwise

from ...declarations.problem import STATISTICS, Problem, Role, Vector
from ...tensors.strides import Axis
from .layouts import groups_of, power_of_two
from .policy import POLICY


class Lines(Problem):
    """Group norm line by line: a group takes the place of a set, and its lines that of channels.

    Attributes:
        sharing: the number of consecutive elements of a line that share a parameter.
        rows: in layer norm, the axes of rows that take the place of sets, whose axis has no
            strides; empty if rows have one axis.
        parameter_sizes: the sizes of the axes of the parameters, except the first.
    """

    __slots__ = ()

    @property
    def padded(self) -> int:
        """The number of a tile's positions for each parameter's elements, a power of two."""
        return power_of_two(self.sharing)

    @property
    def positions(self) -> int:
        """The number of elements of a line, with the padding of each parameter's elements."""
        return super().positions // self.sharing * self.padded

    @property
    def parameters(self) -> int:
        """The number of parameters, which the sets of layer norm share."""
        of_line = super().positions // self.sharing
        return of_line if self.by_row else of_line * self.sets.size


def reads_lines(problem: Problem) -> bool:
    """Whether a problem is read line by line; batch norm never is."""
    if problem.is_empty:
        return False
    return problem.by_row or (problem.per_group > 1 and problem.positions <= POLICY.positions)


def _rows_as_lines(problem: Problem) -> Lines:
    """Layer norm as lines: its rows are the lines, and their outer axes take the place of sets."""
    positions = [*problem.outer[problem.outer_rows :], problem.inner]
    # The strides of each vector of parameters over the positions' axes.
    strides = {
        role: (*vector.outer_strides[problem.outer_rows :], vector.stride)
        for role, vector in problem.vectors.items()
        if role not in STATISTICS
    }
    of_positions = list(strides.values())
    order = sorted(range(len(positions)), key=lambda k: [-abs(each[k]) for each in of_positions])
    positions = [positions[k] for k in order]
    follow = all(
        each[outer] == each[inner] * axis.size
        for each in of_positions
        for (outer, inner), axis in zip(pairwise(order), positions[1:], strict=True)
    )

    def seen_by_lines(role: Role, vector: Vector) -> Vector:
        if role in STATISTICS:
            return vector._replace(outer_strides=vector.outer_strides[: problem.outer_rows])
        *outer, inner = (strides[role][k] for k in order)
        return Vector(vector.dtype, inner, outer_strides=() if follow else tuple(outer))

    vectors = {role: seen_by_lines(role, vector) for role, vector in problem.vectors.items()}
    return Lines(*problem)._replace(
        rows=problem.outer[: problem.outer_rows],
        outer=tuple(positions[:-1]),
        inner=positions[-1],
        vectors=vectors,
        parameter_sizes=() if follow else tuple(axis.size for axis in positions[1:]),
    )


def lines_of(problem: Problem) -> Lines:
    """Convert a problem of group or layer norm to lines."""
    if problem.by_row:
        return _rows_as_lines(problem)
    per_group, channel = problem.per_group, problem.channel
    axes = (Axis(per_group, channel.strides), *problem.outer)
    if problem.positions > 1:
        axes = (*axes, problem.inner)

    def turned(role: Role, vector: Vector) -> Vector:
        if role in STATISTICS:
            return Vector(vector.dtype, vector.set_stride, vector.stride)
        return Vector(vector.dtype, vector.stride, per_group * vector.stride)

    return Lines(*problem)._replace(
        sets=Axis(groups_of(problem), tuple(per_group * step for step in channel.strides)),
        outer=axes[:-1],
        channel=problem.sets,
        inner=axes[-1],
        vectors={role: turned(role, vector) for role, vector in problem.vectors.items()},
        per_group=1,
        sharing=problem.positions,
    )
