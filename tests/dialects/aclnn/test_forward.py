"""Forward passes and statistics: their contracts as the pages state them, and their results."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from aclnn_spec import (
    A2,
    A3,
    ARGUMENTS,
    CODES,
    FLOATS,
    FORMATS,
    FORWARD_ELEMT,
    FORWARD_HAS,
    GATHER,
    INVALID,
    NEW,
    NO_KERNEL,
    NULL,
    OK,
    OTHERS,
    PRIVATE,
    RMS,
    STATS,
    TRAINING,
    T,
    X,
    status_of,
)  # fmt: skip

import normgrad
from normgrad.dialects import aclnn

Case = tuple[dict[str, Any], str | None, int]
RANKS = {"NC": 2, "NCL": 3, "NCHW": 4, "NCDHW": 5}
NOT_ND = ("NHWC", "NDHWC", *PRIVATE)
#: The tensors that may be null, and those whose dtypes are not the product's.
OPTIONAL = {GATHER: ("runningMean", "runningVar"), FORWARD_ELEMT: ("weight", "bias")}
DTYPES = {
    STATS: dict.fromkeys(("mean", "invstd"), ("float32",)),
    GATHER: {"counts": ("float32", "float16", "int32")},
    FORWARD_ELEMT: {"output": ("float32",)},  # as the input
    RMS: {"rstdOut": ("float32",)},
}
#: The tensors of fixed numbers of axes, the shapes that must be refused, and the others.
SHAPES: dict[str, dict[str, tuple[tuple[int, ...], ...]]] = {
    STATS: {
        "input": ((3,), (2, 3, *[1] * 7), (2, 0, 4)),
        **dict.fromkeys(("mean", "invstd"), ((2,), (4,), (3, 1), ())),
    },
    GATHER: {
        "input": ((3,), (2, 3, *[1] * 7), (2, 0, 4), (0, 3, 4)),
        **dict.fromkeys(("mean", "invstd"), ((3,), (2, 4), (2, 3, 1))),
        **dict.fromkeys(("runningMean", "runningVar", "meanAll", "invstdAll"), ((4,), (1, 3))),
        "counts": ((3,), (2, 1), ()),
    },
    FORWARD_ELEMT: {
        "input": ((3,), (2, 3, *[1] * 7)),
        **dict.fromkeys(("weight", "bias", "mean", "invstd"), ((2,), (3, 1), ())),
        "output": ((2, 3, 4, 6), (2, 3, 20)),
    },
    RMS: {
        "x": ((), (1,) * 9),
        "gamma": ((4,), (3, 5), (), (1, 2, 3, 4, 5)),
        "yOut": ((2, 3, 20), (2, 3, 4, 6)),
        "rstdOut": ((2, 3), (2, 3, 4, 1), (6, 1, 1), (1, 1, 1, 1)),
    },
}  # fmt: skip
MORE: dict[str, list[Case]] = {
    STATS: [
        ({"input": T((0, 3, 4))}, None, OK),
        ({"eps": "small"}, "eps", INVALID),
        ({"eps": -1}, None, OK),
    ],
    GATHER: [
        ({"mean": T((5, 3)), "invstd": T((5, 3)), "counts": T((5,))}, None, OK),
        ({"mean": T((5, 3)), "counts": T((5,))}, "invstd", INVALID),
        ({"mean": T((5, 3)), "invstd": T((5, 3))}, "counts", INVALID),
        ({"momentum": "all"}, "momentum", INVALID),
    ],
    FORWARD_ELEMT: [
        ({"input": T((0, 3)), "output": T((0, 3))}, None, OK),
        ({"input": T((2, 0, 4)), "output": T((2, 0, 4))}, "input", INVALID),
        ({"input": T(X, "float16"), "output": T(X, "float16")}, None, OK),
        ({"input": T(X, "float16")}, "output", INVALID),
        ({"eps": None}, "eps", INVALID),
    ],
    RMS: [
        ({"gamma": T((5,)), "rstdOut": T((2, 3, 4, 1))}, None, OK),
        ({"gamma": T(X), "rstdOut": T((1, 1, 1, 1))}, None, OK),
        ({"x": T((7,)), "gamma": T((7,)), "yOut": T((7,)), "rstdOut": T((1,))}, None, OK),
        ({"x": T((2, 0)), "gamma": T((0,)), "yOut": T((2, 0)), "rstdOut": T((2, 1))}, None, OK),
        ({"epsilon": "small"}, "epsilon", INVALID),
    ],
}  # fmt: skip


def cases(operator: str, product: str) -> Iterator[Case]:
    tensors = {name: each for name, each in ARGUMENTS[operator].items() if isinstance(each, T)}
    data = next(iter(tensors))
    for name, each in tensors.items():
        null = name not in OPTIONAL.get(operator, ())
        yield {name: None}, name if null else None, NULL if null else OK
        right = DTYPES[operator].get(name, FLOATS[product])
        for dtype in CODES:
            if dtype in right and (operator, name) == (FORWARD_ELEMT, "input"):
                continue  # the output has to have it too
            wrong = dtype not in right
            yield {name: each._replace(dtype=dtype)}, name if wrong else None, INVALID
        for format in FORMATS:
            with_axes = operator in (STATS, FORWARD_ELEMT) and name in ("input", "output")
            wrong = format in NOT_ND or (with_axes and RANKS.get(format, 4) != 4)
            yield {name: each._replace(format=format)}, name if wrong else None, INVALID
        for shape in SHAPES[operator].get(name, ()):
            first = data if len(shape) in (0, 9) and name == data else name
            yield {name: T(shape)}, first, INVALID
    yield from MORE[operator]


@pytest.mark.parametrize(
    ("operator", "product"), [(name, each) for name, has in FORWARD_HAS.items() for each in has]
)
def test_contract(operator, product):
    statuses = []
    for changes, parameter, status in cases(operator, product):
        wanted = OK if parameter is None else status
        found, named, message = status_of(operator, product, changes)
        assert (found, named) == (wanted, parameter), (changes, message)
        if parameter is not None:
            assert message.startswith(f"{operator}: {parameter}: "), message
            assert "; allowed" in message, message
        statuses.append(wanted)
    assert statuses.count(OK) >= 15
    assert statuses.count(INVALID) >= 60
    assert statuses.count(NULL) >= 3


@pytest.mark.parametrize("operator", FORWARD_HAS)
def test_products_without_an_operator(operator):
    for product in (TRAINING, A2, A3, NEW, *OTHERS):
        has = product in FORWARD_HAS[operator]
        status, parameter, message = status_of(operator, product, {})
        assert (status, parameter) == ((OK, None) if has else (NO_KERNEL, "product"))
        assert has or all(able in message for able in FORWARD_HAS[operator])
        first = next(iter(ARGUMENTS[operator]))
        assert status_of(operator, product, {first: None})[:2] == (NULL, first)


# Results


def run(operator: str, *arguments: Any) -> None:
    size, executor = getattr(aclnn, f"{operator}GetWorkspaceSize")(
        *[aclnn.tensor(each) if isinstance(each, np.ndarray) else each for each in arguments]
    )
    getattr(aclnn, operator)(np.empty(size, np.uint8), size, executor)


def poisoned(*shape: int) -> Any:
    return np.full(shape, np.nan, np.float32)


def numbers(*shape: int) -> Any:
    return np.random.default_rng(sum(shape)).standard_normal(shape).astype(np.float32)


@pytest.mark.parametrize("shape", [(4, 3), (2, 3, 4, 5), (0, 3, 2)])
def test_stats_are_the_function_s(shape):
    x, mean, invstd = numbers(*shape), poisoned(3), poisoned(3)
    run(STATS, x, 0.25, mean, invstd)
    wanted = normgrad.batch_norm_stats(x, eps=0.25)
    assert np.array_equal(mean, wanted.mean)
    assert np.array_equal(invstd, wanted.invstd)


@pytest.mark.parametrize("given", [(True, True), (True, False), (False, False)])
def test_gathered_statistics_update_what_is_given(given):
    x, means, invstds = numbers(2, 3, 4), numbers(2, 3), abs(numbers(2, 3)) + 1
    counts = np.array([8, 3], np.float32)
    running = [numbers(3) + 4 if each else None for each in given]
    wanted = normgrad.batch_norm_gather_stats_with_counts(
        x, means, invstds, *running, counts, momentum=0.25, eps=1e-3
    )
    mean, invstd = poisoned(3), poisoned(3)
    run(GATHER, x, means, invstds, *running, 0.25, 1e-3, counts, mean, invstd)
    for found, expected in zip((mean, invstd, *running), wanted, strict=True):
        assert (found is expected is None) or np.array_equal(found, expected)


def test_gathered_statistics_share_no_memory_with_what_is_updated():
    means, running = numbers(2, 3) + 2, numbers(3)
    with pytest.raises(aclnn.AclnnError, match="meanAll: shares memory with runningMean") as caught:
        run(
            GATHER, numbers(2, 3, 4), means, means, running, None, 0.1, 0, numbers(2), running,
            poisoned(3),
        )  # fmt: skip
    assert caught.value.status == aclnn.ACLNN_ERR_RUNTIME_ERROR


@pytest.mark.parametrize("in_place", [False, True])
def test_elemt_is_the_function(in_place):
    x, weight, bias, mean, invstd = numbers(2, 3, 4), *(numbers(3) + each for each in range(4))
    wanted = normgrad.batch_norm_elemt(x, weight, bias, mean, invstd)
    output = x if in_place else poisoned(2, 3, 4)
    run(FORWARD_ELEMT, x, weight, bias, mean, invstd, 7.0, output)
    assert np.array_equal(output, wanted)


@pytest.mark.parametrize("axes", [1, 2, 3])
@pytest.mark.parametrize("in_place", [False, True])
def test_rms_norm_is_the_function(axes, in_place):
    x = numbers(2, 3, 4)
    gamma, rstd = numbers(*x.shape[3 - axes :]) + 1, poisoned(*x.shape[: 3 - axes], *[1] * axes)
    wanted = normgrad.rms_norm(x, gamma.shape, gamma, eps=0.25)
    output = x if in_place else poisoned(2, 3, 4)
    run(RMS, x, gamma, 0.25, output, rstd)
    assert np.array_equal(output, wanted.output)
    assert np.array_equal(rstd, wanted.rstd)


def test_rms_norm_of_nothing_has_zeros_for_statistics():
    rstd = poisoned(2, 1)
    run(RMS, np.empty((2, 0), np.float32), np.empty(0, np.float32), 0.25, poisoned(2, 0), rstd)
    assert np.array_equal(rstd, np.zeros((2, 1)))
