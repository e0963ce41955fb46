"""The cases on a GPU: those of the CPU's suite that a training has, and ResNet-50's at batch 256.

1. The CPU suite's shapes and ResNet-50's layers at batch 256 meet all gradients that a GPU's
   training has (:data:`GRADIENTS`) × {float32, bfloat16, float16, with float32 parameters} ×
   {contiguous, channels-last}, where they have four axes.
2. Some of them (:data:`FORWARD`) meet the forward passes and the layers' steps in the same dtypes
   and layouts.
3. :data:`LONG_ROWS` is met by the gradients and the forward pass in float16 alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from ..suite import (
    BATCH_NORM_SAMPLE,
    BFLOAT16,
    DENSE,
    FLOAT16,
    FLOAT32,
    FORWARD_GROUP_NORM,
    GROUP_NORM,
    OTHERS,
    RESNET_50,
    SMALL,
    SMALL_GROUP_NORM,
    Case,
    Layout,
    Operator,
    Part,
    Shape,
    by_look,
)

#: Every shape that a batch norm of ResNet-50 sees at batch 256, each once.
RESNET_50_256: tuple[Shape, ...] = (
    (256, 64, 112, 112),
    (256, 64, 56, 56),
    (256, 256, 56, 56),
    (256, 128, 56, 56),
    (256, 128, 28, 28),
    (256, 512, 28, 28),
    (256, 256, 28, 28),
    (256, 256, 14, 14),
    (256, 1024, 14, 14),
    (256, 512, 14, 14),
    (256, 512, 7, 7),
    (256, 2048, 7, 7),
)
#: Few channels with long rows: as few rows as there are, and each longer than a block's.
LONG_ROWS: Shape = (20, 6, 65536)

GRADIENTS = (Operator.TRAIN, Operator.EVAL, Operator.REDUCE, Operator.ELEMT)

#: What the forward pass and the layers meet: large and middle-sized tensors, and small ones.
FORWARD: tuple[Shape, ...] = (
    *((256, 64, 112, 112), (256, 256, 56, 56), (256, 1024, 14, 14), (256, 2048, 7, 7)),
    *BATCH_NORM_SAMPLE,
    *SMALL,
)

_DTYPES = (FLOAT32, BFLOAT16, FLOAT16)
_OPERATORS = {
    (Part.GRADIENTS, False): GRADIENTS,
    (Part.GRADIENTS, True): (Operator.GROUP_NORM,),
    (Part.FORWARD, False): (Operator.FORWARD,),
    (Part.FORWARD, True): (Operator.FORWARD_GROUP_NORM,),
    (Part.LAYERS, False): (Operator.LAYER_BATCH_NORM,),
    (Part.LAYERS, True): (Operator.LAYER_GROUP_NORM,),
}


def _cases(
    part: Part,
    shapes: Iterable[tuple[Shape, int]],
    dtypes: Iterable[str] = _DTYPES,
    layouts: Iterable[Layout] = DENSE,
) -> Iterator[Case]:
    kinds, places = tuple(dtypes), tuple(layouts)
    for shape, groups in shapes:
        for dtype in kinds:
            for layout in places:
                if len(shape) != 4 and (layout is not Layout.CONTIGUOUS or part is Part.LAYERS):
                    continue
                for operator in _OPERATORS[part, bool(groups)]:
                    yield Case(operator, shape, dtype, FLOAT32, layout, groups)


def suite() -> tuple[Case, ...]:
    """Every case, each once, in the order in which they run: those of one look in a row."""
    shapes = [(shape, 0) for shape in (*RESNET_50_256, *RESNET_50, *OTHERS, *SMALL)]
    forward = [*((shape, 0) for shape in FORWARD), *FORWARD_GROUP_NORM]
    long = [(LONG_ROWS, 0)]
    groups = [
        _cases(Part.GRADIENTS, [*shapes, *GROUP_NORM, *SMALL_GROUP_NORM]),
        _cases(Part.GRADIENTS, long, [FLOAT16]),
        _cases(Part.FORWARD, [*forward, *SMALL_GROUP_NORM]),
        _cases(Part.FORWARD, long, [FLOAT16]),
        _cases(Part.LAYERS, [*forward, *SMALL_GROUP_NORM]),
    ]
    return by_look(groups)


#: The quick run: every operator, dtype and layout, sizes in and out of the caches.
_QUICK = frozenset(
    (
        "train/256x64x112x112/bfloat16/contiguous",
        "train/256x256x56x56/float32/contiguous",
        "train/256x256x56x56/float16/channels-last",
        "train/32x1024x14x14/bfloat16/channels-last",
        "train/20x6x65536/float16/contiguous",
        "train/8x16x8x8/float32/contiguous",
        "eval/256x256x56x56/bfloat16/contiguous",
        "eval/64x128/float32/contiguous",
        "reduce/256x256x56x56/bfloat16/channels-last",
        "reduce/8x16x8x8/bfloat16/contiguous",
        "elemt/256x256x56x56/float32/contiguous",
        "elemt/8x16x8x8/float32/contiguous",
        "group-norm/4x320x64x64/groups-32/bfloat16/channels-last",
        "group-norm/4x320x64x64/groups-32/float32/contiguous",
        "group-norm/8x16x8x8/groups-4/float16/contiguous",
        "forward/256x256x56x56/bfloat16/contiguous",
        "forward-group-norm/4x320x64x64/groups-32/bfloat16/channels-last",
        "layer-batch-norm/256x256x56x56/float16/channels-last",
        "layer-group-norm/4x320x64x64/groups-32/bfloat16/contiguous",
    )
)


def quick() -> tuple[Case, ...]:
    """A fixed part of :func:`suite`."""
    return tuple(case for case in suite() if case.id in _QUICK)
