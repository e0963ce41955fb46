"""Plans: of any specs, run on any tensors with any workspace."""

from __future__ import annotations

import re
from array import array
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from fuzz import hostile, mistakes
from fuzz.ledger import cases, count, refusal
from fuzz.test_functions import check_accepted
from hypothesis import given
from hypothesis import strategies as st

import normgrad

torch = hostile.torch
SURFACE = "plans"


def _spec(view: hostile.View | None) -> Any:
    """In the place of a tensor; whole strides are all that a spec can have."""
    if view is None:
        return None
    return normgrad.TensorSpec(view.shape, view.dtype, view.steps)


def planned(draw: Any, call: hostile.Call) -> normgrad.Plan:
    """A legal call's plan, from specs or from the tensors themselves."""
    made: dict[str, Any] = dict(call.options)
    for name, view in call.tensors.items():
        if view is not None:
            made[name] = draw(st.sampled_from([_spec, lambda view: view.array]))(view)
    if call.out is not None:
        out = tuple(map(_spec, call.out.values()))
        made["out"] = out[0] if call.operator.alone else out
    return normgrad.plan(call.operator.name, **made)


#: Buffers that serve as a workspace of some bytes. What stands before and behind is watched.
_BUFFERS: list[Callable[[np.ndarray], Any]] = [
    lambda memory: memory,
    lambda memory: memory.view(np.int8),
    memoryview,
    lambda memory: memory.reshape(1, -1),
    lambda memory: memory.view("V1"),
]
if torch is not None:
    _BUFFERS.append(torch.from_numpy)

#: A page, and a cache line.
_BEFORE, _BEHIND = 64, 64


def _plain_calls(name: str) -> Any:
    """Calls whose inputs' strides are whole items, as a spec's are."""
    return hostile.calls(name, ("torch", "numpy")).filter(
        lambda call: all(view is None or view.is_whole for view in call.tensors.values())
    )


@pytest.mark.parametrize("name", hostile.OPERATORS)
@cases(9)
@given(st.data())
def test_legal(name: str, data: Any) -> None:
    call = data.draw(_plain_calls(name))
    plan = planned(data.draw, call)
    made = hostile.arguments(data.draw, call)
    for option in call.options:
        del made[option]
    before, watched = call.values(), call.watched()
    start, more = data.draw(st.integers(0, 65)), data.draw(st.integers(0, 9))
    memory = np.full(_BEFORE + start + plan.workspace_size + more + _BEHIND, 0xA5, np.uint8)
    workspace = None
    if data.draw(st.integers(0, 3)):
        end = _BEFORE + start + plan.workspace_size + more
        workspace = data.draw(st.sampled_from(_BUFFERS))(memory[_BEFORE + start : end])
    positional = [made.pop(each, None) for each in call.operator.tensors]
    result = plan.run(*positional, workspace=workspace, **made)
    assert (memory[: _BEFORE + start] == 0xA5).all()
    assert (memory[_BEFORE + start + plan.workspace_size + more :] == 0xA5).all()
    watched.check_gaps()
    check_accepted(call, result, before, made)
    count(SURFACE, "accepted")


def _frozen(size: int) -> np.ndarray:
    memory = np.zeros(size, np.uint8)
    memory.flags.writeable = False
    return memory


_NO_WORKSPACES: list[Callable[[int], Any]] = [
    lambda size: np.zeros(size - 1, np.uint8),
    lambda size: bytearray(size - 1),
    lambda size: bytes(size),
    _frozen,
    lambda size: np.zeros(2 * size, np.uint8)[::2],
    lambda size: np.zeros(size, object),
    lambda size: np.zeros((size, 1), "O"),
    lambda size: memoryview(bytes(size)),
    lambda size: array("d"),
    lambda size: np.broadcast_to(np.zeros(1, np.uint8), (size,)),
    lambda size: [0] * size,
    lambda size: size,
    lambda size: "workspace",
    lambda size: mistakes.Raises(),
]
if torch is not None:
    _NO_WORKSPACES += [
        lambda size: torch.zeros(size, device="meta"),
        lambda size: torch.zeros(2 * size)[::2],
        lambda size: torch.zeros(1).to_sparse(),
        lambda size: torch.zeros(size - 1, dtype=torch.uint8),
    ]


@pytest.mark.parametrize("name", hostile.OPERATORS)
@cases(5)
@given(st.data())
def test_one_thing_wrong(name: str, data: Any) -> None:
    """A tensor unlike the plan's, or a workspace that is none: named, and nothing is written."""
    call = data.draw(_plain_calls(name))
    plan = planned(data.draw, call)
    made = hostile.arguments(data.draw, call)
    for option in call.options:
        del made[option]
    given_names = call.given
    if plan.workspace_size and data.draw(st.booleans()):
        wrong = data.draw(st.sampled_from(_NO_WORKSPACES))(plan.workspace_size)
        if data.draw(st.integers(0, 4)) == 0:
            view = call.tensors[data.draw(st.sampled_from(given_names))]
            assert view is not None
            if view.array.size and view.arena.size - view.offset >= plan.workspace_size:
                wrong = view.arena
        made["workspace"] = wrong
        message = "workspace: "
    else:
        argument = data.draw(st.sampled_from(given_names))
        view = call.tensors[argument]
        assert view is not None
        shape = (*view.shape, 1) if data.draw(st.booleans()) else view.shape
        dtypes = [each for each in hostile.DTYPES if each != view.dtype or shape != view.shape]
        other = data.draw(hostile.views(shape, data.draw(st.sampled_from(dtypes)), negative=False))
        if not other.is_whole:
            other = hostile.placed(shape, other.dtype, (other.itemsize,) * len(shape))
        made[argument] = hostile.in_hand(data.draw, other, call.framework, False)
        message = f"{argument}: .* as in the plan$"
    watched = call.watched()
    with pytest.raises((TypeError, ValueError)) as caught:
        plan.run(**made)
    watched.check_untouched()
    assert re.match(message, str(caught.value)), str(caught.value)
    count(SURFACE, f"refused: {type(caught.value).__name__}")


_SIZES = st.sampled_from([0, 1, 2, 3, 5, -1, 2**31, 2**61, 2**64, 2**100, 1.5, None, "2", True])
_SEQUENCES = st.one_of(
    st.lists(_SIZES, max_size=9), st.lists(_SIZES, max_size=9).map(tuple),
    st.sampled_from([None, 3, "shape", b"123", {}, np.zeros(3), np.array([2, 3]), object(),
                     mistakes.Raises(), mistakes.Index()]),
)  # fmt: skip
_DTYPES = st.sampled_from(
    [*hostile.DTYPES, *hostile.WRONG_DTYPES, np.float32, "f4", ">f4", "half", "", None, 3, float,
     object(), mistakes.Raises(), *([torch.float32, torch.int8] if torch is not None else [])]
)  # fmt: skip


@cases(24)
@given(st.data())
def test_garbage(data: Any) -> None:
    """Specs of anything, and plans of specs of anything."""
    specs: list[Any] = []

    def make(shape: Any, dtype: Any, strides: Any) -> None:
        specs.append(normgrad.TensorSpec(shape, dtype, strides))

    for _ in range(3):
        drawn = data.draw(_SEQUENCES), data.draw(_DTYPES), data.draw(_SEQUENCES)
        error = refusal(lambda drawn=drawn: make(*drawn))
        assert error is None or re.match("(shape|strides|dtype)[: ]", str(error)), str(error)
    name = data.draw(st.sampled_from([*hostile.OPERATORS, "", None, 3, "plan", mistakes.Raises()]))
    call = data.draw(hostile.calls(data.draw(st.sampled_from(list(hostile.OPERATORS)))))
    made = {**call.options, **{each: _view(call.tensors[each]) for each in call.given}}
    for argument in data.draw(st.lists(st.sampled_from(sorted(made)), unique=True)):
        made[argument] = data.draw(
            st.one_of(mistakes.garbage(call), st.sampled_from(specs or [None]))
        )
    watched = call.watched()
    error = refusal(lambda: normgrad.plan(name, **made))
    watched.check_untouched()
    assert error is None or re.match(r"\w+(\[\d\])?( \(\w+\))?[: ]", str(error)), str(error)
    count(SURFACE, "accepted" if error is None else f"refused: {type(error).__name__}")


def _view(view: hostile.View | None) -> Any:
    return None if view is None else view.array
