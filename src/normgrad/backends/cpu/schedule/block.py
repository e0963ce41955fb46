"""The fields of a parameter block: how a plan tells the kernels what to do.

A block is an array of int64: first the addresses, which change with every call, then everything
that follows from the specs. A step has some fields of its own. A kernel reads a job, which says
what to do with one piece of the tensors. All fields are read by the indices below; nothing else
passes from Python to a kernel.
"""

from __future__ import annotations

from ....declarations import problem
from ....declarations.problem import Role


class _Fields:
    """A counter that hands out consecutive indices for fields."""

    def __init__(self) -> None:
        self.end = 0

    def __call__(self, count: int = 1) -> int:
        start = self.end
        self.end += count
        return start

    def each(self, count: int) -> range:
        """Fields of one number each."""
        return range(self(count), self.end)


_block = _Fields()

# The addresses in the order of their roles, then the workspace's. Kernels take DY, X and DX as
# arguments in the same order.
_block(problem.WORKSPACE + 1)
(
    DY, X, DX, MEAN, INVSTD, WEIGHT, BIAS, SUM_DY, SUM_DY_XMU, RUNNING_MEAN, RUNNING_VAR,
    OUT_SUM_DY, OUT_SUM_DY_XMU, GRAD_WEIGHT, GRAD_BIAS, OUT_MEAN, OUT_INVSTD, OUT_RUNNING_MEAN,
    OUT_RUNNING_VAR, COUNT,
) = map(int, Role)  # fmt: skip
WORKSPACE = problem.WORKSPACE
ADDRESSES = _block.end

OUTER_MAX = 6
# Per-channel vectors: each has its fields at VECTORS + VECTOR_FIELDS * (role - MEAN). Where rows
# have outer axes (VECTORS_OUTER), a set has OUTER_SET of the outer indices, and OUTER_STEPS are the
# vector's strides along them.
SET_STRIDE, STRIDE, CODE, OUTER_SET, OUTER_STEPS = 0, 1, 2, 3, 4
VECTOR_FIELDS = OUTER_STEPS + OUTER_MAX
VECTORS = _block(VECTOR_FIELDS * len(problem.VECTORS))
VECTORS_OUTER = _block()

# The data tensors as (set, outer axes, row, channel, element of a row), with strides for dy, x and
# dx. The last row is shorter where an axis was cut into rows. POSITIONS counts the rows of all
# outer indices. A number of axes is followed by their sizes.
SETS, SET_STRIDES = _block(), _block(3)
CHANNELS, CHANNEL_STRIDES = _block(), _block(3)
ROWS, ROW_STRIDES = _block(), _block(3)
RUN, LAST_RUN, RUN_STRIDES = _block(), _block(), _block(3)
OUTER_RANK, OUTER_SIZES, OUTER_STRIDES = _block(), _block(OUTER_MAX), _block(3 * OUTER_MAX)
POSITIONS = _block()

# The problem's facts and scalars. EPS, DIVISOR and MOMENTUM (the weight of new statistics in
# running ones) hold the bits of a float64. SINGLE: the arithmetic is float32.
FORWARD, GIVEN_SUMS = _block.each(2)
EPS, DIVISOR, MOMENTUM = _block.each(3)
PER_GROUP, INVSTD_IS_VARIANCE, SINGLE = _block.each(3)
# Whether the mean and 1/std come from x; the code of x's dtype; whether there is a mean at all.
MISSING_MEAN, MISSING_INVSTD, X_CODE, CENTRED = _block.each(4)
COUNT_MAX = 8
COUNTS, COUNT_CODE, COUNT_RANK = _block.each(3)
COUNT_SIZES, COUNT_STRIDES = _block(COUNT_MAX), _block(COUNT_MAX)

# What the workspace holds: a bank has the statistics and coefficients of one set at a time, and the
# BANK_SETS sets of a task take turns in it. Sums are kept for each part, in LEVELS (see sums.py),
# whose arrays lie SUMS_APART. If one step does all, a task has arrays of its own instead, for
# TASK_CHANNELS channels that take turns; otherwise 0.
BANKS, BANK_SETS, PARTS_OF_SUMS, TASK_CHANNELS = _block.each(4)
LEVELS, SUMS_APART = _block.each(2)
# Byte offsets in the workspace; all arrays but weight, bias and chains are float64. Each statistics
# group in a bank has the mean rounded to the arithmetic's type, with its rounding error in the
# second array; invstd; slope and scale of
# dx = scale * (gain * dy - (shift + slope * (x - mean))). Each channel has gain and shift. Where
# y's parameters lie along rows, the slope is what to add to (x - mean) * invstd.
W_MEAN, W_INVSTD = _block(2), _block()
W_SLOPE, W_SCALE, W_GAIN, W_SHIFT = _block.each(4)
# The sums for each part, bank and channel.
W_SUM_DY, W_SUM_DY_XMU = _block.each(2)
# Partial sums of grad_bias and grad_weight for each slot and parameter, and the chains of long rows
# that are added to them, if there are CHAINS. A task has SLOT_LEVELS slots. There are fewer
# parameters than channels where several samples are treated as one.
W_BIASES, W_WEIGHTS, W_BIAS_CHAINS, W_WEIGHT_CHAINS = _block.each(4)
CHAINS, SLOTS, SLOT_LEVELS, PARAMETERS = _block.each(4)
# The total of the counts, then the least and the largest nonzero magnitude of weights along rows.
W_COUNT = _block()
# Where a row's elements have the parameters (ALONG): weight and bias in the arithmetic's type if
# they have to be copied, and their addresses, which a first step finds; and the number of
# elements whose parameters a set has of its own, or 0 where all sets share them; and the number of
# adjacent elements that have the same. COPIES: whether there is place for copies. If not, tasks
# copy what they read, and addresses are 0.
ALONG, COPIES, W_WEIGHT, W_BIAS, ROW_WEIGHT, ROW_BIAS = _block.each(6)
OWN_PARAMETERS, SHARED = _block.each(2)

# Whether the pattern is columns rather than rows; the tensors that are copied to tiles first, as
# bits; whether dx's memory has dy's copy from the sums on; the tensors' item sizes; the addresses
# of the copying functions and of their caller.
COLUMNS, TILES, DY_IN_DX = _block.each(3)
DATA_SIZES, MOVERS, IN_TILES = _block(3), _block(3), _block()
# The positions in a row of columns; whether dx is written with non-temporal stores (in a template,
# the most threads with which it is); what is prefetched while rows are summed (schedules.py), and
# whether what the next task sums is, while dx is written.
REPEAT, STREAM, AHEAD, NEXT = _block.each(4)
# The most milliseconds that a step of several threads takes where no thread waits for a core.
PATIENCE = _block()
# The scratch memory of each thread that runs tasks: that of the first begins at an offset in the
# workspace, and each has SCRATCH bytes. A kernel's buffers come first, of BUFFER bytes each; then,
# from their offsets on, two tiles of TILE bytes, and the weights and biases along a piece of long
# rows. MOST_THREADS share a step's tasks at most.
W_SCRATCH, SCRATCH, BUFFER, TILE, TILES_AT, PIECES_AT = _block.each(6)
MOST_THREADS = _block()
BLOCK_FIELDS = _block.end

_step = _Fields()
# A step's number of tasks, and how a task's number gives its tile, which is some sets, some
# channels (CHANNEL_BLOCK of ALL_CHANNELS) and a part of the positions. A task takes AT_ONCE
# channels at a time, and a kernel PIECE_CHANNELS of these and PIECE_ROWS rows. THREADS is 0 where
# one thread does all tasks.
TASKS, SETS_PER_TASK, ALL_CHANNELS, CHANNEL_BLOCK = _step.each(4)
PARTS, PART_SIZE = _step.each(2)
AT_ONCE, PIECE_CHANNELS, PIECE_ROWS = _step.each(3)
THREADS = _step()
# What a task does: the arithmetic before the sums (BEFORE), after them (AFTER), and after all of
# the task's sets (LAST), as flags; and the kernels that sum, write, and sum the parameters of rows,
# as addresses or 0. ..._USES: the data tensors that a kernel reads or writes, as bits.
RUN_TASKS, ARITHMETIC, COEFFICIENTS = _step.each(3)
BEFORE, SUMS_KERNEL, AFTER, WRITE_KERNEL, PARAMETER_KERNEL, LAST = _step.each(6)
SUMS_USES, WRITE_USES, PARAMETER_USES = _step.each(3)
USES_DY, USES_X, USES_DX = 1, 2, 4
STEP_FIELDS = _step.end

_table = _Fields()
# The driver's table of a schedule: the addresses of the block's template and of the steps, and the
# number of steps.
TEMPLATE, STEPS, STEP_COUNT = _table.each(3)
TABLE_FIELDS = _table.end

_job = _Fields()
# A job tells a kernel what to do with a piece of the tensors, whose addresses are arguments beside
# the job. J_BLOCK is the address of the block, for the facts that all jobs share. J_CHANNEL is the
# number of the first channel; J_GAIN to J_SUMS are addresses of the arrays above, for channel and
# group 0. J_REST is that of the means' rounding errors.
J_BLOCK, J_CHANNEL, J_CHANNELS, J_ROWS, J_RUN, J_REPEAT = _job.each(6)
J_ROW_STEPS, J_CHANNEL_STEPS = _job(3), _job(3)
J_GAIN, J_SHIFT, J_MEAN, J_SLOPE, J_SCALE, J_INVSTD, J_REST = _job.each(7)
J_SUMS, J_CHAINS = _job(2), _job(2)
# The levels of the channels' sums, and how many calls of kernels have added to them.
J_LEVELS, J_CALLS = _job.each(2)
# Whether dx is written with non-temporal stores, and whether rows are prefetched while others are
# summed; and how many channels later begin those that are prefetched while dx is written, or 0.
J_STREAM, J_AHEAD, J_NEXT = _job.each(3)
# The position at which a walk began, and the elements of a channel before the piece's.
J_BEGIN, J_BEFORE = _job.each(2)
# The addresses of weight and bias along the rows; the index of the row's first element among the
# parameters; whether dx is written with the parameters' sums, and whether there are such sums.
# J_PIECES is that of the thread's copies of long rows' weights and biases, or 0 if none are read;
# J_SCRATCH is that of all its scratch memory.
J_WEIGHT, J_BIAS, J_FIRST, J_WRITES, J_ADDS, J_PIECES, J_SCRATCH = _job.each(7)
JOB_FIELDS = _job.end

_team = _Fields()
# A team of threads: the address of the function that tells the time, or 0; the time, in
# milliseconds, until which the calling thread works alone because others had to wait for a core;
# the address of the function that runs a step on all threads, which is OpenMP's GOMP_parallel or
# has its arguments; for OpenMP also its functions that tell a thread's number and their count, and
# the function that each thread calls; for worker threads their pool. Then the block and the step.
CLOCK, ALONE_UNTIL = _team.each(2)
PARALLEL, THREAD_NUMBER, THREAD_COUNT, SHARE, POOL = _team.each(5)
TEAM_BLOCK, TEAM_STEP = _team.each(2)
TEAM_FIELDS = _team.end

_pool = _Fields()
# The pool of worker threads: the addresses of the C library's functions that wait for a semaphore
# and post it; whether a call has the pool; the team's table and the number of threads of that call.
# Then the semaphores, each in a cache line of its own: DONE, which workers post, and one for each
# worker, from that of thread 1 on, which it waits for.
SEM_WAIT, SEM_POST, IS_TAKEN, POOL_TEAM, POOL_THREADS = _pool.each(5)
SEMAPHORE_WORDS = 8
DONE = SEMAPHORE_WORDS

# The kinds of arithmetic, in their order; a plan's path names them.
DO_COUNT, DO_WEIGHTS, DO_PREPARE, DO_COMBINE, DO_MEAN, DO_STATISTICS = 1, 2, 4, 8, 16, 32
DO_CENTRE, DO_COEFFICIENTS, DO_PARAMETERS, DO_OUTPUTS, DO_GATHER = 64, 128, 256, 512, 1024
