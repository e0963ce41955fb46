"""The thresholds by which the CPU backend chooses how to read tensors, cut work and use memory.

They decide the order of additions, and so a result's last bit, but for those of memory: no other
may depend on the machine or on the number of threads. benchmarks/thresholds.md has the
measurements.
"""

from __future__ import annotations

from dataclasses import dataclass

from ....support.machine import Machine


@dataclass(frozen=True)
class Policy:
    """The thresholds, in elements unless their description says otherwise.

    Attributes:
        column_run: adjacent channels of fewer elements are read as columns: each would not fill a
            kernel's lanes.
        moments_run: the same where moments are computed, whose last lanes cost most; half as many
            of half types, if a channel's rows can be in the L1 cache.
        far_run: the same from ``far_apart`` bytes on where sums come first: the processor does not
            prefetch rows so far apart.
        far_apart: bytes that are read and written.
        repeated: the most bytes of a row of several positions: other rows then fit the L1 cache.
        rows: the rows over which a fixed cost is spread: those that are left where several
            positions make a row of columns, and those of layer norm's tasks and walks; and the
            channels of a task of per-channel work.
        small: smaller tensors are not cut, and fewer channels' arithmetic is not shared by
            threads; no larger samples are processed as one.
        shared: the least float32 elements, read in place, for PyTorch's threads, as in PyTorch.
        part: the least elements of a channel's or a sample's part: cutting further does not pay.
            Longer rows are cut, so that several tasks can share a row.
        in_cache: the bytes of dy and x that stay in a core's cache from sums to dx; twice as many
            where memory is read in long runs, and half as many of rows that are statistics groups.
        tasks: the number of tasks that keeps many cores busy, with sums that cost little. Large
            tensors have up to ``MOST_TASKS``.
        enough_tasks: below so many tasks, channels are cut into parts; from it on, tasks grow.
        rows_of_part: the least rows of columns in a part, which costs each channel about ten rows.
        rows_in_order: a channel's rows that are read before the next channel's where dx does not
            depend on sums: memory is read in long runs, but each piece has a fixed cost.
        long_row: the elements of float32, or half as many of float64, from which on rows that are
            statistics groups are cut into pieces: several tasks can share a row, and the sums of
            its parameters do not fit the L2 cache beside it.
        streamed_row: the least bytes of a row that bypasses the caches, since its ends are partial
            lines; twice as many for rows of partial lines.
        cache: the bytes that stay in the machine's caches from one pass to the next.
        streamed: the least bytes read for which one thread's stores bypass the caches.
        fetched: the bytes of tensors from which rows are prefetched; four times as much for
            columns, and eight times for elements of the row itself.
        near_l3: whether the L3 is these cores' own, rather than a large server's, which is far.
    """

    column_run: int = 32
    moments_run: int = 96
    far_run: int = 200
    far_apart: int = 32 << 20
    repeated: int = 1 << 11
    rows: int = 128
    small: int = 1 << 14
    shared: int = 1 << 15
    part: int = 1 << 13
    in_cache: int = 1 << 19
    tasks: int = 64
    enough_tasks: int = 16
    rows_of_part: int = 256
    rows_in_order: int = 4
    long_row: int = 33_000
    streamed_row: int = 768
    cache: int = 16 << 20
    streamed: int = 8 << 20
    fetched: int = 8 << 20
    near_l3: bool = True

    def most_tasks(self, elements: int) -> int:
        """The number of tasks that tensors of so many elements are cut into."""
        return max(self.tasks, min(MOST_TASKS, elements // LARGE_TASK))


#: As ``Policy.shared``, for Python's threads, which do not spin while they wait. One thread takes
#: about 100 µs for so many, several times what it takes to wake another.
SHARED_BY_WORKERS = 1 << 17

#: The most tasks of a step, each of which may need sums of its own in the workspace, and the
#: elements of a task of a large tensor, which one core takes some 50 µs for.
MOST_TASKS, LARGE_TASK = 256, 1 << 18


def policy_of(machine: Machine) -> Policy:
    """The policy for a machine, on whose caches the thresholds of memory depend.

    Ordinary stores read their cache lines first. This costs most where the L3 is a large server's:
    there stores bypass the caches as soon as the data exceed the threads' L2 caches. An L3 of these
    cores' own keeps dx for the next reader, so there they do if what is read would not fit.
    """
    cache = machine.cache
    streamed = 2 * machine.l2 // 3 if machine.shares_l3 else cache // 2
    return Policy(cache=cache, streamed=streamed, fetched=cache // 2, near_l3=not machine.shares_l3)
