"""The arguments of kernels: those that are compiled into one, and those that are passed to it.

All are named tuples, which Triton takes apart by itself. :class:`Config` holds what a kernel is
compiled for; the others hold integers of 64 bits, which change from call to call or from shape to
shape. Real numbers are passed as the bits of a float64, since Triton rounds a float to float32.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from ...problem import VECTORS, Role

#: The axis along which a tensor is contiguous: none that is known, the positions, or the channels.
SCATTERED, ALONG_POSITIONS, ALONG_CHANNELS = 0, 1, 2


class Tensor(NamedTuple):
    """A data tensor: its dtype's code, its contiguous axis, and the alignment in elements there."""

    code: int
    along: int = SCATTERED
    vector: int = 1


class Config(NamedTuple):
    """The compile-time constants of a kernel.

    Attributes:
        forward, constant, grouped: as in :class:`normgrad.problem.Problem`.
        wide: whether the arithmetic is float64.
        centred: whether statistics are of x − mean, rather than of x itself.
        dy, x, dx: the data tensors.
        vectors: the codes of the per-channel vectors, see :func:`pack`.
        counts: the code of the counts.
        positions, channels: the size of a tile; its channels follow each other.
        leading, adjacent: how many of a tile's positions one thread has, which are added up in
            float32 before float64 takes over: so many times so many that are next to each other.
        single: whether each channel is a group of its own.
        sharing: 0 where a tile's channels have the parameters; in lines, whose positions have
            them, how many of a tile's positions share one, a power of two.
        groups: how many groups a program takes at once, where it has all of a group.
        fan: how many of a group's channels ``finish`` adds up at once.
        rank: the number of axes that positions run over.
        long_positions, long_offsets: whether positions, and offsets within a set, need 64 bits.
        rows: how many parts' sums are added up at once.
        about: what x is centred about, one of PILOT, GIVEN, SAVED.
        invstd: where 1/std comes from, one of GIVEN, SAVED, VARIANCE.
        saves: which statistics are stored in the workspace, of MEAN, BOTH, INVSTD; 0 for none.
        coefficients: whether they are read from the workspace, where ``finish`` stored them for
            ``write``; else they are computed from given statistics.
        writes: whether dx is written where sums are made.
        outputs: whether the per-channel outputs are written here.
        keeps_sums: whether sums are stored in the workspace, too.
        columns: whether the gradients of parameters are made from sums over lines, with each
            line's 1/std, rather than from sums of every set.
        short_sums: whether sums are left rounded to the arithmetic's type: those which nothing but
            the gradients of parameters is made from.
        reverse: whether to begin at the end, where the sums left the L2 cache filled.
        centred: whether statistics are of x − mean, rather than of x itself.
    """

    forward: bool
    constant: bool
    grouped: bool
    wide: bool
    dy: Tensor
    x: Tensor
    dx: Tensor
    vectors: int
    counts: int = 0
    positions: int = 1
    channels: int = 1
    leading: int = 1
    adjacent: int = 1
    single: bool = True
    sharing: int = 0
    groups: int = 1
    fan: int = 1
    rank: int = 1
    long_positions: bool = False
    long_offsets: bool = False
    rows: int = 1
    about: int = 0
    invstd: int = 1
    saves: int = 0
    coefficients: bool = False
    writes: bool = False
    outputs: bool = False
    keeps_sums: bool = False
    columns: bool = False
    short_sums: bool = False
    reverse: bool = False
    centred: bool = True


#: The point for moments: an element of the tensor, a given mean, or one in the workspace. 1/std is
#: given, or in the workspace, or made from a given variance.
PILOT, GIVEN, SAVED, VARIANCE = 0, 1, 2, 3

#: The statistics that are stored: the mean; the mean and 1/std; 1/std about the mean in use.
MEAN, BOTH, INVSTD = 1, 2, 3

#: The code of an absent vector.
ABSENT = 7


def slot(role: Role) -> int:
    """The number of a per-channel vector among all of them."""
    return VECTORS.index(role)


def pack(codes: dict[int, int]) -> int:
    """The dtypes' codes of the vectors at their slots as one integer, three bits each."""
    return sum(codes.get(slot, ABSENT) << (3 * slot) for slot in range(len(VECTORS)))


class Addresses(NamedTuple):
    """All addresses in the order of :class:`normgrad.problem.Role`, and the workspace's.

    The per-channel vectors are in the order of their slots.
    """

    dy: Any
    x: Any
    dx: Any
    vectors: Any
    count: Any
    workspace: Any


class Axis(NamedTuple):
    """An axis that positions run over: its size, and the numbers that divide by it."""

    size: Any
    magic: Any
    shift: Any


class Strides(NamedTuple):
    """Strides over axes that one index counts through, the last one fastest.

    Attributes:
        strides: of each axis.
        sizes: of each but the first.
    """

    strides: Any
    sizes: Any = ()


class Steps(NamedTuple):
    """Strides: over sets, over channels (or groups), and of a tensor over the axes of positions.

    Those over sets are :class:`Strides`, and those of a vector over channels.
    """

    sets: Any
    channels: Any
    axes: Any = ()


class Sizes(NamedTuple):
    """The sizes of the other axes, and how they are cut into tasks.

    Attributes:
        sets, channels, per_group, positions: sizes.
        groups: how many groups of channels.
        sharing: how many positions of a line share a parameter.
        step: channels from one tile to the next.
        parts, part: into how many parts positions are cut, and how long each is.
        tasks, each: how many tasks there are, and how many of them a program takes.
    """

    sets: Any
    channels: Any
    per_group: Any
    groups: Any
    sharing: Any
    positions: Any
    step: Any
    parts: Any
    part: Any
    tasks: Any
    each: Any


class Numbers(NamedTuple):
    """Scalars: the bits of float64, and how many counts there are.

    ``inverse`` is 1/divisor, ``unbiased`` what makes a variance over so many elements unbiased.
    """

    eps: Any
    divisor: Any
    inverse: Any
    unbiased: Any
    momentum: Any
    counts: Any


class Work(NamedTuple):
    """The byte offsets of the workspace's arrays.

    Attributes:
        sums: of dy and of dy·(x − μ), then in float64 arithmetic their errors; each by part, set
            and channel.
        statistics: a computed mean, rounded to the arithmetic's type, what rounding left of it, a
            computed 1/std and its error; each by set and group.
        pilots: what moments are about where it is an element of x, by set and group: y may be
            written over x before all who need the element have begun.
        coefficients: what a tensor is written from, in the arithmetic's type: five numbers, each
            by set and channel.
        columns: sums over lines, of dy and of dy·(x − μ)/std, in the arithmetic's type; each by
            part of the lines and parameter.
    """

    sums: Any = 0
    statistics: Any = 0
    pilots: Any = 0
    coefficients: Any = 0
    columns: Any = 0


class Arguments(NamedTuple):
    """All arguments of a kernel beside its :class:`Config`."""

    at: Any
    sizes: Any
    axes: Any
    dy: Any
    x: Any
    dx: Any
    vectors: Any
    numbers: Any
    counts: Any
    work: Any
