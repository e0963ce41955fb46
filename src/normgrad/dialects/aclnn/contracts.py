"""CANN's contracts: what its documents allow for the arguments of each operator, on each product.

:mod:`normgrad.dialects.rules` has the classes of the tables.
"""

from __future__ import annotations

import numbers
from collections.abc import Mapping
from typing import Any

from ...support.values import represent
from ..rules import (
    ALWAYS,
    EVERY,
    FILLED,
    MAY_BE_NULL,
    Aspect,
    BoundArguments,
    Breach,
    Contract,
    Rule,
    ScalarRow,
    TensorRow,
    When,
    derived_shape,
    dtype_in,
    dtype_of,
    elements,
    format_in,
    format_of,
    length,
    rank_in,
    shape_of,
    with_channels,
)
from . import products
from .products import A2, A3, ASCEND_950

#: The dense formats with the channel at axis 1, which count as ND.
CHANNEL_FIRST = ("ND", "NC", "NCL", "NCHW", "NCDHW")
CHANNEL_LAST = ("NHWC", "NDHWC")
RANKS = {"NC": 2, "NCL": 3, "NCHW": 4, "NHWC": 4, "NCDHW": 5, "NDHWC": 5}

_ND = format_in(CHANNEL_FIRST, {})
_DATA = rank_in(2, 8)
_VECTOR = rank_in(1, 1)
_ROWS = rank_in(1, 8)
_ANY = rank_in(0, 8)
_FLOAT32 = dtype_in("float32")

#: The largest number of channels in a group on the products A2 and A3.
MOST_CHANNELS_OF_GROUP = 8000


# Scalars


def _bool(value: Any, call: BoundArguments) -> Breach | None:
    return None if isinstance(value, bool) else (represent(value), "True or False")


def _double(value: Any, call: BoundArguments) -> Breach | None:
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        return represent(value), "a number"
    try:
        float(value)
    except OverflowError:
        return "too large", "a number that float64 can hold"
    return None


def _mask(value: Any, call: BoundArguments) -> Breach | None:
    return None if len(value) == 3 else (f"{len(value)} entries", "3")


def _int64(value: Any) -> Breach | None:
    if not isinstance(value, int) or isinstance(value, bool) or not -(2**63) <= value < 2**63:
        return represent(value), "an int64"
    return None


def _size(value: Any, call: BoundArguments) -> Breach | None:
    return _int64(value) or (None if value >= 0 else (f"{value}", "0 or more"))


def _group(value: Any, call: BoundArguments) -> Breach | None:
    if breach := _int64(value):
        return breach
    channels = call.arguments["C"]
    if value <= 0 or channels % value:
        return f"{value}", f"a positive divisor of C, {channels}"
    if call.product.name in (A2, A3) and channels // value > MOST_CHANNELS_OF_GROUP:
        return f"{value}, {channels // value} channels each", f"at most {MOST_CHANNELS_OF_GROUP}"
    return None


_EPS = ScalarRow("eps", "double", _double)
_OUTPUT_MASK = ScalarRow("outputMask", "aclBoolArray of size 3", _mask, is_pointer=True)


# Sizes


def _channels(call: BoundArguments) -> Mapping[str, int]:
    data = call.arguments["input"]
    return {"C": data.dims[-1 if data.format_name in CHANNEL_LAST else 1]}


# Tables

_AS_GRAD_OUT = dtype_of("gradOut")
_AS_GRAD_OUT_OR_FLOAT32 = dtype_of("gradOut", or_float32=True)
_BY_PRODUCT = dtype_in()
_WITH_RANKS = format_in(CHANNEL_FIRST, RANKS)
_WITH_RANKS_950 = format_in((*CHANNEL_FIRST, *CHANNEL_LAST), RANKS)


def _row(
    name: str,
    shape: Rule | None = None,
    when: When = ALWAYS,
    dtype: Rule = _BY_PRODUCT,
    format: Rule = _ND,
    rank: Rule = _DATA,
    **more: Any,
) -> TensorRow:
    """A tensor's row; by default that of data, which is required."""
    return TensorRow(name, when, (dtype,), (format,), rank, shape, **more)


def _vector(
    name: str, when: When = ALWAYS, empty_unless: str | None = None, **more: Any
) -> TensorRow:
    return _row(name, length("C", empty_unless), when, rank=_VECTOR, **more)


def _exceptions(on_a2: Rule, *on_950: Rule) -> Mapping[str, Any]:
    """Other rules for a vector's dtype on Atlas A2 and A3, and on Ascend 950.

    The document has gradOut's dtype for A2 and A3. But PyTorch's plugin for these devices passes
    float32 with halves in every training run with mixed precision.
    """
    return {A2: {"dtypes": (on_a2,)}, A3: {"dtypes": (on_a2,)}, ASCEND_950: {"dtypes": on_950}}


def _statistic(name: str, twin: str | None = None, empty_unless: str | None = None) -> TensorRow:
    """The row of the weight or a statistic; on Ascend 950 ``twin`` must have the same dtype."""
    on_950 = _AS_GRAD_OUT_OR_FLOAT32, *([dtype_of(twin)] if twin else ())
    exceptions = _exceptions(_AS_GRAD_OUT_OR_FLOAT32, *on_950)
    return _vector(name, MAY_BE_NULL, empty_unless, dtype=_AS_GRAD_OUT, exceptions=exceptions)


def _batch_norm_gradient(name: str, entry: int, on_950: Rule) -> TensorRow:
    when = When("outputMask", entry, checked=(Aspect.SHAPE,))
    exceptions = _exceptions(_AS_GRAD_OUT_OR_FLOAT32, on_950)
    return _vector(name, when, dtype=_AS_GRAD_OUT, is_output=True, exceptions=exceptions)


def _like_grad_out(name: str, when: When = ALWAYS, is_output: bool = False) -> TensorRow:
    shape, format = shape_of("gradOut"), format_of("gradOut")
    return _row(name, shape, when, _AS_GRAD_OUT, format, is_output=is_output)


BATCH_NORM = Contract(
    products.BATCH_NORM,
    (
        _row(
            "gradOut", format=_WITH_RANKS, exceptions={ASCEND_950: {"formats": (_WITH_RANKS_950,)}}
        ),
        _like_grad_out("input"),
        _statistic("weight"),
        _statistic("runningMean"),
        _statistic("runningVar", "runningMean"),
        _statistic("saveMean", empty_unless="training"),
        _statistic("saveInvstd", "saveMean", "training"),
        ScalarRow("training", "bool", _bool),
        _EPS,
        _OUTPUT_MASK,
        _like_grad_out("gradInput", When("outputMask", 0, checked=EVERY), True),
        _batch_norm_gradient("gradWeight", 1, dtype_of("weight", "gradOut", or_float32=True)),
        _batch_norm_gradient("gradBias", 2, _BY_PRODUCT),
    ),
    _channels,
    ("gradOut", "input"),
)


REDUCE = Contract(
    products.REDUCE,
    (
        _row("gradOut"),
        TensorRow(
            "input",
            ALWAYS,
            (_BY_PRODUCT, _AS_GRAD_OUT),
            (_ND, format_of("gradOut")),
            _DATA,
            with_channels(shape_of("gradOut")),
        ),
        _vector("mean"),
        _vector("invstd"),
        _vector("weight", MAY_BE_NULL),
        ScalarRow("inputG", "bool", _bool),
        ScalarRow("weightG", "bool", _bool),
        ScalarRow("biasG", "bool", _bool),
        _vector("sumDy", When("inputG"), is_output=True),
        _vector("sumDyXmu", When("inputG"), is_output=True),
        _vector("gradWeight", When("weightG"), is_output=True),
        _vector("gradBias", When("biasG"), is_output=True),
    ),
    _channels,
    ("gradOut", "input"),
)

ELEMT = Contract(
    products.ELEMT,
    (
        _row("gradOut", shape_of("input")),
        _row("input", with_channels()),
        _vector("mean"),
        _vector("invstd"),
        _vector("weight", MAY_BE_NULL),
        _vector("sumDy"),
        _vector("sumDyXmu"),
        _row("counter", dtype=dtype_in("int32", "float16", "float32"), rank=_ROWS),
        _row("gradInput", shape_of("input"), is_output=True),
    ),
    _channels,
    ("input",),
)


_OF_DATA = elements("N", "C", "HxW")
_OF_GROUPS = elements("N", "group")


def _grouped(name: str, shape: Rule, when: When = ALWAYS, is_output: bool = False) -> TensorRow:
    return _row(name, shape, when, _AS_GRAD_OUT, rank=_ANY, is_output=is_output)


GROUP_NORM = Contract(
    products.GROUP_NORM,
    (
        _row("gradOut", _OF_DATA, rank=_ANY),
        _grouped("input", _OF_DATA),
        _grouped("mean", _OF_GROUPS),
        _grouped("rstd", _OF_GROUPS),
        _grouped("gamma", elements("C"), MAY_BE_NULL),
        ScalarRow("N", "int64, 0 or more", _size),
        ScalarRow("C", "int64, 0 or more", _size),
        ScalarRow("HxW", "int64, 0 or more", _size),
        ScalarRow(
            "group",
            f"int64, a positive divisor of C; on {A2} and {A3} at most {MOST_CHANNELS_OF_GROUP} "
            "channels each",
            _group,
        ),
        _OUTPUT_MASK,
        _grouped("gradInput", shape_of("input"), When("outputMask", 0), True),
        _grouped("gradGammaOut", shape_of("gamma", "C"), When("outputMask", 1), True),
        _grouped("gradBetaOut", shape_of("gamma", "C"), When("outputMask", 2), True),
    ),
    lambda call: {name: call.arguments[name] for name in ("N", "C", "HxW", "group")},
)

# Forward passes and statistics

STATS = Contract(
    products.STATS,
    (
        _row("input", with_channels(), format=_WITH_RANKS),
        _EPS,
        _vector("mean", dtype=_FLOAT32, is_output=True),
        _vector("invstd", dtype=_FLOAT32, is_output=True),
    ),
    _channels,
    ("input",),
)


def _ranks(call: BoundArguments) -> tuple[int, ...]:
    return call.arguments["mean"].dims[0], call.sizes["C"]


_OF_RANKS = derived_shape("(ranks, C), with mean's ranks", _ranks)

GATHER = Contract(
    products.GATHER,
    (
        _row("input", FILLED),
        _row("mean", _OF_RANKS, rank=rank_in(2, 2)),
        _row("invstd", _OF_RANKS, rank=rank_in(2, 2)),
        _vector("runningMean", MAY_BE_NULL, is_updated=True),
        _vector("runningVar", MAY_BE_NULL, is_updated=True),
        ScalarRow("momentum", "double", _double),
        _EPS,
        _row(
            "counts",
            derived_shape("(ranks,), with mean's ranks", lambda call: _ranks(call)[:1]),
            dtype=dtype_in("float32", "float16", "int32"),
            rank=_VECTOR,
        ),
        _vector("meanAll", is_output=True),
        _vector("invstdAll", is_output=True),
    ),
    _channels,
    ("input",),
)

FORWARD_ELEMT = Contract(
    products.FORWARD_ELEMT,
    (
        _row("input", with_channels(), format=_WITH_RANKS),
        _vector("weight", MAY_BE_NULL),
        _vector("bias", MAY_BE_NULL),
        _vector("mean"),
        _vector("invstd"),
        _EPS,
        _row("output", shape_of("input"), ALWAYS, dtype_of("input"), _WITH_RANKS, is_output=True),
    ),
    _channels,
    ("input",),
)


def _normalised(call: BoundArguments) -> tuple[int, ...]:
    """The last axes of x, as many as gamma has."""
    dims: tuple[int, ...] = call.arguments["x"].dims
    return dims[-len(call.arguments["gamma"].dims) :]


def _rows(call: BoundArguments) -> tuple[int, ...]:
    """The shape of x, with ones in the place of gamma's axes."""
    dims, count = call.arguments["x"].dims, len(call.arguments["gamma"].dims)
    return (*dims[:-count], *[1] * count)


RMS_NORM = Contract(
    products.RMS_NORM,
    (
        _row("x", rank=_ROWS),
        _row("gamma", derived_shape("x's last axes", _normalised), rank=_ROWS),
        ScalarRow("epsilon", "double", _double),
        _row("yOut", shape_of("x"), rank=_ROWS, is_output=True),
        _row(
            "rstdOut",
            derived_shape("x's shape, with ones in the place of gamma's axes", _rows),
            dtype=_FLOAT32,
            rank=_ROWS,
            is_output=True,
        ),
    ),
    lambda call: {},
)

CONTRACTS = {
    contract.name: contract
    for contract in (BATCH_NORM, REDUCE, ELEMT, GROUP_NORM, STATS, GATHER, FORWARD_ELEMT, RMS_NORM)
}
