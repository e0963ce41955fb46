"""Write trials as one self-contained HTML page, with explanations of the words in cases' names."""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence

import normgrad

from .. import dtypes, precision
from ..operators.by_name import FUNCTIONS
from . import pictures, report
from .cases import Topic
from .outcomes import Verdict
from .tensors import FORWARD, GRADIENTS, operator_of
from .trials import Trial

TOPICS: Mapping[Topic, str] = {
    Topic.PLAIN: "One ordinary call in float32, with three samples and four channels. It shows "
    "whether the operator answers at all.",
    Topic.VALUES: "Normally distributed data in every dtype and memory layout and in several "
    "shapes, also with tensors of different dtypes in one call.",
    Topic.MEAN: "The input's mean is up to a million times its standard deviation. Formulas that "
    "subtract large numbers from each other lose their digits here.",
    Topic.MASKS: "Only some of the results are asked for, in every combination.",
    Topic.ABSENT: "Tensors that may be left out, such as the weight or the saved statistics, are "
    "left out. A library is given null pointers for tensors without elements.",
    Topic.VECTORS: "Tensors with one value for each channel are not contiguous: every second "
    "element of a longer one, in reverse order, or one value for all channels.",
    Topic.OUTPUTS: "The caller gives the tensor that the result is written to: in several layouts, "
    "or in the memory of an input.",
    Topic.SHAPES: "Two to eight axes, channels second or last, one element per channel, and "
    "tensors without elements.",
    Topic.SIZES: "Sizes just above those at which kernels go other ways, as thin as can be: many "
    "channels, groups, samples, or elements in a row.",
    Topic.SPECIAL: "NaN, an infinity or 0 in one channel of one input, which must not change the "
    "other channels; negative variances; products near the ends of float32's range; and long sums "
    "whose terms all have one sign, which are wrong if they are simply added up in float32.",
    Topic.MISTAKES: "The plain call with one mistake, such as a vector that is too short. It must "
    "end in an error, and write nothing.",
    Topic.DETERMINISM: "The same call several times, with 1, 2, 3 and all threads, must give the "
    "same bits. It is made with other values in the same memory first, so that a result "
    "remembered from an earlier call shows.",
    Topic.MEMORY: "The plain call many times, after which the process must use no more memory.",
}

#: Kinds whose explanation is not the first line of their function's docstring.
_WORDS: Mapping[str, str] = {
    "train": "Batch norm's gradients in training, with the saved mean and 1/std.",
    "train_without_statistics": "The same without saved statistics: they are computed from the "
    "input.",
    "eval": "Batch norm's gradients in evaluation, with the running mean and variance.",
    "reduce": "Synchronised batch norm, first half of the gradients: the sums of one rank.",
    "elemt": "Synchronised batch norm, second half: the input's gradient, from the sums of all "
    "ranks.",
    "forward": "Batch norm's forward pass in training, which updates the running statistics.",
    "forward_eval": "Batch norm's forward pass in evaluation.",
    "normalise": "The output of batch norm for a given mean and 1/std.",
    "stats": "The mean and 1/std of each channel of a batch.",
    "gather": "Synchronised batch norm: the statistics of all ranks, merged.",
}

KINDS: Mapping[str, str] = {
    kind: _WORDS.get(kind) or (FUNCTIONS[operator_of(kind)].__doc__ or "").partition("\n")[0]
    for kind in (*GRADIENTS, *FORWARD)
}

LAYOUTS: Mapping[str, str] = {
    "contiguous": "Row after row, without gaps.",
    "channels_last": "The channels of one position lie next to each other.",
    "sliced": "Every second element, along each axis, of a larger tensor.",
    "transposed": "The axes lie in memory in reverse order.",
    "negative": "Every axis is reversed, so that strides are negative.",
    "expanded": "All elements of the last axis are one in memory.",
    "odd": "Three elements between one row and the next.",
}

_CAPTIONS = (
    (
        "Errors by dtype and layout",
        pictures.distributions,
        "The share of all elements of all outputs, by their error in units of the bound. What is "
        "to the right of 1 breaks it. Errors of 0, and below the axis, count at its left end.",
    ),
    (
        "Errors where the mean is large",
        pictures.large_means,
        "The largest error in units of the bound, against how many standard deviations the input's "
        "mean is from 0.",
    ),
)


def page(
    trials: Sequence[Trial],
    command: str,
    when: str,
    machine: Sequence[tuple[str, Sequence[tuple[str, str]]]],
) -> str:
    """Make the page, whose subject is the first of the trials, which ``command`` has made.

    Raises:
        ModuleNotFoundError: matplotlib or Jinja is not installed.
    """
    from jinja2 import Environment, PackageLoader, StrictUndefined

    environment = Environment(
        loader=PackageLoader("normgrad.testing", ""), autoescape=True, undefined=StrictUndefined
    )
    cases = [each.case for trial in trials for each in trial.judged]
    topics = dict.fromkeys(case.topic for case in cases)
    kinds = dict.fromkeys(case.kind for case in cases)
    layouts = dict.fromkeys(layout for case in cases for layout in case.data_layout.split("+"))
    about = [(each.name.lower(), f"({each.value}) {TOPICS[each]}") for each in topics]
    drawn = ((title, caption, draw(trials)) for title, draw, caption in _CAPTIONS)
    return environment.get_template("page.html.j2").render(
        trials=trials,
        command=command,
        when=when,
        machine=machine,
        report=report,
        verdicts=list(Verdict),
        bad=[index for index, verdict in enumerate(Verdict) if verdict.is_defect],
        summary=[report.row(trial.name, trial.judged) for trial in trials],
        words=(
            ("what the case is about", about),
            ("operator", [(kind, KINDS[kind]) for kind in kinds]),
            ("memory layout", [(layout, LAYOUTS[layout]) for layout in layouts]),
        ),
        version=normgrad.__version__,
        any=f"{precision.ANY_DATA[dtypes.float32]:g}",
        normal=f"{precision.NORMAL_DATA[dtypes.float32]:g}",
        half=f"{precision.ANY_DATA[dtypes.bfloat16]:g}",
        pictures=[
            (title, caption, base64.b64encode(picture).decode())
            for title, caption, picture in drawn
            if picture is not None
        ],
    )
