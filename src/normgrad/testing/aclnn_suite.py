"""What a library that speaks aclnn is tried with, as the product that it stands for has it."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import numpy as np

from .. import aclnn, reference
from ..aclnn import phases, products
from ..aclnn.contracts import CHANNEL_LAST, RANKS
from ..capi.acl import aclrtSetDevice
from ..rules import Product
from . import suite
from .aclnn_library import ACLNN
from .cases import Case as OperatorsCase
from .cases import Topic, thinned
from .libraries import (
    Change,
    LibraryCase,
    Request,
    Tensor,
    exact_of_variance,
    mishandled,
    our_library,
    together,
)
from .neighbours import Neighbours, keeps, neighbours
from .tensors import EPS, GRADIENTS, HALVES, Array, Call, Shape, lay_out, operator_of
from .watched import guarded

#: How operators and their arguments are called, by the functional operator's name, and by aclnn's.
_TRANSLATIONS = {
    name: each
    for each in (phases.BATCH_NORM, phases.REDUCE, phases.ELEMT, phases.GROUP_NORM)
    for name in (each.operator.name, each.contract.name)
}
#: The kinds of calls, by aclnn's operators.
_OPERATORS = {
    kind: _TRANSLATIONS[operator_of(kind)].contract.name
    for kind in GRADIENTS
    if operator_of(kind) in _TRANSLATIONS
}
_DATA = ("gradOut", "input", "gradInput")


@dataclass(frozen=True)
class Case(LibraryCase):
    """One call; its mistakes are those of :func:`mistakes`.

    Attributes:
        product: whose contract holds.
        saved_variance: whether what is called saveInvstd holds variances.
        format: of gradOut, input and gradInput.
        vectors_out: how the other outputs lie in memory.
        counter: the dtype of elemt's counter.
        said: what is said otherwise than usual, and as allowed; one of :func:`near`'s ``kept``.
        no_strides: whether contiguous tensors are created without strides.
        more: whether outputs that are not asked for are given, and running statistics in training.
        runs: how often the executor runs.
    """

    product: str = products.A2
    saved_variance: bool = False
    format: str = "ND"
    vectors_out: str = "contiguous"
    counter: str = "int32"
    said: str = ""
    no_strides: bool = False
    more: bool = False
    runs: int = 1

    dialect = ACLNN
    _never_said = (*OperatorsCase._never_said, "product", "saved_variance")

    @property
    def operator(self) -> str:
        """The aclnn operator."""
        return _OPERATORS[self.kind]

    def call(self) -> Call:
        """The call as the functional operator has it, but for what saveInvstd holds."""
        call = super(Case, replace(self, change="") if self.is_mistake else self).call()
        counts, invstd = call.tensors.get("count"), call.tensors.get("save_invstd")
        if counts is not None:
            call.tensors["count"] = counts.astype(self.counter)
        if self.saved_variance and invstd is not None:
            with np.errstate(all="ignore"):
                variance = (1 / invstd.astype(np.float64) ** 2 - EPS).astype(invstd.dtype)
            call.tensors["save_invstd"] = lay_out(variance, self.vectors)
        return call

    def exact(self, call: Call) -> dict[str, reference.Exact]:
        """See :class:`.cases.Case`."""
        has_variance = self.saved_variance and call.tensors.get("save_invstd") is not None
        found = exact_of_variance(call, call.choices["eps"]) if has_variance else call.exact()
        names = _TRANSLATIONS[call.name].names
        return {names[name]: exact for name, exact in found.items()}

    def status(self) -> str:
        """See :class:`.cases.Case`."""
        our_library(ACLNN)  # which begins with aclInit
        aclrtSetDevice(0)  # this thread may have none yet
        with aclnn.product(self.product, save_invstd="invstd"):
            return super().status()

    def request(self) -> Request:
        """See :class:`.libraries.LibraryCase`."""
        call = self.call()
        translation = _TRANSLATIONS[call.name]
        arrays, written = self._memory(call, translation.names, self.more)
        if self.more and self.kind == "eval":  # what is saved is not looked at
            nothing = np.zeros(0, arrays["input"].dtype)
            arrays["saveMean"], arrays["saveInvstd"] = guarded(nothing), guarded(nothing)
        elif self.more and self.kind == "train":  # nor is what is running
            arrays["runningMean"] = guarded(arrays["saveMean"])
            arrays["runningVar"] = guarded(arrays["saveInvstd"])
        given = _scalars(call)
        for name, array in arrays.items():
            given[name] = tensor = Tensor.of(array, self.format if name in _DATA else "ND")
            tensor.null_strides = self.no_strides and array.flags.c_contiguous
        arguments = {row.name: given.get(row.name) for row in translation.contract.rows}
        request = Request(self.operator, arguments, written, runs=self.runs)
        if self.said:
            near(self.kind, self.product).kept[self.said](request)
        if self.is_mistake:
            mistakes(self.kind, self.product)[self.change](request)
        return request

    def _vector_out(self, name: str, values: Array) -> Array:
        return lay_out(values, self.vectors_out)


def _scalars(call: Call) -> dict[str, Any]:
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


# What lies near the rules


@cache
def near(kind: str, product_name: str) -> Neighbours:
    """What lies near the plain call of a kind, which the product has."""
    product = products.find(product_name)
    plain = _plain(kind, product)
    contract = _TRANSLATIONS[plain.operator].contract
    words = {name: name for name in ("float64", "int8", "bfloat16", "float16")}
    return neighbours(contract, product, products.PRODUCTS, plain.request(), words)


def _plain(kind: str, product: Product) -> Case:
    """The call with all that may be given."""
    groups = _groups(kind)
    return Case(Topic.PLAIN, kind, (3, 4, 5), groups=groups, product=product.name, more=True)


def _groups(kind: str) -> int:
    return 2 if kind == "group_norm" else 1


@cache
def mistakes(kind: str, product_name: str) -> Mapping[str, Change]:
    """All that is tried wrong with the plain call of a kind, by name."""
    product, operator = products.find(product_name), _OPERATORS[kind]
    if operator not in product.operators:
        return mishandled(f"on {product.name}", computes=False)
    found = dict(near(kind, product_name).broken)
    translation = _TRANSLATIONS[operator]
    for row in translation.contract.parameters:
        found |= mishandled(f"{row.name}: destroyed", computes=False)
        if row.is_output:
            found[f"{row.name}: one place for all elements"] = _one_place(row.name)
    if any(scalar.is_pointer for scalar in translation.contract.scalars):
        found |= mishandled("outputMask: destroyed", computes=False)
    places = ("workspaceSize: no place for it", "executor: no place for it")
    found |= mishandled(*places, computes=False)
    found |= mishandled("executor: null", "executor: used again", "executor: destroyed")
    for other in sorted(product.operators - {operator})[:1]:
        found[f"executor: handed to {other}"] = _handed_to(other)
    found |= mishandled("workspace: null", "workspace: a byte short")
    names = ("gradOut", translation.outputs[0])
    found |= mishandled(*(f"{name}: destroyed between the phases" for name in names))
    # Nulls are told first.
    nulls = "gradOut: float64, and input: null"
    found[nulls] = together(found["gradOut: float64"], found["input: null"])
    return found


def _handed_to(operator: str) -> Change:
    return lambda request: setattr(request, "computed_by", operator)


def _one_place(name: str) -> Change:
    def put(request: Request) -> None:
        tensor = request.tensors[name]
        tensor.strides = (0,) * len(tensor.dims)
        request.computes = False

    return put


# The cases

_WIDE: Shape = (4, 6, 9, 11)
_SHAPES: tuple[Shape, ...] = (_WIDE, (2, 4, 1000), (33, 40))
_LAYOUTS = ("channels_last", "sliced", "transposed", "odd", "expanded")
#: A shape for each number of axes that a format has.
_OF_RANK: Mapping[int, Shape] = {
    2: (9, 4),
    3: (3, 4, 25),
    4: (3, 4, 5, 7),
    5: (2, 4, 3, 5, 2),
}


def _case(product: Product, computed: OperatorsCase, **more: Any) -> Case:
    if computed.dtype in HALVES and not computed.parameters:
        computed = replace(computed, parameters=computed.dtype)
    return Case(**vars(computed) | more, product=product.name)


def _is_legal(case: Case) -> bool:
    """Whether the product's contract allows a call."""
    contract = _TRANSLATIONS[case.operator].contract
    return keeps(contract, products.find(case.product), products.PRODUCTS, case.request())


def _values(product: Product, kind: str) -> Iterator[Case]:
    groups = _groups(kind)
    for dtype in product.dtypes:
        plain = OperatorsCase(Topic.VALUES, kind, _WIDE, dtype, groups=groups, normal=True)
        base = _case(product, plain)
        yield from (replace(base, shape=shape) for shape in _SHAPES)
        yield from (replace(base, layout=e, normal=e != "expanded") for e in _LAYOUTS)
        yield replace(base, x_layout="channels_last")
        yield from filter(_is_legal, _perhaps_legal(base, product))


def _perhaps_legal(base: Case, product: Product) -> Iterator[Case]:
    """Other dtypes beside gradOut's, and other formats, where they are allowed."""
    for other in product.dtypes:
        yield replace(base, parameters=other)
        yield replace(base, x_dtype=other, parameters="float32")
        if base.kind == "elemt":
            yield replace(base, shape=(3, 4, 5), counter=other)
    for format, rank in RANKS.items():
        shape, axis = _OF_RANK[rank], 1
        if format in CHANNEL_LAST:
            shape, axis = (shape[0], *shape[2:], shape[1]), -1
        yield replace(base, shape=shape, channel_axis=axis, format=format)


def _kept(product: Product, kind: str) -> Iterator[Case]:
    """What just keeps each rule, in every dtype in turn."""
    plain = replace(_plain(kind, product), topic=Topic.VALUES)
    for said, dtype in zip(near(kind, product.name).kept, itertools.cycle(product.dtypes)):
        yield replace(plain, dtype=dtype, said=said, parameters=dtype if dtype in HALVES else "")


def _of_operators(product: Product, kind: str, topic: Topic) -> Iterator[Case]:
    """What of a topic of the operators' own suite can be said here, in one way or two."""
    for each in suite.part(topic, kind):
        said = (each.layout, each.x_layout, each.vectors, each.out)
        if each.dtype not in product.dtypes or "negative" in said:
            continue
        if topic in (Topic.MEAN, Topic.SPECIAL) and each.layout != "contiguous":
            continue
        case = _case(product, each)
        if topic is Topic.SHAPES:
            case = replace(case, no_strides=len(each.shape) % 2 == 0)
            if each.channel_axis != 1 or not _is_legal(case):
                continue
        elif topic is Topic.MASKS:
            case = replace(case, more=each.layout != "contiguous")
        yield case
        if topic is Topic.VECTORS and each.vectors == "sliced" and kind != "elemt":
            yield replace(case, vectors_out="sliced")
        elif topic is Topic.ABSENT and kind in ("train", "eval"):
            yield replace(case, absent=(), more=True)
        elif topic is Topic.DETERMINISM:
            yield replace(case, shape=(3, 4, 50), runs=3)


#: A quick run takes every so manieth case of each topic: no multiple of 2 or 3, which is how dtypes
#: and shapes alternate.
_QUICK = 7


@cache
def _all(product_name: str) -> Mapping[Topic, tuple[Case, ...]]:
    """The cases by topic."""
    product = products.find(product_name)
    kinds = [kind for kind in GRADIENTS if _OPERATORS.get(kind) in product.operators]
    found: dict[Topic, Iterable[Case]] = {
        topic: itertools.chain(*(_of_operators(product, kind, topic) for kind in kinds))
        for topic in Topic
    }
    found[Topic.PLAIN] = (_plain(kind, product) for kind in kinds)
    values = (make(product, kind) for make in (_values, _kept) for kind in kinds)
    found[Topic.VALUES] = itertools.chain.from_iterable(values)
    found[Topic.MISTAKES] = (
        replace(_plain(kind, product), topic=Topic.MISTAKES, change=change)
        for kind in ("train", "reduce", "elemt", "group_norm")
        for change in mistakes(kind, product_name)
    )
    return {topic: tuple(some) for topic, some in found.items()}


def cases(quick: bool, facts: Mapping[str, str]) -> tuple[Case, ...]:
    """The suite, or a quick run's part of it; see :func:`.suite.cases`."""
    has_variance, step = facts["saveInvstd"] == "variance", _QUICK if quick else 1
    return tuple(
        replace(case, saved_variance=has_variance)
        for some in _all(facts["product"]).values()
        for case in thinned(some, step)
    )
