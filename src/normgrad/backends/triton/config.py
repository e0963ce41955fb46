"""The arguments of kernels: compile-time constants, and those that are passed at launch.

All are named tuples, which Triton flattens by itself. :class:`Config` has the compile-time
constants; the others have 64-bit integers, which change from call to call or from shape to shape.
Real numbers are passed as the bits of a float64, since Triton rounds a float to float32.
"""

from __future__ import annotations

from collections import namedtuple
from typing import NamedTuple

from ...declarations.problem import VECTORS, Role

#: The codes of the axis along which a tensor is contiguous: unknown, the positions, the channels.
SCATTERED, ALONG_POSITIONS, ALONG_CHANNELS = 0, 1, 2


class Tensor(NamedTuple):
    """A data tensor: its dtype's code, its contiguous axis, and its alignment there in elements."""

    code: int
    along: int = SCATTERED
    vector: int = 1


class Config(NamedTuple):
    """The compile-time constants of a kernel.

    Attributes:
        forward, constant, grouped: as in :class:`normgrad.declarations.problem.Problem`.
        wide: whether the arithmetic is float64.
        singles: whether sums of float32 terms are pairs of float32 rather than float64, for GPUs
            whose float64 arithmetic is slow.
        centred: whether statistics are of x − mean, rather than of x itself.
        dy, x, dx: the data tensors.
        vectors: the dtypes' codes of the per-channel vectors; see :func:`pack`.
        counts: the dtype's code of the counts.
        positions, channels: the size of a tile; its channels are consecutive.
        leading, adjacent: leading · adjacent is the number of a tile's positions per thread, which
            are summed in float32 before float64; ``adjacent`` of them are consecutive.
        sharing: 0 if channels have the parameters; in lines, whose positions have them, the number
            of a tile's positions that share one, a power of two.
        groups: the number of groups whose sums a program combines.
        resident: whether a program holds its groups in registers, or a piece of a line, rather than
            reading them twice.
        fan: the number of a group's channels whose sums are combined at once.
        rank: the number of axes that positions run over.
        long_positions, long_offsets: whether positions, and offsets within a set, need 64 bits.
        rows: the number of parts whose sums are added up at once.
        about: the source of the point that x is centred about, one of PILOT, ARGUMENT, SAVED.
        invstd: the source of 1/std, one of ARGUMENT, SAVED, VARIANCE.
        rest: whether the mean may have a rounding error in the arithmetic's type: a mean that is
            computed, or a float64 one that is given beside float32 arithmetic.
        stores: what the kernel stores: the union of RESULT and so on, below.
        from_sums: the sums in the workspace from which ``write`` computes coefficients, SUMS of
            parts or TOTALS; 0 where it has given statistics.
        parameters: the number of parameters for which a program adds up these terms of all lines.
        shared: whether the lines of all sets have the same parameters, as in layer norm.
        adjoining: whether the parameters of a line's positions are adjacent in memory.
        next: the configuration of a line's next tile; None after the last.
        again: whether a line's tiles are read again to be written, rather than held in registers.
        chain, chains: the number of tiles whose terms of parameters' gradients are added in
            registers before they go to the workspace, and of chains that have the same slot there.
        stages: the number of tiles that ``groups`` reads or computes at once; 0 for one.
        short: whether sums are stored rounded to the arithmetic's type, which is allowed if only
            the gradients of parameters are made from them; lines' terms of these always are.
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
    sharing: int = 0
    groups: int = 1
    resident: bool = True
    fan: int = 1
    rank: int = 1
    long_positions: bool = False
    long_offsets: bool = False
    rows: int = 1
    about: int = 0
    invstd: int = 1
    rest: bool = False
    stores: int = 0
    from_sums: int = 0
    parameters: int = 0
    shared: bool = False
    adjoining: bool = False
    next: Config | None = None
    again: bool = False
    chain: int = 1
    chains: int = 1
    short: bool = False
    singles: bool = False
    centred: bool = True
    stages: int = 0


#: The sources of the point for moments: an element of the tensor (PILOT), the call's argument
#: (ARGUMENT) or a mean in the workspace (SAVED). 1/std is ARGUMENT, SAVED, or computed from an
#: argument that is a VARIANCE.
PILOT, ARGUMENT, SAVED, VARIANCE = 0, 1, 2, 3

#: What a kernel may store: dx or y; per-channel outputs; and in the workspace its sums, those of
#: whole groups, lines' terms of the parameters' gradients, a mean, and a 1/std (without a mean, one
#: about the given mean).
RESULT, OUTPUTS, SUMS, TOTALS, COLUMNS, MEAN, INVSTD = (1 << bit for bit in range(7))

#: The code of an absent vector.
ABSENT = 7


def slot(role: Role) -> int:
    """The index of a per-channel vector among all of them."""
    return VECTORS.index(role)


def pack(codes: dict[int, int]) -> int:
    """The vectors' dtype codes in one integer, with three bits per slot."""
    return sum(codes.get(slot, ABSENT) << (3 * slot) for slot in range(len(VECTORS)))


#: An axis that positions run over: its size, and the numbers for division by the size.
Axis = namedtuple("Axis", "size magic shift")

#: Strides over axes that one row-major index runs over: the stride of each axis, and the size of
#: each but the first.
Strides = namedtuple("Strides", "strides sizes", defaults=[()])

#: The strides of a data tensor or vector: over sets, channels (or groups), and positions. ``sets``
#: is a :class:`Strides`. ``channels`` is one for a vector, and an integer for a tensor. ``axes``
#: are a tensor's strides over the axes of positions.
Steps = namedtuple("Steps", "sets channels axes", defaults=[()])

#: The sizes of a problem, and of the tasks into which it is divided:
#:
#: - sets, channels, positions: the numbers of sets, of channels, and of positions of a channel;
#: - per_group: the number of channels in a group;
#: - groups: the number of groups of channels;
#: - sharing: the number of positions of a line that share a parameter;
#: - step: the number of channels from one tile to the next;
#: - parts, part: the number of parts of the positions, and the number of positions in each;
#: - summed: the number of parts whose sums are in the workspace;
#: - each, slots: the number of blocks of channels (or of groups that are read twice) that a program
#:   of ``groups`` processes, and the number of programs for each set and part.
Sizes = namedtuple(
    "Sizes", "sets channels per_group groups sharing positions step parts part summed each slots"
)

#: Scalars: the bits of float64 numbers, and the number of counts. ``inverse`` is 1/divisor;
#: ``unbiased`` is the factor that makes a variance unbiased.
Numbers = namedtuple("Numbers", "eps divisor inverse unbiased momentum counts")

#: The byte offsets of the workspace's arrays:
#:
#: - sums: the sums of dy and of dy·(x − μ), then in float64 arithmetic their errors; each by part,
#:   set and channel;
#: - statistics: a computed mean, rounded to the arithmetic's type, its rounding error, a computed
#:   1/std and its error; each by set and group;
#: - pilots: the elements of x that moments are about, by set and group. They are copied, since y
#:   may overwrite x before all programs have read the element;
#: - totals: the sums of whole groups, over all parts; they stand at the group's first channel;
#: - columns: the sums over lines of dy and of dy·(x − μ)/std; each by slot and parameter. They are
#:   float64 if programs add up many chains, else of the arithmetic's type.
Work = namedtuple("Work", "sums statistics pilots totals columns", defaults=[0, 0, 0, 0, 0])

#: All arguments of a kernel except its :class:`Config`. ``at`` are the addresses in the order of
#: :class:`normgrad.declarations.problem.Role`, and the workspace's. ``vectors`` are in the order of
#: their slots.
Arguments = namedtuple("Arguments", "at sizes axes dy x dx vectors numbers counts work")
