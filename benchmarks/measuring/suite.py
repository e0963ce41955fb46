"""The benchmark's cases: operators with shapes, dtypes and layouts. Nothing is computed here.

The full cross product would take hours and tell little more, so these rules select cases:

1. Gradients and forward passes have each of their shapes in float32 and in bfloat16 with float32
   parameters, contiguous, and channels-last if there are four axes.
2. Less common cases have two shapes for each kind of operator (:data:`SAMPLE`), one with long rows
   or few channels, one with short rows or many: float16, whose times are within a few per cent of
   bfloat16's, in the same layouts; parameters in half precision, contiguous; mixed and cropped
   layouts, in float32 and bfloat16.
3. A shape is left out if one other has its size and another its rows: of ResNet-50's layers there
   is no (32, 256, 56, 56). Forward passes, which share their loops, have a part of the shapes.
4. Layers have the forward pass's shapes of four axes, and small ones; layers of rows some of the
   rows.
5. The cost of a call before it computes anything is measured on one tiny shape, for the operators
   that PyTorch has too, and for aclnn's first phase.
6. Layer norm and RMS norm have the shapes of language models and two extremes (:data:`ROWS`).
7. Very many groups of few elements (:data:`TINY`, :data:`TINY_ROWS`) are in float32, contiguous.
8. What users report to be slow: group norm with few positions, in all dense layouts
   (:data:`FEW_POSITIONS`); rows of millions of elements (:data:`HUGE_ROWS`); float64
   (:data:`DOUBLE`, :data:`DOUBLE_ROWS`); and layers whose input has another size at each step
   (:data:`NEW_SIZES`).

So every gradient of batch and group norm has every dtype, every pair of dtypes and every layout.
So has every forward pass, except for mixed layouts, since it has only one data tensor.
``batch_norm_gather_stats_with_counts`` has no cases: it takes as long as any small call.
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum

from normgrad.tensors import dtypes

Shape = tuple[int, ...]
Grouped = tuple[Shape, int]  # a shape and its number of groups, 0 for batch norm


class Part(Enum):
    """The part of the suite that an operator belongs to. Each part has its own targets."""

    GRADIENTS = "gradients"
    FORWARD = "forward passes"
    #: Forward and backward passes with statistics for each row of x.
    ROWS = "layer and RMS norm"
    #: Single calls on tensors so small that their fixed cost dominates.
    CALLS = "calls"
    #: A layer's forward and backward pass, with autograd between them.
    LAYERS = "layers"
    #: The same where each step's input has another size than all before.
    NEW_SIZES = "layers, new sizes"
    #: A model's forward and backward pass and its optimiser.
    STEPS = "training steps"
    ACLNN = "first phases of aclnn"


class Operator(Enum):
    """What a case computes.

    The value is the start of a case's id. A member's other fields are the name of the public
    function and operator (or the layer's class, the model's, or the kind of call); the part; and
    how many tensors go through memory once in the best case: gradients read dy and x, and write dx;
    the forward pass reads x and writes y; a layer does one after the other.
    """

    function: str
    part: Part
    streams: int

    def __new__(
        cls, value: str, function: str = "", part: Part = Part.GRADIENTS, streams: int = 0
    ) -> Operator:
        """Make a member whose value is the first field alone."""
        made = object.__new__(cls)
        made._value_ = value
        made.function, made.part, made.streams = function, part, streams
        return made

    TRAIN = "train", "batch_norm_backward", Part.GRADIENTS, 3
    EVAL = "eval", "batch_norm_backward", Part.GRADIENTS, 3
    #: Evaluation with output_mask (True, False, False), which never reads x.
    EVAL_INPUT = "eval-input", "batch_norm_backward", Part.GRADIENTS, 2
    REDUCE = "reduce", "batch_norm_backward_reduce", Part.GRADIENTS, 2
    ELEMT = "elemt", "batch_norm_backward_elemt", Part.GRADIENTS, 3
    GROUP_NORM = "group-norm", "group_norm_backward", Part.GRADIENTS, 3
    #: Batch norm in training, which updates the running statistics in place.
    FORWARD = "forward", "batch_norm", Part.FORWARD, 2
    FORWARD_EVAL = "forward-eval", "batch_norm", Part.FORWARD, 2
    #: The statistics alone, and the forward pass for given statistics.
    STATS = "stats", "batch_norm_stats", Part.FORWARD, 1
    NORMALISE = "normalise", "batch_norm_elemt", Part.FORWARD, 2
    FORWARD_GROUP_NORM = "forward-group-norm", "group_norm", Part.FORWARD, 2
    #: RMS norm's cases are named after its paper, root mean square layer normalisation.
    LAYER_NORM = "layer-norm", "layer_norm_backward", Part.ROWS, 3
    RMS_NORM = "rms-layer-norm", "rms_norm_backward", Part.ROWS, 3
    FORWARD_LAYER_NORM = "forward-layer-norm", "layer_norm", Part.ROWS, 2
    FORWARD_RMS_NORM = "forward-rms-layer-norm", "rms_norm", Part.ROWS, 2
    LAYER_BATCH_NORM = "layer-batch-norm", "BatchNorm2d", Part.LAYERS, 5
    LAYER_EVAL = "layer-batch-norm-eval", "BatchNorm2d", Part.LAYERS, 5
    LAYER_GROUP_NORM = "layer-group-norm", "GroupNorm", Part.LAYERS, 5
    LAYER_LAYER_NORM = "layer-of-rows", "LayerNorm", Part.LAYERS, 5
    LAYER_RMS_NORM = "layer-of-rows-rms", "RMSNorm", Part.LAYERS, 5
    NEW_BATCH_NORM = "new-sizes-batch-norm", "BatchNorm1d", Part.NEW_SIZES, 5
    NEW_GROUP_NORM = "new-sizes-group-norm", "GroupNorm", Part.NEW_SIZES, 5
    NEW_LAYER_NORM = "new-sizes-rows", "LayerNorm", Part.NEW_SIZES, 5
    NEW_RMS_NORM = "new-sizes-rows-rms", "RMSNorm", Part.NEW_SIZES, 5
    RESNET18 = "step-resnet18", "ResNet18", Part.STEPS, 1
    MOBILENET_V2 = "step-mobilenet-v2", "MobileNetV2", Part.STEPS, 1
    UNET = "step-unet", "UNet", Part.STEPS, 1
    #: Calls on tensors like an earlier call's, and calls with a new shape.
    ACLNN_KNOWN = "aclnn-known", "known", Part.ACLNN, 0
    ACLNN_NEW = "aclnn-new", "new", Part.ACLNN, 0


class Layout(Enum):
    """The memory layouts of dy and x; the forward pass has x alone."""

    CONTIGUOUS = "contiguous"
    CHANNELS_LAST = "channels-last"
    #: x channels-last, dy contiguous.
    X_CHANNELS_LAST = "x-channels-last"
    #: dy channels-last, x contiguous.
    DY_CHANNELS_LAST = "dy-channels-last"
    #: Both are ``[:, :, 1:, 1:]`` of tensors with one more row and column; only rows are
    #: contiguous.
    CROPPED = "cropped"


MIXED = (Layout.X_CHANNELS_LAST, Layout.DY_CHANNELS_LAST)
DENSE = (Layout.CONTIGUOUS, Layout.CHANNELS_LAST)

RESNET_50: tuple[Shape, ...] = (
    *((32, 64, 112, 112), (32, 64, 56, 56), (32, 512, 28, 28)),
    *((32, 1024, 14, 14), (32, 2048, 7, 7)),
)
#: ResNet-50's batch on a GPU. With 32 samples, its last layers would fit an L2 of 50 MB.
GPU_BATCH = 256
#: Few channels, short rows, large planes, three axes, two axes wide and tall; and shapes so small
#: that a call's fixed cost dominates.
OTHERS: tuple[Shape, ...] = (
    *((8, 3, 224, 224), (256, 512, 4, 4), (20, 6, 256, 256)),
    *((32, 128, 1024), (256, 1024), (4096, 64), (8, 16, 8, 8), (64, 128)),
)
#: Shapes and groups of diffusion models' layers, and the two extremes of group norm.
GROUP_NORM: tuple[Grouped, ...] = (
    *(((4, 320, 64, 64), 32), ((4, 640, 32, 32), 32), ((8, 1280, 16, 16), 32)),
    *(((1, 128, 256, 256), 32), ((16, 256, 32, 32), 1), ((16, 256, 32, 32), 256)),
)
#: The shapes of less common dtypes and layouts.
SAMPLE: tuple[Grouped, ...] = (
    *(((32, 64, 56, 56), 0), ((32, 1024, 14, 14), 0)),
    *(((4, 320, 64, 64), 32), ((16, 256, 32, 32), 1)),
)
#: The forward pass's shapes, of those above: long, short and the shortest rows; few channels, and
#: two axes; small ones.
FORWARD: tuple[Grouped, ...] = (
    *(*SAMPLE, ((8, 1280, 16, 16), 32), ((32, 2048, 7, 7), 0)),
    *(((8, 3, 224, 224), 0), ((256, 1024), 0), ((8, 16, 8, 8), 0), ((64, 128), 0)),
)
#: Small shapes for layers alone.
SMALL_LAYERS = (((4, 32, 14, 14), 0), ((8, 16, 8, 8), 4), ((4, 32, 14, 14), 8))
#: Numbers of rows and their lengths: transformers' tokens, a vocabulary's logits, and short rows.
ROWS: tuple[Shape, ...] = (
    *((8192, 768), (4096, 768), (8192, 1024), (4096, 4096), (512, 4096), (512, 1024)),
    *((64, 50257), (16384, 128)),
)
#: Very many statistics groups of few elements.
TINY: tuple[Grouped, ...] = (
    *(((2, 2_000_000), 0), ((4, 1_000_000), 0), ((2, 100_000), 0)),
    *(((100_000, 8, 1), 4), ((64, 4096, 2, 2), 32), ((64, 4096, 2, 2), 1024)),
)
TINY_ROWS: tuple[Shape, ...] = ((4_000_000, 1), (500_000, 8), (500_000, 16))
#: The deepest levels of diffusion models and detectors: 1 × 1 to 8 × 8 positions.
FEW_POSITIONS: tuple[Grouped, ...] = (
    *(((512, 256, 1, 1), 32), ((64, 512, 2, 2), 32), ((32, 512, 3, 3), 32)),
    *(((16, 1024, 4, 4), 32), ((32, 384, 7, 7), 32), ((16, 256, 8, 8), 32)),
)
#: Whole tensors normalised as one or a few rows.
HUGE_ROWS: tuple[Shape, ...] = ((1, 4_000_000), (2, 1_000_000))
#: Shapes of scientific models in float64.
DOUBLE: tuple[Grouped, ...] = (((4096, 64), 0), ((8, 32, 40, 40), 0), ((64, 64, 50), 8))
DOUBLE_ROWS: tuple[Shape, ...] = ((12800, 40), (8192, 64), (1024, 768))
#: The rows of layers.
LAYER_ROWS: tuple[Shape, ...] = ((64, 128), (512, 1024), (2048, 256), (8192, 768))
#: Layers whose sizes differ from step to step, with a size in the middle of theirs.
NEW_SIZES: tuple[tuple[Operator, Shape, int], ...] = (
    (Operator.NEW_BATCH_NORM, (3000, 64), 0),
    (Operator.NEW_GROUP_NORM, (4, 64, 1000), 8),
    (Operator.NEW_LAYER_NORM, (400, 768), 0),
    (Operator.NEW_RMS_NORM, (400, 1024), 0),
)
#: The shape of a training step's images, and the tiny shape that measures a call's fixed cost.
IMAGES: Shape = (16, 3, 64, 64)
CALL: Shape = (4, 8, 4)

FLOAT32, BFLOAT16, FLOAT16, FLOAT64 = "float32", "bfloat16", "float16", "float64"
COMMON = ((FLOAT32, FLOAT32), (BFLOAT16, FLOAT32))
HALVES = ((BFLOAT16, BFLOAT16), (FLOAT16, FLOAT16))
DOUBLES = ((FLOAT64, FLOAT64),)


@dataclass(frozen=True)
class Case:
    """One case: what is computed, on x and dy of this shape (channels second), dtype and layout.

    For a model's step, the dtype is autocast's. ``parameters`` is the dtype of the per-channel
    tensors, and ``groups`` group norm's number of groups, 0 for other operators.
    """

    operator: Operator
    shape: Shape
    dtype: str = FLOAT32
    parameters: str = FLOAT32
    layout: Layout = Layout.CONTIGUOUS
    groups: int = 0

    @classmethod
    def read(cls, cells: Mapping[str, str]) -> Case:
        """The case of a file's row; a ValueError or KeyError if it describes none."""
        shape = tuple(map(int, cells["shape"].split("x")))
        dtype, parameters, groups = cells["dtype"], cells["parameters"], int(cells["groups"])
        operator, layout = Operator(cells["operator"]), Layout(cells["layout"])
        return cls(operator, shape, dtype, parameters, layout, groups)

    @property
    def cells(self) -> dict[str, object]:
        """The case in a file's columns, by name; :meth:`read` reverts this."""
        return {
            "case": self.id,
            "operator": self.operator.value,
            "shape": spelled(self.shape),
            "dtype": self.dtype,
            "parameters": self.parameters,
            "layout": self.layout.value,
            "groups": self.groups,
        }

    @property
    def id(self) -> str:
        """The case's name in tables and files; it never changes for the same case."""
        has_halves = self.parameters in (BFLOAT16, FLOAT16)
        dtype = f"{self.dtype}+half-parameters" if has_halves else self.dtype
        groups = [f"groups-{self.groups}"] if self.groups else []
        return "/".join(
            (self.operator.value, spelled(self.shape), *groups, dtype, self.layout.value)
        )

    @property
    def part(self) -> Part:
        """The case's part; an operator on the tiny shape belongs to the calls."""
        part = self.operator.part
        tiny = self.shape == CALL and part in (Part.GRADIENTS, Part.FORWARD)
        return Part.CALLS if tiny else part

    @property
    def signature(self) -> Case:
        """The fields that determine the tensors; cases of equal signatures share their tensors."""
        alike = Operator.LAYER_NORM if self.part is Part.ROWS else Operator.TRAIN
        return replace(self, operator=alike)

    @property
    def elements(self) -> int:
        """The number of elements of one data tensor."""
        return math.prod(self.shape)

    @property
    def tensor_bytes(self) -> int:
        """The size of one data tensor in bytes."""
        return self.elements * dtypes.BY_NAME[self.dtype].itemsize

    @property
    def bytes(self) -> int:
        """The least memory traffic: the size of all tensors that are needed."""
        return self.operator.streams * self.tensor_bytes


def spelled(shape: Shape) -> str:
    """Spell a shape for a name: 32x64x56x56."""
    return "x".join(map(str, shape))


def _cases(
    part: Part,
    shapes: Iterable[Grouped],
    kinds: Iterable[tuple[str, str]],
    layouts: Iterable[Layout],
    operators: Iterable[Operator] = tuple(Operator),
) -> Iterator[Case]:
    """A part's operators on these shapes, in all of the dtypes and layouts that fit them."""
    operators = [operator for operator in operators if operator.part is part]
    for (shape, groups), kind in itertools.product(shapes, kinds):
        for layout in layouts if len(shape) == 4 else DENSE[:1]:
            for operator in operators:
                if operator.value.endswith("group-norm") == bool(groups):
                    yield Case(operator, shape, *kind, layout, groups)


def suite() -> tuple[Case, ...]:
    """All cases, in the order in which they run, with those of one signature in a row."""
    gradients = [*((shape, 0) for shape in (*RESNET_50, *OTHERS)), *GROUP_NORM]
    four_axes = [grouped for grouped in (*FORWARD, *SMALL_LAYERS) if len(grouped[0]) == 4]
    cases: list[Case] = []
    for part, shapes, less_common in (
        (Part.GRADIENTS, gradients, (*MIXED, Layout.CROPPED)),
        (Part.FORWARD, FORWARD, (Layout.CROPPED,)),
    ):
        cases += _cases(part, shapes, COMMON, DENSE)
        cases += _cases(part, SAMPLE, [(FLOAT16, FLOAT32)], DENSE)
        cases += _cases(part, SAMPLE, COMMON, less_common)
        cases += _cases(part, SAMPLE, HALVES, DENSE[:1])
    cases += _cases(Part.ROWS, [(shape, 0) for shape in ROWS], COMMON, DENSE)
    whole = (Operator.TRAIN, Operator.GROUP_NORM, Operator.FORWARD, Operator.FORWARD_GROUP_NORM)
    for part in (Part.GRADIENTS, Part.FORWARD):
        cases += _cases(part, TINY, COMMON[:1], DENSE[:1], whole)
        cases += _cases(part, FEW_POSITIONS, COMMON, DENSE, whole)
        cases += _cases(part, DOUBLE, DOUBLES, DENSE[:1], whole)
    cases += _cases(Part.ROWS, [(shape, 0) for shape in TINY_ROWS], COMMON[:1], DENSE[:1])
    cases += _cases(Part.ROWS, [(shape, 0) for shape in HUGE_ROWS], COMMON, DENSE[:1])
    cases += _cases(Part.ROWS, [(shape, 0) for shape in DOUBLE_ROWS], DOUBLES, DENSE[:1])
    of_rows = (Operator.LAYER_LAYER_NORM, Operator.LAYER_RMS_NORM)
    of_channels = [operator for operator in Operator if operator not in of_rows]
    cases += _cases(Part.LAYERS, four_axes, COMMON, DENSE, of_channels)
    cases += _cases(Part.LAYERS, [(shape, 0) for shape in LAYER_ROWS], COMMON, DENSE, of_rows)
    cases += [Case(operator, shape, groups=groups) for operator, shape, groups in NEW_SIZES]
    cases += _cases(Part.STEPS, [(IMAGES, 0)], COMMON, DENSE)
    for operator in (Operator.TRAIN, Operator.EVAL, Operator.FORWARD, Operator.FORWARD_EVAL):
        cases.append(Case(operator, CALL))
    cases += [Case(op, CALL, groups=4) for op in (Operator.GROUP_NORM, Operator.FORWARD_GROUP_NORM)]
    for operator in (Operator.ACLNN_KNOWN, Operator.ACLNN_NEW):
        cases += [Case(operator, CALL, groups=groups) for groups in (0, 4)]
    return _by_signature(cases)


def quick() -> tuple[Case, ...]:
    """A fixed part of :func:`suite` that takes less than a minute.

    It has every operator in and out of the caches, and every layout and pair of dtypes of the
    gradients, forward passes and layers, on the smallest shapes, with batch norm's first.
    """
    seen: set[object] = set()
    chosen = []
    for case in sorted(suite(), key=lambda case: (case.groups > 0, case.elements)):
        large = case.elements > 1 << 22
        new: set[object] = {(case.part, case.operator, large)}
        if case.part is not Part.STEPS:  # training steps take seconds each
            new |= {(case.part, case.dtype, case.parameters), (case.part, case.layout)}
        if not new <= seen:
            seen |= new
            chosen.append(case)
    return _by_signature(chosen)


def _by_signature(cases: Iterable[Case]) -> tuple[Case, ...]:
    """The distinct cases, with those of one signature in a row."""
    groups: dict[Case, dict[Case, None]] = {}
    for case in cases:
        groups.setdefault(case.signature, {})[case] = None
    return tuple(case for mine in groups.values() for case in mine)


def on_gpu(cases: Iterable[Case]) -> tuple[Case, ...]:
    """The same cases, with ResNet-50's layers at batch :data:`GPU_BATCH`, and without those that
    measure the host more than the GPU."""
    shapes = {shape: (GPU_BATCH, *shape[1:]) for shape in RESNET_50}
    return tuple(
        replace(case, shape=shapes.get(case.shape, case.shape))
        for case in cases
        if case.part not in (Part.CALLS, Part.ACLNN, Part.NEW_SIZES)
    )


def select(cases: Sequence[Case], pattern: str) -> tuple[Case, ...]:
    """The cases whose ids contain the pattern, or a match of it as a regular expression.

    Raises:
        re.error: it is neither part of an id nor a regular expression.
    """
    literal = tuple(case for case in cases if pattern in case.id)
    return literal or tuple(case for case in cases if re.search(pattern, case.id))
