"""InfiniCore's dialect: legal calls computed, everything else a listed status."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from fuzz import hostile, mistakes, oracle
from fuzz.ledger import cases, count
from hypothesis import given
from hypothesis import strategies as st

from normgrad.dialects import infiniop

SURFACE = "infiniop"
OUTPUTS = ("grad_input", "grad_weight", "grad_bias")
INPUTS = ("input", "grad_output", "weight", "running_mean", "running_var")
_DATA = ("grad_input", "input", "grad_output")
DTYPES = {"float16": 12, "float32": 13, "bfloat16": 19}
BAD_PARAM, BAD_DTYPE, BAD_SHAPE, BAD_STRIDES, TOO_SMALL = 3, 10, 11, 12, 13
_OPERATOR = hostile.OPERATORS["batch_norm_backward"]


@st.composite
def tensors(draw: Any) -> tuple[dict[str, hostile.View], str]:
    """Legal tensors, and the kind of their values."""
    shape = draw(hostile.shapes(3, 3))
    dtype = draw(st.sampled_from(sorted(DTYPES)))
    kind = draw(st.sampled_from(hostile.KINDS_OF_VALUES))
    itemsize = hostile.DTYPES[dtype].itemsize
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    made: dict[str, hostile.View] = {}
    for name in (*INPUTS, *OUTPUTS):
        if name in _DATA:
            _, c, length = shape
            strides: tuple[int, ...] = (c * length * itemsize, length * itemsize, itemsize)
            its_shape: tuple[int, ...] = shape
        else:
            its_shape = (shape[1],)
            strides = (draw(st.integers(1, 3)) * itemsize,)
        if name == "grad_input" and draw(st.integers(0, 2)) == 0:
            made[name] = made[draw(st.sampled_from(["input", "grad_output"]))]
            continue
        made[name] = hostile.placed(its_shape, dtype, strides, draw(st.integers(0, 3)))
        if name in INPUTS:
            hostile.fill(made[name], rng, kind, name == "running_var")
    return made, kind


def descriptor(view: hostile.View) -> Any:
    return infiniop.infiniopCreateTensorDescriptor(
        len(view.shape), view.shape, view.steps, DTYPES[view.dtype]
    )


def memory(view: hostile.View) -> Any:
    return view.arena[view.offset :] if math.prod(view.shape) else None


_ORDER = (*OUTPUTS, *INPUTS)


def created(views: dict[str, hostile.View]) -> Any:
    handle = infiniop.infiniopCreateHandle()
    descriptors = [descriptor(views[name]) for name in _ORDER]
    op = infiniop.infiniopCreateBatchNormBackwardDescriptor(handle, *descriptors)
    for each in descriptors:  # legal before the computation
        infiniop.infiniopDestroyTensorDescriptor(each)
    return op


def check(views: dict[str, hostile.View], before: dict[str, np.ndarray]) -> None:
    """The results, against the formula in training without eps."""
    theirs: dict[str, Any] = dict.fromkeys(_OPERATOR.tensors)
    theirs.update(
        grad_out=before["grad_output"], input=before["input"], weight=before["weight"],
        save_mean=before["running_mean"],
    )  # fmt: skip
    results = {name: np.array(views[name].array) for name in OUTPUTS}
    variance = before["running_var"].astype(np.float64)
    oracle.check_of_variance(_OPERATOR, theirs, variance, results)


@cases(60)
@given(tensors(), st.data())
def test_legal(drawn: Any, data: Any) -> None:
    views, _ = drawn
    op = created(views)
    size = infiniop.infiniopGetBatchNormBackwardWorkspaceSize(op)
    buffer = np.full(size + 128, 0xA5, np.uint8)
    before = {name: np.array(views[name].array) for name in INPUTS}
    watched = watch(views)
    pointers = [memory(views[name]) for name in _ORDER]
    infiniop.infiniopBatchNormBackward(op, buffer[64 : 64 + size], size, *pointers)
    assert (buffer[:64] == 0xA5).all()
    assert (buffer[64 + size :] == 0xA5).all()
    watched.check_gaps()
    check(views, before)
    infiniop.infiniopDestroyBatchNormBackwardDescriptor(op)
    with pytest.raises(infiniop.InfiniError, match="destroyed") as caught:
        infiniop.infiniopBatchNormBackward(op, buffer, size, *pointers)
    assert caught.value.status == BAD_PARAM
    count(SURFACE, "accepted")


def watch(views: dict[str, hostile.View]) -> hostile.Watched:
    arenas = [view.arena for view in views.values()]
    return hostile.Watched(arenas, [views[name] for name in OUTPUTS])


_WRONG_DESCRIPTIONS = {
    "dtype": BAD_DTYPE, "mixed": BAD_DTYPE, "rank": BAD_SHAPE, "length": BAD_SHAPE,
    "strides": BAD_STRIDES, "null": BAD_PARAM, "destroyed": BAD_PARAM, "other": BAD_PARAM,
}  # fmt: skip


@cases(40)
@given(tensors(), st.data())
def test_one_wrong_description(drawn: Any, data: Any) -> None:
    views, _ = drawn
    name = data.draw(st.sampled_from(_ORDER))
    way = data.draw(st.sampled_from(sorted(_WRONG_DESCRIPTIONS)))
    view = views[name]
    made: dict[str, Any] = {each: descriptor(views[each]) for each in _ORDER}
    create = infiniop.infiniopCreateTensorDescriptor
    shape, rank, code = view.shape, len(view.shape), DTYPES[view.dtype]
    if way == "dtype":
        others = [each for each in range(20) if each not in DTYPES.values()]
        made[name] = create(rank, shape, None, data.draw(st.sampled_from(others)))
    elif way == "mixed":
        others = [each for each in DTYPES.values() if each != code]
        made[name] = create(rank, shape, None, data.draw(st.sampled_from(others)))
    elif way == "rank":
        made[name] = create(rank + 1, (*shape, 1), None, code)
    elif way == "length":
        longer = (shape[0], shape[1] + 1, *shape[2:]) if rank > 1 else (shape[0] + 1,)
        made[name] = create(rank, longer, None, code)
    elif way == "strides":
        steps = [-2] if rank == 1 else [1, 1, 1]
        shape = (2,) * rank
        for each in _ORDER:
            wide = (2,) * len(views[each].shape)
            made[each] = create(len(wide), wide, None, code)
        made[name] = create(rank, shape, steps, code)
    elif way == "destroyed":
        infiniop.infiniopDestroyTensorDescriptor(made[name])
    else:
        made[name] = None if way == "null" else data.draw(st.sampled_from(_NOTHINGS))
    with pytest.raises(infiniop.InfiniError) as caught:
        infiniop.infiniopCreateBatchNormBackwardDescriptor(
            infiniop.infiniopCreateHandle(), *made.values()
        )
    assert caught.value.status == _WRONG_DESCRIPTIONS[way], str(caught.value)
    count(SURFACE, f"refused: {int(caught.value.status)}")


_NOTHINGS = [3, "desc", object(), [], np.zeros(3), mistakes.Raises(), 1.5, b""]


@cases(40)
@given(tensors(), st.data())
def test_one_wrong_pointer(drawn: Any, data: Any) -> None:
    """Memory that is none, is too short, or another's; a workspace that is too small."""
    views, _ = drawn
    op = created(views)
    size = infiniop.infiniopGetBatchNormBackwardWorkspaceSize(op)
    workspace = np.zeros(size, np.uint8)
    arguments: list[Any] = [workspace, size, *(memory(views[name]) for name in _ORDER)]
    full = [name for name in _ORDER if math.prod(views[name].shape)]
    way = data.draw(st.sampled_from(["workspace", "short", "none", "over", "read-only"]))
    status = BAD_PARAM
    if way == "workspace" and size:
        status, arguments[0], arguments[1] = data.draw(
            st.sampled_from(
                [(BAD_PARAM, None, size), (TOO_SMALL, workspace, size - 1), (BAD_PARAM, 3, size),
                 (TOO_SMALL, workspace[1:], size), (TOO_SMALL, workspace, "much"),
                 (TOO_SMALL, workspace, None), (TOO_SMALL, workspace, mistakes.Raises())]
            )
        )  # fmt: skip
    elif not full:
        arguments = [None] * 10
        op = None
    else:
        name = data.draw(st.sampled_from(full))
        index = 2 + _ORDER.index(name)
        view = views[name]
        if way == "short":
            end = max(step * (n - 1) for n, step in zip(view.shape, view.strides, strict=True))
            arguments[index] = np.array(view.arena[view.offset :][: max(0, end)])
        elif way == "over" and name in OUTPUTS and name != "grad_input":
            arguments[index] = arguments[2 + _ORDER.index("input")]
        elif way == "read-only" and name in OUTPUTS:
            arguments[index] = arguments[index].copy()
            arguments[index].flags.writeable = False
        else:
            arguments[index] = data.draw(st.sampled_from([None, *_NOTHINGS[:4]]))
    watched = watch(views)
    with pytest.raises(infiniop.InfiniError) as caught:
        infiniop.infiniopBatchNormBackward(op, *arguments)
    watched.check_untouched()
    assert caught.value.status == status, str(caught.value)
    count(SURFACE, f"refused: {status}")


_LISTED = {2, 3, 4, 5, 6, 7, 8, 10, 11, 12, 13}
_SIZES = st.sampled_from([0, 1, 2, 3, -1, 2**31, 2**62, 2**64, 2**100, 1.5, None, "2", True])
_SEQUENCES = st.one_of(
    st.lists(_SIZES, max_size=4),
    st.sampled_from([None, 3, "12", b"12", {}, np.zeros(3), object(), mistakes.Raises()]),
)
_ANYTHING = st.one_of(
    _SIZES, _SEQUENCES, st.sampled_from([*_NOTHINGS, np.array([1, 2]), np.zeros(0), range(20)])
)


@cases(40)
@given(st.data())
def test_garbage(data: Any) -> None:
    """Any function of the dialect with anything: a listed status, if it is refused."""
    name = data.draw(st.sampled_from(sorted(
        each for each in infiniop.__all__ if each.startswith("infini") and not each.endswith("_t")
    )))  # fmt: skip
    function = getattr(infiniop, name)
    most = function.__code__.co_argcount
    arguments = [data.draw(_ANYTHING) for _ in range(most)]
    if name == "infiniopCreateTensorDescriptor" and data.draw(st.booleans()):
        arguments[0] = 3
        arguments[3] = data.draw(st.sampled_from(range(20)))
    status = 0
    try:
        function(*arguments)
    except infiniop.InfiniError as error:
        status = int(error.status)
    finally:
        infiniop.infinirtSetDevice(0)
    assert status in {0, *_LISTED}
    count(SURFACE, f"refused: {status}" if status else "accepted")
