"""The operators' suite: its cases, in the order in which they are tried, plain ones first."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache
from typing import Any

from ..declarations.contract import Kind
from ..operators.by_name import PLANNED
from ..tensors import dtypes
from .cases import IN_PLACE, OWNED, Case, Topic, thinned, varied
from .changes import LONG_SUMS, TWISTS, is_vector, mistakes
from .tensors import FORWARD, GRADIENTS, HALVES, LAYOUTS, Shape, operator_of

KINDS = (*GRADIENTS, *FORWARD)
DTYPES = tuple(dtype.name for dtype in dtypes.FLOATS)

_RATIOS = (1.0, 10.0, 1e2, 1e3, 1e4, 1e5, 1e6)
#: Values of |mean|/std of the input, by dtype. Beyond those of halves, rounding makes most of the
#: values equal.
RATIOS = {**dict.fromkeys(DTYPES, _RATIOS), **dict.fromkeys(HALVES, _RATIOS[:3])}

#: Shapes tried in every layout and dtype: short rows of odd length, long rows, and no rows.
SHAPES: tuple[Shape, ...] = ((4, 6, 9, 11), (2, 4, 1000), (33, 40))
_ODD: tuple[Shape, ...] = ((1, 4), (3, 4), (1, 4, 1, 1), (5, 1, 7), (2, 3, 257), (6, 4, 3))
_EMPTY: tuple[Shape, ...] = ((0, 4, 5), (2, 0, 5), (2, 4, 0))
#: More elements than the engine computes in one piece.
_LARGE: Shape = (16, 24, 28, 28)

#: Sizes at which kernels change their ways, in tensors that are else as small as can be: channels,
#: samples, and elements of a row, each just above a power of two.
SIZES: tuple[Shape, ...] = (
    (3, 33, 5), (2, 65, 3), (2, 129, 2), (2, 1025, 1), (65537, 2, 1), (2, 2, 2049), (1, 2, 65537),
    (6, 4, 7),
)  # fmt: skip
#: The same for operators with statistics of a row, which is the last axis.
_SIZES_OF_ROWS: tuple[Shape, ...] = (
    (3, 33), (2, 65), (3, 129), (2, 1025), (65537, 2), (3, 2049), (2, 65537), (6, 7),
)  # fmt: skip
#: The numbers of groups by channels, where there are more than two.
_GROUPS = {18: 9, 33: 33, 65: 13, 129: 3, 1025: 41}

#: Two channels of 2¹⁷ elements, in long rows or in as many samples. Where 64 sums run side by side
#: in float32, as vectorised loops have them, each has 2048 terms: an error of 100 unit roundoffs.
LONG: tuple[Shape, ...] = ((2, 2, 1 << 16), (1 << 16, 2, 2))

#: The layouts of grad_out and input, where they differ.
_MIXED = (
    ("constant", "contiguous"),
    ("contiguous", "channels_last"),
    ("channels_last", "contiguous"),
    ("sliced", "contiguous"),
)
#: The two layouts that most topics use.
_TWO_LAYOUTS = ("contiguous", "channels_last")


def _statistics(kind: str) -> Kind:
    """What a kind's statistics have one value for: a channel, a group or a row."""
    return PLANNED[operator_of(kind)].statistics


def _is_normal(kind: str, layout: str) -> bool:
    """Whether the tighter bound of normally distributed data holds."""
    # Repeated values are not independent, and ranks' statistics are drawn from other distributions.
    return layout not in ("expanded", "constant") and kind != "gather"


def _case(topic: Topic, kind: str, shape: Shape, dtype: str = "float32", **more: Any) -> Case:
    """A case, with two groups if the operator has groups and the channels divide into two."""
    axis = more.get("channel_axis", 1)
    groups = 2 if _statistics(kind) is Kind.GROUP and shape[axis] % 2 == 0 else 1
    return Case(topic, kind, shape, dtype, **{"groups": groups, **more})


def _plain(kind: str, topic: Topic = Topic.PLAIN) -> Iterator[Case]:
    yield _case(topic, kind, (3, 4, 5))


def _values(kind: str) -> Iterator[Case]:
    for dtype, shape in itertools.product(DTYPES, SHAPES):
        base = _case(Topic.VALUES, kind, shape, dtype)
        for layout in LAYOUTS[:-1]:  # where all is one value, the variance is nothing but rounding
            yield replace(base, layout=layout, normal=_is_normal(kind, layout))
        for layout, other in _MIXED if kind in GRADIENTS else ():
            yield replace(base, layout=layout, x_layout=other, normal=_is_normal(kind, layout))
        for other in DTYPES:
            yield replace(base, parameters=other)
            if kind in GRADIENTS:
                yield replace(base, x_dtype=other)
    yield _case(Topic.VALUES, kind, _LARGE)


def _means(kind: str) -> Iterator[Case]:
    for dtype in ("float32", "bfloat16", "float64"):
        base = _case(Topic.MEAN, kind, (8, 4, 16, 16), dtype)
        yield from varied(base, mean=RATIOS[dtype], layout=_TWO_LAYOUTS)


def _masks(kind: str) -> Iterator[Case]:
    entries = len({each.mask for each in PLANNED[operator_of(kind)].all_outputs} - {None})
    masks = itertools.product((True, False), repeat=entries) if entries else ()
    yield from varied(_case(Topic.MASKS, kind, (3, 4, 5, 6)), layout=_TWO_LAYOUTS, mask=masks)


def _absent(kind: str) -> Iterator[Case]:
    base = _case(Topic.ABSENT, kind, (3, 4, 25))
    call = base.call()
    optional = [p.name for p in call.operator.inputs if not p.required]
    present = [name for name in optional if name in call.arrays]
    for count in range(1, len(present) + 1):
        for absent in itertools.combinations(present, count):
            yield replace(base, absent=absent)
    for absent, dtype in itertools.product([(name,) for name in present], HALVES):
        yield replace(base, absent=absent, dtype=dtype)
        if "num_groups" in call.options:
            yield replace(base, shape=(3, 8, 25), groups=4, absent=absent, dtype=dtype)
    small = replace(base, std=0.01)  # of which eps is a large part
    if "eps" in call.options:
        yield replace(small, absent=("eps",))
        yield from varied(small, eps=(0.0, 1e-2))
    if "momentum" in call.options:
        yield replace(base, absent=("momentum",))
        yield from varied(base, momentum=(0.0, 1.0))


def _vectors(kind: str) -> Iterator[Case]:
    base = _case(Topic.VECTORS, kind, (3, 4, 5, 6))
    call = base.call()
    if any(is_vector(call, name) for name in call.tensors):
        yield from varied(base, layout=_TWO_LAYOUTS, vectors=("sliced", "negative", "expanded"))


def _outputs(kind: str) -> Iterator[Case]:
    operator = PLANNED[operator_of(kind)]
    if operator.all_outputs[0].kind is not Kind.DATA:
        return
    tensors = {parameter.name for parameter in operator.inputs}
    in_place = [out for out, name in IN_PLACE.items() if name in tensors]
    outs = ("contiguous", OWNED, "channels_last", "sliced", "negative", "odd", *in_place)
    for shape in ((3, 4, 5, 6), (4, 8, 40, 40)):
        yield from varied(_case(Topic.OUTPUTS, kind, shape), layout=_TWO_LAYOUTS, out=outs)


def _shapes(kind: str) -> Iterator[Case]:
    for shape in _ODD:
        yield _case(Topic.SHAPES, kind, shape)
    statistics = _statistics(kind)
    for axis in (0, 2, -2) if statistics is not Kind.ROW and kind != "gather" else ():
        if axis or statistics is not Kind.GROUP:
            yield _case(Topic.SHAPES, kind, (4, 6, 4, 5), channel_axis=axis)
    for axes in (3, 1, 0) if statistics is Kind.ROW else ():
        yield _case(Topic.SHAPES, kind, (2, 3, 4, 5), row_axes=axes)
    for dtype in ("float32", "bfloat16"):
        base = _case(Topic.SHAPES, kind, (2, 4, 3, 5, 2), dtype, layout="channels_last")
        yield from (base, replace(base, shape=(2, 8, 3, 4, 5)))
    for rank, axis in itertools.product(range(2, 9), (1, -1)):
        shape = tuple(4 if index == axis % rank else 2 for index in range(rank))
        has_no_axis = axis < 0 and statistics is Kind.ROW
        if (kind != "gather" or axis % rank == 1) and not has_no_axis:
            yield _case(Topic.SHAPES, kind, shape, channel_axis=axis)
    yield from varied(Case(Topic.SHAPES, kind, ()), shape=_EMPTY, layout=_TWO_LAYOUTS)


def _sizes(kind: str) -> Iterator[Case]:
    statistics = _statistics(kind)
    shapes = _SIZES_OF_ROWS if statistics is Kind.ROW else SIZES
    if statistics is Kind.GROUP:
        shapes = (*shapes, (2, 18, 5))
    for index, shape in enumerate(shapes):
        base = _case(Topic.SIZES, kind, shape)
        if statistics is Kind.GROUP:
            base = replace(base, groups=_GROUPS.get(shape[1], base.groups))
        # A quick run takes the first of each shape: every second one is channels-last.
        layouts = _TWO_LAYOUTS[:: -1 if index % 2 else 1]
        yield from varied(base, layout=layouts, dtype=("float32", "bfloat16"))


def _special(kind: str) -> Iterator[Case]:
    groups = 4 if _statistics(kind) is Kind.GROUP else 1
    base = _case(Topic.SPECIAL, kind, (3, 4, 40), groups=groups)
    call = base.call()
    for change, twist in TWISTS.items():
        if not twist.fits(call):
            continue
        if change == LONG_SUMS:
            long = Case(Topic.SPECIAL, kind, LONG[0], change=LONG_SUMS)
            yield from varied(long, shape=LONG, layout=_TWO_LAYOUTS)
            yield from varied(long, shape=LONG, dtype=HALVES)
        else:
            yield from varied(replace(base, change=change), layout=_TWO_LAYOUTS)
    yield replace(base, shape=(4, 4, 128, 128), change="all terms positive")


def _mistakes(kind: str) -> Iterator[Case]:
    for case in _plain(kind, Topic.MISTAKES):
        yield from varied(case, change=mistakes(case.call()))


def _determinism(kind: str) -> Iterator[Case]:
    base = _case(Topic.DETERMINISM, kind, _LARGE)
    yield from varied(base, dtype=("float32", "bfloat16"), layout=_TWO_LAYOUTS)


def _concurrency(kind: str) -> Iterator[Case]:
    yield _case(Topic.CONCURRENCY, kind, (8, 12, 28, 28))


def _memory(kind: str) -> Iterator[Case]:
    for case in _plain(kind, Topic.MEMORY):
        yield from varied(case, dtype=DTYPES)


#: Each topic's cases of a kind, and a step: a quick run takes the first case, one in this many, and
#: those with an essential change. Steps are odd, lest one of two alternating values never occurs,
#: but for sizes, of which there are four cases each.
_PARTS: Mapping[Topic, tuple[Callable[[str], Iterator[Case]], int]] = {
    Topic.PLAIN: (_plain, 1),
    Topic.VALUES: (_values, 7),
    Topic.MEAN: (_means, 3),
    Topic.MASKS: (_masks, 5),
    Topic.ABSENT: (_absent, 5),
    Topic.VECTORS: (_vectors, 3),
    Topic.OUTPUTS: (_outputs, 7),
    Topic.SHAPES: (_shapes, 7),
    Topic.SIZES: (_sizes, 4),
    Topic.SPECIAL: (_special, 9),
    Topic.MISTAKES: (_mistakes, 3),
    Topic.DETERMINISM: (_determinism, 5),
    Topic.CONCURRENCY: (_concurrency, 1),
    Topic.MEMORY: (_memory, 2),
}


def cases(quick: bool = False, kinds: Sequence[str] = KINDS) -> tuple[Case, ...]:
    """The suite's cases.

    Args:
        quick: only a part, in which every kind, topic, dtype and layout still occurs.
        kinds: some of ``GRADIENTS`` and ``FORWARD``.

    Raises:
        ValueError: a kind is unknown.
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
