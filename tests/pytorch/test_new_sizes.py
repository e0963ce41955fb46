"""Calls whose sizes are new at each step: one plan leaves them open."""

from __future__ import annotations

import random
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

torch = pytest.importorskip("torch")
nt = pytest.importorskip("normgrad.torch")
from programs_of_sizes import evaluate  # noqa: E402

import normgrad  # noqa: E402
from normgrad.torch import native, native_plans  # noqa: E402

pytestmark = pytest.mark.cpu
FORMATS = {"contiguous": torch.contiguous_format, "channels last": torch.channels_last}
EVERY = (True, True, True)


#: Calls of norms: the kind, the shape for a size, and a size among those that are tried.
CASES = {
    "points": ("batch", lambda n: (n, 48), 1200),
    "images": ("batch", lambda n: (n, 24, 9, 9), 24),
    "areas": ("batch", lambda n: (2, 40, n, n + 1), 30),
    "sequence": ("layer", lambda n: (3, n, 96), 250),
    "short rows": ("layer", lambda n: (n, 7), 3000),
    "root mean squares": ("rms", lambda n: (1, n, 160), 200),
    "groups": ("group", lambda n: (2, 48, n), 500),
    "groups of few": ("group", lambda n: (n, 48, 2, 3), 60),
    "instances": ("instance", lambda n: (2, 48, n, n), 30),
}


def calls(kind, shape, dtype, memory_format):
    """The forward and the backward pass, each with its tensors and choices, as C++ asks for it."""
    channels = shape[-1] if kind in ("layer", "rms") else shape[1]
    x = torch.empty(shape, dtype=dtype)
    if len(shape) == 4:
        x = x.contiguous(memory_format=memory_format)
    vector = torch.empty(channels, dtype=dtype)
    statistics = torch.empty(channels, dtype=torch.float64)
    if kind == "batch":
        running = torch.empty(channels, dtype=torch.promote_types(dtype, torch.float32))
        yield "batch_norm", (x, vector, vector, running, running), (True, 0.1, 1e-5)
        tensors = (x, x, vector, None, None, statistics, statistics)
        yield "batch_norm_backward", tensors, (True, 1e-5, EVERY)
    elif kind in ("group", "instance"):
        groups = channels if kind == "instance" else 8
        of_groups = torch.empty(shape[0], groups, dtype=torch.float64)
        yield "group_norm", (x, vector, None), (groups, 1e-5)
        yield "group_norm_backward", (x, x, of_groups, of_groups, vector), (groups, EVERY)
    else:
        of_rows = torch.empty((*shape[:-1], 1), dtype=torch.float64)
        more = (None,) if kind == "layer" else ()
        yield f"{kind}_norm", (x, vector, *more), ((channels,), 1e-5)
        given = (of_rows, of_rows) if kind == "layer" else (of_rows,)
        mask = EVERY if kind == "layer" else EVERY[:2]
        yield f"{kind}_norm_backward", (x, x, *given, vector), ((channels,), mask)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
@pytest.mark.parametrize(
    ("case", "memory_format"),
    [
        (case, name)
        for case, (_, shape_of, _) in CASES.items()
        for name in ([*FORMATS] if len(shape_of(2)) == 4 else ["contiguous"])
    ],
)
def test_numbers_for_open_sizes_are_those_of_known_sizes(case, memory_format, dtype):
    kind, shape_of, middle = CASES[case]
    chosen = random.Random(case)
    sizes = [chosen.randrange(middle // 2, 3 * middle // 2) for _ in range(12)]
    for which in range(2):
        plans = []
        for size in (*sizes, 1, 2, 3):
            name, tensors, choices = [*calls(kind, shape_of(size), dtype, FORMATS[memory_format])][
                which
            ]
            other = [*calls(kind, shape_of(size + 1), dtype, FORMATS[memory_format])][which][1]
            open_sizes = tuple(
                (index, axis)
                for index, (one, two) in enumerate(zip(tensors, other, strict=True))
                if one is not None
                for axis in range(one.dim())
                if one.shape[axis] != two.shape[axis]
            )
            arguments = name, FORMATS[memory_format], tensors, choices
            known = native_plans.plan(*arguments)
            if known is None:  # PyTorch refuses one value in each group
                assert native_plans.plan(*arguments, open_sizes) is None
                continue
            values = [tensors[index].shape[axis] for index, axis in open_sizes]
            fits = [(plan, evaluate(plan["program"], values)) for plan in plans]
            fits = [(plan, found) for plan, found in fits if found is not None]
            if not fits:
                plans.append(native_plans.plan(*arguments, open_sizes))
                fits = [(plans[-1], evaluate(plans[-1]["program"], values))]
            for plan, found in fits:
                numbers = [[*row] for row in plan["numbers"]]
                for row, column, instruction in plan["symbols"]:
                    numbers[row][column] = found[instruction]
                filled = {**plan, "numbers": numbers, "symbols": [], "program": []}
                assert filled == known
        assert 0 < len(plans) <= 10


@pytest.fixture
def asked(monkeypatch):
    """The sizes that each question of C++'s leaves open."""
    questions = []

    def plan(*arguments):
        questions.append(arguments[-1])
        return native_plans.plan(*arguments)

    native.module.connect(plan)
    yield questions
    native.module.connect(native_plans.plan)


def layers(channels):
    return {
        "batch": (torch.nn.BatchNorm1d(channels), lambda n: (n, channels)),
        "group": (torch.nn.GroupNorm(4, channels), lambda n: (3, channels, n)),
        "layer": (torch.nn.LayerNorm(channels), lambda n: (2, n, channels)),
        "rms": (torch.nn.RMSNorm(channels, eps=1e-6), lambda n: (1, n, channels)),
        "instance": (torch.nn.InstanceNorm2d(channels), lambda n: (2, channels, n, n + 2)),
    }


def results(layer, x):
    x = x.detach().requires_grad_()
    layer.zero_grad()
    y = layer(x)
    y.backward(x.detach().cos())
    return [y.detach(), x.grad, *(each.grad for each in layer.parameters())]


@pytest.mark.parametrize("name", layers(8))
def test_few_questions_serve_many_sizes(name, asked):
    """The results are those of a plan for each size, to the bit."""
    channels = {"batch": 84, "group": 88, "layer": 92, "rms": 96, "instance": 100}[name]
    stock, shape_of = layers(channels)[name]
    layer = nt.convert(stock)
    chosen = random.Random(name)
    inputs = [torch.randn(shape_of(n)) for n in chosen.sample(range(20, 60), 25)]
    found = [results(layer, x) for x in inputs]
    assert 2 < len(asked) <= 2 * 2 + 2 * 8
    assert [bool(sizes) for sizes in asked[:4]] == [False] * 4
    assert all(asked[4:])
    for x, values in zip(inputs, found, strict=True):
        array = x.numpy()
        weight = [each.detach().numpy() for each in layer.parameters()]
        if name == "batch":
            expected = normgrad.batch_norm(array, *weight, training=True, eps=1e-5)[0]
        elif name == "layer":
            expected = normgrad.layer_norm(array, channels, *weight)[0]
        elif name == "rms":
            expected = normgrad.rms_norm(array, channels, *weight, eps=1e-6)[0]
        else:
            groups = 4 if name == "group" else channels
            expected = normgrad.group_norm(array, *weight, num_groups=groups)[0]
        np.testing.assert_array_equal(values[0].numpy(), expected)
        close = results(layers(channels)[name][0], x)
        torch.testing.assert_close(values, close, rtol=1e-4, atol=1e-4)


def test_sizes_of_tensors_with_gaps_are_never_open(asked):
    layer = nt.convert(torch.nn.LayerNorm(76))
    for n in range(10, 20):
        x = torch.randn(2, n, 80)[..., :76]
        torch.testing.assert_close(
            layer(x).detach(), torch.nn.functional.layer_norm(x, (76,)), rtol=1e-5, atol=1e-5
        )
    assert asked == [()] * 10


def test_other_sizes_become_open_later(asked):
    """First the number of samples differs, then the length too."""
    layer = nt.convert(torch.nn.LayerNorm(72))
    shapes = [(n, 5) for n in range(2, 8)] + [(n, 4 + n) for n in range(2, 8)]
    for shape in shapes:
        x = torch.randn(*shape, 72)
        torch.testing.assert_close(
            layer(x).detach(), torch.nn.functional.layer_norm(x, (72,)), rtol=1e-5, atol=1e-5
        )
    assert ((0, 0),) in asked
    assert ((0, 0), (0, 1)) in asked


def test_threads_ask_for_new_sizes_at_once():
    layer = nt.convert(torch.nn.GroupNorm(4, 68))

    def is_close(n):
        x = torch.arange(136.0 * n).sin().reshape(2, 68, n)
        expected = torch.nn.functional.group_norm(x, 4)
        return torch.allclose(layer(x), expected, rtol=1e-4, atol=1e-4)

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(is_close, [*range(2, 90)] * 3))


def test_a_refused_size_is_refused_among_others():
    layer = nt.convert(torch.nn.BatchNorm1d(64))
    for n in (5, 6, 7, 8):
        layer(torch.randn(n, 64))
    with pytest.raises(ValueError, match="Expected more than 1 value per channel"):
        layer(torch.randn(1, 64))
    assert layer(torch.randn(0, 64)).shape == (0, 64)
    assert layer(torch.randn(9, 64)).shape == (9, 64)
