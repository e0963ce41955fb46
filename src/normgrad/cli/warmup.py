"""``normgrad warmup``: compile kernels in advance, so that no first call has to."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from typing import Annotated, Any

import typer

from ..backends.cpu.schedule.schedules import Schedule, build
from ..declarations import lowering
from ..declarations.contract import Kind, Operator, check, shapes_of
from ..operators.by_name import PLANNED, choices_of
from ..support import cache, torch_build
from ..support.compilers import BuildError
from ..support.machine import NOT_INSTALLED, this_machine, version
from ..support.settings import SettingError
from ..tensors import dtypes
from ..tensors.dtypes import DType
from ..tensors.specs import TensorSpec
from ..tensors.strides import contiguous_strides
from . import info, show
from .archives import InputError, one_of

_DTYPES = tuple(dtype.name for dtype in dtypes.FLOATS)

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


def warmup(
    operator: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help=f"Only for this operator: {', '.join(PLANNED)}."),
    ] = None,
    dtype: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help=f"Only for data of this dtype: {', '.join(_DTYPES)}."),
    ] = None,
    layout: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME",
            help=f"Only for data in this layout: {', '.join(LAYOUTS)}. In a mixed call tensors "
            "have several layouts or dtypes.",
        ),
    ] = None,
) -> None:
    """Compile kernels now, so that no first call has to.

    As many processes compile as there are cores. Kernels that are compiled already, or that the
    package brings for this processor, are not compiled again. Options can be given several times;
    without options all kernels are compiled, and, if PyTorch is installed, the C++ library for its
    layers.
    """
    for option, names, allowed in (
        ("--operator", operator, PLANNED),
        ("--dtype", dtype, _DTYPES),
        ("--layout", layout, LAYOUTS),
    ):
        for name in names or ():
            one_of(option, name, allowed)
    from ..backends.cpu.objects import store
    from ..backends.cpu.objects.units import every, needed

    units = every()
    if operator or dtype or layout:
        kinds = [dtypes.BY_NAME[name] for name in dtype or _DTYPES]
        calls = schedules(operator or tuple(PLANNED), kinds, layout or LAYOUTS)
        selected = {unit for schedule in calls for unit in needed(schedule)}
        units = [unit for unit in units if unit in selected]
    start = time.perf_counter()
    stored = store.find(units)
    rest = [unit for unit in units if unit not in stored]
    if rest:
        with show.progress(len(rest)) as advance:
            compiled = store.compiled(rest, lambda: None)
            with closing(compiled):  # an interrupt ends its processes
                for unit, content in compiled:
                    try:
                        store.keep(unit, content)
                    except OSError as error:
                        other = f"set {cache.VARIABLE} to a folder that can be written"
                        reason = f"kernels cannot be stored: {error}; {other}"
                        raise InputError("warmup", reason) from None
                    advance(unit)
    summary = ("ready", f"{len(units)}, in {time.perf_counter() - start:.1f} s")
    rows = [("kernels", (summary, *info.kernels_kept()))]
    if not (operator or dtype or layout) and version("torch") != NOT_INSTALLED:
        rows.append(("pytorch", (("layers run", _library()),)))
    show.table(rows)


def _library() -> str:
    """Build the C++ library for PyTorch's layers, and return which way they run."""
    start = time.perf_counter()
    try:
        if torch_build.missing() is None or not torch_build.is_on():
            return info.route_of_layers()
        with show.progress(1) as advance:
            torch_build.build()
            advance("library for PyTorch")
    except (BuildError, SettingError, OSError) as error:
        return f"by PyTorch; the C++ library is not built: {error}"
    return f"by the C++ library, built in {time.perf_counter() - start:.1f} s"


# Typical calls of every kind


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
        for choices, shape, (first, others), optional in calls:
            yield _schedule(PLANNED[name], choices, shape, first, others, optional)


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
    first: _Format,
    others: _Format,
    optional: bool,
) -> Schedule:
    """A schedule for a call with these formats of its first tensor and of the other data tensors.

    The first is grad_out, or a forward pass's input. ``optional`` says whether optional tensors are
    present.
    """
    if "normalized_shape" in choices:
        choices = {**choices, "normalized_shape": shape[1:]}
    options = operator.read_options(**choices)
    data, counts = _data(shape, others), TensorSpec((_RANKS,), "int32")
    shapes = shapes_of(operator, options, {"input": data, "counts": counts})
    of_kind = {kind: TensorSpec(sizes, "float32") for kind, sizes in shapes.items()}
    of_kind |= {Kind.DATA: data, Kind.COUNT: counts}
    parameters = [each for each in operator.inputs if each.required or optional]
    specs = {each.name: of_kind[each.kind] for each in parameters}
    specs[parameters[0].name] = _data(shape, first)
    outputs = {each.name: data for each in operator.all_outputs if each.kind is Kind.DATA}
    checked = check(operator, options, specs, outputs)
    return build(lowering.problem(operator, options, specs, checked), this_machine())
