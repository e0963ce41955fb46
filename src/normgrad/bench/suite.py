"""The cases: which operator on which shape, dtypes and layout. Data alone, nothing is computed.

The full cross product would take hours and say little more, so that it is cut by this rule:

1. ResNet-50's layers at batch 32, and group norm's shapes, meet everything common: all of their
   gradients × {float32, bfloat16, float16, with float32 parameters} × {contiguous, channels-last}.
2. The other shapes of batch norm, small ones among them, meet all gradients × {float32, bfloat16}
   contiguous, and all gradients in float32 channels-last where they have four axes.
3. What is less common is met by two shapes for each kind of operator (:data:`BATCH_NORM_SAMPLE`,
   :data:`GROUP_NORM_SAMPLE`), one with long rows or few channels, one with short rows or many:

   - mixed and cropped layouts × all gradients × {float32, bfloat16};
   - parameters in half precision × all gradients × {bfloat16, float16} × {contiguous,
     channels-last}.

So every dtype, every pair of dtypes and every layout meets every gradient. The forward pass and the
layers meet less:

4. Three of ResNet-50's layers (:data:`FORWARD_RESNET_50`) and three of group norm's shapes meet all
   of their forward operators × the dtypes and layouts of rule 1; :data:`FORWARD_OTHERS` and the
   small shapes meet them as in rule 2; the samples' shapes meet them as in rule 3, but for mixed
   layouts, as there is one tensor alone, and with parameters in half precision contiguous alone.
5. A layer's step, forward and backward, is met by the same shapes where they have four axes (and a
   small one for group norm), in float32 and in bfloat16 with float32 parameters, contiguous and
   channels-last.

``batch_norm_gather_stats_with_counts`` has no cases: its tensors have an element for each rank and
channel, so that its time is that of any small call, whatever the layer's size, and none of the
figures here says anything of it. ``benchmarks/sync_batch_norm.py`` measures it where it is used.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from enum import Enum

from .. import dtypes

Shape = tuple[int, ...]


class Part(Enum):
    """What an operator belongs to; the parts are held to targets of their own."""

    GRADIENTS = "gradients"
    FORWARD = "forward passes"
    #: A layer's forward and backward pass, with autograd between them.
    LAYERS = "layers"


class Operator(Enum):
    """What is computed; the value is how a case's id begins."""

    TRAIN = "train"
    EVAL = "eval"
    #: Evaluation with output_mask (True, False, False), which never reads x.
    EVAL_INPUT = "eval-input"
    REDUCE = "reduce"
    ELEMT = "elemt"
    GROUP_NORM = "group-norm"
    #: Batch norm in training, which updates the running statistics in place.
    FORWARD = "forward"
    FORWARD_EVAL = "forward-eval"
    #: The statistics alone.
    STATS = "stats"
    #: All but the statistics.
    NORMALISE = "normalise"
    FORWARD_GROUP_NORM = "forward-group-norm"
    LAYER_BATCH_NORM = "layer-batch-norm"
    LAYER_GROUP_NORM = "layer-group-norm"

    @property
    def function(self) -> str:
        """The public function, and the operator's name in plans; of a layer its class."""
        return _FUNCTIONS.get(self, "batch_norm_backward")

    @property
    def part(self) -> Part:
        """What it belongs to."""
        if self in (Operator.LAYER_BATCH_NORM, Operator.LAYER_GROUP_NORM):
            return Part.LAYERS
        gradient = self in BATCH_NORM or self is Operator.GROUP_NORM
        return Part.GRADIENTS if gradient else Part.FORWARD

    @property
    def streams(self) -> int:
        """Tensors that go through memory once in the best case.

        Gradients read dy and x, and write dx; the forward pass reads x and writes y; a layer does
        the one after the other.
        """
        if self.part is Part.LAYERS:
            return 5
        if self.part is Part.FORWARD:
            return 1 if self is Operator.STATS else 2
        return 2 if self in (Operator.REDUCE, Operator.EVAL_INPUT) else 3


_FUNCTIONS = {
    Operator.REDUCE: "batch_norm_backward_reduce",
    Operator.ELEMT: "batch_norm_backward_elemt",
    Operator.GROUP_NORM: "group_norm_backward",
    Operator.FORWARD: "batch_norm",
    Operator.FORWARD_EVAL: "batch_norm",
    Operator.STATS: "batch_norm_stats",
    Operator.NORMALISE: "batch_norm_elemt",
    Operator.FORWARD_GROUP_NORM: "group_norm",
    Operator.LAYER_BATCH_NORM: "BatchNorm2d",
    Operator.LAYER_GROUP_NORM: "GroupNorm",
}


class Layout(Enum):
    """How dy and x lie in memory; the forward pass has x alone."""

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

#: Batch norm's gradients, and its forward pass; group norm's are one each.
BATCH_NORM = (
    *(Operator.TRAIN, Operator.EVAL, Operator.EVAL_INPUT),
    *(Operator.REDUCE, Operator.ELEMT),
)
BATCH_NORM_FORWARD = (
    *(Operator.FORWARD, Operator.FORWARD_EVAL),
    *(Operator.STATS, Operator.NORMALISE),
)

RESNET_50: tuple[Shape, ...] = (
    (32, 64, 112, 112),
    (32, 64, 56, 56),
    (32, 256, 56, 56),
    (32, 512, 28, 28),
    (32, 1024, 14, 14),
    (32, 2048, 7, 7),
)
#: ResNet-50's batch on a GPU: of 32 samples its last layers fit an L2 of 50 MB.
GPU_BATCH = 256
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

#: What the forward pass and the layers meet of the shapes above: long rows, short ones, and the
#: shortest; few channels, and two axes.
FORWARD_RESNET_50: tuple[Shape, ...] = (*BATCH_NORM_SAMPLE, (32, 2048, 7, 7))
FORWARD_OTHERS: tuple[Shape, ...] = ((8, 3, 224, 224), (256, 1024))
FORWARD_GROUP_NORM: tuple[tuple[Shape, int], ...] = (*GROUP_NORM_SAMPLE, ((8, 1280, 16, 16), 32))
#: A small group norm, for its layer alone.
SMALL_GROUP_NORM: tuple[tuple[Shape, int], ...] = (((8, 16, 8, 8), 4),)

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
    def look(self) -> Case:
        """What a case's tensors depend on: equal for cases that share them."""
        return replace(self, operator=Operator.GROUP_NORM if self.groups else Operator.TRAIN)

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
    part: Part,
    shapes: Iterable[tuple[Shape, int]],
    dtypes_: Iterable[tuple[str, str]],
    layouts: Iterable[Layout],
) -> Iterator[Case]:
    kinds = list(dtypes_)
    places = list(layouts)
    for shape, groups in shapes:
        for dtype, parameters in kinds:
            for layout in places:
                if len(shape) != 4 and (layout is not Layout.CONTIGUOUS or part is Part.LAYERS):
                    continue
                for operator in _operators(part, bool(groups)):
                    yield Case(operator, shape, dtype, parameters, layout, groups)


def _operators(part: Part, grouped: bool) -> tuple[Operator, ...]:
    if part is Part.GRADIENTS:
        return (Operator.GROUP_NORM,) if grouped else BATCH_NORM
    if part is Part.FORWARD:
        return (Operator.FORWARD_GROUP_NORM,) if grouped else BATCH_NORM_FORWARD
    return (Operator.LAYER_GROUP_NORM if grouped else Operator.LAYER_BATCH_NORM,)


def _plain(shapes: Iterable[Shape]) -> list[tuple[Shape, int]]:
    return [(shape, 0) for shape in shapes]


def _by_look(groups: Iterable[Iterable[Case]]) -> tuple[Case, ...]:
    """Every case once, in the order in which they run: those of one look in a row."""
    looks: dict[Case, dict[Case, None]] = {}
    for group in groups:
        for case in group:
            looks.setdefault(case.look, {})[case] = None
    return tuple(case for mine in looks.values() for case in mine)


def suite() -> tuple[Case, ...]:
    """Every case, each once, in the order in which they run: those of one look in a row."""
    common = [(dtype, FLOAT32) for dtype in (FLOAT32, BFLOAT16, FLOAT16)]
    one, two = common[:1], common[:2]
    half = [(dtype, dtype) for dtype in HALVES]
    sample = [*_plain(BATCH_NORM_SAMPLE), *GROUP_NORM_SAMPLE]
    rest = _plain((*OTHERS, *SMALL))
    forward = [*_plain(FORWARD_RESNET_50), *FORWARD_GROUP_NORM]
    forward_rest = _plain((*FORWARD_OTHERS, *SMALL))
    contiguous = [Layout.CONTIGUOUS]
    groups = [
        _cases(Part.GRADIENTS, [*_plain(RESNET_50), *GROUP_NORM], common, DENSE),
        _cases(Part.GRADIENTS, rest, two, contiguous),
        _cases(Part.GRADIENTS, rest, one, DENSE),
        _cases(Part.GRADIENTS, sample, two, (*MIXED, Layout.CROPPED)),
        _cases(Part.GRADIENTS, sample, half, DENSE),
        _cases(Part.FORWARD, forward, common, DENSE),
        _cases(Part.FORWARD, forward_rest, two, contiguous),
        _cases(Part.FORWARD, forward_rest, one, DENSE),
        _cases(Part.FORWARD, sample, two, [Layout.CROPPED]),
        _cases(Part.FORWARD, sample, half, contiguous),
        _cases(Part.LAYERS, [*forward, *forward_rest, *SMALL_GROUP_NORM], two, DENSE),
    ]
    return _by_look(groups)


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
        "forward/32x64x56x56/float32/contiguous",
        "forward/32x1024x14x14/bfloat16/channels-last",
        "forward/8x16x8x8/float32/contiguous",
        "forward-eval/32x64x56x56/float32/contiguous",
        "stats/32x64x56x56/float32/contiguous",
        "normalise/32x64x56x56/float32/contiguous",
        "forward-group-norm/4x320x64x64/groups-32/bfloat16/channels-last",
        "layer-batch-norm/32x64x56x56/float32/contiguous",
        "layer-batch-norm/8x16x8x8/float32/contiguous",
        "layer-group-norm/4x320x64x64/groups-32/float32/contiguous",
    )
)


def quick() -> tuple[Case, ...]:
    """A fixed part of :func:`suite` that takes less than a minute."""
    return tuple(case for case in suite() if case.id in _QUICK)


def on_gpu(cases: Iterable[Case]) -> tuple[Case, ...]:
    """The same cases, but ResNet-50's layers at batch :data:`GPU_BATCH`."""
    shapes = {shape: (GPU_BATCH, *shape[1:]) for shape in RESNET_50}
    return tuple(replace(case, shape=shapes.get(case.shape, case.shape)) for case in cases)
