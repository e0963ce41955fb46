"""What is done wrong with calls of a library that speaks aclnn."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from typing import Any

from .. import layout
from ..aclnn import aclFormat, phases, products
from ..aclnn.contracts import CONTRACTS
from ..aclnn.tensors import NUMPY
from ..rules import MayBeNull, Parameter, Product
from .aclnn_library import Argument, Request, Tensor
from .tensors import Shape

#: aclDataType by NumPy's dtypes.
CODES = {dtype: code for code, dtype in NUMPY.items()}

_ALL = (phases.BATCH_NORM, phases.REDUCE, phases.ELEMT, phases.GROUP_NORM)
#: How arguments are called: by the functional operator's name, and by aclnn's.
TRANSLATIONS = {each.operator.name: each for each in _ALL}
TRANSLATION_OF = {each.contract.name: each for each in _ALL}
OPERATORS = {
    **dict.fromkeys(("train", "train_without_statistics", "eval"), products.BATCH_NORM),
    "reduce": products.REDUCE,
    "elemt": products.ELEMT,
    "group_norm": products.GROUP_NORM,
}
DATA = ("gradOut", "input", "gradInput")

Mistake = Callable[[Request], None]


def _argument(name: str, value: Argument) -> Mistake:
    def put(request: Request) -> None:
        request.arguments[name] = value
        request.computes = False

    return put


def _look(change: Callable[[Tensor], None], *names: str) -> Mistake:
    """Tensors that are described wrongly, over the memory of right ones."""

    def put(request: Request) -> None:
        for name in names:
            change(request.tensors[name])
        request.computes = False

    return put


def _dtype(name: str) -> Callable[[Tensor], None]:
    code = next(code for dtype, code in CODES.items() if dtype.name == name)

    def put(tensor: Tensor) -> None:
        tensor.dtype = code

    return put


def _format(name: str) -> Callable[[Tensor], None]:
    def put(tensor: Tensor) -> None:
        tensor.format = aclFormat[f"ACL_FORMAT_{name}"]

    return put


def _dims(change: Callable[[Shape], Shape]) -> Callable[[Tensor], None]:
    def put(tensor: Tensor) -> None:
        tensor.dims = change(tensor.dims)
        tensor.strides = layout.contiguous_strides(tensor.dims)

    return put


def _one_place(tensor: Tensor) -> None:
    tensor.strides = (0,) * len(tensor.dims)


def _handled(computes: bool = False, **changes: Any) -> Mistake:
    """A right description that is handled wrongly."""

    def put(request: Request) -> None:
        for name, value in changes.items():
            setattr(request, name, value)
        request.computes = computes

    return put


def _both(*mistakes: Mistake) -> Mistake:
    def put(request: Request) -> None:
        for each in mistakes:
            each(request)

    return put


def _no_mistake(request: Request) -> None:
    request.computes = False


_SHORT = {"an element short": _dims(lambda dims: (*dims[:-1], dims[-1] - 1))}
_LONG = {"an element long": _dims(lambda dims: (*dims[:-1], dims[-1] + 1))}
_MORE = {"an axis more": _dims(lambda dims: (*dims, 1))}
_NINE = {"nine axes": _dims(lambda dims: (*dims, *[1] * (9 - len(dims))))}
_FEWER = {"an axis fewer": _dims(lambda dims: (dims[0] * dims[1], *dims[2:]))}
_NONE = {"no axis": _dims(lambda dims: ())}

#: What is wrong for each kind of tensor, whatever the operator.
_OF_DATA = {"a sample short": _dims(lambda dims: (dims[0] - 1, *dims[1:])), **_FEWER, **_NINE}
_OF_VECTOR = {**_SHORT, **_LONG, **_MORE}
_OF_COUNTER = {**_NONE, **_NINE}
_OF_ANY_SHAPE = {**_SHORT, **_NINE}
_OF_SAME_SHAPE = {**_SHORT, **_MORE}


def _wrong_shapes(operator: str, row: Parameter) -> Mapping[str, Callable[[Tensor], None]]:
    if row.name == "counter":
        return _OF_COUNTER
    if operator == products.GROUP_NORM:  # where any shape of so many elements is right
        return _OF_SAME_SHAPE if row.is_output else _OF_ANY_SHAPE
    return _OF_DATA if row.name in DATA else _OF_VECTOR


def _wrong_dtypes(operator: str, row: Parameter, product: Product) -> Iterator[str]:
    yield from ("float64", "int8")
    if "bfloat16" not in product.dtypes:
        yield "bfloat16"
    follows = operator in (products.BATCH_NORM, products.GROUP_NORM)
    if operator == products.REDUCE:
        follows = row.name in DATA
    if follows and not (product.name == products.ASCEND_950 and row.name == "gradBias"):
        yield "float16"


def _of_tensor(operator: str, row: Parameter, product: Product) -> Iterator[tuple[str, Mistake]]:
    name = row.name
    if not isinstance(row.when, MayBeNull):
        yield "null", _argument(name, None)
    for dtype in _wrong_dtypes(operator, row, product):
        yield dtype, _look(_dtype(dtype), name)
    for format in ("NHWC", "NC1HWC0"):
        yield format, _look(_format(format), name)
    for word, change in _wrong_shapes(operator, row).items():
        yield word, _look(change, name)
    if row.is_output:
        yield "one place for all elements", _look(_one_place, name)
    yield "destroyed", _handled(destroyed={name})


_SCALARS: Mapping[str, tuple[Argument, ...]] = {
    "outputMask": (None, (True, True), (True, True, True, True)),
    "N": (-1, 4),
    "C": (-4, 5),
    "HxW": (-5, 6),
    "group": (0, -2, 3),
}


def _of_all(operator: str, names: tuple[str, ...]) -> Iterator[tuple[str, Mistake]]:
    """Data that are alike, and wrong."""
    data = [name for name in names if name in DATA]
    yield "data: float64", _look(_dtype("float64"), *data)
    yield "data: NC1HWC0", _look(_format("NC1HWC0"), *data)
    yield "data: nine axes", _look(_NINE["nine axes"], *data)
    if operator == products.GROUP_NORM:
        return
    yield "data: one axis", _look(_dims(lambda dims: (math.prod(dims),)), *data)
    if operator != products.BATCH_NORM:
        vectors = [name for name in names if name not in (*DATA, "counter")]
        nothing = _look(_dims(lambda dims: (0,)), *vectors)
        yield "no channels", _both(nothing, _look(_dims(lambda d: (d[0], 0, *d[2:])), *data))


def _of_phases(operator: str, product: Product) -> Iterator[tuple[str, Mistake]]:
    yield "workspaceSize: no place for it", _handled(null={"workspaceSize"})
    yield "executor: no place for it", _handled(null={"executor"})
    yield "executor: null", _handled(True, null={"executor in phase 2"})
    yield "executor: used again", _handled(True, used_again=True)
    yield "executor: destroyed", _handled(True, destroyed={"executor"})
    other = next((each for each in sorted(product.operators) if each != operator), None)
    if other is not None:
        yield f"executor: handed to {other}", _handled(True, phase_2=other)
    yield "workspace: null", _handled(True, null={"workspace"})
    yield "workspace: a byte short", _handled(True, bytes_missing=1)
    for name in ("gradOut", TRANSLATION_OF[operator].outputs[0]):
        yield f"{name}: destroyed between the phases", _handled(True, destroyed_between={name})


@cache
def mistakes(operator: str, product_name: str) -> Mapping[str, Mistake]:
    """All that is tried wrong with an operator, by name: what is done to a request of shape
    (3, 4, 5), in float32, with everything given."""
    product = products.find(product_name)
    if operator not in product.operators:
        return {f"on {product.name}": _no_mistake}
    contract = CONTRACTS[operator]
    found: dict[str, Mistake] = {}
    for row in contract.parameters:
        for word, mistake in _of_tensor(operator, row, product):
            found[f"{row.name}: {word}"] = mistake
    for scalar in contract.scalars:
        for value in _SCALARS.get(scalar.name, ()):
            found[f"{scalar.name}: {value}"] = _argument(scalar.name, value)
        if scalar.name == "outputMask":
            found["outputMask: destroyed"] = _handled(destroyed={"outputMask"})
    found |= dict(_of_all(operator, tuple(row.name for row in contract.parameters)))
    found |= dict(_of_phases(operator, product))
    # Nulls are told first.
    found["gradOut: float64, and input: null"] = _both(
        found["gradOut: float64"], found["input: null"]
    )
    return found
