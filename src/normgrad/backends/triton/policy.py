"""The policy by which a problem is divided among programs, in one place."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Policy:
    """What programs should have, each number with its reason.

    Where the reason gives no times, the number is an estimate and was not measured.
    """

    #: The bytes that one thread reads of a tensor at once.
    vector: int = 16
    #: The bytes that one memory transaction moves, and those of a sector of the GPU's caches: a
    #: tile should read these of each position, and must if the tensors are not small.
    line: int = 128
    sector: int = 32
    #: If dy and x together have at most this many bytes, they are read in one pass even if tiles
    #: read parts of sectors: the extra bytes take less time than another launch.
    small: int = 1 << 20
    #: The bytes that a program should at least read: with them, each of 256 threads reads one
    #: vector of each of two tensors, which takes longer than starting a program.
    least: int = 8 << 10
    #: The number of vectors of a tensor that a thread reads before it uses the first. With two
    #: tensors and 256 threads that is 32 KiB, as much as each of 132 processors must have in flight
    #: for 4.8 TB/s if the latency is 700 ns.
    ahead: int = 4
    #: The channels of a tile if tensors have different layouts: about a square, to be transposed.
    square: int = 32
    #: The largest number of tiles that a program adds up one after the other in float64 arithmetic.
    #: With the additions within a tile and of 10⁸ elements' parts, a term is rounded 64 times at
    #: most, as often as the bound allows.
    most_wide: int = 16

    #: A size is divided into the largest pieces with which it, padded, is at most so many times as
    #: large as with those of the least padding.
    padding: float = 9 / 8
    #: Tiles are smaller if programs are fewer than this part of the processors.
    busy: float = 3 / 4

    # Elements of a thread

    #: Those of a group at least, where a group is small.
    of_group: int = 8
    #: Those of a channel that a program holds alone; with fewer, the work of each channel is a
    #: larger part of all instructions.
    of_channel: int = 16
    #: A channel or line alone takes so few warps that each has up to so many times as many elements
    #: as one of its threads should: a quarter more than 32 threads together.
    alone: int = 40
    #: The bytes of x of lines in the forward pass, and the largest number of elements. On an H200,
    #: layer norm of (4096, 4096) in float32 took 58, 42 and 47 µs with 32, 64 and 128 bytes; in
    #: bfloat16 37, 29 and 76.
    bytes_of_x: int = 64
    most_of_x: int = 32
    #: Those of dy and x of lines.
    of_both: int = 16
    #: Those of x, and of dy and x, of lines: in float64 arithmetic, and for threads that read less
    #: than ``narrow`` bytes at once, since each read keeps an address in registers.
    wide: tuple[int, int] = (4, 2)
    few: tuple[int, int] = (8, 4)
    narrow: int = 8
    #: Those of a program that has ``Device.persistent`` of them.
    persistent: int = 16

    # Channels and lines

    #: The largest number of positions of a channel for which group norm is read line by line. With
    #: more positions, the sums of each sample's channels take little memory: for 16 half-precision
    #: elements of dy and x, the pair of sums takes an eighth of their bytes.
    positions: int = 16
    #: The largest numbers of channels of a thread, whose coefficients take registers too: in tiles
    #: of different layouts, and in others. With more, 16 to 352 bytes per thread were spilled.
    channels: tuple[int, int] = (8, 4)
    #: The same of lines; at most half the number of elements. With as many lines as elements, one
    #: kernel of 40 spilled 8 bytes per thread.
    lines: int = 4
    #: The largest number of tiles of a channel or line, for the code is that of each.
    tiles: int = 3
    #: The number of warps that lines are divided among at least: as many as fit at once in an H200
    #: with 128 registers per thread. It is the same on all GPUs, so that sums are added in the same
    #: order.
    processors: int = 132
    warps: int = 132 * 16
    #: The number of warps of a program that has pieces of lines, since it cannot hold a whole one.
    piece_warps: int = 4
    #: The least number of lines whose terms of the parameters' gradients a program adds up, if each
    #: processor can then have two programs, and otherwise. With 8, writing and reading the sums of
    #: lines moves a third of the bytes of dy, x and dx in half precision, most of them in the L2
    #: cache.
    least_lines: tuple[int, int] = (8, 2)
    #: The number of tiles whose terms of the parameters' gradients are added in float32, and of
    #: such chains whose sums are added to each other in float32. A term has three roundings, of
    #: x − μ, its product with dy, and 1/std; then there are one for each tile and chain, and the
    #: result's: 16, as many as the bound allows. Longer chains of halves would exceed it too: where
    #: large terms cancel, the error is one of small terms that were added to a large sum.
    chain: int = 8
    chains: int = 4
    #: The same where both are of float64, whose bound allows 64 roundings; and the length of chains
    #: of float64 numbers beside float32 data.
    wide_chains: int = 32
    long_chain: int = 256
    #: The number of a program's lines that are read or computed at once, and the bytes of shared
    #: memory that they may take: a program of compute capability 8.6 has 99 KiB. On an H200, layer
    #: norm's gradients of (8192, 768) in float32 took 42 µs without, 36 with 2 and 29 with 3 or 4.
    stages: int = 3
    shared: int = 96 << 10

    # Sums that are added up

    #: The numbers of parameters, and of sums of each channel, that a program which only adds up
    #: sums processes at once; the largest number of all these sums, and of a group's channels.
    sum_channels: int = 8
    sum_rows: tuple[int, ...] = (1, 32, 256)
    sums: int = 2048
    fan: int = 128
    #: The number of batch norm's channels of which a program combines the parts: the fewer, the
    #: more programs. On an H200, 64 channels of 523 and 1046 parts took 12.5 and 19.5 µs with 8,
    #: 6.1 and 8.4 µs with 2.
    combined: int = 2
    #: A program that writes reads at least so many times as many bytes of the tensors as of sums.
    sums_again: int = 16


POLICY = Policy()
