"""Phase 1's contract: for every rule a call that just keeps to it and one that just breaks it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from aclnn_spec import (
    A2,
    A3,
    BN,
    CODES,
    ELEMT,
    FLOATS,
    FORMATS,
    GN,
    HAS,
    INVALID,
    NEW,
    NO_KERNEL,
    NULL,
    OK,
    OTHERS,
    PRIVATE,
    REDUCE,
    TRAINING,
    T,
    all_of,
    arguments,
    built,
    phase_1,
    status_of,
)  # fmt: skip

from normgrad.declarations import contract
from normgrad.dialects import aclnn
from normgrad.dialects.aclnn import phases
from normgrad.plans import plan as plans

Case = tuple[str, str, dict[str, Any], int, str | None]

ND_LIKE = ("ND", "NC", "NCL", "NCHW", "NCDHW")
NOT_ND = ("NHWC", "NDHWC", *PRIVATE)
RANKS = {"NC": 2, "NCL": 3, "NCHW": 4, "NHWC": 4, "NCDHW": 5, "NDHWC": 5}
STATISTICS = ("weight", "runningMean", "runningVar", "saveMean", "saveInvstd")
TWINS = {
    "runningMean": "runningVar", "runningVar": "runningMean", "saveMean": "saveInvstd",
    "saveInvstd": "saveMean",
}  # fmt: skip
OUTPUTS = ("gradInput", "gradWeight", "gradBias")
C = (3,)


def without(names: tuple[str, ...]) -> dict[str, Any]:
    return dict.fromkeys(names)


def data(*names: str, shape: tuple[int, ...], **rest: Any) -> dict[str, Any]:
    return {name: T(shape, **rest) for name in names}


def vectors(operator: str, product: str, names: tuple[str, ...]) -> Iterator[Case]:
    """Per-channel tensors: format ND, one axis, length C."""
    for name in names:
        for format in FORMATS:
            wrong = format not in ND_LIKE
            yield (
                operator, product, {name: T(C, format=format)}, INVALID if wrong else OK,
                name if wrong else None,
            )  # fmt: skip
        for shape in ((2,), (4,), (3, 1), (), (1, 3)):
            yield operator, product, {name: T(shape)}, INVALID, name


def wrong_dtypes(operator: str, product: str, name: str, shape: tuple[int, ...]) -> Iterator[Case]:
    """A tensor of the product's dtypes alone, whatever the others have."""
    for dtype in CODES:
        if dtype not in FLOATS[product]:
            yield operator, product, {name: T(shape, dtype)}, INVALID, name


def batch_norm(product: str) -> Iterator[Case]:
    x = (2, 3, 4, 5)
    both = ("gradOut", "input", "gradInput")

    def case(changes: dict[str, Any], parameter: str | None = None, status: int = INVALID) -> Case:
        return BN, product, changes, OK if parameter is None else status, parameter

    # dtypes
    for dtype in CODES:
        yield case(all_of(BN, dtype), None if dtype in FLOATS[product] else "gradOut")
    for name in ("input", "gradInput"):
        yield case({name: T(x, "float16")}, name)
    for dtype in FLOATS[product]:
        base = all_of(BN, dtype)
        for name in STATISTICS:
            for other in ("float32", "float16", "bfloat16", "float64", "int32"):
                changes = {**base, name: T(C, other)}
                if name in TWINS:
                    changes[TWINS[name]] = T(C, other)
                if name == "weight":
                    changes["gradWeight"] = T(C, other)
                right = {dtype} if product == TRAINING else {dtype, "float32"}
                # The first of two that are wrong is named.
                first = {"runningVar": "runningMean", "saveInvstd": "saveMean"}.get(name, name)
                yield case(changes, None if other in right else first)
        for name in ("gradWeight", "gradBias"):
            for other in ("float32", "float16", "bfloat16", "float64", "int32"):
                right = {dtype} if product == TRAINING else {dtype, "float32"}
                if product == NEW and name == "gradBias":
                    right |= {"float16", "bfloat16"}
                yield case({**base, name: T(C, other)}, None if other in right else name)
                without_weight = {**base, "weight": None, name: T(C, other)}
                yield case(without_weight, None if other in right else name)
    half = all_of(BN, "float16")
    if product in (A2, A3):  # as PyTorch's plugin calls it, with mixed precision and without
        parameters = (*STATISTICS, *OUTPUTS[1:])
        yield case({**half, **{name: T(C) for name in parameters}})
        yield case({**half, "gradWeight": T(C), "gradBias": T(C)})
    if product == NEW:
        # gradWeight follows weight: float32 beside float32.
        yield case({**half, "weight": T(C), "gradWeight": T(C)})
        yield case({**half, "weight": T(C)}, "gradWeight")
        for one, other in (("runningMean", "runningVar"), ("saveMean", "saveInvstd")):
            yield case({**half, one: T(C)}, other)
            yield case({**half, other: T(C)}, other)
            yield case({**half, one: None, other: T(C)})
    # nulls
    for name in ("gradOut", "input", "outputMask"):
        yield case({name: None}, name, NULL)
    for name in STATISTICS:
        yield case({name: None})
    yield case(without(STATISTICS))
    for index, name in enumerate(OUTPUTS):
        yield case({name: None}, name, NULL)
        mask = [entry != index for entry in range(3)]
        yield case({name: None, "outputMask": mask})
    yield case({**without(OUTPUTS), "outputMask": [False] * 3})
    # Of what is given and not asked for, only the length counts; of gradInput, everything.
    for name in OUTPUTS[1:]:
        yield case({name: T((4,)), "outputMask": [False] * 3}, name)
        for odd in (T(C, "float64"), T(C, "float32", "NHWC")):
            yield case({name: odd, "outputMask": [False] * 3})
            yield case({name: odd}, name)
    for odd in (T((2, 3, 4)), T(x, "float16"), T(x, "float32", "NCHW")):
        yield case({"gradInput": odd, "outputMask": [False] * 3}, "gradInput")
    # formats and ranks
    for format in FORMATS:
        rank = RANKS.get(format, 4)
        last = format in ("NHWC", "NDHWC")
        for axes in range(1, 10):
            shape = (*(2,) * (axes - 1), 3) if last else (2, 3, *(2,) * 7)[:axes]
            right = (
                format in (*RANKS, "ND")
                and 2 <= axes <= 8
                and (format == "ND" or axes == rank)
                and (product == NEW or not last)
            )
            if axes in (1, 9) or axes in (rank - 1, rank, rank + 1) or format == "ND":
                yield case(data(*both, shape=shape, format=format), None if right else "gradOut")
    for name in ("input", "gradInput"):
        yield case({name: T(x, format="NCHW")}, name)
        yield case({**data(*both, shape=x, format="NCHW"), name: T(x)}, name)
    yield from vectors(BN, product, (*STATISTICS, "gradWeight", "gradBias"))
    for name in ("saveMean", "saveInvstd"):
        yield case({name: T((0,)), "training": False})
        yield case({name: T((0,)), "training": True}, name)
        yield case({name: T((4,)), "training": False}, name)
    for name in ("weight", "runningMean", "runningVar"):
        yield case({name: T((0,)), "training": False}, name)
    # shapes
    for name in ("input", "gradInput"):
        for shape in ((2, 3, 4, 6), (2, 3, 20), (3, 3, 4, 5), (2, 4, 4, 5)):
            yield case({name: T(shape)}, name)
    empty = all_of(BN, "float32")
    yield case({**{n: T((0,)) for n in empty}, **data(*both, shape=(2, 0, 4))})
    yield case(data(*both, shape=(0, 3, 4)))
    yield case(data(*both, shape=(2, 3, 0)))
    # scalars
    for mask in ([], [True], [True] * 2, [True] * 4):
        yield case({"outputMask": mask}, "outputMask")
    yield case({"outputMask": 7}, "outputMask")
    yield case({"outputMask": (1, 0, 1)})
    yield case({"training": "yes"}, "training")
    yield case({"eps": "small"}, "eps")
    yield case({"eps": 0})


def reduce(product: str) -> Iterator[Case]:
    x = (2, 3, 4, 5)
    required = ("mean", "invstd")
    sums = ("sumDy", "sumDyXmu", "gradWeight", "gradBias")
    asked = {"sumDy": "inputG", "sumDyXmu": "inputG", "gradWeight": "weightG", "gradBias": "biasG"}

    def case(changes: dict[str, Any], parameter: str | None = None, status: int = INVALID) -> Case:
        return REDUCE, product, changes, OK if parameter is None else status, parameter

    for dtype in CODES:
        right = dtype in FLOATS[product]
        yield case(all_of(REDUCE, dtype), None if right else "gradOut")
        yield case({"gradOut": T(x, dtype), "input": T(x, dtype)}, None if right else "gradOut")
        for name in (*required, "weight", *sums):
            yield case({name: T(C, dtype)}, None if right else name)
    yield case({"input": T(x, "float16")}, "input")
    yield case({"gradOut": T(x, "float16")}, "input")
    for name in ("gradOut", "input", *required):
        yield case({name: None}, name, NULL)
    yield case({"weight": None})
    for name, flag in asked.items():
        yield case({name: None}, name, NULL)
        others = [other for other in sums if asked[other] == flag]
        yield case({**without(tuple(others)), flag: False})
        # What is not asked for is not looked at.
        yield case({name: T((9, 9), "int8", "NC1HWC0"), flag: False})
    yield case({"inputG": False, "weightG": False, "biasG": False, **without(sums)})
    for flag in ("inputG", "weightG", "biasG"):
        yield case({flag: 2}, flag)
    for format in FORMATS:
        changes = data("gradOut", "input", shape=x, format=format)
        yield case(changes, None if format in ND_LIKE else "gradOut")
    yield case({"input": T(x, format="NCHW")}, "input")
    yield case({"gradOut": T(x, format="NCHW")}, "input")
    for rank in range(10):
        shape = (2, 3, *(2,) * 8)[:rank]
        right = 2 <= rank <= 8
        yield case(data("gradOut", "input", shape=shape), None if right else "gradOut")
    for shape in ((2, 3, 4, 6), (2, 3, 20), (2, 4, 4, 5)):
        yield case({"input": T(shape)}, "input")
    yield case(data("gradOut", "input", shape=(2, 0, 4)), "input")
    yield case(data("gradOut", "input", shape=(0, 3, 4)))
    yield from vectors(REDUCE, product, (*required, "weight", *sums))


def elemt(product: str) -> Iterator[Case]:
    x = (2, 3, 4, 5)
    required = ("mean", "invstd", "sumDy", "sumDyXmu")

    def case(changes: dict[str, Any], parameter: str | None = None, status: int = INVALID) -> Case:
        return ELEMT, product, changes, OK if parameter is None else status, parameter

    for dtype in CODES:
        right = dtype in FLOATS[product]
        for name in ("gradOut", "input", "gradInput"):
            yield case({name: T(x, dtype)}, None if right else name)
        for name in (*required, "weight"):
            yield case({name: T(C, dtype)}, None if right else name)
        counts = dtype in ("int32", "float16", "float32")
        yield case({"counter": T((2,), dtype)}, None if counts else "counter")
    for name in ("gradOut", "input", *required, "counter", "gradInput"):
        yield case({name: None}, name, NULL)
    yield case({"weight": None})
    for format in FORMATS:
        right = format in ND_LIKE
        for name in ("gradOut", "input", "gradInput"):
            yield case({name: T(x, format=format)}, None if right else name)
        yield case({"counter": T((2,), "int32", format)}, None if right else "counter")
    for rank in range(10):
        shape = (2, 3, *(2,) * 8)[:rank]
        right = 2 <= rank <= 8
        changes = data("gradOut", "input", "gradInput", shape=shape)
        yield case(changes, None if right else "input")
        yield case({"counter": T((1,) * rank, "int32")}, None if 1 <= rank <= 8 else "counter")
    yield case({"counter": T((0,), "int32")})
    yield case({"counter": T((2, 5), "int32")})
    for name in ("gradOut", "gradInput"):
        for shape in ((2, 3, 4, 6), (2, 3, 20)):
            yield case({name: T(shape)}, name)
    yield case(data("gradOut", "input", "gradInput", shape=(2, 0, 4)), "input")
    yield case(data("gradOut", "input", "gradInput", shape=(0, 3, 4)))
    yield from vectors(ELEMT, product, (*required, "weight"))


def group_norm(product: str) -> Iterator[Case]:
    x, stats, gamma = (2, 6, 4, 5), (2, 3), (6,)
    shapes = {
        "gradOut": x, "input": x, "gradInput": x, "mean": stats, "rstd": stats, "gamma": gamma,
        "gradGammaOut": gamma, "gradBetaOut": gamma,
    }  # fmt: skip
    outputs = ("gradInput", "gradGammaOut", "gradBetaOut")

    def case(changes: dict[str, Any], parameter: str | None = None, status: int = INVALID) -> Case:
        return GN, product, changes, OK if parameter is None else status, parameter

    for dtype in CODES:
        yield case(all_of(GN, dtype), None if dtype in FLOATS[product] else "gradOut")
    for dtype in FLOATS[product]:
        for name in shapes:
            if name != "gradOut":
                other = "float16" if dtype == "float32" else "float32"
                yield case({**all_of(GN, dtype), name: T(shapes[name], other)}, name)
    for name in ("gradOut", "input", "mean", "rstd", "outputMask"):
        yield case({name: None}, name, NULL)
    yield case({"gamma": None})
    for index, name in enumerate(outputs):
        yield case({name: None}, name, NULL)
        mask = [entry != index for entry in range(3)]
        yield case({name: None, "outputMask": mask})
        # What is not asked for is not looked at.
        yield case({name: T((9,), "int8", "FRACTAL_Z"), "outputMask": mask})
    yield case({**without(outputs), "outputMask": [False] * 3})
    for format in FORMATS:
        for name, shape in shapes.items():
            right = format in ND_LIKE
            yield case({name: T(shape, format=format)}, None if right else name)
    # Any shape of as many elements.
    for name, others in (
        ("gradOut", ((240,), (2, 6, 20), (12, 20), (1, 2, 6, 4, 5, 1, 1, 1))),
        ("mean", ((6,), (3, 2), (1, 1, 1, 1, 1, 1, 1, 6))),
        ("rstd", ((6,), (6, 1))),
    ):
        for shape in others:
            yield case({name: T(shape)})
        yield case({name: T((*(1,) * 8, *others[0]))}, name)
    for shape in ((240,), (2, 6, 20), (1, 2, 6, 4, 5, 1, 1, 1)):
        yield case(data("input", "gradInput", shape=shape))
        yield case({"input": T(shape)}, "gradInput")
    for shape in ((2, 3), (6, 1), (1, 6)):
        yield case(data("gamma", "gradGammaOut", "gradBetaOut", shape=shape))
        yield case({"gamma": T(shape)}, "gradGammaOut")
        yield case({"gamma": None, "gradGammaOut": T(shape)}, "gradGammaOut")
        yield case({"gradBetaOut": T(shape)}, "gradBetaOut")
    one = {name: T(()) for name in shapes}
    yield case({**one, "N": 1, "C": 1, "HxW": 1, "group": 1})
    # Element counts.
    for name, shape in shapes.items():
        if name in outputs[1:]:
            continue
        more = (*shape[:-1], shape[-1] + 1)
        changes = {name: T(more)}
        yield case(changes, name)
    yield case({"HxW": 19}, "gradOut")
    yield case({"N": 3}, "gradOut")
    # Scalars.
    for group in (0, -1, 4, 12):
        yield case({"group": group}, "group")
    yield case({"group": 6, **data("mean", "rstd", shape=(2, 6))})
    yield case({"group": 1, **data("mean", "rstd", shape=(2, 1))})
    for name in ("N", "C", "HxW"):
        yield case({name: -1}, name)
        yield case({name: 2.0}, name)
    for mask in ([], [True] * 2, [True] * 4):
        yield case({"outputMask": mask}, "outputMask")
    for channels in (8000, 8001):
        wide = (1, channels)
        changes = {
            **data("gradOut", "input", "gradInput", shape=wide),
            **data("mean", "rstd", shape=(1, 1)),
            **data("gamma", "gradGammaOut", "gradBetaOut", shape=(channels,)),
            "N": 1, "C": channels, "HxW": 1, "group": 1,
        }  # fmt: skip
        yield case(changes, "group" if channels > 8000 and product in (A2, A3) else None)
    for name, n, positions in (("N", 0, 20), ("HxW", 2, 0)):
        yield case({
            **data("gradOut", "input", "gradInput", shape=(n, 6, positions)),
            **data("mean", "rstd", shape=(n, 3)), "N": n, "HxW": positions,
        }, None)  # fmt: skip
        del name


GENERATORS = {BN: batch_norm, REDUCE: reduce, ELEMT: elemt, GN: group_norm}
CASES = {(op, p): [*GENERATORS[op](p)] for op, products in HAS.items() for p in products}


def name_of(case: Case) -> str:
    operator, product, changes, status, parameter = case
    what = " ".join(f"{name}={value}" for name, value in changes.items())
    return f"{operator[5:]}-{product}-{what[:90]}-{status}-{parameter}"


@pytest.mark.parametrize(("operator", "product"), CASES)
def test_contract(operator, product):
    for case in CASES[operator, product]:
        *_, changes, status, parameter = case
        found, named, message = status_of(operator, product, changes)
        told = f"{name_of(case)}: {message}"
        assert (found, named) == (status, parameter), told
        if parameter is not None:
            assert message.startswith(f"{operator}: {parameter}: "), told
            assert "; allowed" in message, told


def test_there_are_many_cases():
    """None got lost: both sides of the contract, for each operator and product."""
    for mine in CASES.values():
        assert sum(case[3] == OK for case in mine) >= 30
        assert sum(case[3] == INVALID for case in mine) >= 50
        assert sum(case[3] == NULL for case in mine) >= 5


@pytest.mark.every_case
@pytest.mark.parametrize("product", [TRAINING, A2, A3, NEW, *OTHERS])
@pytest.mark.parametrize("operator", HAS)
def test_products_without_an_operator(operator, product):
    """561003, naming those that have it; after nulls, before everything else."""
    status, parameter, message = status_of(operator, product, {})
    if product in HAS[operator]:
        assert status == OK
        return
    assert (status, parameter) == (NO_KERNEL, "product")
    assert all(able in message for able in HAS[operator])
    assert status_of(operator, product, {"input": T((1,), "int8")})[0] == NO_KERNEL
    assert status_of(operator, product, {"gradOut": None})[:2] == (NULL, "gradOut")


def test_nulls_come_first():
    status, parameter, _ = status_of(BN, A2, {"input": None, "gradOut": T((1,), "int8", "HWCN")})
    assert (status, parameter) == (NULL, "input")


@pytest.mark.parametrize("operator", HAS)
def test_what_is_no_tensor(operator):
    with pytest.raises(
        aclnn.AclnnError, match="input: a list; allowed on Atlas A2: an aclTensor"
    ) as caught:
        getattr(aclnn, f"{operator}GetWorkspaceSize")(
            *{**built(arguments(operator)), "input": []}.values()
        )
    assert caught.value.status == aclnn.ACLNN_ERR_PARAM_INVALID


@pytest.mark.parametrize("operator", HAS)
def test_phase_1_says_the_same_again(operator):
    """A plan is kept; what broke the contract breaks it again."""
    sizes = {phase_1(operator, arguments(operator))[0] for _ in range(3)}
    assert len(sizes) == 1
    for _ in range(3):
        assert status_of(operator, A2, {"input": T((1,))})[0] == INVALID


def test_what_the_contract_lets_pass_the_operator_lets_pass(monkeypatch):
    """A plan is made of what the dialect's rules have checked, without another check."""
    made = []

    class Checked(plans.Plan):
        def __init__(self, operator, options, specs, outputs, names):
            assert contract.check(operator, options, specs, outputs) == outputs
            made.append(operator.name)
            super().__init__(operator, options, specs, outputs, names)

    monkeypatch.setattr(phases, "Plan", Checked)
    phases._cache.clear()
    for operator, product, changes, status, _ in (
        case for cases in CASES.values() for case in cases
    ):
        if status == OK:
            assert status_of(operator, product, changes)[0] == OK
    assert len(made) >= 100
    assert len(set(made)) == len(HAS)
