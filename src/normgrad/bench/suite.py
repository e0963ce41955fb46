"""The cases: what is computed on which shape, dtypes and layout. Data alone, nothing is computed.

The full cross product would take hours and say little more, so that it is cut by this rule:

1. Gradients and forward passes meet each of their shapes in float32 and in bfloat16 with float32
   parameters, contiguous, and channels-last where there are four axes.
2. What is less common is met by two shapes for each kind of operator (:data:`SAMPLE`), one with
   long rows or few channels, one with short rows or many: float16, whose times are within a few
   per cent of bfloat16's, in the same layouts; parameters in half precision, contiguous; mixed and
   cropped layouts, in float32 and bfloat16.
3. A shape is left out whose size and whose rows two others have: of ResNet-50's layers there is no
   (32, 256, 56, 56). Forward passes, which share their loops, meet a part of the shapes.
4. A layer's step, forward and backward, is met by the forward pass's shapes of four axes and by
   small ones, in float32 and bfloat16, contiguous and channels-last; so is a model's training step.
5. What a call costs before it computes anything is measured on one tiny shape, (4, 8, 4), for the
   operators that PyTorch has one of its own for, and for aclnn's first phase.
6. Layer norm and RMS norm, forward and backward, meet the shapes of language models and two
   extremes (:data:`ROWS`) in float32 and in bfloat16 with float32 parameters, contiguous.

So every dtype, every pair of dtypes and every layout meets every gradient of batch and group norm,
and every forward pass but for mixed layouts, as it has one tensor alone.
``batch_norm_gather_stats_with_counts`` has no cases: it takes as long as any small call.
``benchmarks/sync_batch_norm.py`` measures its use.
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from enum import Enum

from .. import dtypes

Shape = tuple[int, ...]
Grouped = tuple[Shape, int]  # a shape and its number of groups, 0 for batch norm


class Part(Enum):
    """What an operator belongs to; the parts are held to targets of their own."""

    GRADIENTS = "gradients"
    FORWARD = "forward passes"
    #: Forward and backward, where each row of x has statistics of its own.
    ROWS = "layer and RMS norm"
    #: Single calls that have next to nothing to compute.
    CALLS = "calls"
    #: A layer's forward and backward pass, with autograd between them.
    LAYERS = "layers"
    #: A model's forward and backward pass and its optimiser.
    STEPS = "training steps"
    ACLNN = "first phases of aclnn"


class Operator(Enum):
    """What is computed.

    The value is how a case's id begins. Beside it stand the public function, and the operator's
    name in plans (or the layer's class, the model's, or the kind of call); the part; and how many
    tensors go through memory once in the best case: gradients read dy and x, and write dx; the
    forward pass reads x and writes y; a layer does the one after the other.
    """

    function: str
    part: Part
    streams: int

    def __new__(
        cls, value: str, function: str = "", part: Part = Part.GRADIENTS, streams: int = 0
    ) -> Operator:
        """A member, known by its value alone."""
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
    #: The statistics alone, and all but the statistics.
    STATS = "stats", "batch_norm_stats", Part.FORWARD, 1
    NORMALISE = "normalise", "batch_norm_elemt", Part.FORWARD, 2
    FORWARD_GROUP_NORM = "forward-group-norm", "group_norm", Part.FORWARD, 2
    #: RMS norm's cases have the name of the paper, root mean square layer normalisation.
    LAYER_NORM = "layer-norm", "layer_norm_backward", Part.ROWS, 3
    RMS_NORM = "rms-layer-norm", "rms_norm_backward", Part.ROWS, 3
    FORWARD_LAYER_NORM = "forward-layer-norm", "layer_norm", Part.ROWS, 2
    FORWARD_RMS_NORM = "forward-rms-layer-norm", "rms_norm", Part.ROWS, 2
    LAYER_BATCH_NORM = "layer-batch-norm", "BatchNorm2d", Part.LAYERS, 5
    LAYER_EVAL = "layer-batch-norm-eval", "BatchNorm2d", Part.LAYERS, 5
    LAYER_GROUP_NORM = "layer-group-norm", "GroupNorm", Part.LAYERS, 5
    RESNET18 = "step-resnet18", "ResNet18", Part.STEPS, 1
    MOBILENET_V2 = "step-mobilenet-v2", "MobileNetV2", Part.STEPS, 1
    UNET = "step-unet", "UNet", Part.STEPS, 1
    #: Of tensors that look like an earlier call's, and of a shape that was not seen before.
    ACLNN_KNOWN = "aclnn-known", "known", Part.ACLNN, 0
    ACLNN_NEW = "aclnn-new", "new", Part.ACLNN, 0


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

RESNET_50: tuple[Shape, ...] = (
    *((32, 64, 112, 112), (32, 64, 56, 56), (32, 512, 28, 28)),
    *((32, 1024, 14, 14), (32, 2048, 7, 7)),
)
#: ResNet-50's batch on a GPU: of 32 samples its last layers fit an L2 of 50 MB.
GPU_BATCH = 256
#: Few channels, short rows, large planes, three axes, two axes wide and tall; and where what counts
#: is how long a call takes that has next to nothing to do.
OTHERS: tuple[Shape, ...] = (
    *((8, 3, 224, 224), (256, 512, 4, 4), (20, 6, 256, 256)),
    *((32, 128, 1024), (256, 1024), (4096, 64), (8, 16, 8, 8), (64, 128)),
)
#: Diffusion models' layers, and the two extremes of group norm.
GROUP_NORM: tuple[Grouped, ...] = (
    *(((4, 320, 64, 64), 32), ((4, 640, 32, 32), 32), ((8, 1280, 16, 16), 32)),
    *(((1, 128, 256, 256), 32), ((16, 256, 32, 32), 1), ((16, 256, 32, 32), 256)),
)
#: What meets what is less common.
SAMPLE: tuple[Grouped, ...] = (
    *(((32, 64, 56, 56), 0), ((32, 1024, 14, 14), 0)),
    *(((4, 320, 64, 64), 32), ((16, 256, 32, 32), 1)),
)
#: What the forward pass meets of the shapes above: long rows, short ones, and the shortest; few
#: channels, and two axes; small ones.
FORWARD: tuple[Grouped, ...] = (
    *(*SAMPLE, ((8, 1280, 16, 16), 32), ((32, 2048, 7, 7), 0)),
    *(((8, 3, 224, 224), 0), ((256, 1024), 0), ((8, 16, 8, 8), 0), ((64, 128), 0)),
)
#: For layers alone: small ones.
SMALL_LAYERS: tuple[Grouped, ...] = (
    *(((4, 32, 14, 14), 0), ((8, 16, 8, 8), 4), ((4, 32, 14, 14), 8)),
)
#: Rows and their elements: transformers' tokens, a vocabulary's logits, and short rows.
ROWS: tuple[Shape, ...] = (
    *((8192, 768), (4096, 768), (8192, 1024), (4096, 4096), (512, 4096), (512, 1024)),
    *((64, 50257), (16384, 128)),
)
#: The images of a training step, and the tensors of a call that has nothing to do.
IMAGES: Shape = (16, 3, 64, 64)
CALL: Shape = (4, 8, 4)

FLOAT32, BFLOAT16, FLOAT16 = "float32", "bfloat16", "float16"
COMMON = ((FLOAT32, FLOAT32), (BFLOAT16, FLOAT32))
HALVES = ((BFLOAT16, BFLOAT16), (FLOAT16, FLOAT16))


@dataclass(frozen=True)
class Case:
    """One thing to measure.

    Attributes:
        operator: what is computed.
        shape: of x and dy, channels second.
        dtype: of x and dy; of a model's step, what autocast computes in.
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

    @classmethod
    def read(cls, cells: Mapping[str, str]) -> Case:
        """The case of a file's row; a ValueError or KeyError where it has none."""
        shape = tuple(map(int, cells["shape"].split("x")))
        dtype, parameters, groups = cells["dtype"], cells["parameters"], int(cells["groups"])
        operator, layout = Operator(cells["operator"]), Layout(cells["layout"])
        return cls(operator, shape, dtype, parameters, layout, groups)

    @property
    def id(self) -> str:
        """The case's name in tables and files; it never changes for the same case."""
        dtype = self.dtype if self.parameters == FLOAT32 else f"{self.dtype}+half-parameters"
        groups = [f"groups-{self.groups}"] if self.groups else []
        return "/".join(
            (self.operator.value, spelled(self.shape), *groups, dtype, self.layout.value)
        )

    @property
    def part(self) -> Part:
        """What it belongs to: calls are operators on the tiny shape."""
        part = self.operator.part
        tiny = self.shape == CALL and part in (Part.GRADIENTS, Part.FORWARD)
        return Part.CALLS if tiny else part

    @property
    def look(self) -> Case:
        """What a case's tensors depend on: equal for cases that share them."""
        rows = self.part is Part.ROWS
        alike = Operator.LAYER_NORM if rows else Operator.TRAIN
        return replace(self, operator=Operator.GROUP_NORM if self.groups else alike)

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
    shapes: Iterable[Grouped],
    kinds: Iterable[tuple[str, str]],
    layouts: Iterable[Layout],
) -> Iterator[Case]:
    """All operators of a part on these shapes in every kind and layout that they can have."""
    operators = [operator for operator in Operator if operator.part is part]
    for (shape, groups), kind in itertools.product(shapes, kinds):
        for layout in layouts if len(shape) == 4 else DENSE[:1]:
            for operator in operators:
                if operator.value.endswith("group-norm") == bool(groups):
                    yield Case(operator, shape, *kind, layout, groups)


def suite() -> tuple[Case, ...]:
    """Every case, each once, in the order in which they run: those of one look in a row."""
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
    cases += _cases(Part.LAYERS, four_axes, COMMON, DENSE)
    cases += _cases(Part.STEPS, [(IMAGES, 0)], COMMON, DENSE)
    for operator in (Operator.TRAIN, Operator.EVAL, Operator.FORWARD, Operator.FORWARD_EVAL):
        cases.append(Case(operator, CALL))
    cases += [Case(op, CALL, groups=4) for op in (Operator.GROUP_NORM, Operator.FORWARD_GROUP_NORM)]
    for operator in (Operator.ACLNN_KNOWN, Operator.ACLNN_NEW):
        cases += [Case(operator, CALL, groups=groups) for groups in (0, 4)]
    return _by_look(cases)


def quick() -> tuple[Case, ...]:
    """A fixed part of :func:`suite` that takes less than a minute.

    It has every operator in and out of the caches, and every layout and pair of dtypes of the
    gradients, forward passes and layers, on the smallest shapes that have them, batch norm's first.
    """
    seen: set[object] = set()
    chosen = []
    for case in sorted(suite(), key=lambda case: (case.groups > 0, case.elements)):
        large = case.elements > 1 << 22
        new: set[object] = {(case.part, case.operator, large)}
        if case.part is not Part.STEPS:  # which take seconds each
            new |= {(case.part, case.dtype, case.parameters), (case.part, case.layout)}
        if not new <= seen:
            seen |= new
            chosen.append(case)
    return _by_look(chosen)


def _by_look(cases: Iterable[Case]) -> tuple[Case, ...]:
    """Every case once, those of one look in a row."""
    looks: dict[Case, dict[Case, None]] = {}
    for case in cases:
        looks.setdefault(case.look, {})[case] = None
    return tuple(case for mine in looks.values() for case in mine)


def on_gpu(cases: Iterable[Case]) -> tuple[Case, ...]:
    """The same cases, but ResNet-50's layers at batch :data:`GPU_BATCH`, and none that measure the
    host alone."""
    shapes = {shape: (GPU_BATCH, *shape[1:]) for shape in RESNET_50}
    return tuple(
        replace(case, shape=shapes.get(case.shape, case.shape))
        for case in cases
        if case.part not in (Part.CALLS, Part.ACLNN)
    )


def select(cases: Iterable[Case], pattern: str) -> tuple[Case, ...]:
    """The cases whose ids contain the pattern, or a match of it as a regular expression.

    Raises:
        re.error: it is neither part of an id nor a regular expression.
    """
    cases = tuple(cases)
    literal = tuple(case for case in cases if pattern in case.id)
    expression = re.compile("" if literal else pattern)
    return literal or tuple(case for case in cases if expression.search(case.id))
