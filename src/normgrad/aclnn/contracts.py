"""The contracts of the operators, as tables (see :mod:`normgrad.rules`)."""

from __future__ import annotations

import numbers
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from ..rules import (
    ALWAYS,
    EVERY,
    FILLED,
    MAY_BE_NULL,
    Aspect,
    Broken,
    Call,
    Contract,
    Parameter,
    Rule,
    Scalar,
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
from ..unusable import shown
from .products import (
    A2,
    A3,
    ASCEND_950,
    BATCH_NORM,
    ELEMT,
    FORWARD_ELEMT,
    GATHER,
    GROUP_NORM,
    REDUCE,
    RMS_NORM,
    STATS,
)

#: The dense formats with the channel at axis 1, which count as ND.
CHANNEL_FIRST = ("ND", "NC", "NCL", "NCHW", "NCDHW")
CHANNEL_LAST = ("NHWC", "NDHWC")
RANKS = {"NC": 2, "NCL": 3, "NCHW": 4, "NHWC": 4, "NCDHW": 5, "NDHWC": 5}

_ND = (format_in(CHANNEL_FIRST, {}),)
_DATA = rank_in(2, 8)
_VECTOR = rank_in(1, 1)
_ANY = rank_in(0, 8)

#: The largest number of channels in a group on the products A2 and A3.
MOST_CHANNELS_OF_GROUP = 8000


# Scalars


def _bool(value: Any, call: Call) -> Broken:
    return None if isinstance(value, bool) else (shown(value), "True or False")


def _double(value: Any, call: Call) -> Broken:
    if isinstance(value, (float, numbers.Real)) and not isinstance(value, bool):
        try:
            float(value)
        except OverflowError:
            return "too large", "a number that float64 can hold"
        return None
    return shown(value), "a number"


def _mask(value: Any, call: Call) -> Broken:
    if len(value) == 3:
        return None
    return f"{len(value)} entries", "3"


def _int64(value: Any) -> Broken:
    if not isinstance(value, int) or isinstance(value, bool) or not -(2**63) <= value < 2**63:
        return shown(value), "an int64"
    return None


def _size(value: Any, call: Call) -> Broken:
    return _int64(value) or (None if value >= 0 else (f"{value}", "0 or more"))


def _group(value: Any, call: Call) -> Broken:
    broken = _int64(value)
    if broken is not None:
        return broken
    channels = call.arguments["C"]
    if value <= 0 or channels % value:
        return f"{value}", f"a positive divisor of C, {channels}"
    if call.product.name in (A2, A3) and channels // value > MOST_CHANNELS_OF_GROUP:
        return f"{value}, {channels // value} channels each", f"at most {MOST_CHANNELS_OF_GROUP}"
    return None


_EPS = Scalar("eps", "double", _double)
_OUTPUT_MASK = Scalar("outputMask", "aclBoolArray of size 3", _mask, is_pointer=True)


# Sizes


def _channels(call: Call) -> Mapping[str, int]:
    data = call.arguments["input"]
    return {"C": data.dims[-1 if data.format_name in CHANNEL_LAST else 1]}


def _of_group_norm(call: Call) -> Mapping[str, int]:
    return {name: call.arguments[name] for name in ("N", "C", "HxW", "group")}


# Tables

_AS_GRAD_OUT = dtype_of("gradOut")
_AS_GRAD_OUT_OR_FLOAT32 = dtype_of("gradOut", or_float32=True)
_BY_PRODUCT = dtype_in()
_FLOAT32 = dtype_in("float32")


def _vector(
    name: str,
    when: When,
    is_output: bool = False,
    dtype: Rule = _BY_PRODUCT,
    on_950: tuple[Rule, ...] = (),
    empty_unless: str | None = None,
) -> Parameter:
    """The row of a per-channel vector; ``on_950`` are other rules for its dtype on Ascend 950."""
    return Parameter(
        name,
        when,
        (dtype,),
        _ND,
        _VECTOR,
        length("C", empty_unless),
        is_output=is_output,
        exceptions={ASCEND_950: {"dtypes": on_950}} if on_950 else {},
    )


def _statistic(name: str, twin: str | None = None, empty_unless: str | None = None) -> Parameter:
    """The row of the weight or a statistic; on Ascend 950 ``twin`` must have the same dtype."""
    on_950 = (_AS_GRAD_OUT_OR_FLOAT32, *([dtype_of(twin)] if twin else ()))
    return _vector(name, MAY_BE_NULL, False, _AS_GRAD_OUT, on_950, empty_unless)


def _batch_norm_gradient(name: str, entry: int, on_950: Rule) -> Parameter:
    when = When("outputMask", entry, checked=(Aspect.SHAPE,))
    return _vector(name, when, True, _AS_GRAD_OUT, (on_950,))


def _like_grad_out(name: str, when: When, is_output: bool = False) -> Parameter:
    formats, shape = (format_of("gradOut"),), shape_of("gradOut")
    return Parameter(name, when, (_AS_GRAD_OUT,), formats, _DATA, shape, is_output=is_output)


_WITH_RANKS = (format_in(CHANNEL_FIRST, RANKS),)
_WITH_RANKS_950 = (format_in((*CHANNEL_FIRST, *CHANNEL_LAST), RANKS),)

BATCH_NORM_CONTRACT = Contract(
    BATCH_NORM,
    (
        Parameter(
            "gradOut",
            ALWAYS,
            (_BY_PRODUCT,),
            _WITH_RANKS,
            _DATA,
            exceptions={ASCEND_950: {"formats": _WITH_RANKS_950}},
        ),
        _like_grad_out("input", ALWAYS),
        _statistic("weight"),
        _statistic("runningMean"),
        _statistic("runningVar", "runningMean"),
        _statistic("saveMean", empty_unless="training"),
        _statistic("saveInvstd", "saveMean", "training"),
        Scalar("training", "bool", _bool),
        _EPS,
        _OUTPUT_MASK,
        _like_grad_out("gradInput", When("outputMask", 0, checked=EVERY), True),
        _batch_norm_gradient("gradWeight", 1, dtype_of("weight", "gradOut", or_float32=True)),
        _batch_norm_gradient("gradBias", 2, _BY_PRODUCT),
    ),
    _channels,
    ("gradOut", "input"),
)


REDUCE_CONTRACT = Contract(
    REDUCE,
    (
        Parameter("gradOut", ALWAYS, (_BY_PRODUCT,), _ND, _DATA),
        Parameter(
            "input",
            ALWAYS,
            (_BY_PRODUCT, _AS_GRAD_OUT),
            (*_ND, format_of("gradOut")),
            _DATA,
            with_channels(shape_of("gradOut")),
        ),
        _vector("mean", ALWAYS),
        _vector("invstd", ALWAYS),
        _vector("weight", MAY_BE_NULL),
        Scalar("inputG", "bool", _bool),
        Scalar("weightG", "bool", _bool),
        Scalar("biasG", "bool", _bool),
        _vector("sumDy", When("inputG"), True),
        _vector("sumDyXmu", When("inputG"), True),
        _vector("gradWeight", When("weightG"), True),
        _vector("gradBias", When("biasG"), True),
    ),
    _channels,
    ("gradOut", "input"),
)

ELEMT_CONTRACT = Contract(
    ELEMT,
    (
        Parameter("gradOut", ALWAYS, (_BY_PRODUCT,), _ND, _DATA, shape_of("input")),
        Parameter("input", ALWAYS, (_BY_PRODUCT,), _ND, _DATA, with_channels()),
        _vector("mean", ALWAYS),
        _vector("invstd", ALWAYS),
        _vector("weight", MAY_BE_NULL),
        _vector("sumDy", ALWAYS),
        _vector("sumDyXmu", ALWAYS),
        Parameter(
            "counter", ALWAYS, (dtype_in("int32", "float16", "float32"),), _ND, rank_in(1, 8)
        ),
        Parameter(
            "gradInput", ALWAYS, (_BY_PRODUCT,), _ND, _DATA, shape_of("input"), is_output=True
        ),
    ),
    _channels,
    ("input",),
)


_OF_DATA = elements("N", "C", "HxW")
_OF_GROUPS = elements("N", "group")


def _grouped(name: str, when: When, shape: Rule, is_output: bool = False) -> Parameter:
    return Parameter(name, when, (_AS_GRAD_OUT,), _ND, _ANY, shape, is_output=is_output)


GROUP_NORM_CONTRACT = Contract(
    GROUP_NORM,
    (
        Parameter("gradOut", ALWAYS, (_BY_PRODUCT,), _ND, _ANY, _OF_DATA),
        _grouped("input", ALWAYS, _OF_DATA),
        _grouped("mean", ALWAYS, _OF_GROUPS),
        _grouped("rstd", ALWAYS, _OF_GROUPS),
        _grouped("gamma", MAY_BE_NULL, elements("C")),
        Scalar("N", "int64, 0 or more", _size),
        Scalar("C", "int64, 0 or more", _size),
        Scalar("HxW", "int64, 0 or more", _size),
        Scalar(
            "group",
            f"int64, a positive divisor of C; on {A2} and {A3} at most {MOST_CHANNELS_OF_GROUP} "
            "channels each",
            _group,
        ),
        _OUTPUT_MASK,
        _grouped("gradInput", When("outputMask", 0), shape_of("input"), True),
        _grouped("gradGammaOut", When("outputMask", 1), shape_of("gamma", "C"), True),
        _grouped("gradBetaOut", When("outputMask", 2), shape_of("gamma", "C"), True),
    ),
    _of_group_norm,
)

# Forward passes and statistics

STATS_CONTRACT = Contract(
    STATS,
    (
        Parameter("input", ALWAYS, (_BY_PRODUCT,), _WITH_RANKS, _DATA, with_channels()),
        _EPS,
        _vector("mean", ALWAYS, True, _FLOAT32),
        _vector("invstd", ALWAYS, True, _FLOAT32),
    ),
    _channels,
    ("input",),
)


def _ranks(call: Call) -> tuple[int, ...]:
    return call.arguments["mean"].dims[0], call.sizes["C"]


def _of_ranks(name: str) -> Parameter:
    shape = derived_shape("(ranks, C), with mean's ranks", _ranks)
    return Parameter(name, ALWAYS, (_BY_PRODUCT,), _ND, rank_in(2, 2), shape)


def _updated(name: str) -> Parameter:
    return replace(_vector(name, MAY_BE_NULL), is_updated=True)


GATHER_CONTRACT = Contract(
    GATHER,
    (
        Parameter("input", ALWAYS, (_BY_PRODUCT,), _ND, _DATA, FILLED),
        _of_ranks("mean"),
        _of_ranks("invstd"),
        _updated("runningMean"),
        _updated("runningVar"),
        Scalar("momentum", "double", _double),
        _EPS,
        Parameter(
            "counts",
            ALWAYS,
            (dtype_in("float32", "float16", "int32"),),
            _ND,
            _VECTOR,
            derived_shape("(ranks,), with mean's ranks", lambda call: _ranks(call)[:1]),
        ),
        _vector("meanAll", ALWAYS, True),
        _vector("invstdAll", ALWAYS, True),
    ),
    _channels,
    ("input",),
)

FORWARD_ELEMT_CONTRACT = Contract(
    FORWARD_ELEMT,
    (
        Parameter("input", ALWAYS, (_BY_PRODUCT,), _WITH_RANKS, _DATA, with_channels()),
        _vector("weight", MAY_BE_NULL),
        _vector("bias", MAY_BE_NULL),
        _vector("mean", ALWAYS),
        _vector("invstd", ALWAYS),
        _EPS,
        Parameter(
            "output",
            ALWAYS,
            (dtype_of("input"),),
            _WITH_RANKS,
            _DATA,
            shape_of("input"),
            is_output=True,
        ),
    ),
    _channels,
    ("input",),
)


def _normalised(call: Call) -> tuple[int, ...]:
    """The last axes of x, as many as gamma has."""
    dims: tuple[int, ...] = call.arguments["x"].dims
    return dims[-len(call.arguments["gamma"].dims) :]


def _rows(call: Call) -> tuple[int, ...]:
    """The shape of x, with ones in the place of gamma's axes."""
    dims, count = call.arguments["x"].dims, len(call.arguments["gamma"].dims)
    return (*dims[:-count], *[1] * count)


_OF_ROWS = rank_in(1, 8)

RMS_NORM_CONTRACT = Contract(
    RMS_NORM,
    (
        Parameter("x", ALWAYS, (_BY_PRODUCT,), _ND, _OF_ROWS),
        Parameter(
            "gamma",
            ALWAYS,
            (_BY_PRODUCT,),
            _ND,
            _OF_ROWS,
            derived_shape("x's last axes", _normalised),
        ),
        Scalar("epsilon", "double", _double),
        Parameter("yOut", ALWAYS, (_BY_PRODUCT,), _ND, _OF_ROWS, shape_of("x"), is_output=True),
        Parameter(
            "rstdOut",
            ALWAYS,
            (_FLOAT32,),
            _ND,
            _OF_ROWS,
            derived_shape("x's shape, with ones in the place of gamma's axes", _rows),
            is_output=True,
        ),
    ),
    lambda call: {},
)

CONTRACTS = {
    contract.name: contract
    for contract in (
        BATCH_NORM_CONTRACT,
        REDUCE_CONTRACT,
        ELEMT_CONTRACT,
        GROUP_NORM_CONTRACT,
        STATS_CONTRACT,
        GATHER_CONTRACT,
        FORWARD_ELEMT_CONTRACT,
        RMS_NORM_CONTRACT,
    )
}
