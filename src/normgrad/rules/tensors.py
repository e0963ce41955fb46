"""The rules for tensors, from which the tables are made."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from math import prod
from typing import ClassVar

from .. import layout
from .calls import Aspect, Call, Tensor, one_of


class Rule(ABC):
    """One condition on a tensor."""

    aspect: ClassVar[Aspect] = Aspect.SHAPE

    @abstractmethod
    def broken(self, tensor: Tensor, call: Call) -> tuple[str, str] | None:
        """Descriptions of the tensor and of what is allowed; None if it obeys the rule."""


class DtypeRule(Rule):
    """The dtype must be in a set, which may depend on other parameters; None allows any dtype."""

    aspect = Aspect.DTYPE

    @abstractmethod
    def allowed(self, call: Call) -> tuple[str, ...] | None: ...

    def broken(self, tensor: Tensor, call: Call) -> tuple[str, str] | None:
        allowed = self.allowed(call)
        if allowed is None or tensor.dtype_name in allowed:
            return None
        return f"dtype {tensor.dtype_name}", f"{one_of(allowed)}{self.why()}"

    def why(self) -> str:
        return ""


@dataclass(frozen=True)
class OfProduct(DtypeRule):
    """The dtype must be one that the product computes with."""

    def allowed(self, call: Call) -> tuple[str, ...] | None:
        return call.product.dtypes

    def __str__(self) -> str:
        return "by product"


@dataclass(frozen=True)
class OneOf(DtypeRule):
    """The dtype must be in a list."""

    names: tuple[str, ...]

    def allowed(self, call: Call) -> tuple[str, ...] | None:
        return self.names

    def __str__(self) -> str:
        return one_of(self.names)


@dataclass(frozen=True)
class DtypeOf(DtypeRule):
    """The dtype must be that of the first of ``others`` that is given, or maybe float32."""

    others: tuple[str, ...]
    or_float32: bool = False

    def allowed(self, call: Call) -> tuple[str, ...] | None:
        for name in self.others:
            tensor = call.tensors.get(name)
            if tensor is not None:
                more = ("float32",) if self.or_float32 and tensor.dtype_name != "float32" else ()
                return (tensor.dtype_name, *more)
        return None

    def why(self) -> str:
        return f", {self}"

    def __str__(self) -> str:
        first, *rest = self.others
        text = f"as {first}" + "".join(f", else {name}" for name in rest)
        return text + (", or float32" if self.or_float32 else "")


@dataclass(frozen=True)
class Formats(Rule):
    """The format must be in a list; ``ranks`` are the numbers of axes that some formats require."""

    aspect = Aspect.FORMAT
    names: tuple[str, ...]
    ranks: Mapping[str, int] = field(default_factory=dict)

    def broken(self, tensor: Tensor, call: Call) -> tuple[str, str] | None:
        if tensor.format_name not in self.names:
            return f"format {tensor.format_name}", one_of(self.names)
        rank = self.ranks.get(tensor.format_name)
        if rank is not None and len(tensor.dims) != rank:
            was = f"format {tensor.format_name} with {len(tensor.dims)} axes"
            return was, f"{rank} axes for {tensor.format_name}"
        return None

    def __str__(self) -> str:
        return ", ".join(
            f"{name} ({self.ranks[name]} axes)" if name in self.ranks else name
            for name in self.names
        )


@dataclass(frozen=True)
class FormatOf(Rule):
    """The format must be that of another parameter."""

    aspect = Aspect.FORMAT
    other: str

    def broken(self, tensor: Tensor, call: Call) -> tuple[str, str] | None:
        other = call.tensors.get(self.other)
        if other is None or tensor.format_name == other.format_name:
            return None
        return f"format {tensor.format_name}", f"{other.format_name}, as {self.other}"

    def __str__(self) -> str:
        return f"as {self.other}"


@dataclass(frozen=True)
class Rank(Rule):
    """The number of axes must be in a range."""

    least: int
    most: int

    def broken(self, tensor: Tensor, call: Call) -> tuple[str, str] | None:
        rank = len(tensor.dims)
        if self.least <= rank <= self.most:
            return None
        return f"{rank} axes", f"{self}" + (" axes" if self.most > 1 else " axis")

    def __str__(self) -> str:
        return f"{self.least}" if self.least == self.most else f"{self.least} to {self.most}"


@dataclass(frozen=True)
class ShapeOf(Rule):
    """The shape must be that of another parameter; if that is null, one axis of a named size."""

    other: str
    otherwise: str | None = None

    def broken(self, tensor: Tensor, call: Call) -> tuple[str, str] | None:
        other = call.tensors.get(self.other)
        if other is not None:
            if tensor.dims == other.dims:
                return None
            return f"shape {tensor.dims}", f"{other.dims}, as {self.other}"
        if self.otherwise is None or tensor.dims == (call.sizes[self.otherwise],):
            return None
        return f"shape {tensor.dims}", f"({call.sizes[self.otherwise]},), {self.otherwise}"

    def __str__(self) -> str:
        return f"as {self.other}" + (f", else ({self.otherwise},)" if self.otherwise else "")


@dataclass(frozen=True)
class WithChannels(Rule):
    """Axis 1, the channels, must not be empty; the shape must maybe be another parameter's."""

    same: ShapeOf | None = None

    def broken(self, tensor: Tensor, call: Call) -> tuple[str, str] | None:
        if self.same is not None:
            broken = self.same.broken(tensor, call)
            if broken is not None:
                return broken
        return None if tensor.dims[1] else (f"shape {tensor.dims}", "1 channel or more")

    def __str__(self) -> str:
        return f"{self.same or 'any'}, C ≥ 1"


@dataclass(frozen=True)
class Length(Rule):
    """The shape must be one axis of a named size, or maybe of length 0 while a flag is false."""

    size: str
    or_empty_unless: str | None = None

    def broken(self, tensor: Tensor, call: Call) -> tuple[str, str] | None:
        size = call.sizes[self.size]
        if tensor.dims == (size,):
            return None
        if self.or_empty_unless and tensor.dims == (0,) and not call.scalars[self.or_empty_unless]:
            return None
        return f"shape {tensor.dims}", f"({size},), the length of {self.size}"

    def __str__(self) -> str:
        empty = f", or (0,) unless {self.or_empty_unless}" if self.or_empty_unless else ""
        return f"({self.size},){empty}"


@dataclass(frozen=True)
class Elements(Rule):
    """The number of elements must be the product of named sizes, in any shape."""

    sizes: tuple[str, ...]

    def broken(self, tensor: Tensor, call: Call) -> tuple[str, str] | None:
        expected = prod(map(call.sizes.__getitem__, self.sizes))
        found = prod(tensor.dims)
        if found == expected:
            return None
        return f"shape {tensor.dims}, {found} elements", f"{expected} elements, {self}"

    def __str__(self) -> str:
        return "·".join(self.sizes)


@dataclass(frozen=True)
class Contiguous(Rule):
    """The tensor must be row-major without gaps; an axis of one element may have any stride."""

    aspect = Aspect.STRIDES

    def broken(self, tensor: Tensor, call: Call) -> tuple[str, str] | None:
        expected = layout.contiguous_strides(tensor.dims)
        if 0 in tensor.dims or all(
            size == 1 or step == right
            for size, step, right in zip(tensor.dims, tensor.strides, expected, strict=True)
        ):
            return None
        return f"strides {tensor.strides}", f"{expected}"

    def __str__(self) -> str:
        return "contiguous"


@dataclass(frozen=True)
class PositiveStrides(Rule):
    """Every stride must be positive."""

    aspect = Aspect.STRIDES

    def broken(self, tensor: Tensor, call: Call) -> tuple[str, str] | None:
        if all(step > 0 for step in tensor.strides):
            return None
        return f"strides {tensor.strides}", f"{self}"

    def __str__(self) -> str:
        return "more than 0"
