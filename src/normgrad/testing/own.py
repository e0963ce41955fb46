"""Operators of one's own in the suite: a declaration, an oracle, and shapes give their cases."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np

from ..declarations import contract
from ..declarations.contract import Input, Kind, Output
from ..declarations.problem import Role
from ..operators.reference import Exact
from ..tensors import dtypes
from ..tensors.specs import TensorSpec
from .cases import Case, Topic, thinned, varied
from .changes import TWISTS, mistakes
from .tensors import HALVES, LAYOUTS, Array, Call, Shape, lay_out


@dataclass(frozen=True, eq=False)
class Operator:
    """The declaration of an operator that normgrad does not have.

    Attributes:
        name: the name of the function.
        tensors: the kinds of the tensors that the function takes by position, by name in its order:
            ``Kind.DATA``, ``Kind.CHANNEL`` (a value for each channel, axis 1) or ``Kind.POSITION``
            (a value for each element of the last axis). The first is data.
        outputs: the kinds of the results, by name in their order. ``Kind.ROW`` is a value for each
            row. Data have the dtype of the first tensor; others may have any that is no less
            precise than the data and float32.
        oracle: the formula: takes the tensors by name, as NumPy arrays in float64 (longdouble
            where one is float64) and None for those that are left out, and the options; returns
            each output's value and scale by name. The scale is the formula with the absolute value
            of every term.
        options: the other arguments, passed by keyword.
        optional: the tensors that may be left out.
        shapes: the data's shapes.
    """

    name: str
    tensors: Mapping[str, Kind]
    outputs: Mapping[str, Kind]
    oracle: Callable[..., Mapping[str, tuple[Array, Array]]]
    options: Mapping[str, Any] = field(default_factory=dict)
    optional: tuple[str, ...] = ()
    shapes: Sequence[Shape] = ((3, 4, 5), (4, 6, 9, 11), (33, 40), (2, 4, 1000), (2, 2, 2049))

    @cached_property
    def contract(self) -> contract.Operator:
        """The declaration in the form of normgrad's own."""
        has_rows = Kind.CHANNEL not in self.tensors.values()
        return contract.Operator(
            self.name,
            tuple(
                Input(name, kind, required=name not in self.optional)
                for name, kind in self.tensors.items()
            ),
            (),
            tuple(
                Output(name, kind, Role.RESULT, (next(iter(self.tensors)),))
                for name, kind in self.outputs.items()
            ),
            statistics=Kind.ROW if has_rows else Kind.CHANNEL,
        )


class OwnCall(Call):
    """A call of an operator of one's own."""

    declared: Operator

    @property
    def operator(self) -> contract.Operator:
        return self.declared.contract

    @property
    def choices(self) -> dict[str, Any]:
        return dict(self.options)

    @property
    def outputs(self) -> tuple[Output, ...]:
        return self.operator.all_outputs

    @property
    def results(self) -> tuple[str, ...]:
        return tuple(self.declared.outputs)

    @property
    def data(self) -> Array:
        return next(iter(self.arrays.values()))

    @property
    def signature(self) -> tuple[str, ...]:
        return tuple(self.declared.tensors)

    @property
    def arithmetic(self) -> dtypes.DType:
        return dtypes.arithmetic(*(dtypes.parse(each.dtype) for each in self.inputs))

    @property
    def count(self) -> int:
        is_of_rows = self.operator.statistics is Kind.ROW
        return int(self.data.shape[-1] if is_of_rows else self.data.size)

    def exact(self) -> dict[str, Exact]:
        wide = np.longdouble if self.arithmetic is dtypes.float64 else np.float64
        tensors = {name: None if v is None else v.astype(wide) for name, v in self.tensors.items()}
        with np.errstate(all="ignore"):
            found = self.declared.oracle(**tensors, **self.options)
        return {name: Exact(*pair) for name, pair in found.items()}


@dataclass(frozen=True)
class OwnCase(Case):
    """A call of an operator of one's own; ``kind`` is its name."""

    declared: Operator | None = None

    _never_named = (*Case._never_named, "declared")

    @property
    def operator(self) -> str:
        return self.kind

    def output_specs(self, call: Call) -> list[TensorSpec | None]:
        data, exact = call.data, call.exact()
        steps = tuple(step // data.itemsize for step in data.strides)
        return [
            TensorSpec(
                exact[each.name].value.shape,
                dtypes.parse(data.dtype),
                steps if each.kind is Kind.DATA else None,
            )
            for each in call.outputs
        ]

    def unchanged(self) -> Call:
        declared, rng = self.declared, np.random.default_rng(0)
        assert declared is not None
        sizes = {Kind.CHANNEL: self.shape[1:2], Kind.POSITION: self.shape[-1:]}
        tensors: dict[str, Array | None] = {}
        for name, kind in declared.tensors.items():
            is_data = kind is Kind.DATA
            shape = self.shape if is_data else sizes[kind]
            values = rng.standard_normal(shape) + (self.mean if is_data else 0)
            half = self.dtype in HALVES and not is_data
            dtype = dtypes.BY_NAME["float32" if half else self.dtype].numpy
            array = lay_out(values.astype(dtype), self.layout if is_data else self.vectors)
            tensors[name] = None if name in self.absent else array
        call = OwnCall(self.kind, tensors, dict(declared.options))
        call.declared = declared
        return call


def cases(declared: Sequence[Operator], quick: bool = False) -> tuple[OwnCase, ...]:
    """The cases of operators of one's own, or a quick run's part of them."""
    return tuple(each for one in declared for each in thinned(_cases(one), 5 if quick else 1))


def _cases(declared: Operator) -> Iterator[OwnCase]:
    shape = declared.shapes[0]
    plain = OwnCase(Topic.PLAIN, declared.name, shape, declared=declared)
    yield plain
    values = replace(plain, topic=Topic.VALUES)
    names = [dtype.name for dtype in dtypes.FLOATS]
    yield from varied(values, shape=declared.shapes, dtype=names, layout=LAYOUTS[:-1])
    yield from varied(replace(plain, topic=Topic.MEAN), mean=(1.0, 1e2, 1e4, 1e6))
    for count in range(1, len(declared.optional) + 1):
        for absent in itertools.combinations(declared.optional, count):
            yield from varied(replace(plain, topic=Topic.ABSENT, absent=absent), dtype=names)
    call = replace(plain, shape=(3, 4, 40)).call()
    special = replace(plain, topic=Topic.SPECIAL, shape=(3, 4, 40))
    fitting = [
        name for name, twist in TWISTS.items() if name.startswith("NaN") and twist.fits(call)
    ]
    yield from varied(special, change=fitting)
    wrongs = [name for name in mistakes(call) if name.partition(":")[0] in declared.tensors]
    yield from varied(replace(plain, topic=Topic.MISTAKES), change=wrongs)
    for topic in (Topic.DETERMINISM, Topic.CONCURRENCY):
        yield from varied(replace(plain, topic=topic, shape=declared.shapes[-1]), dtype=names)
    yield from varied(replace(plain, topic=Topic.MEMORY), dtype=names)
