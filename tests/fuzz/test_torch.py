"""PyTorch's functions and layers, as normgrad has them: its results, and its own errors.

Each case runs PyTorch's forward pass first: what that refuses, ours refuses with the same error.
PyTorch's backward pass is not run, which some arguments crash.
"""

from __future__ import annotations

import importlib
import math
from functools import partial
from typing import Any

import numpy as np
import pytest
from fuzz import hostile, mistakes, oracle
from fuzz.ledger import cases, count
from hypothesis import given
from hypothesis import strategies as st

torch = pytest.importorskip("torch")
ours = importlib.import_module("normgrad.torch.functional")
layers = importlib.import_module("normgrad.torch.nn")
theirs = torch.nn.functional
SURFACE = "torch"

_BATCH_NORM = hostile.OPERATORS["batch_norm"]
_GROUP_NORM = hostile.OPERATORS["group_norm"]
_EPS = st.sampled_from([1e-5, 1e-3, 1.0])


def _tensor(draw: Any, shape: tuple[int, ...], dtype: str, rng: Any, positive: bool = False) -> Any:
    view = draw(hostile.views(shape, dtype, negative=False))
    hostile.fill(view, rng, "normal", positive)
    return view


@st.composite
def calls(draw: Any, grouped: bool) -> tuple[dict[str, Any], dict[str, Any]]:
    """Tensors and options that PyTorch's function takes too."""
    shape = draw(hostile.shapes().filter(lambda each: math.prod(each) > each[1] > 0))
    dtype = draw(st.sampled_from(["float32", "float32", "float64", "bfloat16", "float16"]))
    parameters = draw(st.sampled_from([dtype, "float32" if dtype != "float64" else "float64"]))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    channels = (shape[1],)
    names = ["weight", "bias"]
    options: dict[str, Any] = {"eps": draw(_EPS)}
    tensors: dict[str, Any] = {"input": _tensor(draw, shape, dtype, rng)}
    if grouped:
        divisors = [n for n in range(1, shape[1] + 1) if shape[1] % n == 0]
        options["num_groups"] = draw(st.sampled_from(divisors))
    else:
        options["training"] = draw(st.booleans())
        options["momentum"] = draw(st.sampled_from([0.1, 0.0, 1.0, 0.5]))
        running = not options["training"] or draw(st.booleans())
        for name in ("running_mean", "running_var"):
            tensors[name] = None
            if running:
                tensors[name] = draw(hostile.views(channels, parameters, output=True,
                                                   negative=False))  # fmt: skip
                hostile.fill(tensors[name], rng, "normal", name == "running_var")
    # PyTorch's wants both or neither of these in some layouts.
    affine = draw(st.booleans())
    for name in names:
        tensors[name] = _tensor(draw, channels, parameters, rng) if affine else None
    return tensors, options


def _made(tensors: dict[str, Any], trained: bool) -> dict[str, Any]:
    made = {name: None if view is None else view.tensor for name, view in tensors.items()}
    for name in ("input", "weight", "bias"):
        if trained and made[name] is not None:
            made[name] = made[name].detach().requires_grad_()
    return made


@pytest.mark.parametrize("grouped", [False, True], ids=["batch_norm", "group_norm"])
@cases(20)
@given(data=st.data())
def test_legal(grouped: bool, data: Any) -> None:
    """The output and all gradients, and running statistics in their places."""
    tensors, options = data.draw(calls(grouped))
    before = {
        name: None if view is None else np.array(view.array) for name, view in tensors.items()
    }
    made = _made(tensors, data.draw(st.booleans()))
    running = [view for name, view in tensors.items() if name.startswith("running") and view]
    arenas = [view.arena for view in tensors.values() if view is not None]
    written = running if options.get("training") else []
    watched = hostile.Watched(arenas, written)
    function = ours.group_norm if grouped else ours.batch_norm
    output = function(**made, **options)
    if output.requires_grad:
        wanted = [each for each in made.values() if each is not None and each.requires_grad]
        gradients = torch.autograd.grad(output, wanted, torch.ones_like(output))
        for gradient, of in zip(gradients, wanted, strict=True):
            assert gradient.shape == of.shape
            assert torch.isfinite(gradient).all()
    watched.check_gaps()
    results: dict[str, Any] = {"output": hostile.as_array(output)}
    if not grouped and options["training"]:
        results.update({
            name: np.array(tensors[name].array)
            for name in ("running_mean", "running_var") if tensors[name] is not None
        })  # fmt: skip
    operator = _GROUP_NORM if grouped else _BATCH_NORM
    if before["input"].dtype != np.float64 or not options.get("training", True):
        oracle.check(operator, before, options, 1, results)
    count(SURFACE, "accepted")


_HUGE = 2**70
_JUNK: list[Any] = [
    None, 1, 1.5, "input", [1.0], object(), True, (), {}, np.zeros(3), mistakes.Index(), -1, 0,
    _HUGE, float("nan"), 1j, b"1",
]  # fmt: skip
_TENSORS: list[Any] = [
    lambda shape: torch.zeros(shape, dtype=torch.int32),
    lambda shape: torch.zeros(shape, dtype=torch.complex64),
    lambda shape: torch.zeros(shape, dtype=torch.bool),
    lambda shape: torch.zeros(shape, dtype=torch.float8_e4m3fn),
    lambda shape: torch.zeros(shape, device="meta"),
    lambda shape: torch.zeros(shape).to_sparse(),
    lambda shape: torch.zeros((*shape, 1)),
    lambda shape: torch.zeros(tuple(size + 1 for size in shape)),
    lambda shape: torch.zeros(0),
    lambda shape: torch.zeros(()),
    lambda shape: torch.zeros((1,) * 9),
    lambda shape: torch.zeros((0, *shape[1:])),
]


def _outcome(function: Any, arguments: dict[str, Any]) -> Any:
    """The result, or the exception."""
    try:
        return function(**arguments)
    except Exception as error:
        return error


@pytest.mark.parametrize("grouped", [False, True], ids=["batch_norm", "group_norm"])
@cases(20)
@given(data=st.data())
def test_wrong(grouped: bool, data: Any) -> None:
    """Where PyTorch raises, ours does; where ours does, it says what PyTorch says."""
    tensors, options = data.draw(calls(grouped))
    name = data.draw(st.sampled_from(sorted({**tensors, **options})))
    if name in tensors and data.draw(st.booleans()):
        shape = (3,) if tensors[name] is None else tensors[name].shape
        make = data.draw(st.sampled_from(_TENSORS))
        junk = make(shape)
    else:
        junk = data.draw(st.sampled_from(_JUNK))
    mine = {**_made(tensors, False), **options, name: junk}
    arenas = [view.arena for view in tensors.values() if view is not None]
    memory = [arena.copy() for arena in arenas]
    kept = junk.clone() if isinstance(junk, torch.Tensor) else junk
    expected = _outcome(theirs.group_norm if grouped else theirs.batch_norm, {**mine, name: kept})
    changed = [not np.array_equal(*pair) for pair in zip(arenas, memory, strict=True)]
    for arena, old in zip(arenas, memory, strict=True):
        arena[...] = old
    found = _outcome(ours.group_norm if grouped else ours.batch_norm, mine)
    if isinstance(found, Exception):
        assert type(found) is type(expected), (found, expected)
        if not any(changed):
            assert all(map(np.array_equal, arenas, memory))
        count(SURFACE, f"refused: {type(found).__name__}")
    else:
        # Ours takes more than PyTorch's: dtypes mixed, strides of any sort.
        assert found.shape == mine["input"].shape
        count(SURFACE, "accepted")


_LAYERS = ("BatchNorm1d", "BatchNorm2d", "BatchNorm3d", "GroupNorm")
# Not 2**70 features: they would be allocated, if they could.
_ARGUMENTS = st.sampled_from([0, 1, 2, 3, 6, *(each for each in _JUNK if each is not _HUGE)])


@cases(20)
@given(data=st.data())
def test_layers(data: Any) -> None:
    """Made of anything, called with anything: as PyTorch's of the same."""
    name = data.draw(st.sampled_from(_LAYERS))
    most = 4 if name == "GroupNorm" else 5
    given_ = data.draw(st.lists(_ARGUMENTS, min_size=1, max_size=most))
    if data.draw(st.booleans()):
        given_[:1] = [3, 6] if name == "GroupNorm" else [6]
    pair = [_outcome(partial(getattr(module, name), *given_), {}) for module in (torch.nn, layers)]
    assert type(pair[1]).__name__ == type(pair[0]).__name__, pair
    outcome = pair[0]
    if not isinstance(outcome, Exception):
        rank = data.draw(st.integers(0, 6))
        input = torch.ones((2, 6, 3, 2, 1, 1)[:rank])
        outcome, found = (_outcome(layer, {"input": input}) for layer in pair)
        assert type(found) is type(outcome), (outcome, found)
        if isinstance(outcome, torch.Tensor):
            assert found.shape == outcome.shape
    refused = isinstance(outcome, Exception)
    count(SURFACE, f"refused: {type(outcome).__name__}" if refused else "accepted")
