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
    handled,
    our_library,
    together,
)
from .neighbours import Neighbours, keeps, neighbours
from .tensors import EPS, GRADIENTS, HALVES, Array, Call, Shape, lay_out
from .watched import guarded

#: How operators and their arguments are called, by the functional operator's name, and by aclnn's.
_TRANSLATIONS = {
    name: each
    for each in (phases.BATCH_NORM, phases.REDUCE, phases.ELEMT, phases.GROUP_NORM)
    for name in (each.operator.name, each.contract.name)
}
#: The kinds of calls, by aclnn's operators.
_OPERATORS = {
    **dict.fromkeys(("train", "train_without_statistics", "eval"), products.BATCH_NORM),
    "reduce": products.REDUCE,
    "elemt": products.ELEMT,
    "group_norm": products.GROUP_NORM,
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


def _plain(kind: str, product: Product, saved_variance: bool = False) -> Case:
    """The call with all that may be given."""
    case = Case(Topic.PLAIN, kind, (3, 4, 5), product=product.name, more=True)
    return replace(case, groups=_groups(kind), saved_variance=saved_variance)


def _groups(kind: str) -> int:
    return 2 if kind == "group_norm" else 1


@cache
def mistakes(kind: str, product_name: str) -> Mapping[str, Change]:
    """All that is tried wrong with the plain call of a kind, by name."""
    product, operator = products.find(product_name), _OPERATORS[kind]
    if operator not in product.operators:
        return {f"on {product.name}": handled(computes=False)}
    found = dict(near(kind, product_name).broken)
    translation = _TRANSLATIONS[operator]
    for row in translation.contract.parameters:
        found[f"{row.name}: destroyed"] = handled(False, destroyed={row.name})
        if row.is_output:
            found[f"{row.name}: one place for all elements"] = _one_place(row.name)
    if any(scalar.is_pointer for scalar in translation.contract.scalars):
        found["outputMask: destroyed"] = handled(False, destroyed={"outputMask"})
    found["workspaceSize: no place for it"] = handled(False, null={"workspaceSize"})
    found["executor: no place for it"] = handled(False, null={"executor"})
    found["executor: null"] = handled(null={"executor in phase 2"})
    found["executor: used again"] = handled(used_again=True)
    found["executor: destroyed"] = handled(destroyed={"executor"})
    for other in sorted(product.operators - {operator})[:1]:
        found[f"executor: handed to {other}"] = handled(computed_by=other)
    found["workspace: null"] = handled(null={"workspace"})
    found["workspace: a byte short"] = handled(bytes_missing=1)
    for name in ("gradOut", translation.outputs[0]):
        found[f"{name}: destroyed between the phases"] = handled(destroyed_between={name})
    # Nulls are told first.
    nulls = "gradOut: float64, and input: null"
    found[nulls] = together(found["gradOut: float64"], found["input: null"])
    return found


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


class _Cases:
    """The cases for a product."""

    def __init__(self, product: Product, saved_variance: bool) -> None:
        self._product = product
        self._saved_variance = saved_variance
        self._kinds = tuple(kind for kind in GRADIENTS if _OPERATORS.get(kind) in product.operators)

    def of(self, topic: Topic) -> tuple[Case, ...]:
        """Those of one topic, each once: what is usual is said twice."""
        if topic is Topic.PLAIN:
            found = self._plain(self._kinds)
        elif topic is Topic.VALUES:
            found = self._values()
        elif topic is Topic.MISTAKES:
            found = self._mistakes()
        else:
            found = self._of_operators(topic)
        return tuple({case.name: case for case in found}.values())

    def _case(self, computed: OperatorsCase, **more: Any) -> Case:
        if computed.dtype in HALVES and not computed.parameters:
            computed = replace(computed, parameters=computed.dtype)
        fields = {**vars(computed), **more}
        return Case(**fields, product=self._product.name, saved_variance=self._saved_variance)

    def _is_legal(self, case: Case) -> bool:
        """Whether the product's contract allows a call."""
        contract = _TRANSLATIONS[case.operator].contract
        return keeps(contract, self._product, products.PRODUCTS, case.request())

    def _plain(self, kinds: Iterable[str]) -> Iterator[Case]:
        for kind in kinds:
            yield _plain(kind, self._product, self._saved_variance)

    def _values(self) -> Iterator[Case]:
        for kind, dtype in itertools.product(self._kinds, self._product.dtypes):
            bases = [
                OperatorsCase(Topic.VALUES, kind, shape, dtype, groups=_groups(kind), normal=True)
                for shape in _SHAPES
            ]
            yield from map(self._case, bases)
            for where in _LAYOUTS:
                yield self._case(replace(bases[0], layout=where, normal=where != "expanded"))
            yield self._case(replace(bases[0], x_layout="channels_last"))
            yield from filter(self._is_legal, self._perhaps_legal(bases[0]))
        for plain in self._plain(self._kinds):
            kept = near(plain.kind, self._product.name).kept
            for said, dtype in zip(kept, itertools.cycle(self._product.dtypes)):
                computed = replace(plain, topic=Topic.VALUES, dtype=dtype, said=said)
                yield replace(computed, parameters=dtype if dtype in HALVES else "")

    def _perhaps_legal(self, base: OperatorsCase) -> Iterator[Case]:
        """Other dtypes beside gradOut's, and other formats, where they are allowed."""
        for other in self._product.dtypes:
            yield self._case(replace(base, parameters=other))
            yield self._case(replace(base, x_dtype=other, parameters="float32"))
            if base.kind == "elemt":
                yield self._case(replace(base, shape=(3, 4, 5)), counter=other)
        for format, rank in RANKS.items():
            shape, axis = _OF_RANK[rank], 1
            if format in CHANNEL_LAST:
                shape, axis = (shape[0], *shape[2:], shape[1]), -1
            yield self._case(replace(base, shape=shape, channel_axis=axis), format=format)

    def _mistakes(self) -> Iterator[Case]:
        for plain in self._plain(("train", "reduce", "elemt", "group_norm")):
            for change in mistakes(plain.kind, self._product.name):
                yield replace(plain, topic=Topic.MISTAKES, change=change)

    def _of_operators(self, topic: Topic) -> Iterator[Case]:
        """What of a topic of the operators' own suite can be said here, in one way or two."""
        for each in suite.part(topic, self._kinds):
            said = (each.layout, each.x_layout, each.vectors, each.out)
            if each.dtype not in self._product.dtypes or "negative" in said:
                continue
            if topic in (Topic.MEAN, Topic.SPECIAL) and each.layout != "contiguous":
                continue
            if topic is Topic.SHAPES:
                case = self._case(each, no_strides=len(each.shape) % 2 == 0)
                if each.channel_axis == 1 and self._is_legal(case):
                    yield case
            elif topic is Topic.MASKS:
                yield self._case(each, more=each.layout != "contiguous")
            else:
                yield self._case(each)
            if topic is Topic.VECTORS and each.vectors == "sliced" and each.kind != "elemt":
                yield self._case(each, vectors_out="sliced")
            elif topic is Topic.ABSENT and each.kind in ("train", "eval"):
                yield self._case(replace(each, absent=()), more=True)
            elif topic is Topic.DETERMINISM:
                yield self._case(replace(each, shape=(3, 4, 50)), runs=3)


#: A quick run takes every so manieth case of each topic: no multiple of 2 or 3, which is how dtypes
#: and shapes alternate.
_QUICK = 7


@cache
def _all(product_name: str, saved_variance: bool) -> tuple[tuple[Case, ...], ...]:
    """The cases of one topic after the other."""
    found = _Cases(products.find(product_name), saved_variance)
    return tuple(found.of(topic) for topic in Topic)


def cases(quick: bool, facts: Mapping[str, str]) -> tuple[Case, ...]:
    """The suite, or a quick run's part of it; see :func:`.suite.cases`."""
    parts = _all(facts["product"], facts["saveInvstd"] == "variance")
    return tuple(itertools.chain(*(thinned(part, _QUICK) if quick else part for part in parts)))
