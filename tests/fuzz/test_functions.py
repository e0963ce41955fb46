"""The public functions under any arguments: the documented error, or the right result."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
from fuzz import hostile, mistakes, oracle
from fuzz.ledger import cases, count, refusal
from hypothesis import given
from hypothesis import strategies as st

import normgrad

SURFACE = "functions"


def results_of(call: hostile.Call, result: Any) -> dict[str, Any]:
    """A function's results by name, as NumPy's; what is given is what comes back."""
    values = [result] if call.operator.alone else list(result)
    return {
        name: None if value is None else hostile.as_array(value)
        for name, value in zip(call.operator.outputs, values, strict=True)
    }


def check_accepted(call: hostile.Call, result: Any, before: Any, made: dict[str, Any]) -> None:
    """All that is promised of a legal call."""
    results = results_of(call, result)
    given = made.get("out")
    entries = [] if given is None else [given] if call.operator.alone else list(given)
    values = [result] if call.operator.alone else list(result)
    for (name, wanted), entry, value in zip(
        call.wanted.items(), entries or [None] * len(values), values, strict=True
    ):
        assert (value is not None) == wanted, name
        if wanted and entry is not None:
            assert value is entry, name
    for name, (_, sources) in call.operator.outputs.items():
        if results[name] is not None and (call.out is None or call.out[name] is None):
            assert results[name].dtype == _dtype(call, sources), name
    oracle.check(call.operator, before, call.options, call.axis, results)


def _dtype(call: hostile.Call, sources: tuple[str, ...]) -> Any:
    """What a new output is of."""
    training = call.options.get("training", True)
    names = {"mean": "save_mean" if training else "running_mean"}
    if call.operator.name != "batch_norm_backward":
        names = {}
    for source in sources:
        if source == "wide":
            data = call.tensors["input"]
            assert data is not None
            return hostile.DTYPES["float64" if data.dtype == "float64" else "float32"]
        view = call.tensors.get(names.get(source, source))
        if view is not None:
            return hostile.DTYPES[view.dtype]
    raise AssertionError(sources)


@pytest.mark.parametrize("name", hostile.OPERATORS)
@cases(30)
@given(st.data())
def test_legal(name: str, data: Any) -> None:
    call = data.draw(hostile.calls(name))
    made = hostile.arguments(data.draw, call)
    before, watched = call.values(), call.watched()
    result = getattr(normgrad, name)(**made)
    watched.check_gaps()
    check_accepted(call, result, before, made)
    count(SURFACE, "accepted")


@pytest.mark.parametrize("name", hostile.OPERATORS)
@cases(22)
@given(st.data())
def test_one_thing_wrong(name: str, data: Any) -> None:
    """The message names it, and nothing is written."""
    call = data.draw(hostile.calls(name))
    made = hostile.arguments(data.draw, call)
    wrong = data.draw(mistakes.of(call, made))
    watched = call.watched()
    with pytest.raises((TypeError, ValueError)) as caught:
        getattr(normgrad, name)(**wrong.arguments)
    watched.check_untouched()
    assert type(caught.value) is wrong.kind or wrong.kind is None, repr(caught.value)
    assert re.match(wrong.message, str(caught.value)), str(caught.value)
    count(SURFACE, f"refused: {type(caught.value).__name__}")


@pytest.mark.parametrize("name", hostile.OPERATORS)
@cases(10)
@given(st.data())
def test_garbage(name: str, data: Any) -> None:
    """Anything for any argument: one of the two errors, or no harm done."""
    call = data.draw(hostile.calls(name))
    made = hostile.arguments(data.draw, call)
    for argument in data.draw(st.lists(st.sampled_from(sorted(made)), min_size=1, unique=True)):
        made[argument] = data.draw(mistakes.garbage(call))
    if data.draw(st.booleans()):
        made["out"] = data.draw(mistakes.garbage(call))
    # A result may rightly have the memory of what it replaces.
    replaced = [made[each] for each in ("input", "grad_out") if each in made]
    out = made.get("out")
    in_place = isinstance(out, np.ndarray) and any(
        isinstance(value, np.ndarray) and np.shares_memory(out, value) for value in replaced
    )
    watched = call.watched()
    error = refusal(lambda: getattr(normgrad, name)(**made))
    if error is None:
        if not in_place:
            watched.check_gaps()
        count(SURFACE, "accepted")
    else:
        assert type(error) in (TypeError, ValueError), repr(error)
        assert str(error).startswith((*made, *call.operator.tensors, "out")), str(error)
        watched.check_untouched()
        count(SURFACE, f"refused: {type(error).__name__}")
