"""The fields of a parameter block: how a plan tells the kernels what to do.

A block is an array of int64: addresses first (they change with every call), then everything that
follows from the specs. A step is a few fields more. Kernels read both by the indices below; nothing
else crosses from Python into a kernel.
"""

from __future__ import annotations

from ... import problem
from ...problem import Role


class _Fields:
    """Indices, given out one after the other."""

    def __init__(self) -> None:
        self.end = 0

    def __call__(self, count: int = 1) -> int:
        start = self.end
        self.end += count
        return start


_block = _Fields()

# Addresses, in the order of their roles, and that of the workspace. That of DY, X, DX is the order
# of the kernels' arguments.
_block(len(Role))
DY, X, DX = int(Role.GRAD_OUT), int(Role.INPUT), int(Role.RESULT)
MEAN, INVSTD = int(Role.MEAN), int(Role.INVSTD)
WEIGHT, BIAS = int(Role.WEIGHT), int(Role.BIAS)
SUM_DY, SUM_DY_XMU = int(Role.SUM_DY), int(Role.SUM_DY_XMU)
RUNNING_MEAN, RUNNING_VAR = int(Role.RUNNING_MEAN), int(Role.RUNNING_VAR)
OUT_SUM_DY, OUT_SUM_DY_XMU = int(Role.OUT_SUM_DY), int(Role.OUT_SUM_DY_XMU)
GRAD_WEIGHT, GRAD_BIAS = int(Role.GRAD_WEIGHT), int(Role.GRAD_BIAS)
OUT_MEAN, OUT_INVSTD = int(Role.OUT_MEAN), int(Role.OUT_INVSTD)
OUT_RUNNING_MEAN, OUT_RUNNING_VAR = int(Role.OUT_RUNNING_MEAN), int(Role.OUT_RUNNING_VAR)
COUNT = int(Role.COUNT)
WORKSPACE = _block()
ADDRESSES = _block.end

# Per-channel vectors: three fields each at VECTORS + VECTOR_FIELDS * (role - MEAN).
SET_STRIDE, STRIDE, CODE = 0, 1, 2
VECTOR_FIELDS = 3
VECTORS = _block(VECTOR_FIELDS * len(problem.VECTORS))

# The data tensors as (set, outer axes, channel, inner); strides for dy, x, dx.
OUTER_MAX = 6
SETS, SET_STRIDES = _block(), _block(3)
CHANNELS, CHANNEL_STRIDES = _block(), _block(3)
INNER, INNER_STRIDES = _block(), _block(3)
OUTER_RANK, OUTER_SIZES, OUTER_STRIDES = _block(), _block(OUTER_MAX), _block(3 * OUTER_MAX)
POSITIONS = _block()

# What the coefficients of dx come from: sums over channels, constants, given sums, or sums over
# groups.
TRAIN, EVAL, ELEMT, GROUP = range(4)
# That, and the scalars. EPS, DIVISOR and MOMENTUM, the weight of new statistics in running ones,
# hold the bits of a float64.
RULE, EPS, DIVISOR, MOMENTUM = _block(), _block(), _block(), _block()
PER_GROUP, INVSTD_IS_VARIANCE = _block(), _block()
# Whether the mean and 1/std come from x, and the code of x's dtype.
MISSING_MEAN, MISSING_INVSTD, X_CODE = _block(), _block(), _block()
COUNT_MAX = 8
COUNT_CODE, COUNT_RANK = _block(), _block()
COUNT_SIZES, COUNT_STRIDES = _block(COUNT_MAX), _block(COUNT_MAX)

# Where things stand in the workspace, in bytes. Arrays over (set, channel): the mean and the four
# coefficients of dx = scale * (gain * dy - (shift + slope * (x - mean))) in the arithmetic's type;
# what rounding has left of a computed mean, invstd and its error, and weight in float64; sums over
# (part, set, channel), each as a float64 and its error.
W_MEAN, W_GAIN, W_SHIFT, W_SLOPE, W_SCALE = _block(), _block(), _block(), _block(), _block()
W_MEAN_REST, W_INVSTD, W_INVSTD_ERROR, W_WEIGHT = _block(), _block(), _block(), _block()
W_SUM_DY, W_SUM_DY_ERROR = _block(), _block()
W_SUM_DY_XMU, W_SUM_DY_XMU_ERROR = _block(), _block()
W_COUNT = _block()
# How many parts each channel's sums come in.
SLOTS = _block()
# The item sizes of dy, x and dx, and the addresses of what copies their tiles.
DATA_SIZES, MOVERS = _block(3), _block(3)
# How rows are made. In columns: RUN elements of each channel, of CHUNK channels at a time, and
# REPEAT times over, for as many positions. In short rows: RUN elements, and a position is a row.
RUN, REPEAT, CHUNK = _block(), _block(), _block()
# Whether dx is written past the caches, and what columns read next fetched ahead.
STREAM, AHEAD = _block(), _block()
BLOCK_FIELDS = _block.end

_step = _Fields()
# A step: the kernels' addresses, how many tasks, and how a task's number gives its tile.
# THREADS is 0 where one thread does all tasks.
SUMS_KERNEL, CHANNEL_KERNEL, DX_KERNEL = _step(), _step(), _step()
TASKS, FLAGS, CHANNEL_BLOCK, PARTS, PART_SIZE = _step(), _step(), _step(), _step(), _step()
THREADS = _step()
STEP_FIELDS = _step.end

_team = _Fields()
# What OpenMP's threads are told: its functions' addresses, what each thread does, and on what.
PARALLEL, THREAD_NUMBER, THREAD_COUNT, TEAM = _team(), _team(), _team(), _team()
TEAM_BLOCK, TEAM_STEP = _team(), _team()
TEAM_FIELDS = _team.end

# What a step does with its tile, in this order.
DO_COUNT, DO_PREPARE, DO_MOMENTS, DO_SUMS, DO_COMBINE = 1, 2, 4, 8, 16
DO_MEAN, DO_CENTRE, DO_OUTPUTS, DO_COEFFICIENTS, DO_APPLY, DO_SCALE = 32, 64, 128, 256, 512, 1024
DO_STATISTICS, DO_GATHER, DO_NORMALISE = 2048, 4096, 8192
# What the channel kernel does before a tile's sums and after them.
BEFORE = DO_COUNT | DO_PREPARE
AFTER = DO_COMBINE | DO_MEAN | DO_CENTRE | DO_STATISTICS | DO_GATHER | DO_OUTPUTS | DO_COEFFICIENTS
WRITES = DO_APPLY | DO_SCALE | DO_NORMALISE

# The alias check's table (see guard.py): a row for each address of a call, those of a block and
# those of inputs that take no part in it; the first byte and one past the last, from the address
# on, and flags: whether there is any byte, and from the second bit on, which outputs may be this
# input's very memory. Then the addresses of madvise(2) and msync(2), or 0, and the size of a page.
OTHERS, PLACES = ADDRESSES, ADDRESSES + 3
GUARD_LOW, GUARD_HIGH, GUARD_FLAGS, GUARD_SLOT = 0, 1, 2, 3
HAS_BYTES, MAY_BE = 1, 1
GUARD_MADVISE = GUARD_SLOT * PLACES
GUARD_MSYNC, GUARD_PAGE, GUARD_FIELDS = GUARD_MADVISE + 1, GUARD_MADVISE + 2, GUARD_MADVISE + 3
