"""Test cases for implementations: each is one call of an operator and its expected result."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from enum import Enum
from typing import Any, ClassVar, TypeVar

import numpy as np

from ..operators.by_name import plan
from ..operators.reference import Exact
from ..tensors.specs import TensorSpec
from . import changes
from .tensors import Call, Shape, lay_out, make, operator_of


class Topic(Enum):
    """What a case tests. The value is the topic's title in a report."""

    PLAIN = "plain calls"
    VALUES = "dtypes and layouts"
    MEAN = "|mean| ≫ std"
    MASKS = "masks"
    ABSENT = "absent tensors"
    VECTORS = "strided vectors"
    OUTPUTS = "given outputs, in place"
    SHAPES = "ranks, axes, empty tensors"
    SIZES = "sizes of another kernel"
    SPECIAL = "NaN, infinities, extremes"
    MISTAKES = "wrong arguments"
    DETERMINISM = "the same bits again"
    CONCURRENCY = "calls at once"
    MEMORY = "no memory kept"

    def __str__(self) -> str:
        return self.value

    @property
    def word(self) -> str:
        """The word for the topic in the names of cases, and in the marker of their tests."""
        return self.name.lower()


_SAVED, _RUNNING = ("save_mean", "save_invstd"), ("running_mean", "running_var")
#: The value of ``Case.out`` for an array that owns its memory, as ``numpy.empty`` gives.
OWNED = "owned"
#: Values of ``Case.out`` besides layouts: the output is written over this input.
IN_PLACE = {"over grad_out": "grad_out", "over input": "input"}


@dataclass(frozen=True)
class Case:
    """The description of one call. Its name lists the fields that differ from the defaults.

    Attributes:
        topic: what the case tests.
        kind: one of ``GRADIENTS`` or ``FORWARD``.
        shape: the input's shape.
        dtype, x_dtype: the dtypes of grad_out and of input; an empty ``x_dtype`` is the same.
        parameters: the dtype of vectors, where it is not the usual one.
        layout, x_layout: the memory layouts of grad_out and input.
        vectors: the memory layout of the per-channel vectors.
        channel_axis, groups: the operator's options.
        mean, std: the input's mean and standard deviation.
        absent: tensors that are left out, and options that keep their defaults.
        eps, momentum: these options, where they are not the usual ones.
        row_axes: the number of axes of a row, where it is not the usual one; see :func:`make`.
        mask: which outputs to compute; all if empty.
        out: the layout of the data output that the caller gives, one of ``IN_PLACE``, or empty.
        change: the change made to the tensors last, of ``twists`` or of ``changes.mistakes``.
        normal: whether the data are normally distributed, for which the bound is tighter.
    """

    topic: Topic
    kind: str
    shape: Shape
    dtype: str = "float32"
    x_dtype: str = ""
    parameters: str = ""
    layout: str = "contiguous"
    x_layout: str = ""
    vectors: str = "contiguous"
    channel_axis: int = 1
    groups: int = 1
    mean: float = 0.3
    std: float = 1.0
    absent: tuple[str, ...] = ()
    eps: float | None = None
    momentum: float | None = None
    row_axes: int | None = None
    mask: tuple[bool, ...] = ()
    out: str = ""
    change: str = ""
    normal: bool = False

    #: Changes to special values, by name.
    twists: ClassVar[Mapping[str, changes.Change]] = changes.TWISTS
    #: Fields that every name has, after the topic and the kind, and fields that ``name`` skips.
    _always_named: ClassVar[tuple[str, ...]] = ("shape", "dtype", "layout")
    _never_named: ClassVar[tuple[str, ...]] = ("topic", "kind", "normal")

    @property
    def name(self) -> str:
        """A unique line for the case: the fields of every name, then those that are not default."""
        words = [self.topic.word, self.kind]
        words += [spelling(getattr(self, name)) for name in self._always_named]
        for field in sorted(fields(self), key=lambda field: field.name == "change"):
            value = getattr(self, field.name)
            is_listed = field.name in (*self._always_named, *self._never_named)
            if value != field.default and not is_listed:
                words.append(f"{field.name}={spelling(value)}")
        return "/".join(words)

    def __str__(self) -> str:
        return self.name

    @property
    def operator(self) -> str:
        """The operator, by the name of normgrad's function."""
        return operator_of(self.kind)

    @property
    def is_essential(self) -> bool:
        """Whether a quick run keeps the case, whatever it leaves of its topic."""
        return (
            (self.mask == (False, False, True) and self.layout == "channels_last")
            or (self.topic is Topic.SHAPES and 1 < len(self.shape) == 3 and self.shape[1] == 1)
            or (self.topic is Topic.SHAPES and len(self.shape) == 5 and self.layout != "contiguous")
            or self.channel_axis in (0, 2, -2)
            or self.out in ("over grad_out", OWNED)
            or not self.eps == self.momentum == self.row_axes is None
            or changes.is_essential(self.change)
        )

    @property
    def is_extreme(self) -> bool:
        """Whether intermediate results may leave float32's range, which plain code may not mind."""
        return not self.is_mistake and self.change in changes.EXTREME

    @property
    def is_our_meaning(self) -> bool:
        """Whether statistics are left out to which, if absent, normgrad alone gives a meaning."""
        needed = {"train": _SAVED, "eval": _RUNNING, "forward_eval": _RUNNING}.get(self.kind, ())
        return self.kind == "train_without_statistics" or bool({*needed} & {*self.absent})

    @property
    def goes_one_way(self) -> bool:
        """Whether a long sum's roundings may all go one way, as where values repeat."""
        return self.change == changes.LONG_SUMS or self.layout in ("expanded", "constant")

    @property
    def by_layers(self) -> bool:
        """Whether a layer of a framework may make such a call.

        Its data have one dtype and dense layout, with channels on axis 1, and it gives no output.
        """
        usual = all(
            getattr(self, name) == getattr(Case, name)
            for name in ("x_dtype", "x_layout", "channel_axis", "out")
        )
        is_dense = self.layout in ("contiguous", "channels_last", "constant")
        return usual and is_dense and not self.is_mistake

    @property
    def is_mistake(self) -> bool:
        """Whether the call must be refused."""
        return self.topic is Topic.MISTAKES

    def request(self) -> Any:
        """What the implementation runs: the call, or a library's sequence of calls."""
        return self.call()

    def exact(self, call: Call) -> dict[str, Exact]:
        """The oracle's outputs of the case's call by name, each with its scale."""
        return call.exact()

    def output_specs(self, call: Call) -> Sequence[TensorSpec | None]:
        """What the outputs must be like, None for those masked off; none if a subject checks it."""
        return plan(call.name, **call.tensors, **call.options, out=call.out).output_specs

    def status(self) -> str:
        """The status with which a library must refuse a wrong call; empty for Python functions."""
        return ""

    def call(self) -> Call:
        """Make the call's tensors, with the same values each time."""
        call = self.unchanged()
        if self.change:
            self.changes_of(call)[self.change].make(call)
        return call

    def changes_of(self, call: Call) -> Mapping[str, changes.Change]:
        """The changes of which ``change`` names one."""
        return changes.mistakes(call) if self.is_mistake else self.twists

    def unchanged(self) -> Call:
        """The call without its change."""
        call = make(
            self.kind,
            self.shape,
            dtype=self.dtype,
            x_dtype=self.x_dtype,
            parameter_dtype=self.parameters,
            layout=self.layout,
            x_layout=self.x_layout,
            channel_axis=self.channel_axis,
            num_groups=self.groups,
            mean=self.mean,
            std=self.std,
            row_axes=self.row_axes,
        )
        for name in self.absent:
            if name in call.options:
                del call.options[name]
            else:
                call.tensors[name] = None
        numbers = {"eps": self.eps, "momentum": self.momentum}
        call.options |= {name: each for name, each in numbers.items() if each is not None}
        if self.vectors != "contiguous":
            for name, value in call.arrays.items():
                if changes.is_vector(call, name):
                    call.tensors[name] = lay_out(value, self.vectors)
        if self.mask:
            call.options |= changes.mask_options(call, self.mask)
        if self.out in IN_PLACE:
            call.give(call.tensors[IN_PLACE[self.out]])
        elif self.out == OWNED:
            call.give(np.full(call.arrays["input"].shape, np.nan, call.arrays["input"].dtype))
        elif self.out:
            like = call.arrays["input"]
            call.give(lay_out(np.full(like.shape, np.nan, like.dtype), self.out))
        return call


_Case = TypeVar("_Case", bound=Case)


def varied(base: _Case, **values: Iterable[Any]) -> Iterator[_Case]:
    """Yield the case with every combination of the values; the last field varies fastest."""
    for combination in itertools.product(*values.values()):
        yield replace(base, **dict(zip(values, combination, strict=True)))


def thinned(cases: Iterable[_Case], step: int) -> Iterator[_Case]:
    """Every ``step``-th of the distinct cases of each topic, and all that are essential.

    Counting starts anew at the first case of each topic, which is always among them.
    """
    for _, of_topic in itertools.groupby(cases, key=lambda case: case.topic):
        for index, case in enumerate({case.name: case for case in of_topic}.values()):
            if index % step == 0 or case.is_essential:
                yield case


def spelling(value: object) -> str:
    """Spell a field's value for a name: a shape as 2x3, a mask as 101, names joined by +."""
    if isinstance(value, tuple):
        if isinstance(value[0], bool):
            return "".join(str(int(each)) for each in value)
        return ("+" if isinstance(value[0], str) else "x").join(map(str, value))
    return f"{value:g}" if isinstance(value, float) else str(value)
