"""The words of a parameter block: how a plan tells the kernels what to do.

A block is an array of int64: addresses first (they change with every call), then everything that
follows from the specs. A step is a few words more. Kernels read both by the indices below; nothing
else crosses from Python into a kernel.
"""

from __future__ import annotations

# Addresses. The order of DY, X, DX is that of the kernels' arguments.
DY, X, DX = 0, 1, 2
MEAN, SPREAD, WEIGHT, SUM_DY, SUM_DY_XMU = 3, 4, 5, 6, 7
OUT_SUM_DY, OUT_SUM_DY_XMU, OUT_WEIGHT, OUT_BIAS = 8, 9, 10, 11
COUNT, WORKSPACE = 12, 13
# The same slots in the forward pass (see problem.py).
BIAS = SUM_DY
OUT_MEAN, OUT_INVSTD = OUT_SUM_DY, OUT_SUM_DY_XMU
OUT_RUNNING_MEAN, OUT_RUNNING_VAR = OUT_WEIGHT, OUT_BIAS
RUNNING_MEAN, RUNNING_VAR = MEAN, SPREAD
GATHERED_RUNNING_MEAN, GATHERED_RUNNING_VAR = SUM_DY, SUM_DY_XMU
ADDRESSES = 14

# Per-channel vectors, MEAN to OUT_BIAS: three words each at VECTORS + 3 * (slot - MEAN).
VECTORS = 14
SET_STRIDE, STRIDE, CODE = 0, 1, 2
VECTOR_WORDS = 3

# The data tensors as (set, outer axes, channel, inner); strides for dy, x, dx.
SETS, SET_STRIDES = 41, 42
CHANNELS, CHANNEL_STRIDES = 45, 46
INNER, INNER_STRIDES = 49, 50
OUTER_RANK, OUTER_SIZES, OUTER_STRIDES, OUTER_MAX = 53, 54, 60, 6
POSITIONS = 78

# The rule and its scalars. EPS and DIVISOR hold the bits of a float64.
RULE, EPS, DIVISOR, PER_GROUP, SPREAD_IS_VARIANCE = 79, 80, 81, 82, 83
COUNT_CODE, COUNT_RANK, COUNT_SIZES, COUNT_STRIDES, COUNT_MAX = 84, 85, 86, 94, 8

# Where things stand in the workspace, in bytes. Arrays over (set, channel): the mean and the four
# coefficients of dx = scale * (gain * dy - (shift + slope * (x - mean))) in the arithmetic's type;
# what rounding has left of a computed mean, invstd and its error, and weight in float64; sums over
# (part, set, channel), each as a float64 and its error.
W_MEAN, W_GAIN, W_SHIFT, W_SLOPE, W_SCALE, W_INVSTD, W_WEIGHT = 102, 103, 104, 105, 106, 107, 108
W_SUM_DY, W_SUM_DY_ERROR, W_SUM_DY_XMU, W_SUM_DY_XMU_ERROR, W_COUNT = 109, 110, 111, 112, 113
# How many parts each channel's sums come in.
SLOTS = 114
# The item sizes of dy, x and dx, and the addresses of what copies their tiles.
DATA_SIZES = 115
# How rows are made. In columns: RUN elements of each channel, of CHUNK channels at a time, and
# REPEAT times over, for as many positions. In short rows: RUN elements, and a position is a row.
RUN, REPEAT, CHUNK = 118, 119, 120
# Whether dx is written past the caches, and what columns read next fetched ahead.
STREAM, AHEAD = 121, 125
MOVERS = 122
# Whether the mean comes from x, and of which dtype that is; the weight of new statistics in running
# ones, the bits of a float64.
MISSING, X_CODE, MOMENTUM = 126, 127, 128
W_MEAN_REST, W_INVSTD_ERROR, MISSING_SPREAD = 129, 130, 131
BLOCK_WORDS = 132

# A step: the kernels' addresses, how many tasks, and how a task's number gives its tile.
# THREADS is 0 where one thread does all tasks.
SUMS_KERNEL, TASKS, FLAGS, CHANNEL_BLOCK, PARTS, PART_SIZE, THREADS = 0, 1, 2, 3, 4, 5, 6
CHANNEL_KERNEL, DX_KERNEL = 7, 8
STEP_WORDS = 9

# What OpenMP's threads are told: its functions' addresses, what each thread does, and on what.
PARALLEL, THREAD_NUMBER, THREAD_COUNT, TEAM = 0, 1, 2, 3
TEAM_BLOCK, TEAM_STEP, TEAM_WORDS = 4, 5, 6

# What a step does with its tile, in this order.
DO_COUNT, DO_PREPARE, DO_MOMENTS, DO_SUMS, DO_COMBINE = 1, 2, 4, 8, 16
DO_MEAN, DO_CENTRE, DO_OUTPUTS, DO_COEFFICIENTS, DO_APPLY, DO_SCALE = 32, 64, 128, 256, 512, 1024
DO_STATISTICS, DO_GATHER, DO_NORMALISE = 2048, 4096, 8192
# What the channel kernel does before a tile's sums and after them.
BEFORE = DO_COUNT | DO_PREPARE
AFTER = DO_COMBINE | DO_MEAN | DO_CENTRE | DO_STATISTICS | DO_GATHER | DO_OUTPUTS | DO_COEFFICIENTS
WRITES = DO_APPLY | DO_SCALE | DO_NORMALISE

# The guard's table (see guard.py): a row for each address of a call, those of a block and those of
# inputs that take no part in it; the first byte and one past the last, from the address on, and
# flags: whether there is any byte, and from the second bit on, which outputs may be this input's
# very memory. Then the addresses of madvise(2) and msync(2), or 0, and the size of a page.
OTHERS, PLACES = ADDRESSES, ADDRESSES + 3
GUARD_LOW, GUARD_HIGH, GUARD_FLAGS, GUARD_SLOT = 0, 1, 2, 3
HAS_BYTES, MAY_BE = 1, 1
GUARD_MADVISE = GUARD_SLOT * PLACES
GUARD_MSYNC, GUARD_PAGE, GUARD_WORDS = GUARD_MADVISE + 1, GUARD_MADVISE + 2, GUARD_MADVISE + 3
