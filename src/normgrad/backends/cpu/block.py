"""The fields of a parameter block: how a plan tells the kernels what to do.

A block is an array of int64: addresses first (they change with every call), then everything that
follows from the specs. A step is a few fields more. Kernels read a job, which is what one of them
does with a piece of the tensors. All is read by the indices below; nothing else crosses from Python
into a kernel.
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
_block(problem.WORKSPACE + 1)
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
WORKSPACE = problem.WORKSPACE
ADDRESSES = _block.end

OUTER_MAX = 6
# Per-channel vectors: some fields each at VECTORS + VECTOR_FIELDS * (role - MEAN). Where rows have
# outer axes (VECTORS_OUTER), a set is so many of the outer indices (OUTER_SET), along which vectors
# have strides too.
SET_STRIDE, STRIDE, CODE, OUTER_SET, OUTER_STEPS = 0, 1, 2, 3, 4
VECTOR_FIELDS = OUTER_STEPS + OUTER_MAX
VECTORS = _block(VECTOR_FIELDS * len(problem.VECTORS))
VECTORS_OUTER = _block()

# The data tensors as (set, outer axes, row, channel, element of a row); strides for dy, x, dx. The
# last of the rows is shorter where an axis was cut into them. Positions are rows, of all outer
# indices.
SETS, SET_STRIDES = _block(), _block(3)
CHANNELS, CHANNEL_STRIDES = _block(), _block(3)
ROWS, ROW_STRIDES = _block(), _block(3)
RUN, LAST_RUN, RUN_STRIDES = _block(), _block(), _block(3)
OUTER_RANK, OUTER_SIZES, OUTER_STRIDES = _block(), _block(OUTER_MAX), _block(3 * OUTER_MAX)
POSITIONS = _block()

# The facts of a problem and its scalars. EPS, DIVISOR and MOMENTUM, the weight of new statistics in
# running ones, hold the bits of a float64. SINGLE: arithmetic is float32.
FORWARD, GIVEN_SUMS = _block(), _block()
EPS, DIVISOR, MOMENTUM = _block(), _block(), _block()
PER_GROUP, INVSTD_IS_VARIANCE, SINGLE = _block(), _block(), _block()
# Whether the mean and 1/std come from x, and the code of x's dtype; whether there is a mean at all.
MISSING_MEAN, MISSING_INVSTD, X_CODE, CENTRED = _block(), _block(), _block(), _block()
COUNT_MAX = 8
COUNT_CODE, COUNT_RANK = _block(), _block()
COUNT_SIZES, COUNT_STRIDES = _block(COUNT_MAX), _block(COUNT_MAX)

# How much is in the workspace at once: a bank has the statistics and coefficients of one set at a
# time, and BANK_SETS sets, those of a task, take turns in it. Sums come in parts.
BANKS, BANK_SETS, PARTS_OF_SUMS = _block(), _block(), _block()
# Where things stand in the workspace, in bytes; all are float64 but weight and bias. Two fields at
# once are those of numbers and of their errors (see pairs.py). Of each group of channels in a bank:
# the mean as the arithmetic's type holds it, and what that leaves of a mean that was found; invstd
# and its error; slope and scale of dx = scale * (gain * dy - (shift + slope * (x - mean))). Of each
# channel: gain and shift.
W_MEAN, W_INVSTD = _block(2), _block(2)
W_SLOPE, W_SCALE, W_GAIN, W_SHIFT = _block(), _block(), _block(), _block()
# Of each part, bank and channel: sums, with their errors.
W_SUM_DY, W_SUM_DY_XMU = _block(2), _block(2)
# Of each slot and parameter: what grad_bias and grad_weight are sums of, with their errors. There
# are fewer parameters than channels where several samples are taken as one.
W_BIASES, W_WEIGHTS = _block(2), _block(2)
SLOTS, PARAMETERS = _block(), _block()
# The total of counts; the least and the largest of weights along rows but 0.
W_COUNT = _block()
# Where a row's elements are parameters' (ALONG), weight and bias in the arithmetic's type; and how
# many parameters a set has of its own, or 0 where all sets share them.
ALONG, W_WEIGHT, W_BIAS, OWN_PARAMETERS = _block(), _block(), _block(), _block()

# Whether rows or columns are summed; the tensors that are moved to tiles first, by bit; item sizes
# of the tensors, and the addresses of what moves them and what calls it.
COLUMNS, MOVED = _block(), _block()
DATA_SIZES, MOVERS, IN_TILES = _block(3), _block(3), _block()
# In columns, as many positions follow each other in a row; whether dx is written past the caches,
# in a template with how many threads at most; and whether what is read next is fetched ahead.
REPEAT, STREAM, AHEAD = _block(), _block(), _block()
BLOCK_FIELDS = _block.end

_step = _Fields()
# A step: how many tasks, and how a task's number gives its tile: some sets, some of the channels
# (BLOCK of ALL), a part of the positions. A task takes AT_ONCE channels at once, and a kernel
# PIECE_CHANNELS of them and PIECE_ROWS rows. THREADS is 0 where one thread does all tasks.
TASKS, SETS_PER_TASK, ALL_CHANNELS, CHANNEL_BLOCK = _step(), _step(), _step(), _step()
PARTS, PART_SIZE = _step(), _step()
AT_ONCE, PIECE_CHANNELS, PIECE_ROWS = _step(), _step(), _step()
THREADS = _step()
# What is done, in this order: arithmetic (flags) before the sums; what sums, writes, and sums
# parameters along the rows (addresses, or 0), with arithmetic after the sums; and arithmetic when
# all of a task's sets are done. And which of the data tensors the kernels go through, by bit.
RUN_TASKS, ARITHMETIC, COEFFICIENTS = _step(), _step(), _step()
BEFORE, SUMS_KERNEL, AFTER, WRITE_KERNEL, PARAMETER_KERNEL, LAST = (
    _step(), _step(), _step(), _step(), _step(), _step()
)  # fmt: skip
SUMS_USES, WRITE_USES, PARAMETER_USES = _step(), _step(), _step()
USES_DY, USES_X, USES_DX = 1, 2, 4
STEP_FIELDS = _step.end

_job = _Fields()
# A job: what a kernel does with a piece of the tensors, whose addresses are its other arguments.
# J_CHANNEL is the number of the first channel; the addresses are those of the arrays above for
# channel and group 0.
J_CHANNEL, J_CHANNELS, J_ROWS, J_RUN, J_REPEAT, J_PER_GROUP = (
    _job(), _job(), _job(), _job(), _job(), _job()
)  # fmt: skip
J_ROW_STEPS, J_CHANNEL_STEPS = _job(3), _job(3)
J_GAIN, J_SHIFT, J_MEAN, J_SLOPE, J_SCALE, J_INVSTD = (
    _job(), _job(), _job(), _job(), _job(), _job()
)  # fmt: skip
J_SUMS = _job(4)
J_STREAM, J_AHEAD = _job(), _job()
# Weight and bias along the rows; the row's first element, by number among the parameters; and
# whether dx is written with their sums.
J_WEIGHT, J_BIAS, J_FIRST, J_WRITES = _job(), _job(), _job(), _job()
JOB_FIELDS = _job.end

_team = _Fields()
# A team: what starts Numba's threads on a step; or 0, then the addresses of OpenMP's functions and
# of what each thread does, and, while it does it, on what.
START = _team()
PARALLEL, THREAD_NUMBER, THREAD_COUNT, SHARE = _team(), _team(), _team(), _team()
TEAM_BLOCK, TEAM_STEP = _team(), _team()
TEAM_FIELDS = _team.end

# What arithmetic there is, in the order in which it is done; plans' paths have the names from here.
DO_COUNT, DO_WEIGHTS, DO_PREPARE, DO_COMBINE, DO_MEAN, DO_STATISTICS = 1, 2, 4, 8, 16, 32
DO_CENTRE, DO_COEFFICIENTS, DO_PARAMETERS, DO_OUTPUTS, DO_GATHER = 64, 128, 256, 512, 1024

# The alias check's table (see guard.py): a row for each address of a call, those of a block and
# those of inputs that take no part in it; the first byte and one past the last, from the address
# on, and flags: whether there is any byte, and from the second bit on, which outputs may be this
# input's very memory. Then the addresses of madvise(2) and msync(2), or 0, and the size of a page.
PLACES = problem.PLACES
GUARD_LOW, GUARD_HIGH, GUARD_FLAGS, GUARD_SLOT = 0, 1, 2, 3
HAS_BYTES, MAY_BE = 1, 1
GUARD_MADVISE = GUARD_SLOT * PLACES
GUARD_MSYNC, GUARD_PAGE, GUARD_FIELDS = GUARD_MADVISE + 1, GUARD_MADVISE + 2, GUARD_MADVISE + 3

# How a plan's calls enter compiled code (see enter.py): what is known of Python's objects, the
# driver and what it is given, and how many bytes a workspace has to have. Then how many inputs and
# results there are, the slot of each among the addresses, and the words that describe them all.
_entry = _Fields()
E_KNOWN, E_DRIVE, E_TEMPLATE, E_STEPS, E_STEP_COUNT, E_GUARDS, E_WORKSPACE = (
    _entry(), _entry(), _entry(), _entry(), _entry(), _entry(), _entry()
)  # fmt: skip
ENTRIES_MAX, WORDS_MAX = 16, 320
E_INPUTS, E_RESULTS, E_SLOTS = _entry(), _entry(), _entry(ENTRIES_MAX)
E_READS_DY, E_READS_X, E_PARALLEL = _entry(), _entry(), _entry()
# Which of the inputs each result is made like.
E_LIKES = _entry(ENTRIES_MAX)
E_LENGTH, E_WORDS = _entry(), _entry(WORDS_MAX)
ENTRY_FIELDS = _entry.end
