"""Test libraries that speak aclnn: their calls, and the suite for the product they implement."""

from __future__ import annotations

import ctypes
import itertools
import math
from collections.abc import Iterator, Mapping
from contextlib import suppress
from ctypes import byref, c_bool, c_int64, c_uint64, c_void_p
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import numpy as np

from .. import aclnn
from ..aclnn import Status, aclFormat, products
from ..aclnn.contracts import CHANNEL_LAST, RANKS
from ..aclnn.phases import STATUSES
from ..aclnn.tensors import NUMPY
from ..aclnn.translations import BATCH_NORM, ELEMT, GROUP_NORM, OPTIONS, REDUCE
from ..rules import Aspect, Product
from . import suite
from .c_functions import Functions, RefusedError
from .cases import Case as OperatorsCase
from .cases import Topic, thinned, varied
from .conversions import NotOfferedError
from .libraries import Argument, LibraryCase, Mistake, Request, Steps, Tensor
from .memory import Watched, guarded
from .neighbours import Neighbours, breach
from .outcomes import Outcome, convention
from .subjects import OTHER_BITS, SubjectError, unlike
from .tensors import EPS, GRADIENTS, HALVES, Array, Call, Shape, lay_out, operator_of

#: The function of phase 1 is the operator's with this at the end.
_PHASE_1 = "GetWorkspaceSize"

#: The operators that the suite tests.
_TESTED = tuple(each.contract.name for each in (BATCH_NORM, REDUCE, ELEMT, GROUP_NORM))

#: aclDataType by the dtypes' names.
_CODES = {dtype.name: code for code, dtype in NUMPY.items()}

#: ACL_ERROR_REPEAT_INITIALIZE, as :class:`RefusedError` names it.
_REPEATED = "status 100002"
#: Values of aclrtMemMallocPolicy, of aclrtMemcpyKind and of aclSysParamOpt.
_HUGE_FIRST, _HOST_TO_DEVICE, _DEVICE_TO_HOST, _DETERMINISTIC = 0, 1, 2, 0


class Aclnn(Steps):
    """One call: its tensors' copies on the device, its handles and its two phases.

    :func:`mistakes` lists the mistakes that a request can contain.
    """

    dialect = "aclnn"
    markers = tuple(f"{operator}{_PHASE_1}" for operator in _TESTED)
    needed = (
        *("aclCreateTensor", "aclDestroyTensor", "aclCreateBoolArray", "aclDestroyBoolArray"),
        *("aclInit", "aclrtSetDevice", "aclrtCreateStream", "aclrtSynchronizeStream"),
        *("aclrtMalloc", "aclrtFree", "aclrtMemcpy"),
    )
    companions = ("libascendcl.so", "libnnopbase.so")
    libraries = ("opapi", "nnopbase", "ascendcl")

    @staticmethod
    def facts(path: str, functions: Functions) -> dict[str, str]:
        """See :class:`.libraries.Steps`. Makes a program's first calls, since facts need them."""
        try:
            functions.call("aclInit", None)
        except RefusedError as error:
            if error.status != _REPEATED:
                raise SubjectError(f"{path}: {error}: {error.status}; allowed: success") from None
        chip = ""
        if "aclrtGetSocName" in functions and (address := functions.ask("aclrtGetSocName")):
            chip = ctypes.string_at(address).decode(errors="replace")
        product = products.A2  # an unknown chip's too
        with suppress(ValueError):
            product = products.find(chip).name
        try:
            with aclnn.product(products.A2):
                holds_variance = products.current().saved_variance
        except ValueError as error:
            raise SubjectError(f"{products.SAVE_INVSTD_VARIABLE}: {error}") from None
        return {
            "operators": ", ".join(name for name in _TESTED if f"{name}{_PHASE_1}" in functions),
            "product": product,
            "saveInvstd": "variance" if holds_variance else "invstd",
            "chip": chip or "not said",
        }

    @staticmethod
    def prepare(functions: Functions) -> int | None:
        """Choose device 0, and create a stream."""
        functions.call("aclrtSetDevice", 0)
        if "aclrtCtxSetSysParamOpt" in functions:  # else some devices add in any order
            functions.ask("aclrtCtxSetSysParamOpt", _DETERMINISTIC, 1)
        stream = c_void_p()
        functions.call("aclrtCreateStream", byref(stream))
        return stream.value

    def run(self) -> None:
        request, call = self.request, self.functions.call
        name = request.mistake.partition(" handed to ")[2] or request.operator
        check = f"{request.operator}{_PHASE_1}"
        self._require(check, name)
        handles = {name: self._argument(name, value) for name, value in request.arguments.items()}
        size, executor = c_uint64(), c_void_p()
        places = (
            self.unless("workspaceSize: no place for it", byref(size)),
            self.unless("executor: no place for it", byref(executor)),
        )
        call(check, *handles.values(), *places)
        if request.computes:
            if request.runs > 1 or request.mistake == "executor: destroyed":
                self._require("aclSetAclOpExecutorRepeatable", "aclDestroyAclOpExecutor")
                call("aclSetAclOpExecutorRepeatable", executor)
                self.argument("executor", self.track(executor.value, "aclDestroyAclOpExecutor"))
            for each, handle in handles.items():
                if request.mistake == f"{each}: destroyed between the phases":
                    self.destroy(handle)
            self._compute(name, self.unless("executor: null", executor), size.value)
        self.destroy(*(each for each in self.living if each not in self.blocks.values()))

    def _require(self, *names: str) -> None:
        for name in names:
            if name not in self.functions:
                raise NotOfferedError(f"no {name}")

    def _compute(self, name: str, executor: c_void_p | None, size: int) -> None:
        workspace, before = self.workspace(size), Outcome()
        is_again = self.request.mistake == "executor: used again"
        for _ in range(2 if is_again else self.request.runs):
            self.functions.call(name, *workspace, executor, self.stream)
            self.functions.call("aclrtSynchronizeStream", self.stream)
            self.written = self.request.outputs
            if self.request.runs > 1:
                now = Outcome(self.outputs())
                how = f"{OTHER_BITS} when the executor runs again"
                self.faults += [convention(how, name) for name in unlike(before, now)]
                before = now

    def _block(self, name: str) -> int:
        """The address of the device's copy of a tensor's memory, which may have several tensors."""
        memory = self.memory[name]
        if memory not in self.blocks:
            values, address = memory.bytes(), c_void_p()
            self.functions.call("aclrtMalloc", byref(address), values.size, _HUGE_FIRST)
            self.blocks[memory] = self.track(address.value, "aclrtFree")
            self._copy(self.blocks[memory], values.ctypes.data, values.size, _HOST_TO_DEVICE)
        return self.blocks[memory]

    def _copy(self, to: int, source: int, size: int, kind: int) -> None:
        self.functions.call("aclrtMemcpy", to, size, source, size, kind)

    def now(self, memory: Watched) -> Array:
        values = memory.bytes()
        if memory in self.blocks:
            self._copy(values.ctypes.data, self.blocks[memory], values.size, _DEVICE_TO_HOST)
        return values

    def address(self, name: str) -> int:
        return self._block(name) + self.memory[name].start

    def _argument(self, name: str, value: Argument) -> Any:
        """Convert an argument to what phase 1 takes."""
        if isinstance(value, Tensor):
            handle = self._create("aclCreateTensor", "aclDestroyTensor", *self._view(name, value))
        elif isinstance(value, tuple):
            entries = (c_bool * len(value))(*value)
            handle = self._create("aclCreateBoolArray", "aclDestroyBoolArray", entries, len(value))
        else:
            return value
        return self.argument(name, handle)

    def _view(self, name: str, tensor: Tensor) -> tuple[Any, ...]:
        """A contiguous tensor at its own address, a view at its storage's with an offset."""
        address, offset, storage = self.address(name), 0, tensor.dims
        if not tensor.array.flags.c_contiguous:
            itemsize = tensor.array.itemsize
            address, offset = self._block(name), self.memory[name].start // itemsize
            storage = (self.memory[name].size // itemsize,)
        dims, steps, sizes = (
            (c_int64 * len(each))(*each) for each in (tensor.dims, tensor.strides, storage)
        )
        strides = None if tensor.null == "strides" else steps
        format = aclFormat[f"ACL_FORMAT_{tensor.format_name}"]
        code = _CODES[tensor.dtype_name]
        return dims, len(dims), code, strides, offset, format, sizes, len(sizes), address

    def _create(self, creator: str, destroyer: str, *arguments: Any) -> int:
        handle: int | None = self.functions.ask(creator, *arguments)
        if not handle:
            raise RefusedError("null", creator, self.functions.last_error())
        return self.track(handle, destroyer)


# The suite

#: The aclnn names of operators and their arguments, by the kinds of calls.
_TRANSLATIONS = {
    kind: each
    for kind in GRADIENTS
    for each in (BATCH_NORM, REDUCE, ELEMT, GROUP_NORM)
    if each.operator.name == operator_of(kind)
}
_DATA = ("gradOut", "input", "gradInput")
_A2 = products.find(products.A2)


@dataclass(frozen=True)
class Case(LibraryCase):
    """One call; its mistakes are those of :func:`mistakes`.

    Attributes:
        product: the product whose contract holds.
        saved_variance: whether the argument saveInvstd holds variances.
        format: the format of gradOut, input and gradInput.
        vectors_out: the memory layout of the other outputs.
        counter: the dtype of elemt's counter.
        description: an unusual but legal description, one of :func:`near`'s ``legal``.
        no_strides: whether contiguous tensors are created without strides.
        more: whether unwanted outputs have memory too, and the statistics that the mode ignores.
        runs: how often the executor runs.
    """

    product: Product = _A2
    saved_variance: bool = False
    format: str = "ND"
    vectors_out: str = "contiguous"
    counter: str = "int32"
    description: str = ""
    no_strides: bool = False
    more: bool = False
    runs: int = 1

    _never_named = (*OperatorsCase._never_named, "product", "saved_variance")

    @property
    def operator(self) -> str:
        """The aclnn operator."""
        return _TRANSLATIONS[self.kind].contract.name

    @property
    def names(self) -> Mapping[str, str]:
        return _TRANSLATIONS[self.kind].names

    def call(self) -> Call:
        call = super().call()
        if "count" in call.arrays:
            call.tensors["count"] = call.arrays["count"].astype(self.counter)
        if self.saved_variance and "save_invstd" in call.arrays:
            invstd = call.arrays["save_invstd"]
            with np.errstate(all="ignore"):
                variance = (1 / invstd.astype(np.float64) ** 2 - EPS).astype(invstd.dtype)
            call.tensors["save_invstd"] = lay_out(variance, self.vectors)
        return call

    @property
    def eps_of_variance(self) -> float | None:
        return EPS if self.saved_variance else None

    @property
    def mistakes(self) -> Mapping[str, Mistake]:
        return mistakes(self.kind, self.product)

    def legal_request(self) -> Request:
        call = self.call()
        translation = _TRANSLATIONS[self.kind]
        arrays, outputs = self._memory(call, self.more)
        if self.more and self.kind == "eval":  # evaluation ignores the saved statistics
            nothing = np.zeros(0, arrays["input"].dtype)
            arrays["saveMean"], arrays["saveInvstd"] = guarded(nothing), guarded(nothing)
        elif self.more and self.kind == "train":  # training ignores the running statistics
            arrays["runningMean"] = guarded(arrays["saveMean"])
            arrays["runningVar"] = guarded(arrays["saveInvstd"])
        samples, channels, *positions = arrays["input"].shape
        values: dict[str, Any] = {"N": samples, "C": channels, "HxW": math.prod(positions)}
        for name, option in OPTIONS.items():
            values[name] = call.choices.get(option)
        for name, array in arrays.items():
            format = self.format if name in _DATA else "ND"
            values[name] = Tensor.of(array, format, "strides" if self.no_strides else "")
        arguments = {row.name: values.get(row.name) for row in translation.contract.rows}
        request = Request(self.operator, arguments, outputs, runs=self.runs)
        if self.description:
            request = request.changed(near(self.kind, self.product).legal[self.description])
        return request

    def _vector_out(self, name: str, values: Array) -> Array:
        return lay_out(values, self.vectors_out)


# Calls near the rules


@cache
def near(kind: str, product: Product) -> Neighbours:
    """The calls near the plain call of a kind. The product must have the kind's operator."""
    base = _base_case(kind, product)
    contract = _TRANSLATIONS[kind].contract
    words = {name: name for name in ("float64", "int8", "bfloat16", "float16")}
    return Neighbours(contract, product, base.request(), words, STATUSES)


def _base_case(kind: str, product: Product) -> Case:
    """The plain call with all optional tensors."""
    (base,) = suite.part(Topic.PLAIN, kind)
    return _case(product, base, more=True)


_NULL, _INVALID = Mistake(Status.ACLNN_ERR_PARAM_NULLPTR), Mistake(Status.ACLNN_ERR_PARAM_INVALID)


@cache
def mistakes(kind: str, product: Product) -> Mapping[str, Mistake]:
    """The mistakes to try in the plain call of a kind, by name."""
    translation = _TRANSLATIONS[kind]
    operator, contract = translation.contract.name, translation.contract
    if operator not in product.operators:
        return {f"on {product.name}": Mistake(STATUSES[Aspect.PRODUCT])}
    null, invalid = _NULL._replace(computes=True), _INVALID._replace(computes=True)
    found = dict(near(kind, product).illegal)
    base = _base_case(kind, product).request()
    for row in contract.parameters:
        found[f"{row.name}: destroyed"] = _INVALID
        if row.is_output:
            one_place = {"strides": (0,) * len(base.tensors[row.name].dims)}
            mistake = _INVALID._replace(changes={row.name: one_place})
            found[f"{row.name}: one place for all elements"] = mistake
    if any(scalar.is_pointer for scalar in contract.scalars):
        found["outputMask: destroyed"] = _INVALID
    found |= {
        "workspaceSize: no place for it": _NULL,
        "executor: no place for it": _NULL,
        "executor: null": null,
        "executor: used again": invalid,
        "executor: destroyed": invalid,
    }
    for other in sorted(product.operators & {*_TESTED} - {operator})[:1]:
        found[f"executor: handed to {other}"] = invalid
    found |= {"workspace: null": null, "workspace: a byte short": invalid}
    for name in ("gradOut", translation.outputs[0]):
        found[f"{name}: destroyed between the phases"] = invalid
    return found | near(kind, product).both(("gradOut: float64", "input: null"))


# The cases

_LAYOUTS = ("channels_last", "sliced", "transposed", "odd", "expanded")
#: A shape for each number of axes that a format has.
_OF_RANK: Mapping[int, Shape] = {2: (9, 4), 3: (3, 4, 25), 4: (3, 4, 5, 7), 5: (2, 4, 3, 5, 2)}


def _case(product: Product, computed: OperatorsCase, **more: Any) -> Case:
    if computed.dtype in HALVES and not computed.parameters:
        computed = replace(computed, parameters=computed.dtype)
    return Case(**vars(computed) | more, product=product)


def _is_legal(case: Case) -> bool:
    contract = _TRANSLATIONS[case.kind].contract
    return breach(contract, case.product, case.request()) is None


def _values(product: Product, kind: str) -> Iterator[Case]:
    (first,) = suite.part(Topic.PLAIN, kind)
    for dtype in product.dtypes:
        values = replace(first, topic=Topic.VALUES, shape=suite.SHAPES[0], dtype=dtype, normal=True)
        base = _case(product, values)
        yield from varied(base, shape=suite.SHAPES)
        yield from (replace(base, layout=e, normal=e != "expanded") for e in _LAYOUTS)
        yield replace(base, x_layout="channels_last")
        yield from filter(_is_legal, _perhaps_legal(base, product))


def _perhaps_legal(base: Case, product: Product) -> Iterator[Case]:
    """Mixed dtypes, and every format. The product may not allow all of them."""
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


def _at_rules(product: Product, kind: str) -> Iterator[Case]:
    """Calls that just keep each rule; the dtypes take turns."""
    base = replace(_base_case(kind, product), topic=Topic.VALUES)
    for description, dtype in zip(near(kind, product).legal, itertools.cycle(product.dtypes)):
        yield replace(
            base, dtype=dtype, description=description, parameters=dtype if dtype in HALVES else ""
        )


def _of_operators(product: Product, kind: str, topic: Topic) -> Iterator[Case]:
    """The cases of the operators' suite that aclnn can express, some of them in a second form."""
    for each in suite.part(topic, kind):
        layouts = (each.layout, each.x_layout, each.vectors, each.out)
        if each.dtype not in product.dtypes or "negative" in layouts:
            continue
        if topic in (Topic.MEAN, Topic.SPECIAL, Topic.SIZES) and each.layout != "contiguous":
            continue
        case = _case(product, each)
        if topic is Topic.SHAPES:
            case = replace(case, no_strides=len(each.shape) % 2 == 0)
        elif topic is Topic.MASKS:
            case = replace(case, more=each.layout != "contiguous")
        is_checked = topic in (Topic.SHAPES, Topic.SIZES)
        if is_checked and not (each.channel_axis == 1 and _is_legal(case)):
            continue
        yield case
        if topic is Topic.VECTORS and each.vectors == "sliced" and kind != "elemt":
            yield replace(case, vectors_out="sliced")
        elif topic is Topic.ABSENT and kind in ("train", "eval"):
            yield replace(case, absent=(), more=True)
        elif topic is Topic.DETERMINISM:
            yield replace(case, shape=(3, 4, 50), runs=3)


#: A quick run takes one in this many cases of each topic. It is no multiple of 2 or 3, the periods
#: with which dtypes and shapes alternate.
_QUICK = 7


@cache
def _all(product: Product) -> tuple[Case, ...]:
    """The cases, topic by topic."""
    offered = product.operators
    kinds = [kind for kind, each in _TRANSLATIONS.items() if each.contract.name in offered]
    cases: list[Case] = []
    for topic in Topic:
        if topic is Topic.PLAIN:
            cases += [_base_case(kind, product) for kind in kinds]
        elif topic is Topic.VALUES:
            for make in (_values, _at_rules):
                cases += [case for kind in kinds for case in make(product, kind)]
        elif topic is Topic.MISTAKES:
            for kind in ("train", "reduce", "elemt", "group_norm"):
                base = replace(_base_case(kind, product), topic=topic)
                cases += varied(base, change=mistakes(kind, product))
        # The suite's own checks of a library's memory would show, and a device is a thread's.
        elif topic not in (Topic.MEMORY, Topic.CONCURRENCY):
            cases += [case for kind in kinds for case in _of_operators(product, kind, topic)]
    return tuple(cases)


def cases(quick: bool, facts: Mapping[str, str]) -> tuple[Case, ...]:
    """The suite, or its part for a quick run; see :func:`.suite.cases`."""
    has_variance = facts["saveInvstd"] == "variance"
    chosen = thinned(_all(products.find(facts["product"])), _QUICK if quick else 1)
    return tuple(replace(case, saved_variance=has_variance) for case in chosen)
