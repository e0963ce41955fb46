"""Typical calls of every kind, for which ``normgrad warmup`` compiles kernels."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from .. import views
from ..backends.cpu.program import Program, build
from ..contract import Kind, Operator, check
from ..dtypes import DType
from ..layout import contiguous_strides
from ..machine import this_machine
from ..operators.by_name import PLANNED, choices_of
from ..tensor import TensorSpec

CONTIGUOUS, CHANNELS_LAST, MIXED = "contiguous", "channels-last", "mixed"
LAYOUTS = (CONTIGUOUS, CHANNELS_LAST, MIXED)

#: Samples, channels and positions: long channels, short ones, and those of one element, whose
#: groups are short or long, or rows shorter than a vector. All are large enough for threads.
_SHAPES = ((4, 64, 4096), (64, 64, 16), (256, 64, 1), (256, 512, 1), (2048, 16, 1))
_GROUPS, _RANKS = 8, 64
#: The output masks of a layer, of a network's first layer, and of one with frozen parameters.
_MASKS = ((True, True, True), (False, True, True), (True, False, False))

#: The format of a tensor: a layout and a dtype.
_Format = tuple[str, DType]


def programs(
    operators: Sequence[str], dtypes: Sequence[DType], layouts: Sequence[str]
) -> Iterator[Program]:
    """Programs that together need every kernel which such calls may need.

    Args:
        operators: the operators' names.
        dtypes: the data's dtypes; with mixed layouts, the first tensor may have another.
        layouts: some of LAYOUTS; mixed stands for tensors of several layouts or dtypes.
    """
    formats = [(layout, dtype) for layout in (CONTIGUOUS, CHANNELS_LAST) for dtype in dtypes]
    pairs = [(format, format) for format in formats if format[0] in layouts]
    if MIXED in layouts:
        pairs += itertools.permutations(formats, 2)
    for name in operators:
        operator = PLANNED[name]
        for choices, shape in itertools.product(_choices(name), _SHAPES):
            for one, other in pairs:
                for optional in (True, False):
                    yield _program(operator, choices, shape, one, other, optional)


def _choices(name: str) -> Iterator[dict[str, Any]]:
    """An operator's arguments that are not tensors, in all combinations that affect kernels."""
    known = choices_of(name)
    entries = sum(output.mask is not None for output in PLANNED[name].all_outputs)
    masks = [mask[:entries] for mask in _MASKS]
    values: dict[str, Sequence[Any]] = {"training": (True, False), "output_mask": masks}
    values |= {"eps": (1e-5,), "num_groups": (_GROUPS,)}
    each = [values.get(choice, (default,)) for choice, default in known.items()]
    for found in itertools.product(*each):
        yield dict(zip(known, found, strict=True))


def _data(shape: tuple[int, ...], format: _Format) -> TensorSpec:
    layout, dtype = format
    samples, channels, positions = shape
    if layout == CONTIGUOUS:
        return TensorSpec(shape, dtype)
    outer, position, channel = contiguous_strides((samples, positions, channels))
    return TensorSpec(shape, dtype, (outer, channel, position))


def _program(
    operator: Operator,
    choices: Mapping[str, Any],
    shape: tuple[int, ...],
    one: _Format,
    other: _Format,
    optional: bool,
) -> Program:
    """A program for data of one format, except that the first tensor has a format of its own.

    The first is grad_out, or a forward pass's input; ``optional`` is whether optional tensors are
    given.
    """
    samples, channels, _ = shape
    if "normalized_shape" in choices:
        choices = {**choices, "normalized_shape": shape[1:]}
    small = {
        Kind.CHANNEL: TensorSpec((channels,), "float32"),
        Kind.GROUP: TensorSpec((samples, _GROUPS), "float32"),
        Kind.RANKS: TensorSpec((_RANKS, channels), "float32"),
        Kind.COUNT: TensorSpec((_RANKS,), "int32"),
        Kind.ROW: TensorSpec((samples, 1, 1), "float32"),
        Kind.POSITION: TensorSpec(shape[1:], "float32"),
    }
    options = operator.read_options(**choices)
    specs: dict[str, TensorSpec] = {}
    for index, parameter in enumerate(operator.parameters):
        if parameter.kind is Kind.DATA:
            specs[parameter.name] = _data(shape, other if index else one)
        elif parameter.required or optional:
            specs[parameter.name] = small[parameter.kind]
    out = {
        output.name: _data(shape, other)
        for output in operator.outputs(options)
        if output.kind is Kind.DATA
    }
    outputs = check(operator, options, specs, out)
    return build(views.problem(operator, options, specs, outputs), this_machine())
