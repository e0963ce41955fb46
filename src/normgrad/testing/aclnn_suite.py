"""What a library that speaks aclnn is tried with, as the product that it stands for has it."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import numpy as np

from .. import aclnn, layout, reference
from ..aclnn import aclFormat, products
from ..contract import Kind
from ..rules import Product
from . import c_functions, suite
from .aclnn_library import ACLNN, Argument, Request, Tensor, initialise, names_of, perform, started
from .aclnn_mistakes import CODES, DATA, OPERATORS, TRANSLATIONS, mistakes
from .c_functions import Functions, OurOwn
from .cases import IN_PLACE, Topic, differences, in_one_line, thinned
from .cases import Case as OperatorsCase
from .outcomes import Judged, Outcome
from .tensors import EPS, GRADIENTS, HALVES, Array, Call, Shape, lay_out
from .watched import guarded


@dataclass(frozen=True)
class Case:
    """One call, described; what differs from the defaults is in its name.

    Attributes:
        computed: what is computed, as the operators' own suite describes it.
        product: whose contract holds.
        saved_variance: whether what is called saveInvstd holds variances.
        format: of gradOut, input and gradInput.
        vectors_out: how the other outputs lie in memory.
        counter: the dtype of elemt's counter.
        flat: whether group norm's tensors are given with one axis.
        no_strides: whether contiguous tensors are created without strides.
        more: whether outputs that are not asked for are given, and running statistics in training.
        runs: how often the executor runs.
        change: the call's mistake.
    """

    computed: OperatorsCase
    product: str
    saved_variance: bool = False
    format: str = "ND"
    vectors_out: str = "contiguous"
    counter: str = "int32"
    flat: bool = False
    no_strides: bool = False
    more: bool = False
    runs: int = 1
    change: str = ""

    @property
    def name(self) -> str:
        """The case in one line, which finds it again."""
        computed = in_one_line(replace(self.computed, topic=self.topic))
        return "/".join((computed, *differences(self, ("computed", "product", "saved_variance"))))

    def __str__(self) -> str:
        return self.name

    @property
    def topic(self) -> Topic:
        """What it is about."""
        return Topic.MISTAKES if self.change else self.computed.topic

    @property
    def kind(self) -> str:
        """The operator, in its way."""
        return self.computed.kind

    @property
    def shape(self) -> Shape:
        """That of the input."""
        return self.computed.shape

    @property
    def dtype(self) -> str:
        """That of gradOut."""
        return self.computed.dtype

    @property
    def data_layout(self) -> str:
        """How gradOut and input lie in memory."""
        return self.computed.data_layout

    @property
    def mean(self) -> float:
        """That of the input, in standard deviations."""
        return self.computed.mean

    @property
    def normal(self) -> bool:
        """Whether the tighter bound of normally distributed data holds."""
        return self.computed.normal

    @property
    def operator(self) -> str:
        """The aclnn operator."""
        return OPERATORS[self.kind]

    def call(self) -> Call:
        """The call as the functional operator has it, but for what saveInvstd holds."""
        call = self.computed.call()
        counts, invstd = call.tensors.get("count"), call.tensors.get("save_invstd")
        if counts is not None:
            call.tensors["count"] = counts.astype(self.counter)
        if self.saved_variance and invstd is not None:
            with np.errstate(all="ignore"):
                variance = (1 / invstd.astype(np.float64) ** 2 - EPS).astype(invstd.dtype)
            call.tensors["save_invstd"] = lay_out(variance, self.computed.vectors)
        return call

    def exact(self) -> dict[str, reference.Exact]:
        """The oracle's outputs by aclnn's names, each with its scale."""
        call = self.call()
        variance = call.tensors.get("save_invstd")
        if self.saved_variance and variance is not None:
            eps = call.choices["eps"]
            # As float64, so that nothing is rounded before the formula.
            for name, value in call.tensors.items():
                call.tensors[name] = None if value is None else value.astype(np.float64)
            with np.errstate(all="ignore"):
                call.tensors["save_invstd"] = 1 / np.sqrt(variance.astype(np.float64) + eps)
        found = call.exact()
        theirs = TRANSLATIONS[call.name].outputs
        return {name: found[ours] for ours, name in zip(call.results, theirs, strict=True)}

    def request(self) -> Request:
        """What is done with a library: new tensors, the same each time."""
        call = self.call()
        translation = TRANSLATIONS[call.name]
        pairs = zip(call.operator.parameters, translation.inputs, strict=True)
        arrays = {
            theirs: guarded(value)
            for ours, theirs in pairs
            if (value := call.tensors.get(ours.name)) is not None
        }
        written = []
        for output, name in zip(call.outputs, translation.outputs, strict=True):
            if output.wanted:
                written.append(name)
            if output.wanted or self.more:
                is_data = output.kind is Kind.DATA
                arrays[name] = self._data_out(call, arrays) if is_data else self._vector_out(call)
        if self.more and self.kind == "eval":  # what is saved is not looked at
            nothing = np.zeros(0, arrays["input"].dtype)
            arrays["saveMean"], arrays["saveInvstd"] = guarded(nothing), guarded(nothing)
        elif self.more and self.kind == "train":  # nor is what is running
            arrays["runningMean"] = guarded(arrays["saveMean"])
            arrays["runningVar"] = guarded(arrays["saveInvstd"])
        scalars = _scalars(call)
        arguments = {
            name: self._described(name, arrays[name]) if name in arrays else scalars.get(name)
            for name in names_of(self.operator)
        }
        request = Request(self.operator, arguments, tuple(written))
        request.runs = self.runs
        if self.change:
            mistakes(self.operator, self.product)[self.change](request)
        return request

    def _data_out(self, call: Call, arrays: Mapping[str, Array]) -> Array:
        if self.computed.out in IN_PLACE:
            return arrays["gradOut" if IN_PLACE[self.computed.out] == "grad_out" else "input"]
        like = call.tensors["input"]
        assert like is not None
        given = call.first_out
        return guarded(np.full(like.shape, np.nan, like.dtype) if given is None else given)

    def _vector_out(self, call: Call) -> Array:
        """Of the dtype that every product allows: the weight's, else gradOut's."""
        data = call.tensors["grad_out"]
        weight = call.tensors.get("weight", call.tensors.get("gamma"))
        assert data is not None
        channels = data.shape[self.computed.channel_axis]
        values = np.full(channels, np.nan, (data if weight is None else weight).dtype)
        return guarded(lay_out(values, self.vectors_out))

    def _described(self, name: str, array: Array) -> Tensor:
        dims = array.shape
        if self.flat and array.flags.c_contiguous:
            dims = (array.size,)
        strides: Shape | None = tuple(step // array.itemsize for step in array.strides)
        if array.flags.c_contiguous:  # also without elements, where NumPy's may be anything
            strides = None if self.no_strides else layout.contiguous_strides(dims)
        format = aclFormat[f"ACL_FORMAT_{self.format if name in DATA else 'ND'}"]
        return Tensor(array, dims, strides, CODES[array.dtype], format)


def _scalars(call: Call) -> dict[str, Argument]:
    """Every argument of any operator that is no tensor, as far as the call has it."""
    wanted = tuple(output.wanted for output in call.outputs)
    data = call.tensors["input"]
    assert data is not None
    choices = call.choices
    return {
        "training": choices.get("training"),
        "eps": choices.get("eps"),
        "outputMask": wanted,
        **dict(zip(("inputG", "weightG", "biasG"), (wanted[0], *wanted[2:]), strict=False)),
        **{"N": data.shape[0], "C": data.shape[1], "HxW": math.prod(data.shape[2:])},
        "group": choices.get("num_groups"),
    }


def judge(case: Case, outcome: Outcome, strict: bool = False) -> Judged:
    """What an outcome is worth; see :func:`.outcomes.judge`."""
    with aclnn.product(case.product, save_invstd="invstd"):
        return c_functions.judge(case, outcome, lambda: perform(*_in_this_thread(), case.request()))


@cache
def _our_own() -> tuple[Functions, int | None]:
    """Our own functions, and a stream of theirs."""
    functions = OurOwn(ACLNN)
    initialise(functions)
    return functions, started(functions)


def _in_this_thread() -> tuple[Functions, int | None]:
    """The same, in a thread that may have no device yet."""
    functions, stream = _our_own()
    functions.call("aclrtSetDevice", 0)
    return functions, stream


# The cases

_WIDE: Shape = (4, 6, 9, 11)
_SHAPES: tuple[Shape, ...] = (_WIDE, (2, 4, 1000), (33, 40))
_LAYOUTS = ("channels_last", "sliced", "transposed", "odd", "expanded")
#: A shape for each format, with the channel where the format has it.
_CHANNEL_FIRST: Mapping[str, Shape] = {
    "NC": (9, 4),
    "NCL": (3, 4, 25),
    "NCHW": (3, 4, 5, 7),
    "NCDHW": (2, 4, 3, 5, 2),
}
_CHANNEL_LAST: Mapping[str, Shape] = {"NHWC": (3, 5, 7, 4), "NDHWC": (2, 3, 5, 2, 4)}


class _Cases:
    """The cases for a product."""

    def __init__(self, product: Product, saved_variance: bool) -> None:
        self._product = product
        self._saved_variance = saved_variance
        self._kinds = tuple(kind for kind in GRADIENTS if OPERATORS.get(kind) in product.operators)

    def all(self) -> Iterator[tuple[Case, ...]]:
        """The cases of one topic after the other."""
        for part in (
            *(self._plain, self._values, self._means, self._masks, self._absent, self._vectors),
            *(self._outputs, self._shapes, self._special, self._mistakes, self._determinism),
        ):
            # What is usual is said twice.
            yield tuple({case.name: case for case in part()}.values())

    def _case(self, computed: OperatorsCase, **more: Any) -> Case:
        if computed.dtype in HALVES and not computed.parameters:
            computed = replace(computed, parameters=computed.dtype)
        return Case(computed, self._product.name, self._saved_variance, **more)

    def _part(self, topic: Topic) -> Iterator[OperatorsCase]:
        """What of the operators' own suite can be said here."""
        for each in suite.part(topic, self._kinds):
            said = (each.layout, each.x_layout, each.vectors, each.out)
            if each.dtype in self._product.dtypes and "negative" not in said:
                yield each

    def _plain(self) -> Iterator[Case]:
        yield from map(self._plain_call, self._kinds)

    def _plain_call(self, kind: str) -> Case:
        groups = 2 if kind == "group_norm" else 1
        return self._case(OperatorsCase(Topic.PLAIN, kind, (3, 4, 5), groups=groups), more=True)

    def _values(self) -> Iterator[Case]:
        for kind, dtype in itertools.product(self._kinds, self._product.dtypes):
            groups = 2 if kind == "group_norm" else 1
            bases = [
                OperatorsCase(Topic.VALUES, kind, shape, dtype, groups=groups, normal=True)
                for shape in _SHAPES
            ]
            yield from map(self._case, bases)
            for where in _LAYOUTS:
                yield self._case(replace(bases[0], layout=where, normal=where != "expanded"))
            yield self._case(replace(bases[0], x_layout="channels_last"))
            yield from (self._case(each) for each in self._mixed(bases[0]))
            if dtype == "float32":
                for format, shape in _CHANNEL_FIRST.items():
                    yield self._case(replace(bases[0], shape=shape), format=format)
            if self._product.name == products.ASCEND_950:
                for format, shape in _CHANNEL_LAST.items():
                    last = replace(bases[0], shape=shape, channel_axis=-1)
                    yield self._case(last, format=format)
            if kind == "elemt":
                for counter in ("float16", "float32"):
                    yield self._case(replace(bases[0], shape=(3, 4, 5)), counter=counter)
            if kind == "group_norm":
                yield self._case(bases[0], flat=True)

    def _mixed(self, base: OperatorsCase) -> Iterator[OperatorsCase]:
        """Other dtypes beside gradOut's, where they are allowed."""
        for other in self._product.dtypes:
            if base.kind in ("reduce", "elemt"):
                yield replace(base, parameters=other)
            if base.kind == "elemt":
                yield replace(base, x_dtype=other, parameters="float32")
        if self._product.name == products.ASCEND_950:
            yield replace(base, parameters="float32")

    def _means(self) -> Iterator[Case]:
        for each in self._part(Topic.MEAN):
            if each.layout == "contiguous":
                yield self._case(each)

    def _masks(self) -> Iterator[Case]:
        for each in self._part(Topic.MASKS):
            yield self._case(each, more=each.layout != "contiguous")

    def _absent(self) -> Iterator[Case]:
        yield from map(self._case, self._part(Topic.ABSENT))
        for kind in ("train", "eval"):
            if kind in self._kinds:
                yield self._case(OperatorsCase(Topic.ABSENT, kind, (3, 4, 25)), more=True)

    def _vectors(self) -> Iterator[Case]:
        for each in self._part(Topic.VECTORS):
            yield self._case(each)
            if each.vectors == "sliced" and each.kind != "elemt":
                yield self._case(each, vectors_out="sliced")

    def _outputs(self) -> Iterator[Case]:
        yield from map(self._case, self._part(Topic.OUTPUTS))

    def _shapes(self) -> Iterator[Case]:
        for each in self._part(Topic.SHAPES):
            no_channels = each.shape[1] == 0 and each.kind in ("reduce", "elemt")
            if each.channel_axis == 1 and not no_channels:
                yield self._case(each, no_strides=len(each.shape) % 2 == 0)

    def _special(self) -> Iterator[Case]:
        for each in self._part(Topic.SPECIAL):
            if each.layout == "contiguous":
                yield self._case(each)

    def _mistakes(self) -> Iterator[Case]:
        for kind in ("train", "reduce", "elemt", "group_norm"):
            for change in mistakes(OPERATORS[kind], self._product.name):
                yield replace(self._plain_call(kind), change=change)

    def _determinism(self) -> Iterator[Case]:
        for each in self._part(Topic.DETERMINISM):
            yield self._case(each)
            yield self._case(replace(each, shape=(3, 4, 50)), runs=3)


#: A quick run takes every so manieth case of each topic: no multiple of 2 or 3, which is how dtypes
#: and shapes alternate.
_QUICK = 7


def cases(quick: bool, facts: Mapping[str, str]) -> tuple[Case, ...]:
    """The suite, or a quick run's part of it; see :func:`.suite.cases`."""
    product = products.find(facts["product"])
    found = _Cases(product, facts["saveInvstd"] == "variance").all()
    if quick:
        found = (tuple(thinned(part, _QUICK, lambda case: case.computed.change)) for part in found)
    return tuple(itertools.chain(*found))
