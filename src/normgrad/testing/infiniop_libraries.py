"""Test libraries that speak infiniop: their calls, and the suite."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from ctypes import byref, c_size_t, c_ssize_t, c_void_p
from dataclasses import dataclass, replace
from functools import cache, partial
from typing import Any

import numpy as np

from ..dialects import infiniop
from ..dialects.infiniop import (
    CONTRACT,
    INPUTS,
    OUTPUTS,
    infiniDevice_t,
    infiniDtype_t,
    infiniStatus_t,
)
from . import changes
from .c_functions import Functions
from .cases import IN_PLACE, Topic, thinned, varied
from .libraries import LibraryCall, LibraryCase
from .neighbours import Neighbours
from .operator_suite import LONG, RATIOS, SIZES
from .requests import Mistake, Request, Tensor
from .tensors import HALVES, Array, Call, Shape, make

_CREATE = "infiniopCreateBatchNormBackwardDescriptor"
_SIZE = "infiniopGetBatchNormBackwardWorkspaceSize"
_RUN = "infiniopBatchNormBackward"

_HANDLE, _TENSOR = "infiniopCreateHandle", "infiniopCreateTensorDescriptor"
#: The functions that destroy objects, by those that create them.
_DESTROYERS = {name: name.replace("Create", "Destroy") for name in (_HANDLE, _TENSOR, _CREATE)}

#: The rules' names for dtypes, by infiniop's words; infiniop does not take all of them.
DTYPES = {"F16": "float16", "F32": "float32", "BF16": "bfloat16", "F64": "float64", "I32": "I32"}
_CODES = {name: infiniDtype_t[f"INFINI_DTYPE_{word}"] for word, name in DTYPES.items()}


class Infiniop(LibraryCall):
    """One call: a handle, the tensors' descriptors, the operator's, and the computation."""

    dialect = "infiniop"
    markers = (_CREATE,)
    needed = (*_DESTROYERS, *_DESTROYERS.values(), _SIZE, _RUN)
    companions = ("libinfinirt.so",)
    libraries = ("infiniop", "infinirt")

    @staticmethod
    def facts(path: str, functions: Functions) -> dict[str, str]:
        return {"operators": "BatchNormBackward", "tensors": "CPU"}

    def run(self) -> None:
        request, call = self.request, self.functions.call
        if "infinirtInit" in self.functions:
            call("infinirtInit")
        if "infinirtSetDevice" in self.functions:
            call("infinirtSetDevice", infiniDevice_t.INFINI_DEVICE_CPU, 0)
        handle = self._create(_HANDLE)
        tensors = {name: self._describe(each) for name, each in request.tensors.items()}
        owner = self.argument("handle", handle)
        values = [self.argument(name, tensors.get(name)) for name in request.arguments]
        operator = self._create(_CREATE, (owner,), values)
        self.destroy(*tensors.values())  # the operator keeps its own copies
        size = c_size_t()
        place = self.unless(f"{_SIZE}: no place for the result", byref(size))
        call(_SIZE, self.unless("operator: null", operator), place)
        if request.computes:
            used = self.unless("operator: null when computing", self.argument("operator", operator))
            data = (
                None if tensor.null == "memory" else self.address(name)
                for name, tensor in request.tensors.items()
            )
            call(_RUN, used, *self.workspace(size.value), *data, None)
            if "infinirtDeviceSynchronize" in self.functions:
                call("infinirtDeviceSynchronize")
            self.written = request.outputs
        self.destroy(operator, handle)

    def _create(self, creator: str, before: tuple[Any, ...] = (), after: Any = ()) -> Any:
        """Create an object; the result's pointer stands between the arguments before and after."""
        pointer = c_void_p()
        place = self.unless(f"{creator}: no place for the result", byref(pointer))
        self.functions.call(creator, *before, place, *after)
        return self.track(pointer.value, _DESTROYERS[creator])

    def _describe(self, tensor: Tensor) -> Any:
        rank = len(tensor.dims)
        dims, steps = (c_size_t * rank)(*tensor.dims), (c_ssize_t * rank)(*tensor.strides)
        strides = None if tensor.null == "strides" else steps
        return self._create(_TENSOR, (), (rank, dims, strides, _CODES[tensor.dtype_name]))


# The suite

_DTYPES = ("float16", "float32", "bfloat16")
_VECTORS = ("grad_weight", "grad_bias", "weight", "running_mean", "running_var")

#: infiniop's names of tensors and outputs, by the functional operator's.
_NAMES = {**infiniop.THEIR_NAMES, **{name: name for name in OUTPUTS}}

_BASE = make("train", (3, 4, 40))
_VARIANCES = {"negative": -1.0, "tiny": 1e-12, "huge": 1e12}
#: Changes to special values, by name. A change of ``save_invstd`` changes the variance it holds.
TWISTS: Mapping[str, changes.Change] = {
    **{name: e for name, e in changes.TWISTS.items() if e.fits(_BASE) and "invstd " not in name},
    **{
        f"{word} variance": changes.of_tensor("save_invstd", partial(np.full_like, fill_value=each))
        for word, each in _VARIANCES.items()
    },
}


@dataclass(frozen=True)
class InfiniopCase(LibraryCase):
    """One call of batch norm's gradients.

    Attributes:
        strided: the vectors that have gaps, each another stride.
        null: which optional pointer is null: "strides" of contiguous tensors, or "memory" of
            empty ones.
        loose: whether axes of length 1 have unusual strides.
    """

    kind: str = "train"
    shape: Shape = (3, 4, 5)
    eps_of_variance: float | None = 0.0
    strided: tuple[str, ...] = ()
    null: str = ""
    loose: bool = False

    _always_named = ("shape", "dtype")
    twists = TWISTS
    names = _NAMES
    operator = "BatchNormBackward"

    @property
    def mistakes(self) -> Mapping[str, Mistake]:
        return mistakes()

    def unchanged(self) -> Call:
        """The functional operator's call, except that save_invstd holds the variance."""
        call = super(InfiniopCase, replace(self, parameters=self.dtype)).unchanged()
        x = call.arrays["input"]
        variance = x.astype(np.float64).var((0, 2)) if x.size else np.ones(x.shape[1])
        call.tensors["save_invstd"] = variance.astype(x.dtype)
        for name, value in call.arrays.items():
            call.tensors[name] = self.vector(_NAMES[name], value)
        return call

    def legal_request(self) -> Request:
        arrays, outputs = self._memory(self.call())
        arguments = {row.name: Tensor.of(arrays[row.name], "", self.null) for row in CONTRACT.rows}
        for name, tensor in arguments.items() if self.loose else ():
            pairs = zip(tensor.dims, tensor.strides, strict=True)
            steps = tuple(77 if size == 1 else step for size, step in pairs)
            arguments[name] = replace(tensor, strides=steps)
        return Request(_RUN, arguments, outputs)

    def vector(self, name: str, values: Array) -> Array:
        """The values with gaps, if the vector of this name has them."""
        if name not in self.strided:
            return values
        step = 2 + self.strided.index(name)
        wide = np.full(step * len(values), np.nan, values.dtype)
        wide[::step] = values
        return wide[::step]


_BASE_CASE = InfiniopCase(Topic.PLAIN)
_BAD = Mistake(infiniStatus_t.INFINI_STATUS_BAD_PARAM)
_BAD_RUN = _BAD._replace(computes=True)


@cache
def near() -> Neighbours:
    """The calls near the plain call."""
    base = _BASE_CASE.request()
    return Neighbours(CONTRACT, infiniop.ANY_PRODUCT, base, DTYPES, infiniop.STATUSES)


@cache
def mistakes() -> Mapping[str, Mistake]:
    """The mistakes to try in the plain call, by name."""
    found = dict(near().illegal)
    for name in (*OUTPUTS, *INPUTS):
        found[f"{name}: destroyed"] = _BAD
        found[f"{name}: null memory"] = _BAD_RUN._replace(changes={name: {"null": "memory"}})
    found |= dict.fromkeys(("handle: null", "handle: destroyed", "operator: null"), _BAD)
    found |= dict.fromkeys(("operator: null when computing", "operator: destroyed"), _BAD_RUN)
    for creator, destroyer in _DESTROYERS.items():
        found[f"{creator}: no place for the result"] = _BAD
        found |= {f"{destroyer}: null": _BAD, f"{destroyer}: twice": _BAD}
    found[f"{_SIZE}: no place for the result"] = _BAD
    short = Mistake(infiniStatus_t.INFINI_STATUS_INSUFFICIENT_WORKSPACE, computes=True)
    found |= {"workspace: null": _BAD_RUN, "workspace: a byte short": short}
    return found | near().both(
        ("running_var: null", "weight: F64"),
        ("weight: F64", "grad_bias: an element short"),
        ("grad_bias: an element short", "input: gaps between rows"),
    )


# The cases

_SHAPES_OF_VALUES: tuple[Shape, ...] = (
    *((2, 3, 4), (8, 16, 100), (1, 1, 2), (4, 64, 196), (33, 7, 1), (1, 6, 300), (3, 5, 257)),
    *((2, 40, 33), (64, 3, 9), (5, 1, 1000)),
)
_SHAPES_OF_EDGES: tuple[Shape, ...] = (
    *((1, 4, 1), (1, 1, 1), (1, 4, 5), (3, 1, 5), (3, 4, 1), (2, 1, 1), (1, 1, 7)),
)
_EMPTY: tuple[Shape, ...] = ((0, 4, 5), (2, 4, 0), (2, 0, 5), (0, 0, 0))


def _all() -> Iterator[InfiniopCase]:
    yield _BASE_CASE
    values = InfiniopCase(Topic.VALUES, normal=True)
    yield from varied(values, shape=_SHAPES_OF_VALUES, dtype=_DTYPES, null=("", "strides"))
    for dtype in ("float32", *HALVES):
        means = InfiniopCase(Topic.MEAN, dtype=dtype)
        yield from varied(means, mean=RATIOS[dtype], shape=((8, 4, 256), (64, 6, 33)))
    yield from varied(InfiniopCase(Topic.ABSENT, null="memory"), shape=_EMPTY, dtype=_DTYPES)
    strided = (*((name,) for name in _VECTORS), _VECTORS, _VECTORS[::-1])
    shapes: tuple[Shape, ...] = ((3, 4, 30), (4, 64, 49))
    yield from varied(InfiniopCase(Topic.VECTORS), strided=strided, shape=shapes, dtype=_DTYPES)
    shapes = ((3, 4, 30), (8, 16, 100), (2, 3, 4), (6, 5, 1601))
    yield from varied(InfiniopCase(Topic.OUTPUTS), out=IN_PLACE, shape=shapes, dtype=_DTYPES)
    edges = InfiniopCase(Topic.SHAPES)
    yield from varied(edges, shape=_SHAPES_OF_EDGES, dtype=_DTYPES, loose=(False, True))
    yield from varied(edges, shape=_EMPTY, dtype=_DTYPES)
    yield from varied(InfiniopCase(Topic.SIZES), shape=SIZES, dtype=_DTYPES)
    special = InfiniopCase(Topic.SPECIAL, shape=(3, 4, 40))
    yield from varied(special, change=(name for name in TWISTS if name != changes.LONG_SUMS))
    yield from varied(replace(special, change=changes.LONG_SUMS), shape=LONG, dtype=_DTYPES)
    yield replace(special, shape=(4, 4, 16384), change="all terms positive")
    yield from varied(replace(_BASE_CASE, topic=Topic.MISTAKES), change=mistakes())
    yield from varied(
        InfiniopCase(Topic.DETERMINISM), shape=((16, 24, 784), (33, 40, 10)), dtype=_DTYPES
    )


def cases(quick: bool, facts: Mapping[str, str]) -> tuple[InfiniopCase, ...]:
    """The suite, or its part for a quick run; see :func:`.operator_suite.cases`."""
    # No multiple of 2 or 3, the periods with which dtypes and shapes alternate.
    return tuple(thinned(_all(), 5 if quick else 1))
