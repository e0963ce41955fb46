"""What a library that speaks infiniop is tried with."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from .. import dtypes, layout, reference
from ..infiniop import infiniDtype_t
from ..infiniop.operators import INPUTS, OUTPUTS
from . import c_functions, changes
from .c_functions import OurOwn
from .cases import IN_PLACE, Topic, in_one_line, thinned
from .infiniop_library import INFINIOP, MAKERS, Request, Tensor, perform
from .outcomes import Judged, Outcome
from .suite import LONG
from .tensors import Array, Call, Shape, make
from .watched import guarded

#: infiniop's numbers for the dtypes that it takes.
_NUMBERS = {
    "float16": infiniDtype_t.INFINI_DTYPE_F16,
    "float32": infiniDtype_t.INFINI_DTYPE_F32,
    "bfloat16": infiniDtype_t.INFINI_DTYPE_BF16,
}
_DATA = ("grad_input", "input", "grad_output")
_VECTORS = ("grad_weight", "grad_bias", "weight", "running_mean", "running_var")

#: What the functional operator calls the inputs. In place of 1/std there is the variance.
_OURS = {
    "input": "input",
    "grad_output": "grad_out",
    "weight": "weight",
    "running_mean": "save_mean",
    "running_var": "save_invstd",
}


@dataclass(frozen=True)
class Case:
    """One call, described; what differs from the defaults is in its name.

    Attributes:
        topic: what it is about.
        shape: of input, (N, C, L).
        dtype: of all tensors.
        mean: of input, whose standard deviation is 1.
        strided: the vectors that have gaps, and as many different ones.
        out: where grad_input is, one of ``IN_PLACE``; memory of its own if empty.
        null: what is null though it might be given: "strides" of what is contiguous, "memory" of
            what is empty.
        loose: whether axes of one element have odd strides.
        change: what is done to the tensors, one of ``TWISTS``; or the call's mistake.
        normal: whether the data are normally distributed, for which the bound is tighter.
    """

    topic: Topic
    shape: Shape
    dtype: str = "float32"
    mean: float = 0.3
    strided: tuple[str, ...] = ()
    out: str = ""
    null: str = ""
    loose: bool = False
    change: str = ""
    normal: bool = False

    kind = "train"
    operator = "BatchNormBackward"
    data_layout = "contiguous"

    @property
    def name(self) -> str:
        """The case in one line, which finds it again."""
        return in_one_line(self)

    def __str__(self) -> str:
        return self.name

    def call(self) -> Call:
        """The inputs, under the functional operator's names."""
        call = make(
            "train", self.shape, dtype=self.dtype, parameter_dtype=self.dtype, mean=self.mean
        )
        x = call.tensors["input"]
        assert x is not None
        wide = x.astype(np.float64)
        variance = wide.var((0, 2)) if x.size else np.ones(x.shape[1])
        call.tensors["save_invstd"] = variance.astype(x.dtype)
        if self.topic is Topic.SPECIAL:
            TWISTS[self.change].make(call)
        return call

    def request(self) -> Request:
        """What is done with a library: new tensors, the same each time."""
        inputs = self.call().tensors
        arrays = {name: self._placed(name, inputs[_OURS[name]]) for name in INPUTS}
        like = {"grad_input": "input"}
        for name in OUTPUTS:
            array = arrays[like.get(name, "weight")]
            arrays[name] = self._placed(name, np.full(array.shape, np.nan, array.dtype))
        if self.out:
            place = {"grad_out": "grad_output"}.get(IN_PLACE[self.out], "input")
            arrays["grad_input"] = arrays[place]
        request = Request({name: self._described(arrays[name]) for name in (*OUTPUTS, *INPUTS)})
        if self.null == "memory":
            request.null.update(f"{name} memory" for name, each in arrays.items() if not each.size)
        if self.topic is Topic.MISTAKES:
            MISTAKES[self.change](request)
        return request

    def _placed(self, name: str, values: Array | None) -> Array:
        assert values is not None
        if name in self.strided:
            step = 2 + self.strided.index(name)
            wide = np.full(step * len(values), np.nan, values.dtype)
            wide[::step] = values
            values = wide[::step]
        return guarded(values)

    def _described(self, array: Array) -> Tensor:
        contiguous = layout.contiguous_strides(array.shape)
        strides = tuple(step // array.itemsize for step in array.strides)
        if not array.size:  # NumPy's may be anything then
            strides = contiguous
        if self.loose:
            strides = tuple(
                77 if size == 1 else step for size, step in zip(array.shape, strides, strict=True)
            )
        dtype = _NUMBERS[dtypes.parse(array.dtype).name]
        given = None if self.null == "strides" and strides == contiguous else strides
        return Tensor(array, array.shape, given, dtype)

    def exact(self) -> dict[str, reference.Exact]:
        """The oracle's outputs, each with its scale."""
        wide = {
            name: None if value is None else value.astype(np.float64)
            for name, value in self.call().tensors.items()
        }
        variance = wide["save_invstd"]
        assert variance is not None
        with np.errstate(all="ignore"):  # as float64, so that nothing is rounded before the formula
            wide["save_invstd"] = 1 / np.sqrt(variance)
        return Call("batch_norm_backward", wide, {"training": True}).exact()


_OUR_OWN = OurOwn(INFINIOP)


def judge(case: Case, outcome: Outcome, strict: bool = False) -> Judged:
    """What an outcome is worth; see :func:`.outcomes.judge`."""
    return c_functions.judge(case, outcome, lambda: perform(_OUR_OWN, case.request()))


# What is special


def _twists() -> dict[str, changes.Change]:
    base = make("train", (3, 4, 40))
    found = {
        name: twist
        for name, twist in changes.TWISTS.items()
        if twist.fits(base) and twist.argument in base.tensors and "invstd " not in name
    }

    def variance(value: float) -> Callable[[Call], None]:
        def put(call: Call) -> None:
            old = call.tensors["save_invstd"]
            call.tensors["save_invstd"] = np.full_like(old, value)

        return put

    for word, value in {"negative": -1.0, "tiny": 1e-12, "huge": 1e12}.items():
        found[f"{word} variance"] = changes.Change("save_invstd", variance(value))
    return found


#: By name; those of ``save_invstd`` change the variance, which stands in its place.
TWISTS: Mapping[str, changes.Change] = _twists()


# What is wrong

Mistake = Callable[[Request], None]


def _null(name: str, computes: bool = False) -> Mistake:
    def put(request: Request) -> None:
        request.null.add(name)
        request.computes = computes

    return put


def _destroyed(name: str) -> Mistake:
    def put(request: Request) -> None:
        request.destroyed.add(name)
        request.computes = name == "operator"

    return put


def _destroyed_again(name: str) -> Mistake:
    def put(request: Request) -> None:
        request.destroyed_again = name
        request.computes = False

    return put


def _look(names: tuple[str, ...], change: Callable[[Tensor], None]) -> Mistake:
    """Descriptors that are wrong; the memory is as it was."""

    def put(request: Request) -> None:
        for name in names:
            change(request.tensors[name])
        request.computes = False

    return put


def _dtype(tensor: Tensor, dtype: int) -> None:
    tensor.dtype = dtype


def _dims(tensor: Tensor, change: Callable[[Shape], Shape]) -> None:
    tensor.dims = change(tensor.dims)
    tensor.strides = layout.contiguous_strides(tensor.dims)


def _strides(tensor: Tensor, strides: tuple[int, ...]) -> None:
    tensor.strides = strides


def _both(*mistakes: Mistake) -> Mistake:
    def put(request: Request) -> None:
        for each in mistakes:
            each(request)

    return put


def _workspace(request: Request) -> None:
    request.bytes_missing = 1


_DTYPES = {name: infiniDtype_t[f"INFINI_DTYPE_{name}"] for name in ("F16", "F64", "I32")}
_SHAPES: Mapping[str, Callable[[Shape], Shape]] = {
    "an axis more": lambda dims: (*dims, 1),
    "an axis fewer": lambda dims: dims[1:],
    "an element short": lambda dims: (*dims[:-1], dims[-1] - 1),
    "an element long": lambda dims: (*dims[:-1], dims[-1] + 1),
}
#: Of (3, 4, 5), and of (4,).
_DATA_STRIDES = {
    "the last axes transposed": (20, 1, 4),
    "gaps between rows": (24, 6, 1),
    "negative strides": (-20, -5, -1),
}
_VECTOR_STRIDES = {"stride 0": (0,), "a negative stride": (-1,)}
_PLAIN = Case(Topic.PLAIN, (3, 4, 5))


def _mistakes() -> dict[str, Mistake]:
    found: dict[str, Mistake] = {}
    names = (*OUTPUTS, *INPUTS)
    for name in names:
        found[f"{name}: null"] = _null(name)
        found[f"{name}: destroyed"] = _destroyed(name)
        for word, dtype in _DTYPES.items():
            found[f"{name}: {word}"] = _look((name,), partial(_dtype, dtype=dtype))
        for word, change in _SHAPES.items():
            found[f"{name}: {word}"] = _look((name,), partial(_dims, change=change))
        for word, strides in (_DATA_STRIDES if name in _DATA else _VECTOR_STRIDES).items():
            found[f"{name}: {word}"] = _look((name,), partial(_strides, strides=strides))
        found[f"{name}: null memory"] = _null(f"{name} memory", computes=True)
    for word in ("F64", "I32"):
        found[f"all: {word}"] = _look(names, partial(_dtype, dtype=_DTYPES[word]))
    for word in ("an axis more", "an axis fewer"):
        found[f"data: {word}"] = _look(_DATA, partial(_dims, change=_SHAPES[word]))
    for word, strides in _DATA_STRIDES.items():
        found[f"data: {word}"] = _look(_DATA, partial(_strides, strides=strides))
    found["handle: null"] = _null("handle")
    found["handle: destroyed"] = _destroyed("handle")
    found["operator: null"] = _null("operator")
    found["operator: null when computing"] = _null("operator when computing", computes=True)
    found["operator: destroyed"] = _destroyed("operator")
    for kind, (creator, destroyer) in MAKERS.items():
        found[f"{creator}: no place for the result"] = _null(creator)
        found[f"{destroyer}: null"] = _null(destroyer)
        found[f"{destroyer}: twice"] = _destroyed_again(kind)
    size = "infiniopGetBatchNormBackwardWorkspaceSize"
    found[f"{size}: no place for the result"] = _null(size)
    found["workspace: null"] = _null("workspace", computes=True)
    found["workspace: a byte short"] = _workspace
    # Of two mistakes the first in order is told.
    for first, second in (
        ("running_var: null", "weight: F64"),
        ("weight: F64", "grad_bias: an element short"),
        ("grad_bias: an element short", "input: gaps between rows"),
    ):
        found[f"{first}, and {second}"] = _both(found[second], found[first])
    return found


#: By name: what is done to a request of shape (3, 4, 5), in float32.
MISTAKES: Mapping[str, Mistake] = _mistakes()


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
    "float16": (1.0, 10.0, 1e2),
    "bfloat16": (1.0, 10.0, 1e2),
}


def _plain() -> Iterator[Case]:
    yield _PLAIN


def _values() -> Iterator[Case]:
    for shape, dtype in itertools.product(_SHAPES_OF_VALUES, _NUMBERS):
        for null in ("", "strides"):
            yield Case(Topic.VALUES, shape, dtype, null=null, normal=True)


def _means() -> Iterator[Case]:
    for dtype, ratios in _RATIOS.items():
        for ratio, shape in itertools.product(ratios, ((8, 4, 256), (64, 6, 33))):
            yield Case(Topic.MEAN, shape, dtype, mean=ratio)


def _absent() -> Iterator[Case]:
    for shape, dtype in itertools.product(_EMPTY, _NUMBERS):
        yield Case(Topic.ABSENT, shape, dtype, null="memory")


def _vectors() -> Iterator[Case]:
    for names in (*((name,) for name in _VECTORS), _VECTORS, _VECTORS[::-1]):
        for shape, dtype in itertools.product(((3, 4, 30), (4, 64, 49)), _NUMBERS):
            yield Case(Topic.VECTORS, shape, dtype, strided=names)


def _outputs() -> Iterator[Case]:
    shapes = ((3, 4, 30), (8, 16, 100), (2, 3, 4), (6, 5, 1601))
    for out, shape, dtype in itertools.product(IN_PLACE, shapes, _NUMBERS):
        yield Case(Topic.OUTPUTS, shape, dtype, out=out)


def _edges() -> Iterator[Case]:
    for shape, dtype in itertools.product(_SHAPES_OF_EDGES, _NUMBERS):
        for loose in (False, True):
            yield Case(Topic.SHAPES, shape, dtype, loose=loose)
    for shape, dtype in itertools.product(_EMPTY, _NUMBERS):
        yield Case(Topic.SHAPES, shape, dtype)


def _special() -> Iterator[Case]:
    for change in TWISTS:
        if change != changes.LONG_SUMS:
            yield Case(Topic.SPECIAL, (3, 4, 40), change=change)
    for shape, dtype in itertools.product(LONG, _NUMBERS):
        yield Case(Topic.SPECIAL, shape, dtype, change=changes.LONG_SUMS)
    yield Case(Topic.SPECIAL, (4, 4, 16384), change="all terms positive")


def _wrong() -> Iterator[Case]:
    for change in MISTAKES:
        yield replace(_PLAIN, topic=Topic.MISTAKES, change=change)


def _determinism() -> Iterator[Case]:
    for shape, dtype in itertools.product(((16, 24, 784), (33, 40, 10)), _NUMBERS):
        yield Case(Topic.DETERMINISM, shape, dtype)


_PARTS = (
    *(_plain, _values, _means, _absent, _vectors, _outputs, _edges, _special, _wrong),
    _determinism,
)

#: A quick run takes every so manieth case of each topic: no multiple of 2 or 3, which is how dtypes
#: and shapes alternate.
_QUICK = 5


def cases(quick: bool, facts: Mapping[str, str]) -> tuple[Case, ...]:
    """The suite, or a quick run's part of it; see :func:`.suite.cases`."""
    parts = (tuple(part()) for part in _PARTS)
    if quick:
        parts = (tuple(thinned(part, _QUICK, lambda case: case.change)) for part in parts)
    return tuple(itertools.chain(*parts))
