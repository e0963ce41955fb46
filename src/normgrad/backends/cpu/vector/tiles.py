"""Copies between tensors and small tiles, for tensors whose layout or dtype kernels do not read.

A kernel takes tensors of one dtype and one memory layout. If a tensor differs, the kernel reads a
tile of it, a buffer in the workspace, or writes a tile that is copied to the tensor after;
no tensor is copied whole. A copying function is compiled for the dtypes of a tensor and of its
tile, and called through its address.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types

from .conversions import I64, narrow, widen
from .helpers import Emitter, helper, instruction
from .intrinsics import as_int64, not_inlined, shift
from .lanes import concatenated, shuffled

# mypy: disable-error-code="untyped-decorator,no-untyped-def"


def _converted(builder: Any, value: ir.Value, source: Any, target: Any) -> ir.Value:
    return value if source == target else narrow(builder, widen(builder, value, source), target)


@instruction(lambda source, i, target, j: types.void(source, types.intp, target, types.intp))
def move_element(emit: Emitter, source: Any, i: Any, target: Any, j: Any) -> None:
    """Copy an element, rounded to the target's type."""
    builder = emit.builder
    value = builder.load(builder.gep(source, [i]), align=1)
    value = _converted(builder, value, emit.types[0].dtype, emit.types[2].dtype)
    builder.store(value, builder.gep(target, [j]), align=1)


#: The columns of a panel, which is transposed at once. A vector holds every fourth column, one in
#: each lane of 128 bits, within which shuffles are cheap.
WIDE, NARROW = 16, 8


def _rows_of(storage: types.Type) -> int:
    """The number of a panel's rows: as many elements as fit 128 bits, or 256 for float64."""
    return 4 if storage in (types.float32, types.float64) else 8


def _interleaved(builder: Any, a: ir.Value, b: ir.Value, unit: int, lane: int) -> list[ir.Value]:
    """Interleave the lower halves of two vectors' lanes, unit by unit; and the upper halves."""
    count = a.type.count
    halves = []
    for first in (0, lane // 2):
        places = []
        for start in range(0, count, lane):
            for at in range(start + first, start + first + lane // 2, unit):
                places += [*range(at, at + unit), *range(count + at, count + at + unit)]
        halves.append(shuffled(builder, a, b, places))
    return halves


def _rows(builder: Any, vectors: list[ir.Value], lane: int) -> list[ir.Value]:
    """Transpose vectors that hold every fourth column, a lane for each, into rows of all columns.

    Pairs of vectors are interleaved until a row's four columns are adjacent in each lane; then the
    parts of a row are gathered from the lanes.
    """
    low, high = (_interleaved(builder, vectors[i], vectors[i + 1], 1, lane) for i in (0, 2))
    rows = [
        row for a, b in zip(low, high, strict=True) for row in _interleaved(builder, a, b, 2, lane)
    ]
    gathered = []
    for row in rows:
        for first in range(0, lane, 4):
            places = [
                at
                for start in range(0, row.type.count, lane)
                for at in range(start + first, start + first + 4)
            ]
            gathered.append(shuffled(builder, row, row, places))
    return gathered


def _panel(columns: int) -> Any:
    @instruction(lambda source, step, target, _: types.void(source, types.intp, target, types.intp))
    def move_panel(emit: Emitter, source: Any, step: Any, target: Any, target_step: Any) -> None:
        """Copy some rows of a panel's columns, which lie ``step`` apart, transposed."""
        builder, storage = emit.builder, emit.types[0].dtype
        kind, rows = emit.context.get_value_type(storage), _rows_of(storage)

        def at(pointer: Any, step: Any, index: int, kind: Any) -> Any:
            place = builder.gep(pointer, [builder.mul(step, I64(index))])
            return builder.bitcast(place, kind.as_pointer())

        vectors = []
        for first in range(4):
            places = [
                at(source, step, column, ir.VectorType(kind, rows))
                for column in range(first, columns, 4)
            ]
            loaded = [builder.load(place, align=1) for place in places]
            vectors.append(concatenated(builder, loaded))
        for index, row in enumerate(_rows(builder, vectors, rows)):
            value = _converted(builder, row, storage, emit.types[2].dtype)
            builder.store(value, at(target, target_step, index, value.type), align=1)

    return move_panel


_move_wide, _move_narrow = _panel(WIDE), _panel(NARROW)


@instruction(lambda source: types.int64(source))
def rows_of_panel(emit: Emitter, source: Any) -> Any:
    """The number of rows that are copied at once."""
    return I64(_rows_of(emit.types[0].dtype))


@helper
def move_panels(move_panel, width, source, source_step, target, target_step, high, first, columns):
    """Copy whole panels of ``width`` columns, from ``first`` on; returns the column after them."""
    j = first
    while j + width <= columns:
        for i in range(0, high, rows_of_panel(source)):
            move_panel(
                shift(source, i + j * source_step), source_step,
                shift(target, i * target_step + j), target_step,
            )  # fmt: skip
        j += width
    return j


@helper
def transpose(source, source_step, target, target_step, rows, columns):
    """Copy rows, whose elements are adjacent in the target; adjacent in the source are columns'."""
    not_inlined()
    unit = rows_of_panel(source)
    high = rows // unit * unit
    j = move_panels(
        _move_wide, WIDE, source, source_step, target, target_step, high, as_int64(0), columns
    )
    j = move_panels(
        _move_narrow, NARROW, source, source_step, target, target_step, high, j, columns
    )
    for c in range(columns):
        for i in range(high if c < j else 0, rows):
            move_element(source, i + c * source_step, target, i * target_step + c)


@helper
def move(source, target, rows, columns, steps, target_steps):
    """Copy rows and columns between two arrays, each with its own strides for both."""
    if steps[1] == 1 and target_steps[1] == 1:
        for i in range(rows):
            row, target_row = shift(source, i * steps[0]), shift(target, i * target_steps[0])
            for j in range(columns):
                move_element(row, j, target_row, j)
    elif steps[0] == 1 and target_steps[1] == 1:
        transpose(source, steps[1], target, target_steps[0], rows, columns)
    elif steps[1] == 1 and target_steps[0] == 1:
        transpose(source, steps[0], target, target_steps[1], columns, rows)
    else:
        for i in range(rows):
            for j in range(columns):
                at = i * target_steps[0] + j * target_steps[1]
                move_element(source, i * steps[0] + j * steps[1], target, at)


def mover(tensor, tile, writes, rows, columns, step, column_step, tile_step):
    """Copy a piece of a tensor to a tile, or if ``writes`` a tile to its place in the tensor."""
    steps, tile_steps = (step, column_step), (tile_step, as_int64(1))
    if writes:
        move(tile, tensor, rows, columns, tile_steps, steps)
    else:
        move(tensor, tile, rows, columns, steps, tile_steps)
