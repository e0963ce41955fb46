"""What an implementation is tried with: a call each, and what must come of it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, fields
from enum import Enum
from typing import Any, ClassVar, TypeVar

import numpy as np

from ..reference import Exact
from . import changes
from .tensors import Array, Call, Shape, lay_out, make, operator_of


class Topic(Enum):
    """What a case is about; the value is its title in a report."""

    PLAIN = "plain calls"
    VALUES = "dtypes and layouts"
    MEAN = "|mean| ≫ std"
    MASKS = "masks"
    ABSENT = "absent tensors"
    VECTORS = "strided vectors"
    OUTPUTS = "given outputs, in place"
    SHAPES = "ranks, axes, empty tensors"
    SPECIAL = "NaN, infinities, extremes"
    MISTAKES = "wrong arguments"
    DETERMINISM = "the same bits again"


#: What ``Case.out`` may say beside layouts: the memory of an input.
IN_PLACE = {"over grad_out": "grad_out", "over input": "input"}


@dataclass(frozen=True)
class Case:
    """One call, described; what differs from the defaults is in its name.

    Attributes:
        topic: what it is about.
        kind: one of ``GRADIENTS`` or ``FORWARD``.
        shape: of input.
        dtype, x_dtype: of grad_out and of input, where that is another.
        parameters: the dtype of vectors, where it is not the usual one.
        layout, x_layout: how grad_out and input lie in memory.
        vectors: how the per-channel ones do.
        channel_axis, groups: the operator's options.
        mean: of input, whose standard deviation is 1.
        absent: tensors that are left out.
        mask: of the outputs; all if empty.
        out: the layout of a given data output, one of ``IN_PLACE``, or nothing.
        change: what is done to the tensors then, one of ``changes.TWISTS`` or ``changes.mistakes``.
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
    absent: tuple[str, ...] = ()
    mask: tuple[bool, ...] = ()
    out: str = ""
    change: str = ""
    normal: bool = False

    #: Whether the case is of a dialect's suite, for a shared library.
    is_of_library: ClassVar[bool] = False
    #: What every name has after the topic and the kind, and what none has.
    _always_said: ClassVar[tuple[str, ...]] = ("shape", "dtype", "layout")
    _never_said: ClassVar[tuple[str, ...]] = ("topic", "kind", "normal")

    @property
    def name(self) -> str:
        """The case in one line, which finds it again: what all have, and what is not as usual."""
        said = [self.topic.name.lower(), self.kind]
        said += [_spelled(getattr(self, name)) for name in self._always_said]
        for field in sorted(fields(self), key=lambda field: field.name == "change"):
            value = getattr(self, field.name)
            is_said = field.name in (*self._always_said, *self._never_said)
            if value != field.default and not is_said:
                said.append(f"{field.name}={_spelled(value)}")
        return "/".join(said)

    def __str__(self) -> str:
        return self.name

    @property
    def operator(self) -> str:
        """The operator, by the name of normgrad's function."""
        return operator_of(self.kind)

    @property
    def data_layout(self) -> str:
        """How grad_out and input lie in memory, in a word."""
        return f"{self.layout}+{self.x_layout}" if self.x_layout else self.layout

    @property
    def is_mistake(self) -> bool:
        """Whether the call must be refused."""
        return self.topic is Topic.MISTAKES

    def request(self) -> Any:
        """What an implementation is asked to do: the call, or a library's sequence of calls."""
        return self.call()

    def exact(self, call: Call) -> dict[str, Exact]:
        """The oracle's outputs of the case's call by name, each with its scale."""
        return call.exact()

    def status(self) -> str:
        """What a library must refuse a wrong call with; nothing of functions of Python's."""
        return ""

    def call(self) -> Call:
        """The call: its tensors, the same each time."""
        made = make(
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
        )
        made.tensors.update(dict.fromkeys(self.absent))
        if self.vectors != "contiguous":
            for name, value in made.tensors.items():
                if value is not None and changes.is_vector(made, name):
                    made.tensors[name] = lay_out(value, self.vectors)
        if self.mask:
            made.options |= changes.masked(made, self.mask)
        if self.out:
            self._give_out(made)
        if self.change:
            known = changes.mistakes(made) if self.is_mistake else changes.TWISTS
            known[self.change].make(made)
        return made

    def _give_out(self, made: Call) -> None:
        like = made.tensors["input"]
        assert like is not None
        first: Array | None
        if self.out in IN_PLACE:
            first = made.tensors[IN_PLACE[self.out]]
        else:
            first = lay_out(np.full(like.shape, np.nan, like.dtype), self.out)
        made.give(first)


_Case = TypeVar("_Case", bound=Case)


def thinned(cases: Iterable[_Case], step: int) -> list[_Case]:
    """Some cases, each once; of a quick run one in so many from the first on, and the essential."""
    found = {case.name: case for case in cases}.values()
    return [c for i, c in enumerate(found) if i % step == 0 or changes.is_essential(c.change)]


def _spelled(value: object) -> str:
    """A field's value in a name: a shape as 2x3, a mask as 101, names with + between them."""
    if isinstance(value, tuple):
        if isinstance(value[0], bool):
            return "".join(str(int(each)) for each in value)
        return ("+" if isinstance(value[0], str) else "x").join(map(str, value))
    return f"{value:g}" if isinstance(value, float) else str(value)
