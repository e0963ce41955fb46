"""What the suite promises in its docstring."""

import itertools

import pytest

from normgrad.bench import run, suite
from normgrad.bench.suite import (
    BATCH_NORM,
    BATCH_NORM_FORWARD,
    DENSE,
    MIXED,
    RESNET_50,
    Case,
    Layout,
    Operator,
    Part,
)

SUITE = suite.suite()
FULL_PARAMETERS = {("float32", "float32"), ("bfloat16", "float32"), ("float16", "float32")}
KINDS = {*FULL_PARAMETERS, ("bfloat16", "bfloat16"), ("float16", "float16")}


def of(part):
    return [operator for operator in Operator if operator.part is part]


def kinds(cases):
    return {(case.dtype, case.parameters) for case in cases}


def test_ids_are_unique_and_plain():
    ids = [case.id for case in SUITE]
    assert len(set(ids)) == len(ids) == 436 + 170 + 36
    assert not any(set(id) - set("abcdefghijklmnopqrstuvwxyz0123456789/+-") for id in ids)


@pytest.mark.parametrize(
    ("case", "id"),
    [
        (
            Case(Operator.TRAIN, (32, 64, 56, 56), "bfloat16", "float32", Layout.CHANNELS_LAST),
            "train/32x64x56x56/bfloat16/channels-last",
        ),
        (
            Case(Operator.EVAL_INPUT, (64, 128), "float16", "float16"),
            "eval-input/64x128/float16+half-parameters/contiguous",
        ),
        (
            Case(Operator.GROUP_NORM, (16, 256, 32, 32), groups=1, layout=Layout.CROPPED),
            "group-norm/16x256x32x32/groups-1/float32/cropped",
        ),
        (Case(Operator.NORMALISE, (64, 128), "bfloat16"), "normalise/64x128/bfloat16/contiguous"),
        (
            Case(Operator.LAYER_GROUP_NORM, (8, 16, 8, 8), groups=4),
            "layer-group-norm/8x16x8x8/groups-4/float32/contiguous",
        ),
    ],
)
def test_ids_are_stable(case, id):
    assert case.id == id


def test_resnet_meets_everything_common():
    wanted = itertools.product(
        BATCH_NORM, RESNET_50, ("float32", "bfloat16", "float16"), ("float32",), DENSE
    )
    assert {Case(*parts) for parts in wanted} <= set(SUITE)


def test_parts():
    assert {part: len(of(part)) for part in Part} == {
        Part.GRADIENTS: 6,
        Part.FORWARD: 5,
        Part.LAYERS: 2,
    }
    assert {part: sum(case.operator.part is part for case in SUITE) for part in Part} == {
        Part.GRADIENTS: 436,
        Part.FORWARD: 170,
        Part.LAYERS: 36,
    }
    assert set(BATCH_NORM) < set(of(Part.GRADIENTS))
    assert set(BATCH_NORM_FORWARD) < set(of(Part.FORWARD))


def test_the_forward_pass_meets_what_is_common():
    batch = itertools.product(
        *(BATCH_NORM_FORWARD, suite.FORWARD_RESNET_50, FULL_PARAMETERS, DENSE, [0])
    )
    group = (
        (Operator.FORWARD_GROUP_NORM, shape, kind, layout, groups)
        for (shape, groups), kind, layout in itertools.product(
            suite.FORWARD_GROUP_NORM, FULL_PARAMETERS, DENSE
        )
    )
    wanted = {
        Case(operator, shape, *kind, layout, groups)
        for operator, shape, kind, layout, groups in (*batch, *group)
    }
    assert wanted <= set(SUITE)


@pytest.mark.parametrize("operator", of(Part.FORWARD))
def test_every_value_meets_every_forward_operator(operator):
    mine = [case for case in SUITE if case.operator is operator]
    assert {case.layout for case in mine} == set(Layout) - set(MIXED)
    assert kinds(mine) == KINDS
    if operator is Operator.FORWARD_GROUP_NORM:
        assert {(case.shape, case.groups) for case in mine} == set(suite.FORWARD_GROUP_NORM)
    else:
        wanted = {*suite.FORWARD_RESNET_50, *suite.FORWARD_OTHERS, *suite.SMALL}
        assert {case.shape for case in mine} == wanted


@pytest.mark.parametrize("operator", of(Part.LAYERS))
def test_layers_meet_the_forward_shapes_of_four_axes(operator):
    forward = {
        Operator.LAYER_BATCH_NORM: Operator.FORWARD,
        Operator.LAYER_GROUP_NORM: Operator.FORWARD_GROUP_NORM,
    }[operator]
    shapes = {(case.shape, case.groups) for case in SUITE if case.operator is forward}
    if operator is Operator.LAYER_GROUP_NORM:
        shapes.update(suite.SMALL_GROUP_NORM)
    wanted = {
        Case(operator, shape, dtype, "float32", layout, groups)
        for shape, groups in shapes
        if len(shape) == 4
        for dtype in ("float32", "bfloat16")
        for layout in DENSE
    }
    assert {case for case in SUITE if case.operator is operator} == wanted
    assert {case.shape for case in wanted} & set(suite.SMALL)


@pytest.mark.parametrize("operator", of(Part.GRADIENTS))
def test_every_value_meets_every_gradient(operator):
    mine = [case for case in SUITE if case.operator is operator]
    assert {case.layout for case in mine} == set(Layout)
    assert kinds(mine) == KINDS
    if operator is Operator.GROUP_NORM:
        assert {(case.shape, case.groups) for case in mine} == set(suite.GROUP_NORM)
    else:
        wanted = {*RESNET_50, *suite.OTHERS, *suite.SMALL}
        assert {case.shape for case in mine} == wanted
        assert not any(case.groups for case in mine)


@pytest.mark.parametrize("case", SUITE, ids=lambda case: case.id)
def test_a_case_makes_sense(case):
    assert case.layout is Layout.CONTIGUOUS or len(case.shape) == 4
    assert case.layout not in (*MIXED, Layout.CROPPED) or case.parameters == "float32"
    assert not case.groups or case.shape[1] % case.groups == 0
    itemsize = 4 if case.dtype == "float32" else 2
    assert case.tensor_bytes == case.elements * itemsize <= 128 << 20
    assert case.bytes == case.tensor_bytes * case.operator.streams


def test_streams():
    assert {operator.value: operator.streams for operator in Operator} == {
        **dict.fromkeys(("train", "eval", "elemt", "group-norm"), 3),
        **dict.fromkeys(("eval-input", "reduce"), 2),
        **dict.fromkeys(("forward", "forward-eval", "normalise", "forward-group-norm"), 2),
        "stats": 1,
        **dict.fromkeys(("layer-batch-norm", "layer-group-norm"), 5),
    }


def test_the_quick_run_is_a_part_with_some_of_everything():
    quick = suite.quick()
    assert set(quick) <= set(SUITE)
    assert {case.id for case in quick} == suite._QUICK
    assert {case.operator for case in quick} == set(Operator)
    assert {case.layout for case in quick} == set(Layout)
    assert kinds(quick) == KINDS
    assert {case.shape for case in quick} >= set(suite.SMALL)


def test_the_suite_keeps_cases_with_the_same_data_together():
    looks = [case.look for case in SUITE]
    assert len(list(itertools.groupby(looks))) == len(set(looks))


def test_what_data_depend_on():
    case = Case(Operator.STATS, (64, 128), "bfloat16")
    assert case.look == Case(Operator.REDUCE, (64, 128), "bfloat16").look
    assert case.look != Case(Operator.STATS, (64, 128)).look
    group = Case(Operator.LAYER_GROUP_NORM, (8, 16, 8, 8), groups=4)
    assert group.look == Case(Operator.GROUP_NORM, (8, 16, 8, 8), groups=4).look


def test_select():
    def ids(pattern):
        return [case.id for case in run.select(SUITE, pattern)]

    assert ids("train/64x128/float32") == ["train/64x128/float32/contiguous"]
    # As text first: a plus sign repeats something in a regular expression.
    assert all("float16+half" in id for id in ids("float16+half"))
    assert {id.split("/")[0] for id in ids("^(eval|elemt)/.*cropped$")} == {"eval", "elemt"}
    assert ids("no such thing") == []
