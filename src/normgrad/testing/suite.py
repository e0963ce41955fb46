"""The cases, in the order in which they are tried: what is said most often first."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cache
from typing import Any

from .. import dtypes
from ..contract import Kind
from ..operators.by_name import PLANNED
from .cases import IN_PLACE, Case, Topic, thinned
from .changes import LONG_SUMS, TWISTS, is_vector, mistakes
from .tensors import FORWARD, GRADIENTS, HALVES, LAYOUTS, Shape, operator_of

KINDS = (*GRADIENTS, *FORWARD)
DTYPES = tuple(dtype.name for dtype in dtypes.FLOATS)

#: Standard deviations between the input's mean and 0.
RATIOS = (1.0, 10.0, 1e2, 1e3, 1e4, 1e5, 1e6)
#: What halves can tell from their mean: beyond, most of their values are the same.
_HALF_RATIOS = (1.0, 10.0, 1e2)

#: Of every layout and dtype: rows that are short, long and no multiple of anything; no rows at all.
_SHAPES: tuple[Shape, ...] = ((4, 6, 9, 11), (2, 4, 1000), (33, 40))
_ODD: tuple[Shape, ...] = ((1, 4), (3, 4), (1, 4, 1, 1), (5, 1, 7), (2, 3, 257))
_EMPTY: tuple[Shape, ...] = ((0, 4, 5), (2, 0, 5), (2, 4, 0))
#: Larger than what is computed in one piece.
_LARGE: Shape = (16, 24, 28, 28)

#: Two channels of 2¹⁷ elements, in long rows or in as many samples. Where 64 sums run side by side
#: in float32, as vectorised loops have them, each has 2048 terms: an error of 100 unit roundoffs.
LONG: tuple[Shape, ...] = ((2, 2, 1 << 16), (1 << 16, 2, 2))

#: Those whose output depends on a mean that they find.
_FINDING = ("forward", "forward_group_norm", "forward_layer_norm")
#: How grad_out lies and how input does, where that is not alike.
_MIXED = (
    *(("contiguous", "channels_last"), ("channels_last", "contiguous")),
    ("sliced", "contiguous"),
)


#: The two in which most is tried.
_TWO_LAYOUTS = ("contiguous", "channels_last")


def _statistics(kind: str) -> Kind:
    """What has statistics of its own in a kind's operator."""
    return PLANNED[operator_of(kind)].statistics


def _is_normal(kind: str, dtype: str, layout: str) -> bool:
    """Whether the tighter bound of normally distributed data holds."""
    # Expanded values are no independent ones, and what ranks say is drawn otherwise. A mean that is
    # summed in float64 may be the neighbour of the one nearest to it, if its data are float64 too.
    neighbours = kind in _FINDING and dtype == "float64"
    return layout != "expanded" and kind != "gather" and not neighbours


def _case(topic: Topic, kind: str, shape: Shape, dtype: str = "float32", **more: Any) -> Case:
    """A case with two groups, where there are groups and channels for two."""
    axis = more.get("channel_axis", 1)
    groups = 2 if _statistics(kind) is Kind.GROUP and shape[axis] % 2 == 0 else 1
    return Case(topic, kind, shape, dtype, **{"groups": groups, **more})


def _plain(kind: str) -> Iterator[Case]:
    yield _case(Topic.PLAIN, kind, (3, 4, 5))


def _values(kind: str) -> Iterator[Case]:
    for dtype, shape in itertools.product(DTYPES, _SHAPES):
        base = _case(Topic.VALUES, kind, shape, dtype)
        for layout in LAYOUTS:
            yield replace(base, layout=layout, normal=_is_normal(kind, dtype, layout))
        for layout, other in _MIXED if kind in GRADIENTS else ():
            yield replace(base, layout=layout, x_layout=other, normal=True)
        for other in DTYPES:
            yield replace(base, parameters=other)
            if kind in GRADIENTS:
                yield replace(base, x_dtype=other)
    yield _case(Topic.VALUES, kind, _LARGE)


def _means(kind: str) -> Iterator[Case]:
    for dtype in ("float32", "bfloat16", "float64"):
        ratios = _HALF_RATIOS if dtype == "bfloat16" else RATIOS
        for ratio, layout in itertools.product(ratios, _TWO_LAYOUTS):
            yield _case(Topic.MEAN, kind, (8, 4, 16, 16), dtype, layout=layout, mean=ratio)


def _masks(kind: str) -> Iterator[Case]:
    entries = len({each.mask for each in PLANNED[operator_of(kind)].all_outputs} - {None})
    masks = itertools.product((True, False), repeat=entries) if entries else ()
    for layout, mask in itertools.product(_TWO_LAYOUTS, masks):
        yield _case(Topic.MASKS, kind, (3, 4, 5, 6), layout=layout, mask=mask)


def _absent(kind: str) -> Iterator[Case]:
    base = _case(Topic.ABSENT, kind, (3, 4, 25))
    call = base.call()
    optional = [p.name for p in call.operator.parameters if not p.required]
    given = [name for name in optional if call.tensors.get(name) is not None]
    for count in range(1, len(given) + 1):
        for absent in itertools.combinations(given, count):
            yield replace(base, absent=absent)


def _vectors(kind: str) -> Iterator[Case]:
    base = _case(Topic.VECTORS, kind, (3, 4, 5, 6))
    call = base.call()
    if any(is_vector(call, name) for name in call.tensors):
        for layout in _TWO_LAYOUTS:
            for vectors in ("sliced", "negative", "expanded"):
                yield replace(base, layout=layout, vectors=vectors)


def _outputs(kind: str) -> Iterator[Case]:
    operator = PLANNED[operator_of(kind)]
    if operator.all_outputs[0].kind is not Kind.DATA:
        return
    tensors = {parameter.name for parameter in operator.parameters}
    in_place = [out for out, name in IN_PLACE.items() if name in tensors]
    for shape, layout in itertools.product(((3, 4, 5, 6), (4, 8, 40, 40)), _TWO_LAYOUTS):
        for out in ("contiguous", "channels_last", "sliced", "negative", "odd", *in_place):
            yield _case(Topic.OUTPUTS, kind, shape, layout=layout, out=out)


def _shapes(kind: str) -> Iterator[Case]:
    for shape in _ODD:
        yield _case(Topic.SHAPES, kind, shape)
    for rank, axis in itertools.product(range(2, 9), (1, -1)):
        shape = tuple(4 if index == axis % rank else 2 for index in range(rank))
        has_no_axis = axis < 0 and _statistics(kind) is Kind.ROW
        if (kind != "gather" or axis % rank == 1) and not has_no_axis:
            yield _case(Topic.SHAPES, kind, shape, channel_axis=axis)
    for shape, layout in itertools.product(_EMPTY, _TWO_LAYOUTS):
        yield Case(Topic.SHAPES, kind, shape, layout=layout)


def _special(kind: str) -> Iterator[Case]:
    groups = 4 if _statistics(kind) is Kind.GROUP else 1
    base = _case(Topic.SPECIAL, kind, (3, 4, 40), groups=groups)
    call = base.call()
    for change, twist in TWISTS.items():
        if not twist.fits(call):
            continue
        if change == LONG_SUMS:
            long = Case(Topic.SPECIAL, kind, LONG[0], change=LONG_SUMS)
            for shape, layout in itertools.product(LONG, _TWO_LAYOUTS):
                yield replace(long, shape=shape, layout=layout)
            yield from (replace(long, dtype=dtype) for dtype in HALVES)
        else:
            yield from (replace(base, layout=each, change=change) for each in _TWO_LAYOUTS)
    yield replace(base, shape=(4, 4, 128, 128), change="all terms positive")


def _mistakes(kind: str) -> Iterator[Case]:
    for plain in _plain(kind):
        for change in mistakes(plain.call()):
            yield replace(plain, topic=Topic.MISTAKES, change=change)


def _determinism(kind: str) -> Iterator[Case]:
    for dtype, layout in itertools.product(("float32", "bfloat16"), _TWO_LAYOUTS):
        yield _case(Topic.DETERMINISM, kind, _LARGE, dtype, layout=layout)


#: Each topic's cases; and of how many of a kind's a quick run takes one. It takes the first, and
#: those whose change is essential. Odd numbers, so that what alternates is not always left out.
_PARTS = {
    Topic.PLAIN: (_plain, 1),
    Topic.VALUES: (_values, 7),
    Topic.MEAN: (_means, 3),
    Topic.MASKS: (_masks, 5),
    Topic.ABSENT: (_absent, 5),
    Topic.VECTORS: (_vectors, 3),
    Topic.OUTPUTS: (_outputs, 7),
    Topic.SHAPES: (_shapes, 7),
    Topic.SPECIAL: (_special, 9),
    Topic.MISTAKES: (_mistakes, 3),
    Topic.DETERMINISM: (_determinism, 5),
}


def cases(quick: bool = False, kinds: Sequence[str] = KINDS) -> tuple[Case, ...]:
    """The suite.

    Args:
        quick: a part of it, in which every kind, topic, dtype and layout still occurs.
        kinds: of ``GRADIENTS`` and ``FORWARD``.

    Raises:
        ValueError: another kind.
    """
    for kind in kinds:
        if kind not in KINDS:
            raise ValueError(f"kinds: {kind!r}; allowed: {', '.join(KINDS)}")
    return _cases(quick, tuple(kinds))


@cache
def _cases(quick: bool, kinds: tuple[str, ...]) -> tuple[Case, ...]:
    parts = (
        thinned(part(topic, kind), step if quick else 1)
        for (topic, (_, step)), kind in itertools.product(_PARTS.items(), kinds)
    )
    return tuple(itertools.chain.from_iterable(parts))


def part(topic: Topic, kind: str) -> Iterator[Case]:
    """A kind's cases of a topic."""
    return _PARTS[topic][0](kind)
