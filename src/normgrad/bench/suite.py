"""The cases: which operator on which shape, dtypes and layout. Data alone, nothing is computed.

The full cross product would take hours and say little more, so that it is cut by this rule:

1. ResNet-50's layers at batch 32, and group norm's shapes, meet everything common: all of their
   operators × {float32, bfloat16, float16, with float32 parameters} × {contiguous, channels-last}.
2. The other shapes of batch norm, small ones among them, meet all operators × {float32, bfloat16}
   contiguous, and all operators in float32 channels-last where they have four axes.
3. What is less common is met by two shapes for each kind of operator (:data:`BATCH_NORM_SAMPLE`,
   :data:`GROUP_NORM_SAMPLE`), one with long rows or few channels, one with short rows or many:

   - mixed and cropped layouts × all operators × {float32, bfloat16};
   - parameters in half precision × all operators × {bfloat16, float16} × {contiguous,
     channels-last}.

So every dtype, every pair of dtypes and every layout meets every operator.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import Enum

from .. import dtypes

Shape = tuple[int, ...]


class Operator(Enum):
    """What is computed; the value is how a case's id begins."""

    TRAIN = "train"
    EVAL = "eval"
    #: Evaluation with output_mask (True, False, False), which never reads x.
    EVAL_INPUT = "eval-input"
    REDUCE = "reduce"
    ELEMT = "elemt"
    GROUP_NORM = "group-norm"

    @property
    def function(self) -> str:
        """The public function, and the operator's name in plans."""
        return {
            Operator.REDUCE: "batch_norm_backward_reduce",
            Operator.ELEMT: "batch_norm_backward_elemt",
            Operator.GROUP_NORM: "group_norm_backward",
        }.get(self, "batch_norm_backward")

    @property
    def streams(self) -> int:
        """Tensors that go through memory once in the best case: read dy and x, write dx."""
        return 2 if self in (Operator.REDUCE, Operator.EVAL_INPUT) else 3


class Layout(Enum):
    """How dy and x lie in memory."""

    CONTIGUOUS = "contiguous"
    CHANNELS_LAST = "channels-last"
    #: x channels-last, dy contiguous.
    X_CHANNELS_LAST = "x-channels-last"
    #: dy channels-last, x contiguous.
    DY_CHANNELS_LAST = "dy-channels-last"
    #: Both are ``[:, :, 1:, 1:]`` of tensors with one row and one column more: rows are contiguous
    #: and nothing else is.
    CROPPED = "cropped"


MIXED = (Layout.X_CHANNELS_LAST, Layout.DY_CHANNELS_LAST)
DENSE = (Layout.CONTIGUOUS, Layout.CHANNELS_LAST)

BATCH_NORM = tuple(operator for operator in Operator if operator is not Operator.GROUP_NORM)

RESNET_50: tuple[Shape, ...] = (
    (32, 64, 112, 112),
    (32, 64, 56, 56),
    (32, 256, 56, 56),
    (32, 512, 28, 28),
    (32, 1024, 14, 14),
    (32, 2048, 7, 7),
)
#: Few channels, short rows, large planes, three axes, two axes wide and tall.
OTHERS: tuple[Shape, ...] = (
    (8, 3, 224, 224),
    (256, 512, 4, 4),
    (20, 6, 256, 256),
    (32, 128, 1024),
    (256, 1024),
    (4096, 64),
)
#: Where what counts is how long a call takes that has next to nothing to do.
SMALL: tuple[Shape, ...] = ((8, 16, 8, 8), (64, 128))

#: Shapes with their numbers of groups: diffusion models' layers, and the two extremes.
GROUP_NORM: tuple[tuple[Shape, int], ...] = (
    ((4, 320, 64, 64), 32),
    ((4, 640, 32, 32), 32),
    ((8, 1280, 16, 16), 32),
    ((1, 128, 256, 256), 32),
    ((16, 256, 32, 32), 1),
    ((16, 256, 32, 32), 256),
)

BATCH_NORM_SAMPLE: tuple[Shape, ...] = ((32, 64, 56, 56), (32, 1024, 14, 14))
GROUP_NORM_SAMPLE: tuple[tuple[Shape, int], ...] = (((4, 320, 64, 64), 32), ((16, 256, 32, 32), 1))

FLOAT32, BFLOAT16, FLOAT16 = "float32", "bfloat16", "float16"
HALVES = (BFLOAT16, FLOAT16)


@dataclass(frozen=True)
class Case:
    """One thing to measure.

    Attributes:
        operator: what is computed.
        shape: of x and dy, channels second.
        dtype: of x and dy.
        parameters: the dtype of the per-channel tensors.
        layout: of x and dy.
        groups: of group norm; 0 for the others.
    """

    operator: Operator
    shape: Shape
    dtype: str = FLOAT32
    parameters: str = FLOAT32
    layout: Layout = Layout.CONTIGUOUS
    groups: int = 0

    @property
    def id(self) -> str:
        """The case's name in tables and files; it never changes for the same case."""
        dtype = self.dtype
        if self.parameters != FLOAT32:
            dtype += "+half-parameters"
        groups = [f"groups-{self.groups}"] if self.groups else []
        return "/".join(
            (self.operator.value, spelled(self.shape), *groups, dtype, self.layout.value)
        )

    @property
    def elements(self) -> int:
        """Of one tensor."""
        return math.prod(self.shape)

    @property
    def tensor_bytes(self) -> int:
        """Of one tensor."""
        return self.elements * dtypes.BY_NAME[self.dtype].itemsize

    @property
    def bytes(self) -> int:
        """What has to go through memory: each tensor that is needed, once."""
        return self.operator.streams * self.tensor_bytes


def spelled(shape: Shape) -> str:
    """A shape in a name: 32x64x56x56."""
    return "x".join(map(str, shape))


def _cases(
    shapes: Iterable[tuple[Shape, int]],
    dtypes_: Iterable[tuple[str, str]],
    layouts: Iterable[Layout],
) -> Iterator[Case]:
    # The operators innermost: cases next to each other share their data.
    kinds = list(dtypes_)
    places = list(layouts)
    for shape, groups in shapes:
        operators = (Operator.GROUP_NORM,) if groups else BATCH_NORM
        for dtype, parameters in kinds:
            for layout in places:
                if len(shape) != 4 and layout is not Layout.CONTIGUOUS:
                    continue
                for operator in operators:
                    yield Case(operator, shape, dtype, parameters, layout, groups)


def _plain(shapes: Iterable[Shape]) -> list[tuple[Shape, int]]:
    return [(shape, 0) for shape in shapes]


def suite() -> tuple[Case, ...]:
    """Every case, each once, in the order in which they run."""
    common = [(dtype, FLOAT32) for dtype in (FLOAT32, BFLOAT16, FLOAT16)]
    two = common[:2]
    half = [(dtype, dtype) for dtype in HALVES]
    sample = [*_plain(BATCH_NORM_SAMPLE), *GROUP_NORM_SAMPLE]
    rest = _plain((*OTHERS, *SMALL))
    groups = [
        _cases([*_plain(RESNET_50), *GROUP_NORM], common, DENSE),
        _cases(rest, two, [Layout.CONTIGUOUS]),
        _cases(rest, common[:1], DENSE),
        _cases(sample, two, (*MIXED, Layout.CROPPED)),
        _cases(sample, half, DENSE),
    ]
    return tuple(dict.fromkeys(case for group in groups for case in group))


#: The quick run: every operator, layout and pair of dtypes, tensors in and out of the caches.
_QUICK = frozenset(
    (
        "train/32x64x56x56/float32/contiguous",
        "train/32x64x56x56/float32/channels-last",
        "train/32x64x56x56/bfloat16/contiguous",
        "train/32x1024x14x14/float16/contiguous",
        "train/32x1024x14x14/bfloat16/channels-last",
        "train/32x1024x14x14/bfloat16+half-parameters/contiguous",
        "train/32x1024x14x14/float32/x-channels-last",
        "train/256x1024/float32/contiguous",
        "train/8x16x8x8/float32/contiguous",
        "train/64x128/bfloat16/contiguous",
        "eval/32x64x56x56/float32/contiguous",
        "eval/32x1024x14x14/float16+half-parameters/channels-last",
        "eval-input/32x64x56x56/float32/contiguous",
        "eval-input/64x128/float32/contiguous",
        "reduce/32x64x56x56/float32/contiguous",
        "reduce/32x1024x14x14/bfloat16/channels-last",
        "reduce/8x16x8x8/float32/contiguous",
        "elemt/32x64x56x56/float32/contiguous",
        "elemt/32x1024x14x14/bfloat16/contiguous",
        "elemt/32x1024x14x14/float32/dy-channels-last",
        "elemt/8x16x8x8/float32/contiguous",
        "group-norm/4x320x64x64/groups-32/float32/contiguous",
        "group-norm/4x320x64x64/groups-32/bfloat16/channels-last",
        "group-norm/16x256x32x32/groups-1/float32/cropped",
    )
)


def quick() -> tuple[Case, ...]:
    """A fixed part of :func:`suite` that takes less than a minute."""
    return tuple(case for case in suite() if case.id in _QUICK)
