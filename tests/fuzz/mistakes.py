"""What can be wrong with a call: one thing, which the message must name, or anything at all."""

from __future__ import annotations

import math
import re
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from common import Producer
from hypothesis import strategies as st

from .hostile import DTYPES, FLOATS, WRONG_DTYPES, Call, View, in_hand, placed, torch


@dataclass
class Mistake:
    """A call with one thing wrong.

    Attributes:
        arguments: of the function.
        message: a pattern that the message begins with.
        kind: of the error; None where either will do.
    """

    arguments: dict[str, Any]
    message: str
    kind: type[Exception] | None = None


class Index:
    """An integer of its own kind."""

    def __index__(self) -> int:
        return 3


class Raises:
    """Whatever it is asked, it fails."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_repr"):  # which Hypothesis asks for
            raise AttributeError(name)
        raise RuntimeError(name)


_NO_TENSORS: Sequence[Any] = (
    1.5, 3, True, "input", b"1234", [1.0, 2.0], (1.0,), {}, {1, 2}, object(), np.ndarray, int, len,
    np.float32(1), np.int64(2), range(3), memoryview(b"12345678"), bytearray(8),
    Raises(), Index(), ..., 1j, np.dtype("f4"),
)  # fmt: skip

_NO_FLAGS: Sequence[Any] = (0, 1, None, "True", 1.0, [], np.array(True), np.int64(1), object())
_NO_REALS: Sequence[Any] = (
    None, "1e-5", 1j, True, False, [1e-5], np.array(1e-5), object(), np.complex64(1), np.True_,
    b"1", (), Raises(),
)  # fmt: skip
_HUGE = 10**400
_NO_INTEGERS: Sequence[Any] = (
    None, "1", 1.0, 1j, True, False, np.True_, [1], np.float32(1), object(), np.array(1.0),
    np.array([1, 2]), Raises(),
)  # fmt: skip
_NO_MASKS: Sequence[Any] = (
    None, True, 3, "yes", b"yes", (True, True), [True] * 4, (1, 1, 1), (True, "no", False), (),
    (None, None, None), object(), np.zeros((3, 3), bool), Raises(),
)  # fmt: skip


#: Tensors of a shape that are none to the operators.
_WRONG_TENSORS: list[Callable[[tuple[int, ...]], Any]] = [
    lambda shape: np.ma.masked_array(np.zeros(shape, np.float32)),
]
if torch is not None:
    _WRONG_TENSORS += [
        lambda shape: torch.zeros(shape, device="meta"),
        lambda shape: torch.zeros(shape).to_sparse(),
        lambda shape: torch.zeros(shape, dtype=torch.complex64),
        lambda shape: torch.zeros(shape, dtype=torch.float8_e4m3fn),
        lambda shape: torch.zeros(shape, dtype=torch.bool),
        lambda shape: torch.zeros(shape, dtype=torch.int16),
        lambda shape: torch.empty(shape, dtype=torch.bits8),
        lambda shape: torch.nested.nested_tensor(
            [torch.zeros(2), torch.zeros(3)], layout=torch.jagged
        ),
        lambda shape: torch.nn.parameter.UninitializedParameter(),
    ]


def _wrong_tensor(draw: Any, shape: tuple[int, ...]) -> Any:
    make = draw(st.sampled_from(_WRONG_TENSORS))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # PyTorch's of what may change there
        return make(shape)


def _no_tensor(draw: Any, shape: tuple[int, ...]) -> Any:
    """What is no tensor to the operators."""
    if draw(st.booleans()):
        return draw(st.sampled_from(_NO_TENSORS))
    return _wrong_tensor(draw, shape)


def _reshaped(draw: Any, view: View, legal: Sequence[tuple[int, ...]]) -> Any:
    """A tensor of another shape than those that are legal."""
    shape = list(view.shape)
    ways = ["more axes", "fewer axes", "longer", "shorter"]
    way = draw(st.sampled_from(ways if shape else ways[:1]))
    axis = draw(st.integers(0, max(0, len(shape) - 1)))
    if way == "more axes":
        shape.insert(axis, 1)
    elif way == "fewer axes":
        del shape[axis]
    elif way == "longer" or not shape[axis]:
        shape[axis] += 1
    else:
        shape[axis] -= 1
    new = tuple(shape)
    if new in legal:
        new = (*new, 1)
    itemsize = DTYPES[view.dtype].itemsize
    strides = [itemsize] * len(new)
    for index in range(len(new) - 2, -1, -1):
        strides[index] = strides[index + 1] * max(1, new[index + 1])
    return placed(new, view.dtype, strides)


@st.composite
def of(draw: Any, call: Call, made: dict[str, Any]) -> Mistake:
    """The call with one thing wrong."""
    ways = [_tensor, _dtype, _option, _out, _out]
    if len([view for view in call.tensors.values() if view is not None]) > 1:
        ways.append(_shape)
    way = draw(st.sampled_from(ways))
    mistake = way(draw, call, dict(made))
    while mistake is None:
        mistake = _dtype(draw, call, dict(made))
    return mistake


def _name(name: str) -> str:
    return re.escape(name) + ": "


def _tensor(draw: Any, call: Call, made: dict[str, Any]) -> Mistake | None:
    """What is no tensor, or none that is taken; or is missing."""
    name = draw(st.sampled_from(call.given))
    view = call.tensors[name]
    assert view is not None
    if name in call.operator.required and draw(st.integers(0, 3)) == 0:
        made[name] = None
        if len(call.given) == 1:
            return Mistake(made, _name(name), TypeError)
        return Mistake(made, _name(name), TypeError)
    made[name] = _no_tensor(draw, view.shape)
    # Of several kinds the first decides, and another is named as unlike it.
    first = name == call.given[0]
    return Mistake(made, r"[a-z_]+(\[\d\])?( \(\w+\))?: " if first else _name(name))


def _dtype(draw: Any, call: Call, made: dict[str, Any]) -> Mistake:
    name = draw(st.sampled_from(call.given))
    view = call.tensors[name]
    assert view is not None
    wrong = draw(st.sampled_from(WRONG_DTYPES))
    if name in ("count", "counts") and draw(st.booleans()):
        wrong = np.dtype("float64")
    if call.framework == "numpy":
        made[name] = np.zeros(view.shape, wrong)
        return Mistake(made, f"{_name(name)}dtype ", TypeError)
    plain = torch.zeros(view.shape, dtype=draw(st.sampled_from([torch.int8, torch.complex64])))
    made[name] = Producer(plain) if call.framework == "dlpack" else plain
    return Mistake(made, f"{_name(name)}dtype ", TypeError)


def _shape(draw: Any, call: Call, made: dict[str, Any]) -> Mistake | None:
    """Of any but the input, which all others are compared with; and a rank of the input's."""
    operator = call.operator
    names = [name for name in call.given if name != "input"]
    name = draw(st.sampled_from(names))
    about = operator.tensors[name]
    view = call.tensors[name]
    assert view is not None
    if name == "count":
        made[name] = in_hand(draw, placed((1,) * 9, view.dtype, [4] * 9), call.framework, False)
        return Mistake(made, f"{_name(name)}9 axes", ValueError)
    if about == "count":
        return None  # it says how many ranks there are
    legal = [view.shape]
    if name.startswith("save_"):
        data = call.tensors["input"]
        assert data is not None
        legal += [(0,), (data.shape[call.axis],)]
    made[name] = in_hand(draw, _reshaped(draw, view, legal), call.framework, False)
    return Mistake(made, f"{_name(name)}shape ", ValueError)


def _option(draw: Any, call: Call, made: dict[str, Any]) -> Mistake | None:
    """An argument that is no tensor."""
    data = call.tensors["input"]
    assert data is not None
    rank, channels = len(data.shape), data.shape[call.axis]
    name = draw(st.sampled_from(sorted(call.operator.options)))
    if name in ("training", "input_g", "weight_g", "bias_g"):
        made[name] = draw(st.sampled_from(_NO_FLAGS))
        return Mistake(made, _name(name), TypeError)
    if name == "output_mask":
        made[name] = draw(st.sampled_from(_NO_MASKS))
        return Mistake(made, r"output_mask(\[\d\])?: ")
    if name in ("eps", "momentum"):
        if draw(st.integers(0, 4)) == 0:
            made[name] = _HUGE
            return Mistake(made, f"{_name(name)}too large", ValueError)
        if name == "eps" and draw(st.booleans()):
            made[name] = draw(st.sampled_from([-1, -1e-300, -math.inf, math.nan]))
            return Mistake(made, _name(name), ValueError)
        made[name] = draw(st.sampled_from(_NO_REALS))
        return Mistake(made, _name(name), TypeError)
    if draw(st.booleans()):
        made[name] = draw(st.sampled_from(_NO_INTEGERS))
        return Mistake(made, _name(name), TypeError)
    values = [rank, -rank - 1, 2**31, -(2**63), 2**70]
    if name == "num_groups":
        values = [0, -1, channels + 1, -(2**70)]
        if not channels:
            values = [0, -1]
    elif "num_groups" in made:
        values += [0, -rank]
    made[name] = draw(st.sampled_from(values))
    return Mistake(made, _name(name), ValueError)


def _entry(index: int, name: str, alone: bool) -> str:
    where = "out" if alone else rf"out\[{index}\]"
    return rf"{where} \(\w*{name}\)"


_RENAMED = {
    "batch_norm_gather_stats_with_counts": {"mean": "global_mean", "invstd": "global_invstd"},
}


def _out(draw: Any, call: Call, made: dict[str, Any]) -> Mistake | None:
    """The caller's tensors for results."""
    operator = call.operator
    names = list(operator.outputs)
    if not operator.alone and draw(st.integers(0, 3)) == 0:
        most = len(names)
        made["out"] = draw(
            st.sampled_from([(), (None,) * (most - 1), [None] * (most + 1), 3, "out", object(),
                             np.zeros(3), {}, True])
        )  # fmt: skip
        return Mistake(made, "out: ")
    wanted = [name for name in names if call.wanted[name]]
    if not wanted:
        return None
    name = draw(st.sampled_from(wanted))
    index = names.index(name)
    shape = _output_shape(call, name)
    dtype = draw(st.sampled_from(sorted(FLOATS)))
    entry, kind = _bad_output(draw, call, shape, dtype)
    if entry is None:
        return None
    entries = [None] * len(names) if made.get("out") is None else made["out"]
    entries = [entries] if operator.alone and made.get("out") is not None else list(entries)
    entries[index] = entry
    made["out"] = entries[0] if operator.alone else tuple(entries)
    return Mistake(made, _entry(index, name, operator.alone), kind)


def _output_shape(call: Call, name: str) -> tuple[int, ...]:
    data = call.tensors["input"]
    assert data is not None
    about = call.operator.outputs[name][0]
    if about == "data":
        return data.shape
    if about == "group":
        return data.shape[0], int(call.options["num_groups"])
    return (data.shape[call.axis],)


def _bad_output(
    draw: Any, call: Call, shape: tuple[int, ...], dtype: str
) -> tuple[Any, type[Exception] | None]:
    """An output that must not be: the tensor, and the error."""
    itemsize = DTYPES[dtype].itemsize
    strides = [itemsize] * len(shape)
    for index in range(len(shape) - 2, -1, -1):
        strides[index] = strides[index + 1] * max(1, shape[index + 1])
    view = placed(shape, dtype, strides)
    long = [axis for axis, size in enumerate(shape) if size > 1]
    ways = ["no tensor", "dtype", "shape"]
    if 0 not in shape:
        ways.append("over an input")
        if call.framework == "numpy":
            ways += ["read-only"]
        if long:
            ways.append("over itself")
            if call.framework == "numpy" and itemsize > 1:
                ways.append("odd strides")
    way = draw(st.sampled_from(ways))
    if way == "no tensor":
        return _no_tensor(draw, shape), None
    if way == "dtype":
        if call.framework == "numpy":
            return np.zeros(shape, draw(st.sampled_from(WRONG_DTYPES))), TypeError
        plain = torch.zeros(shape, dtype=draw(st.sampled_from([torch.int32, torch.complex64])))
        return Producer(plain) if call.framework == "dlpack" else plain, TypeError
    if way == "shape":
        return in_hand(draw, _reshaped(draw, view, [shape]), call.framework, True), ValueError
    if way == "read-only":
        array = view.array
        array.flags.writeable = False
        return array, ValueError
    if way == "over itself":
        strides[draw(st.sampled_from(long))] = 0
        return in_hand(draw, placed(shape, dtype, strides), call.framework, True), ValueError
    if way == "odd strides":
        strides = [step + step // itemsize for step in strides]
        return placed(shape, dtype, strides).array, ValueError
    return _over_an_input(draw, call, shape), ValueError


def _over_an_input(draw: Any, call: Call, shape: tuple[int, ...]) -> Any:
    """An output that shares an element with an input, and is not all of it."""
    views = [view for view in call.tensors.values() if view is not None and view.array.size]
    other = draw(st.sampled_from(views)) if views else None
    if other is None:
        return None
    # From an element of the other on, in another dtype, so that it is nobody's very memory.
    dtypes = [dtype for dtype in FLOATS if dtype != other.dtype]
    dtype = draw(st.sampled_from(dtypes))
    itemsize = DTYPES[dtype].itemsize
    strides = [itemsize] * len(shape)
    for index in range(len(shape) - 2, -1, -1):
        strides[index] = strides[index + 1] * max(1, shape[index + 1])
    size = int(np.prod(shape)) * itemsize
    start = other.offset - other.offset % itemsize
    size += 16  # wherever the arena begins
    if start + size > other.arena.size:
        return None
    return in_hand(
        draw, View(shape, dtype, tuple(strides), start, other.arena), call.framework, True
    )


@st.composite
def garbage(draw: Any, call: Call) -> Any:
    """Anything."""
    views = [view for view in call.tensors.values() if view is not None]
    view = draw(st.sampled_from(views))
    way = draw(st.integers(0, 3))
    if way == 0:
        return _wrong_tensor(draw, view.shape)
    if way == 1:
        return np.zeros(view.shape, draw(st.sampled_from(WRONG_DTYPES)))
    if way == 2:
        tensors = (view.array, view.array[..., None], view.array.T, np.zeros((1,) * 9))
        return draw(st.sampled_from((*tensors, np.zeros(()), np.zeros((0,) * 4))))
    numbers = (_HUGE, -1, 2**40, float("nan"))
    things = (*_NO_TENSORS, *_NO_FLAGS, *_NO_REALS, *_NO_INTEGERS, *_NO_MASKS, *numbers)
    return draw(st.sampled_from(things))
