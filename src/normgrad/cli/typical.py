"""Typical calls of every kind, for which ``normgrad warmup`` compiles kernels."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from .. import views
from ..backends.cpu.schedule import Schedule, build
from ..contract import Kind, Operator, check, shapes_of
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


def schedules(
    operators: Sequence[str], dtypes: Sequence[DType], layouts: Sequence[str]
) -> Iterator[Schedule]:
    """Schedules that together need every kernel which calls of these operators may need.

    The layouts are some of LAYOUTS, of which mixed stands for tensors of several layouts or dtypes.
    """
    formats = [(layout, dtype) for layout in (CONTIGUOUS, CHANNELS_LAST) for dtype in dtypes]
    pairs = [(format, format) for format in formats if format[0] in layouts]
    if MIXED in layouts:
        pairs += itertools.permutations(formats, 2)
    for name in operators:
        calls = itertools.product(_choices(name), _SHAPES, pairs, (True, False))
        for choices, shape, (one, other), optional in calls:
            yield _schedule(PLANNED[name], choices, shape, one, other, optional)


def _choices(name: str) -> Iterator[dict[str, Any]]:
    """An operator's arguments that are not tensors, in all combinations that affect kernels."""
    entries = sum(output.mask is not None for output in PLANNED[name].all_outputs)
    masks = [mask[:entries] for mask in _MASKS]
    values: dict[str, Sequence[Any]] = {"training": (True, False), "output_mask": masks}
    values |= {"eps": (1e-5,), "num_groups": (_GROUPS,)}
    each = {name: values.get(name, (default,)) for name, default in choices_of(name).items()}
    for combination in itertools.product(*each.values()):
        yield dict(zip(each, combination, strict=True))


def _data(shape: tuple[int, ...], format: _Format) -> TensorSpec:
    layout, dtype = format
    samples, channels, positions = shape
    if layout == CONTIGUOUS:
        return TensorSpec(shape, dtype)
    outer, position, channel = contiguous_strides((samples, positions, channels))
    return TensorSpec(shape, dtype, (outer, channel, position))


def _schedule(
    operator: Operator,
    choices: Mapping[str, Any],
    shape: tuple[int, ...],
    one: _Format,
    other: _Format,
    optional: bool,
) -> Schedule:
    """A schedule for data of one format, except that the first tensor has a format of its own.

    The first is grad_out, or a forward pass's input; ``optional`` is whether optional tensors are
    given.
    """
    if "normalized_shape" in choices:
        choices = {**choices, "normalized_shape": shape[1:]}
    options = operator.read_options(**choices)
    data, counts = _data(shape, other), TensorSpec((_RANKS,), "int32")
    shapes = shapes_of(operator, options, {"input": data, "counts": counts})
    of_kind = {kind: TensorSpec(sizes, "float32") for kind, sizes in shapes.items()}
    of_kind |= {Kind.DATA: data, Kind.COUNT: counts}
    parameters = [each for each in operator.parameters if each.required or optional]
    specs = {each.name: of_kind[each.kind] for each in parameters}
    specs[parameters[0].name] = _data(shape, one)
    outputs = {each.name: data for each in operator.all_outputs if each.kind is Kind.DATA}
    checked = check(operator, options, specs, outputs)
    return build(views.problem(operator, options, specs, checked), this_machine())
