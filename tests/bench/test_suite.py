"""What the suite promises in its docstring."""

import itertools

import pytest
from measuring import suite
from measuring.suite import DENSE, MIXED, RESNET_50, Case, Layout, Operator, Part

SUITE = suite.suite()
KINDS = {
    *(("float32", "float32"), ("bfloat16", "float32"), ("float16", "float32")),
    *(("bfloat16", "bfloat16"), ("float16", "float16")),
}


def of(part):
    return [operator for operator in Operator if operator.part is part]


#: Shapes that whole operators alone meet.
SPECIAL = (*suite.TINY, *suite.FEW_POSITIONS, *suite.DOUBLE)


def large(operator):
    """Its cases of the shapes that all operators of its part meet."""
    mine = (case for case in SUITE if case.operator is operator and case.part is operator.part)
    special = {
        case
        for case in SUITE
        if (case.shape, case.groups) in SPECIAL and (case.shape, case.groups) not in USUAL
    }
    return [case for case in mine if case not in special and case.dtype != "float64"]


#: Shapes that are in both.
USUAL = {(shape, 0) for shape in (*RESNET_50, *suite.OTHERS)}


def kinds(cases):
    return {(case.dtype, case.parameters) for case in cases}


def test_ids_are_unique_and_plain():
    ids = [case.id for case in SUITE]
    assert len(set(ids)) == len(ids) == 812
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


COMMON = {("float32", "float32"), ("bfloat16", "float32")}
KINDS_OF = {Part.GRADIENTS: set(Layout), Part.FORWARD: set(Layout) - set(MIXED)}


def test_parts():
    assert {part: len(of(part)) for part in Part} == {
        **{Part.GRADIENTS: 6, Part.FORWARD: 5, Part.CALLS: 0},
        **{Part.ROWS: 4, Part.LAYERS: 5, Part.NEW_SIZES: 4, Part.STEPS: 3, Part.ACLNN: 2},
    }
    assert {part: sum(case.part is part for case in SUITE) for part in Part} == {
        **{Part.GRADIENTS: 397, Part.FORWARD: 201, Part.CALLS: 6},
        **{Part.ROWS: 104, Part.LAYERS: 84, Part.NEW_SIZES: 4, Part.STEPS: 12, Part.ACLNN: 4},
    }


@pytest.mark.parametrize("operator", [*of(Part.GRADIENTS), *of(Part.FORWARD)])
def test_every_shape_meets_what_is_common(operator):
    """Rule 1."""
    mine = large(operator)
    shapes = {(case.shape, case.groups) for case in mine}
    wanted = itertools.product(shapes, COMMON, DENSE)
    assert {
        Case(operator, shape, *kind, layout, groups)
        for (shape, groups), kind, layout in wanted
        if layout is Layout.CONTIGUOUS or len(shape) == 4
    } <= set(mine)
    grouped = operator.value.endswith("group-norm")
    if operator.part is Part.FORWARD:
        assert shapes == {one for one in suite.FORWARD if bool(one[1]) == grouped}
    else:
        plain = {(shape, 0) for shape in (*RESNET_50, *suite.OTHERS)}
        assert shapes == (set(suite.GROUP_NORM) if grouped else plain)


@pytest.mark.parametrize("operator", [*of(Part.GRADIENTS), *of(Part.FORWARD)])
def test_two_shapes_meet_what_is_less_common(operator):
    """Rule 2, and that every value meets every operator."""
    mine = large(operator)
    rare = [
        case
        for case in mine
        if (case.dtype, case.parameters) not in COMMON or case.layout not in DENSE
    ]
    grouped = operator.value.endswith("group-norm")
    shapes = {(case.shape, case.groups) for case in rare}
    assert shapes == {one for one in suite.SAMPLE if bool(one[1]) == grouped}
    assert len(shapes) == 2
    assert {case.layout for case in mine} == KINDS_OF[operator.part]
    assert kinds(mine) == KINDS


OF_ROWS = (Operator.LAYER_LAYER_NORM, Operator.LAYER_RMS_NORM)


@pytest.mark.parametrize("operator", OF_ROWS)
def test_layers_of_rows(operator):
    """Rule 4."""
    mine = {case for case in SUITE if case.operator is operator}
    every = itertools.product(suite.LAYER_ROWS, COMMON)
    assert mine == {Case(operator, shape, *kind) for shape, kind in every}


@pytest.mark.parametrize("operator", [each for each in of(Part.LAYERS) if each not in OF_ROWS])
def test_layers_meet_the_forward_shapes_of_four_axes(operator):
    """Rule 4: and small ones."""
    mine = {case for case in SUITE if case.operator is operator}
    shapes = {(case.shape, case.groups) for case in mine}
    grouped = operator is Operator.LAYER_GROUP_NORM
    every = (*suite.FORWARD, *suite.SMALL_LAYERS)
    assert shapes == {one for one in every if bool(one[1]) == grouped and len(one[0]) == 4}
    assert mine == {
        Case(operator, shape, *kind, layout, groups)
        for (shape, groups), kind, layout in itertools.product(shapes, COMMON, DENSE)
    }
    sizes = [case.elements < 1 << 15 for case in mine]
    assert sizes.count(True) == 8


@pytest.mark.parametrize("operator", of(Part.ROWS))
def test_layer_and_rms_norm_meet_all_rows(operator):
    """Rule 6."""
    mine = {case for case in SUITE if case.operator is operator}
    every = itertools.product(suite.ROWS, COMMON)
    special = {Case(operator, shape) for shape in suite.TINY_ROWS}
    special |= {
        Case(operator, shape, *kind) for shape, kind in itertools.product(suite.HUGE_ROWS, COMMON)
    }
    special |= {Case(operator, shape, "float64", "float64") for shape in suite.DOUBLE_ROWS}
    assert mine == special | {Case(operator, shape, *kind) for shape, kind in every}


WHOLE = (
    *(Operator.TRAIN, Operator.FORWARD),
    *(Operator.GROUP_NORM, Operator.FORWARD_GROUP_NORM),
)


def whole(shapes):
    """Each shape with its number of groups, and the operators that compute all there is."""
    for shape, groups in shapes:
        for operator in WHOLE[2:] if groups else WHOLE[:2]:
            yield operator, shape, groups


def test_what_users_report():
    """Rule 8."""
    assert {case for case in SUITE if (case.shape, case.groups) in suite.FEW_POSITIONS} == {
        Case(operator, shape, *kind, layout, groups)
        for operator, shape, groups in whole(suite.FEW_POSITIONS)
        for kind, layout in itertools.product(COMMON, DENSE)
    }
    doubles = {case for case in SUITE if case.dtype == "float64" and case.part is not Part.ROWS}
    assert doubles == {
        Case(operator, shape, "float64", "float64", groups=groups)
        for operator, shape, groups in whole(suite.DOUBLE)
    }
    assert {case for case in SUITE if case.part is Part.NEW_SIZES} == {
        Case(operator, shape, groups=groups) for operator, shape, groups in suite.NEW_SIZES
    }


def test_very_many_groups_of_few_elements():
    """Rule 7."""
    mine = {case for case in SUITE if (case.shape, case.groups) in suite.TINY}
    assert mine == {
        Case(operator, shape, groups=groups) for operator, shape, groups in whole(suite.TINY)
    }


@pytest.mark.parametrize("operator", of(Part.STEPS))
def test_models_meet_both_dtypes_and_layouts(operator):
    mine = {case for case in SUITE if case.operator is operator}
    kinds = itertools.product(COMMON, DENSE)
    assert mine == {Case(operator, (16, 3, 64, 64), *kind, layout) for kind, layout in kinds}


def test_calls_are_of_operators_that_torch_has():
    mine = [case for case in SUITE if case.part is Part.CALLS]
    assert {case.shape for case in mine} == {(4, 8, 4)}
    assert [case.operator.value for case in mine] == [
        *("train", "eval", "forward", "forward-eval", "group-norm", "forward-group-norm")
    ]


def test_every_case_makes_sense():
    for case in SUITE:
        assert case.layout is Layout.CONTIGUOUS or len(case.shape) == 4, case.id
        assert case.layout not in (*MIXED, Layout.CROPPED) or case.parameters == "float32", case.id
        assert case.parameters == case.dtype or case.dtype != "float64", case.id
        assert not case.groups or case.shape[1] % case.groups == 0, case.id
        itemsize = {"float32": 4, "float64": 8}.get(case.dtype, 2)
        assert case.tensor_bytes == case.elements * itemsize <= 128 << 20, case.id
        assert case.bytes == case.tensor_bytes * case.operator.streams, case.id


def test_streams():
    assert {operator.value: operator.streams for operator in Operator} == {
        **dict.fromkeys(("train", "eval", "elemt", "group-norm"), 3),
        **dict.fromkeys(("eval-input", "reduce"), 2),
        **dict.fromkeys(("forward", "forward-eval", "normalise", "forward-group-norm"), 2),
        "stats": 1,
        **dict.fromkeys(("layer-norm", "rms-layer-norm"), 3),
        **dict.fromkeys(("forward-layer-norm", "forward-rms-layer-norm"), 2),
        **dict.fromkeys(("layer-batch-norm", "layer-batch-norm-eval", "layer-group-norm"), 5),
        **dict.fromkeys(("layer-of-rows", "layer-of-rows-rms"), 5),
        **dict.fromkeys(("new-sizes-batch-norm", "new-sizes-group-norm"), 5),
        **dict.fromkeys(("new-sizes-rows", "new-sizes-rows-rms"), 5),
        **dict.fromkeys(("step-resnet18", "step-mobilenet-v2", "step-unet"), 1),
        **dict.fromkeys(("aclnn-known", "aclnn-new"), 0),
    }


def test_the_quick_run_is_a_part_with_some_of_everything():
    quick = suite.quick()
    assert set(quick) <= set(SUITE)
    assert {case.operator for case in quick} == set(Operator)
    assert {case.layout for case in quick} == set(Layout)
    assert kinds(quick) == KINDS | {("float64", "float64")}
    for part in (Part.GRADIENTS, Part.FORWARD):
        sizes = {case.elements > 1 << 22 for case in quick if case.part is part}
        assert sizes == {False, True}


def test_the_suite_keeps_cases_with_the_same_data_together():
    signatures = [case.signature for case in SUITE]
    assert len(list(itertools.groupby(signatures))) == len(set(signatures))


def test_what_data_depend_on():
    case = Case(Operator.STATS, (64, 128), "bfloat16")
    assert case.signature == Case(Operator.REDUCE, (64, 128), "bfloat16").signature
    assert case.signature != Case(Operator.STATS, (64, 128)).signature
    group = Case(Operator.LAYER_GROUP_NORM, (8, 16, 8, 8), groups=4)
    rows = Case(Operator.RMS_NORM, (64, 128))
    assert rows.signature == Case(Operator.FORWARD_LAYER_NORM, (64, 128)).signature
    assert rows.signature != Case(Operator.STATS, (64, 128)).signature
    assert group.signature == Case(Operator.GROUP_NORM, (8, 16, 8, 8), groups=4).signature


def test_select():
    def ids(pattern):
        return [case.id for case in suite.select(SUITE, pattern)]

    assert ids("train/64x128/float32") == ["train/64x128/float32/contiguous"]
    # As text first: a plus sign repeats something in a regular expression.
    assert all("float16+half" in id for id in ids("float16+half"))
    assert {id.split("/")[0] for id in ids("^(eval|elemt)/.*cropped$")} == {"eval", "elemt"}
    assert ids("no such thing") == []
