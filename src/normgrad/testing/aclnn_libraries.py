"""Test libraries that speak aclnn: their calls, and the suite for the product they implement."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping
from contextlib import suppress
from ctypes import byref, c_bool, c_int64, c_uint64, c_void_p
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import numpy as np

from ..dialects.aclnn import Status, aclFormat, products
from ..dialects.aclnn.contracts import CHANNEL_LAST, RANKS
from ..dialects.aclnn.phases import STATUSES
from ..dialects.aclnn.tensors import NUMPY
from ..dialects.aclnn.translations import BATCH_NORM, ELEMT, GROUP_NORM, OPTIONS, REDUCE
from ..dialects.rules import Aspect, Product
from . import operator_suite
from .c_functions import Functions, RefusedError
from .cases import Case, Topic, thinned, varied
from .libraries import LibraryCall, LibraryCase
from .memory_checks import guarded
from .neighbours import Neighbours, breach
from .outcomes import Outcome, convention
from .requests import Mistake, Request, Tensor
from .subjects import OTHER_BITS, SubjectError, unlike
from .tensors import EPS, GRADIENTS, HALVES, Call, Shape, lay_out, operator_of

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


class Aclnn(LibraryCall):
    """One call: its tensors' copies on the device, its handles and its two phases."""

    dialect = "aclnn"
    markers = tuple(f"{operator}{_PHASE_1}" for operator in _TESTED)
    needed = (
        *("aclCreateTensor", "aclDestroyTensor", "aclCreateBoolArray", "aclDestroyBoolArray"),
        *("aclInit", "aclrtSetDevice", "aclrtCreateStream", "aclrtDestroyStream"),
        *("aclrtSynchronizeStream", "aclrtMalloc", "aclrtFree", "aclrtMemcpy"),
    )
    companions = ("libascendcl.so", "libnnopbase.so")
    libraries = ("opapi", "nnopbase", "ascendcl")

    @staticmethod
    def facts(path: str, functions: Functions) -> dict[str, str]:
        """See :class:`.libraries.LibraryCall`. Makes a program's first calls, which facts need."""
        try:
            functions.call("aclInit", None)
        except RefusedError as error:
            if error.status != _REPEATED:
                raise SubjectError(f"{path}: {error}: {error.status}; allowed: success") from None
        chip, product = functions.text("aclrtGetSocName"), products.A2  # an unknown chip's too
        with suppress(ValueError):
            product = products.find(chip).name
        try:
            holds_variance = products.of_environment().saved_variance
        except ValueError as error:
            raise SubjectError(f"{path}: {error}") from None
        return {
            "operators": ", ".join(name for name in _TESTED if f"{name}{_PHASE_1}" in functions),
            "product": product,
            "saveInvstd": "variance" if holds_variance else "invstd",
            "chip": chip or "not said",
        }

    def run(self) -> None:
        request, call, stream = self.request, self.functions.call, c_void_p()
        call("aclrtSetDevice", 0)
        if "aclrtCtxSetSysParamOpt" in self.functions:  # else some devices add in any order
            self.functions.ask("aclrtCtxSetSysParamOpt", _DETERMINISTIC, 1)
        call("aclrtCreateStream", byref(stream))
        self.track(stream.value, "aclrtDestroyStream")
        handles = {name: self._argument(name, value) for name, value in request.arguments.items()}
        size, executor = c_uint64(), c_void_p()
        places = (
            self.unless("workspaceSize: no place for it", byref(size)),
            self.unless("executor: no place for it", byref(executor)),
        )
        call(f"{request.operator}{_PHASE_1}", *handles.values(), *places)
        if request.computes:
            if request.runs > 1 or request.mistake == "executor: destroyed":
                call("aclSetAclOpExecutorRepeatable", executor)
                self.argument("executor", self.track(executor.value, "aclDestroyAclOpExecutor"))
            for name, handle in handles.items():
                if request.mistake == f"{name}: destroyed between the phases":
                    self.destroy(handle)
            operator = request.mistake.partition(" handed to ")[2] or request.operator
            workspace, length = self.workspace(size.value)
            executors = self.unless("executor: null", executor), stream
            self._compute(operator, workspace if size.value else None, length, *executors)
        self.destroy(*(each for each in [*self.living] if each not in self.blocks.values()))

    def _compute(self, operator: str, *arguments: Any) -> None:
        before, runs = Outcome(), self.request.runs
        for _ in range(2 if self.request.mistake == "executor: used again" else runs):
            self.functions.call(operator, *arguments)
            self.functions.call("aclrtSynchronizeStream", arguments[-1])
            self.written = self.request.outputs
            if runs > 1:
                self._fetch()
                now = Outcome(self.outputs())
                how = f"{OTHER_BITS} when the executor runs again"
                self.faults += [convention(how, name) for name in unlike(before, now)]
                before = now

    def _argument(self, name: str, value: Any) -> Any:
        """Convert an argument to what phase 1 takes."""
        if not isinstance(value, Tensor | tuple):
            return value
        kind = "Tensor" if isinstance(value, Tensor) else "BoolArray"
        arguments = self._view(name, value) if isinstance(value, Tensor) else _array(c_bool, value)
        handle = self.functions.ask(f"aclCreate{kind}", *arguments)
        if not handle:
            raise self.functions.refused("null", f"aclCreate{kind}")
        return self.argument(name, self.track(handle, f"aclDestroy{kind}"))

    def _view(self, name: str, tensor: Tensor) -> tuple[Any, ...]:
        """A contiguous tensor at its own address, a view at its storage's with an offset."""
        address, offset, storage = self.address(name), 0, tensor.dims
        if not tensor.array.flags.c_contiguous:
            memory, itemsize = self.memory[name], tensor.array.itemsize
            offset, storage = memory.start // itemsize, (memory.whole.nbytes // itemsize,)
            address -= memory.start
        strides = None if tensor.null == "strides" else _array(c_int64, tensor.strides)[0]
        format = aclFormat[f"ACL_FORMAT_{tensor.format_name}"]
        middle = (_CODES[tensor.dtype_name], strides, offset, format)
        return *_array(c_int64, tensor.dims), *middle, *_array(c_int64, storage), address

    def address(self, name: str) -> int:
        memory = self.memory[name]
        if memory not in self.blocks:
            size, block = memory.whole.nbytes, c_void_p()
            self.functions.call("aclrtMalloc", byref(block), size, _HUGE_FIRST)
            self.blocks[memory] = self.track(block.value, "aclrtFree")
            copied = block, size, memory.whole.ctypes.data, size
            self.functions.call("aclrtMemcpy", *copied, _HOST_TO_DEVICE)
        return self.blocks[memory] + memory.start

    def _fetch(self) -> None:
        """Copy all memory back from the device."""
        for memory, block in self.blocks.items():
            size, host = memory.whole.nbytes, memory.whole.ctypes.data
            self.functions.call("aclrtMemcpy", host, size, block, size, _DEVICE_TO_HOST)

    def check(self) -> None:
        self._fetch()
        super().check()


def _array(kind: Any, values: tuple[Any, ...]) -> tuple[Any, int]:
    """An array of a ctypes type, and its length, as C functions take them."""
    return (kind * len(values))(*values), len(values)


# The suite

#: The aclnn names of operators and their arguments, by the kinds of calls.
_TRANSLATIONS = {
    kind: each
    for kind in GRADIENTS
    for each in (BATCH_NORM, REDUCE, ELEMT, GROUP_NORM)
    if each.operator.name == operator_of(kind)
}
_A2 = products.find(products.A2)


@dataclass(frozen=True)
class AclnnCase(LibraryCase):
    """One call.

    Attributes:
        product: the product whose contract holds.
        format: the format of gradOut, input and gradInput.
        counter: the dtype of elemt's counter.
        description: an unusual but legal description, one of :func:`near`'s ``legal``.
        no_strides: whether contiguous tensors are created without strides.
        more: whether unwanted outputs have memory too, and the statistics that the mode ignores.
        runs: how often the executor runs.
    """

    product: Product = _A2
    format: str = "ND"
    counter: str = "int32"
    description: str = ""
    no_strides: bool = False
    more: bool = False
    runs: int = 1

    _never_named = (*LibraryCase._never_named, "product")

    @property
    def operator(self) -> str:
        """The aclnn operator."""
        return _TRANSLATIONS[self.kind].contract.name

    @property
    def names(self) -> Mapping[str, str]:
        return _TRANSLATIONS[self.kind].names

    @property
    def mistakes(self) -> Mapping[str, Mistake]:
        return mistakes(self.kind, self.product)

    def call(self) -> Call:
        call = super().call()
        if "count" in call.arrays:
            call.tensors["count"] = call.arrays["count"].astype(self.counter)
        if self.eps_of_variance is not None and "save_invstd" in call.arrays:
            invstd = call.arrays["save_invstd"]
            with np.errstate(all="ignore"):
                variance = 1 / invstd.astype(np.float64) ** 2 - self.eps_of_variance
            call.tensors["save_invstd"] = lay_out(variance.astype(invstd.dtype), self.vectors)
        return call

    def legal_request(self) -> Request:
        call = self.call()
        arrays, outputs = self._memory(call, self.more)
        if self.more and self.kind == "eval":  # evaluation ignores the saved statistics
            nothing = np.zeros(0, arrays["input"].dtype)
            arrays["saveMean"], arrays["saveInvstd"] = guarded(nothing), guarded(nothing)
        elif self.more and self.kind == "train":  # training ignores the running statistics
            arrays["runningMean"] = guarded(arrays["saveMean"])
            arrays["runningVar"] = guarded(arrays["saveInvstd"])
        samples, channels, *positions = arrays["input"].shape
        values: dict[str, Any] = {"N": samples, "C": channels, "HxW": math.prod(positions)}
        values |= {name: call.choices.get(option) for name, option in OPTIONS.items()}
        for name, array in arrays.items():
            format = self.format if name in ("gradOut", "input", "gradInput") else "ND"
            values[name] = Tensor.of(array, format, "strides" if self.no_strides else "")
        rows = _TRANSLATIONS[self.kind].contract.rows
        arguments = {row.name: values.get(row.name) for row in rows}
        request = Request(self.operator, arguments, outputs, runs=self.runs)
        legal = near(self.kind, self.product).legal if self.description else {"": {}}
        return request.changed(legal[self.description])


# Calls near the rules

_NULL, _INVALID = Mistake(Status.ACLNN_ERR_PARAM_NULLPTR), Mistake(Status.ACLNN_ERR_PARAM_INVALID)
_NULL_RUN, _INVALID_RUN = _NULL._replace(computes=True), _INVALID._replace(computes=True)


@cache
def near(kind: str, product: Product) -> Neighbours:
    """The calls near the plain call of a kind. The product must have the kind's operator."""
    base = _base_case(kind, product).request()
    words = {name: name for name in ("float64", "int8", "bfloat16", "float16")}
    return Neighbours(_TRANSLATIONS[kind].contract, product, base, words, STATUSES)


def _base_case(kind: str, product: Product) -> AclnnCase:
    """The plain call with all optional tensors."""
    (base,) = operator_suite.part(Topic.PLAIN, kind)
    return _case(product, base, more=True)


@cache
def mistakes(kind: str, product: Product) -> Mapping[str, Mistake]:
    """The mistakes to try in the plain call of a kind, by name."""
    contract, outputs = _TRANSLATIONS[kind].contract, _TRANSLATIONS[kind].outputs
    if contract.name not in product.operators:
        return {f"on {product.name}": Mistake(STATUSES[Aspect.PRODUCT])}
    found = dict(near(kind, product).illegal)
    base = _base_case(kind, product).request()
    for row in contract.tensors:
        found[f"{row.name}: destroyed"] = _INVALID
        if row.is_output:
            one_place = {row.name: {"strides": (0,) * len(base.tensors[row.name].dims)}}
            found[f"{row.name}: one place for all elements"] = _INVALID._replace(changes=one_place)
    if any(scalar.is_pointer for scalar in contract.scalars):
        found["outputMask: destroyed"] = _INVALID
    found |= {"workspaceSize: no place for it": _NULL, "executor: no place for it": _NULL}
    found |= {"executor: null": _NULL_RUN, "executor: used again": _INVALID_RUN}
    found |= {"executor: destroyed": _INVALID_RUN}
    others = sorted(product.operators & {*_TESTED} - {contract.name})
    found |= {f"executor: handed to {other}": _INVALID_RUN for other in others[:1]}
    found |= {"workspace: null": _NULL_RUN, "workspace: a byte short": _INVALID_RUN}
    for name in ("gradOut", outputs[0]):
        found[f"{name}: destroyed between the phases"] = _INVALID_RUN
    return found | near(kind, product).both(("gradOut: float64", "input: null"))


# The cases

_LAYOUTS = ("channels_last", "sliced", "transposed", "odd", "expanded")
#: A shape for each number of axes that a format has.
_OF_RANK: Mapping[int, Shape] = {2: (9, 4), 3: (3, 4, 25), 4: (3, 4, 5, 7), 5: (2, 4, 3, 5, 2)}


def _case(product: Product, case: Case, **more: Any) -> AclnnCase:
    """The case on a product, where halves' parameters are halves too."""
    parameters = case.parameters or (case.dtype if case.dtype in HALVES else "")
    return AclnnCase(**vars(case) | {"product": product, "parameters": parameters, **more})


def _is_legal(case: AclnnCase) -> bool:
    return breach(_TRANSLATIONS[case.kind].contract, case.product, case.request()) is None


def _values(product: Product, kind: str) -> Iterator[AclnnCase]:
    (first,) = operator_suite.part(Topic.PLAIN, kind)
    for dtype in product.dtypes:
        values = replace(
            first, topic=Topic.VALUES, shape=operator_suite.SHAPES[0], dtype=dtype, normal=True
        )
        base = _case(product, values)
        yield from varied(base, shape=operator_suite.SHAPES)
        yield from (replace(base, layout=e, normal=e != "expanded") for e in _LAYOUTS)
        yield replace(base, x_layout="channels_last")
        yield from filter(_is_legal, _perhaps_legal(base, product))


def _perhaps_legal(base: AclnnCase, product: Product) -> Iterator[AclnnCase]:
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


def _at_rules(product: Product, kind: str) -> Iterator[AclnnCase]:
    """Calls that just keep each rule; the dtypes take turns."""
    base = replace(_base_case(kind, product), topic=Topic.VALUES)
    for description, dtype in zip(near(kind, product).legal, itertools.cycle(product.dtypes)):
        yield _case(product, replace(base, dtype=dtype, description=description))


def _of_operators(product: Product, kind: str, topic: Topic) -> Iterator[AclnnCase]:
    """The cases of the operators' suite that aclnn can express, some of them in a second form."""
    for each in operator_suite.part(topic, kind):
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


@cache
def _all(product: Product) -> tuple[AclnnCase, ...]:
    """The cases, topic by topic."""
    offered = product.operators
    kinds = [kind for kind, each in _TRANSLATIONS.items() if each.contract.name in offered]
    cases: list[AclnnCase] = []
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


def cases(quick: bool, facts: Mapping[str, str]) -> tuple[AclnnCase, ...]:
    """The suite, or its part for a quick run; see :func:`.operator_suite.cases`."""
    eps = EPS if facts["saveInvstd"] == "variance" else None
    # No multiple of 2 or 3, the periods with which dtypes and shapes alternate.
    chosen = thinned(_all(products.find(facts["product"])), 7 if quick else 1)
    return tuple(replace(case, eps_of_variance=eps) for case in chosen)
