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

# Per-channel vectors: each has these fields, at VECTORS + VECTOR_FIELDS * (role - MEAN).
OUTER_MAX = 6  # the most outer axes of anything
SET_STRIDE, STRIDE, CODE = 0, 1, 2  # its strides along sets and channels, and its dtype's code
OUTER_SET = 3  # how many outer indices a set has, where rows have outer axes
OUTER_STEPS = 4  # its strides along these axes
VECTOR_FIELDS = OUTER_STEPS + OUTER_MAX
VECTORS = _block(VECTOR_FIELDS * len(problem.VECTORS))
VECTORS_OUTER = _block()  # whether rows have outer axes

# The data tensors as (set, outer axes, row, channel, element of a row): the size of each axis, and
# the strides of dy, x and dx along it.
SETS, SET_STRIDES = _block(), _block(3)
CHANNELS, CHANNEL_STRIDES = _block(), _block(3)
ROWS, ROW_STRIDES = _block(), _block(3)
RUN, LAST_RUN, RUN_STRIDES = _block(), _block(), _block(3)  # the last row of a cut axis is shorter
OUTER_RANK, OUTER_SIZES, OUTER_STRIDES = _block(), _block(OUTER_MAX), _block(3 * OUTER_MAX)
POSITIONS = _block()  # the rows of all outer indices

# The problem's facts and scalars. Of a float64 a word holds the bits.
FORWARD, GIVEN_SUMS = _block.each(2)  # a forward pass; sums are inputs
EPS, DIVISOR = _block.each(2)  # float64: what a variance is increased by; a statistic's elements
MOMENTUM = _block()  # float64: the weight of new statistics in running ones
PER_GROUP = _block()  # the channels that share a statistic
INVSTD_IS_VARIANCE = _block()
SINGLE = _block()  # whether the arithmetic is float32
MISSING_MEAN, MISSING_INVSTD = _block.each(2)  # whether they come from x
X_CODE = _block()  # the code of x's dtype
CENTRED = _block()  # whether there is a mean at all
COUNT_MAX = 8
COUNTS, COUNT_CODE = _block.each(2)  # the elements of ``count``, and its dtype's code
COUNT_RANK, COUNT_SIZES, COUNT_STRIDES = _block(), _block(COUNT_MAX), _block(COUNT_MAX)

# What the workspace holds. A bank has the statistics and coefficients of one set at a time. If one
# step does all, a task has arrays of its own instead of a bank.
BANKS, BANK_SETS = _block.each(2)  # the banks; the sets of a task that take turns in one
PARTS_OF_SUMS = _block()  # the parts for each of which sums are kept
TASK_CHANNELS = _block()  # the channels that take turns in a task's own arrays, or 0
LEVELS, SUMS_APART = _block.each(2)  # the levels of sums (see sums.py), and their arrays' distance
# Byte offsets in the workspace of arrays, of float64 but for weight, bias and chains. First those
# of statistics groups, by bank: the mean rounded to the arithmetic's type, its rounding error, and
# 1/std; slope and scale of dx = scale * (gain * dy - (shift + slope * (x - mean))), or where y's
# parameters lie along rows, as slope what to add to (x - mean) * invstd.
W_MEAN, W_INVSTD = _block(2), _block()
W_SLOPE, W_SCALE = _block.each(2)
W_GAIN, W_SHIFT = _block.each(2)  # of channels, by bank
W_SUM_DY, W_SUM_DY_XMU = _block.each(2)  # sums of channels, by part and bank
W_BIASES, W_WEIGHTS = _block.each(2)  # partial sums of the parameters' gradients, by slot
_block(2)  # the chains of long rows that are added to these, for grad_bias and grad_weight
CHAINS, SLOTS = _block.each(2)  # whether there are chains; the slots
SLOT_LEVELS = _block()  # the slots of a task
PARAMETERS = _block()  # fewer than channels where several samples are treated as one
W_COUNT = _block()  # the counts' total; the least, the largest nonzero magnitude of row weights

# Rows whose elements have the parameters.
ALONG = _block()  # whether these lie along rows
COPIES = _block()  # whether there is place for copies of them; if not, tasks copy what they read
W_WEIGHT, W_BIAS = _block.each(2)  # the offsets of the copies, in the arithmetic's type
ROW_WEIGHT, ROW_BIAS = _block.each(2)  # where they are, which a first step finds; 0 for tasks' own
OWN_PARAMETERS = _block()  # the elements whose parameters a set has alone; 0 if all sets share them
SHARED = _block()  # the adjacent elements that have the same

# How kernels read the data tensors.
COLUMNS = _block()  # whether the pattern is columns rather than rows
TILES = _block()  # the tensors that are copied to tiles first, as bits
DY_IN_DX = _block()  # whether dx's memory has dy's copy from the sums on
DATA_SIZES = _block(3)  # the tensors' item sizes
MOVERS, IN_TILES = _block(3), _block()  # addresses of the copying functions, and of their caller
REPEAT = _block()  # the positions in a row of columns
STREAM = _block()  # if dx is written past the caches; in a template, for how many threads at most
AHEAD = _block()  # what is prefetched while rows are summed (see fetches_ahead in schedules.py)
NEXT = _block()  # whether what the next task sums is prefetched while dx is written

# Threads. Each that runs tasks has scratch memory: a kernel's buffers, two tiles, and the weights
# and biases along a piece of long rows.
PATIENCE = _block()  # the most milliseconds of a shared step where no thread waits for a core
W_SCRATCH, SCRATCH = _block.each(2)  # where the first thread's begins; the bytes of each
BUFFER, TILE = _block.each(2)  # the bytes of a buffer and of a tile
TILES_AT, PIECES_AT = _block.each(2)  # the offsets in scratch memory of what follows the buffers
MOST_THREADS = _block()  # that share a step's tasks
BLOCK_FIELDS = _block.end

_step = _Fields()
# The fields of a step. A task's number gives its share: some sets, a block of channels, a part of
# the positions.
TASKS, SETS_PER_TASK = _step.each(2)
ALL_CHANNELS, CHANNEL_BLOCK = _step.each(2)  # of the step, and of a task
PARTS, PART_SIZE = _step.each(2)  # the parts of the positions, and the positions of one
AT_ONCE = _step()  # the channels that a task takes at a time
PIECE_CHANNELS, PIECE_ROWS = _step.each(2)  # of these, what a kernel takes at a time
THREADS = _step()  # 0 where one thread does all tasks
# What a task does: addresses of units, or 0; and kinds of arithmetic, as flags: before the sums,
# after them, and after all of the task's sets.
RUN_TASKS, ARITHMETIC, COEFFICIENTS = _step.each(3)
BEFORE, SUMS_KERNEL, AFTER, WRITE_KERNEL = _step.each(4)
PARAMETER_KERNEL = _step()  # which sums the parameters' gradients along rows, and may write dx
LAST = _step()
SUMS_USES, WRITE_USES, PARAMETER_USES = _step.each(3)  # the tensors that a kernel uses, as bits
USES_DY, USES_X, USES_DX = 1, 2, 4
STEP_FIELDS = _step.end

_table = _Fields()
# The driver's table of a schedule: the addresses of the block's template and of the steps, and the
# number of steps.
TEMPLATE, STEPS, STEP_COUNT = _table.each(3)
TABLE_FIELDS = _table.end

_job = _Fields()
# A job tells a kernel what to do with a piece of the tensors, whose addresses are arguments beside
# the job.
J_BLOCK = _job()  # the address of the block, for the facts that all jobs share
J_CHANNEL, J_CHANNELS = _job.each(2)  # the number of the first channel, and how many there are
J_ROWS, J_RUN, J_REPEAT = _job.each(3)  # rows, elements of one, positions in a row of columns
J_ROW_STEPS, J_CHANNEL_STEPS = _job(3), _job(3)  # the strides of dy, x and dx
# Addresses of the workspace's arrays, for channel or group 0.
J_GAIN, J_SHIFT, J_MEAN, J_SLOPE, J_SCALE, J_INVSTD = _job.each(6)
J_REST = _job()  # the means' rounding errors
J_SUMS, J_CHAINS = _job(2), _job(2)
J_LEVELS, J_CALLS = _job.each(2)  # the sums' levels; how many calls of kernels have added to them
J_STREAM, J_AHEAD = _job.each(2)  # as in the block
J_NEXT = _job()  # how many channels later what is prefetched while dx is written begins, or 0
J_BEGIN = _job()  # the position at which the walk began
J_BEFORE = _job()  # the elements of a channel before the piece's
J_WEIGHT, J_BIAS = _job.each(2)  # addresses of weight and bias along the rows
J_FIRST = _job()  # the index of the row's first element among the parameters
J_WRITES, J_ADDS = _job.each(2)  # whether dx is written; whether parameters' gradients are summed
J_PIECES = _job()  # the address of the thread's copies of long rows' weights and biases, or 0
J_SCRATCH = _job()  # the address of the thread's scratch memory
JOB_FIELDS = _job.end

_team = _Fields()
# A team of OpenMP's threads: the address of the function that tells the time, or 0; the time, in
# milliseconds, until which the calling thread works alone because others had to wait for a core;
# the addresses of OpenMP's functions that run a function on all threads, and that tell a thread's
# number and their count; and of the function that each thread calls. Then the block and the step.
CLOCK, ALONE_UNTIL = _team.each(2)
PARALLEL, THREAD_NUMBER, THREAD_COUNT, SHARE = _team.each(4)
TEAM_BLOCK, TEAM_STEP = _team.each(2)
TEAM_FIELDS = _team.end

_shared = _Fields()
# A step that Python's threads share: how many tasks threads have taken and done; the addresses of
# the block and the step; the step's tasks, and how many a thread takes at a time; the address of
# the C library's sched_yield.
TAKEN, DONE, SHARED_BLOCK, SHARED_STEP, SHARED_TASKS, AT_A_TIME, YIELD = _shared.each(7)
SHARED_FIELDS = _shared.end

# The kinds of arithmetic, in their order; a plan's path names them.
DO_COUNT, DO_WEIGHTS, DO_PREPARE, DO_COMBINE, DO_MEAN, DO_STATISTICS = 1, 2, 4, 8, 16, 32
DO_CENTRE, DO_COEFFICIENTS, DO_PARAMETERS, DO_OUTPUTS, DO_GATHER = 64, 128, 256, 512, 1024
