"""The thresholds by which the CPU backend chooses how to read tensors, cut work and use memory.

They decide the order of additions, and so a result's last bit, but for those of memory: no other
may depend on the machine or on the number of threads. docs/performance.md has the measurements.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Policy:
    """The thresholds, in elements unless their description says otherwise.

    Attributes:
        column_run: adjacent channels of fewer elements are read as columns: each would not fill a
            kernel's lanes.
        moments_run: the same where moments are computed, whose last lanes cost most.
        half_moments_run: the same of half types, if a channel's rows can be in the L1 cache.
        far_run: the same from ``far_apart`` bytes on where sums come first: the processor does not
            prefetch rows so far apart.
        far_apart: bytes that are read and written.
        longest_row: longer rows are cut, so that several tasks can share a row.
        repeated: the most bytes of a row of several positions: other rows then fit the L1 cache.
        rows: the rows over which a fixed cost is spread: those that are left where several
            positions make a row of columns, and those of layer norm's tasks and walks; and the
            channels of a task of per-channel work.
        small: smaller tensors are not cut, and fewer channels' arithmetic is not shared by
            threads; no larger samples are processed as one.
        shared: the least float32 elements, read in place, for several threads. One thread takes
            about 100 µs for so many; where the second waits for a busy core, a call takes 300
            times as long.
        part: the least elements of a channel's or a sample's part: cutting further does not pay.
        in_cache: the bytes of dy and x that stay in a core's cache from sums to dx; twice as many
            where memory is read in long runs, and half as many of rows that are statistics groups.
        tasks: the number of tasks that keeps a large server busy, with sums that cost little.
        enough_tasks: below so many tasks, channels are cut into parts; from it on, tasks grow.
        rows_of_part: the least rows of columns in a part, which costs each channel about ten rows.
        rows_in_order: a channel's rows that are read before the next channel's where dx does not
            depend on sums: memory is read in long runs, but each piece has a fixed cost.
        row_apart: longer rows' sums of parameters are a step of their own, since so many sums do
            not fit the L2 cache beside the row.
        streamed_row: the least bytes of a row that bypasses the caches, since its ends are partial
            lines; twice as many for rows of partial lines.
        fetched: the share of the cache in bytes of tensors from which rows are prefetched; four
            times as much for columns, and eight times for elements of the row itself.
    """

    column_run: int = 32
    moments_run: int = 96
    half_moments_run: int = 48
    far_run: int = 200
    far_apart: int = 32 << 20
    longest_row: int = 1 << 13
    repeated: int = 1 << 11
    rows: int = 128
    small: int = 1 << 14
    shared: int = 1 << 17
    part: int = 1 << 13
    in_cache: int = 1 << 19
    tasks: int = 64
    enough_tasks: int = 16
    rows_of_part: int = 256
    rows_in_order: int = 4
    row_apart: int = 40_000
    streamed_row: int = 768
    fetched: float = 0.5


#: The policy of all plans.
POLICY = Policy()
