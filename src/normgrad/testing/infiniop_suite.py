"""What a library that speaks infiniop is tried with."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache, partial
from typing import Any

import numpy as np

from .. import layout, reference
from ..infiniop.operators import ANY_PRODUCT, CONTRACT, INPUTS, OUTPUTS, THEIR_NAMES
from . import changes
from .cases import IN_PLACE, Topic, thinned
from .infiniop_library import DTYPES, INFINIOP, MAKERS, RUN, SIZE
from .libraries import Change, LibraryCase, Request, Tensor, exact_of_variance, mishandled, together
from .neighbours import neighbours
from .suite import LONG
from .tensors import Array, Call, Shape, make

_DTYPES = ("float16", "float32", "bfloat16")
_VECTORS = ("grad_weight", "grad_bias", "weight", "running_mean", "running_var")

#: The tensors' names by the functional operator's.
_NAMES = {**THEIR_NAMES, **{name: name for name in OUTPUTS}}


@dataclass(frozen=True)
class Case(LibraryCase):
    """One call of batch norm's gradients; its mistakes are those of :func:`mistakes`.

    Attributes:
        strided: the vectors that have gaps, and as many different ones.
        null: what is null though it might be given: "strides" of what is contiguous, "memory" of
            what is empty.
        loose: whether axes of one element have odd strides.
    """

    kind: str = "train"
    shape: Shape = (3, 4, 5)
    strided: tuple[str, ...] = ()
    null: str = ""
    loose: bool = False

    _always_said = ("shape", "dtype")
    dialect = INFINIOP

    @property
    def operator(self) -> str:
        """infiniop's operator."""
        return "BatchNormBackward"

    def call(self) -> Call:
        """The inputs, under the functional operator's names; the variance in the place of 1/std."""
        plain = replace(self, parameters=self.dtype, change="")
        call = super(Case, plain).call()
        x = call.tensors["input"]
        assert x is not None
        variance = x.astype(np.float64).var((0, 2)) if x.size else np.ones(x.shape[1])
        call.tensors["save_invstd"] = variance.astype(x.dtype)
        if self.topic is Topic.SPECIAL:
            TWISTS[self.change].make(call)
        for name, theirs in THEIR_NAMES.items():
            value = call.tensors[name]
            assert value is not None
            call.tensors[name] = self._vector_out(theirs, value)
        return call

    def request(self) -> Request:
        """See :class:`.libraries.LibraryCase`."""
        arrays, written = self._memory(self.call(), _NAMES)
        arguments: dict[str, Any] = {}
        for row in CONTRACT.rows:
            arguments[row.name] = tensor = Tensor.of(arrays[row.name])
            if self.loose:
                pairs = zip(tensor.dims, tensor.strides, strict=True)
                tensor.strides = tuple(77 if size == 1 else step for size, step in pairs)
            is_contiguous = tensor.strides == layout.contiguous_strides(tensor.dims)
            tensor.null_strides = self.null == "strides" and is_contiguous
        request = Request(RUN, arguments, written)
        if self.null == "memory":
            request.wrong.update(
                f"{name}: null memory" for name, each in arrays.items() if not each.size
            )
        if self.is_mistake:
            mistakes()[self.change](request)
        return request

    def _vector_out(self, name: str, values: Array) -> Array:
        if name not in self.strided:
            return values
        step = 2 + self.strided.index(name)
        wide = np.full(step * len(values), np.nan, values.dtype)
        wide[::step] = values
        return wide[::step]

    def exact(self, call: Call) -> dict[str, reference.Exact]:
        """See :class:`.cases.Case`."""
        return exact_of_variance(call, eps=0.0)


# What is special


def _twists() -> dict[str, changes.Change]:
    base = make("train", (3, 4, 40))
    found = {
        name: twist
        for name, twist in changes.TWISTS.items()
        if twist.fits(base) and twist.argument in base.tensors and "invstd " not in name
    }

    for word, value in {"negative": -1.0, "tiny": 1e-12, "huge": 1e12}.items():
        put = partial(np.full_like, fill_value=value)
        found[f"{word} variance"] = changes.of_tensor("save_invstd", put)
    return found


#: By name; those of ``save_invstd`` change the variance, which stands in its place.
TWISTS: Mapping[str, changes.Change] = _twists()


# What is wrong

_PLAIN = Case(Topic.PLAIN)


@cache
def mistakes() -> Mapping[str, Change]:
    """All that is tried wrong, by name: what is done to the plain call's request."""
    near = neighbours(CONTRACT, ANY_PRODUCT, (ANY_PRODUCT,), _PLAIN.request(), DTYPES)
    found = dict(near.broken)
    for name in (*OUTPUTS, *INPUTS):
        found |= mishandled(f"{name}: destroyed", computes=False)
        found |= mishandled(f"{name}: null memory")
    found |= mishandled("handle: null", "handle: destroyed", "operator: null", computes=False)
    found |= mishandled("operator: null when computing", "operator: destroyed")
    for creator, destroyer in (*MAKERS.values(), (SIZE, "")):
        found |= mishandled(f"{creator}: no place for the result", computes=False)
        if destroyer:
            found |= mishandled(f"{destroyer}: null", f"{destroyer}: twice", computes=False)
    found |= mishandled("workspace: null", "workspace: a byte short")
    # Of two mistakes the first in order is told.
    for first, second in (
        ("running_var: null", "weight: F64"),
        ("weight: F64", "grad_bias: an element short"),
        ("grad_bias: an element short", "input: gaps between rows"),
    ):
        found[f"{first}, and {second}"] = together(found[second], found[first])
    return found


# The cases

_SHAPES_OF_VALUES: tuple[Shape, ...] = (
    *((2, 3, 4), (8, 16, 100), (1, 1, 2), (4, 64, 196), (33, 7, 1), (1, 6, 300), (3, 5, 257)),
    *((2, 40, 33), (64, 3, 9), (5, 1, 1000)),
)
_SHAPES_OF_EDGES: tuple[Shape, ...] = (
    *((1, 4, 1), (1, 1, 1), (1, 4, 5), (3, 1, 5), (3, 4, 1), (2, 1, 1), (1, 1, 7)),
)
_EMPTY: tuple[Shape, ...] = ((0, 4, 5), (2, 4, 0), (2, 0, 5), (0, 0, 0))
_RATIOS = {
    "float32": (1.0, 10.0, 1e2, 1e3, 1e4, 1e5, 1e6),
    **dict.fromkeys(("float16", "bfloat16"), (1.0, 10.0, 1e2)),
}


def _all() -> Iterator[Case]:
    yield _PLAIN
    for shape, dtype, null in itertools.product(_SHAPES_OF_VALUES, _DTYPES, ("", "strides")):
        yield Case(Topic.VALUES, shape=shape, dtype=dtype, null=null, normal=True)
    for dtype, ratios in _RATIOS.items():
        for ratio, shape in itertools.product(ratios, ((8, 4, 256), (64, 6, 33))):
            yield Case(Topic.MEAN, shape=shape, dtype=dtype, mean=ratio)
    for shape, dtype in itertools.product(_EMPTY, _DTYPES):
        yield Case(Topic.ABSENT, shape=shape, dtype=dtype, null="memory")
    for names in (*((name,) for name in _VECTORS), _VECTORS, _VECTORS[::-1]):
        for shape, dtype in itertools.product(((3, 4, 30), (4, 64, 49)), _DTYPES):
            yield Case(Topic.VECTORS, shape=shape, dtype=dtype, strided=names)
    shapes = ((3, 4, 30), (8, 16, 100), (2, 3, 4), (6, 5, 1601))
    for out, shape, dtype in itertools.product(IN_PLACE, shapes, _DTYPES):
        yield Case(Topic.OUTPUTS, shape=shape, dtype=dtype, out=out)
    for shape, dtype, loose in itertools.product(_SHAPES_OF_EDGES, _DTYPES, (False, True)):
        yield Case(Topic.SHAPES, shape=shape, dtype=dtype, loose=loose)
    for shape, dtype in itertools.product(_EMPTY, _DTYPES):
        yield Case(Topic.SHAPES, shape=shape, dtype=dtype)
    for change in TWISTS:
        if change != changes.LONG_SUMS:
            yield Case(Topic.SPECIAL, shape=(3, 4, 40), change=change)
    for shape, dtype in itertools.product(LONG, _DTYPES):
        yield Case(Topic.SPECIAL, shape=shape, dtype=dtype, change=changes.LONG_SUMS)
    yield Case(Topic.SPECIAL, shape=(4, 4, 16384), change="all terms positive")
    for change in mistakes():
        yield replace(_PLAIN, topic=Topic.MISTAKES, change=change)
    for shape, dtype in itertools.product(((16, 24, 784), (33, 40, 10)), _DTYPES):
        yield Case(Topic.DETERMINISM, shape=shape, dtype=dtype)


#: A quick run takes every so manieth case of each topic: no multiple of 2 or 3, which is how dtypes
#: and shapes alternate.
_QUICK = 5


def cases(quick: bool, facts: Mapping[str, str]) -> tuple[Case, ...]:
    """The suite, or a quick run's part of it; see :func:`.suite.cases`."""
    topics = itertools.groupby(_all(), key=lambda case: case.topic)
    step = _QUICK if quick else 1
    return tuple(itertools.chain.from_iterable(thinned(part, step) for _, part in topics))
