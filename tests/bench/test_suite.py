"""What the suite promises in its docstring."""

import itertools

import pytest

from normgrad.bench import run, suite
from normgrad.bench.suite import BATCH_NORM, DENSE, MIXED, RESNET_50, Case, Layout, Operator

SUITE = suite.suite()


def test_ids_are_unique_and_plain():
    ids = [case.id for case in SUITE]
    assert len(set(ids)) == len(ids) == 436
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
    ],
)
def test_ids_are_stable(case, id):
    assert case.id == id


def test_resnet_meets_everything_common():
    wanted = itertools.product(
        BATCH_NORM, RESNET_50, ("float32", "bfloat16", "float16"), ("float32",), DENSE
    )
    assert {Case(*parts) for parts in wanted} <= set(SUITE)


@pytest.mark.parametrize("operator", Operator)
def test_every_value_meets_every_operator(operator):
    mine = [case for case in SUITE if case.operator is operator]
    assert {case.layout for case in mine} == set(Layout)
    assert {(case.dtype, case.parameters) for case in mine} == {
        *(("float32", "float32"), ("bfloat16", "float32"), ("float16", "float32")),
        *(("bfloat16", "bfloat16"), ("float16", "float16")),
    }
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
    }


def test_the_quick_run_is_a_part_with_some_of_everything():
    quick = suite.quick()
    assert set(quick) <= set(SUITE)
    assert {case.id for case in quick} == suite._QUICK
    assert {case.operator for case in quick} == set(Operator)
    assert {case.layout for case in quick} == set(Layout)
    kinds = {(case.dtype, case.parameters) for case in SUITE}
    assert {(case.dtype, case.parameters) for case in quick} == kinds
    assert {case.shape for case in quick} >= set(suite.SMALL)


def test_the_suite_keeps_cases_with_the_same_data_together():
    looks = [run._look(case) for case in SUITE]
    groups = [look for look, _ in itertools.groupby(looks)]
    # A few shapes come back for their channels-last layout.
    assert len(groups) <= len(set(looks)) + 10


def test_select():
    def ids(pattern):
        return [case.id for case in run.select(SUITE, pattern)]

    assert ids("train/64x128/float32") == ["train/64x128/float32/contiguous"]
    # As text first: a plus sign repeats something in a regular expression.
    assert all("float16+half" in id for id in ids("float16+half"))
    assert {id.split("/")[0] for id in ids("^(eval|elemt)/.*cropped$")} == {"eval", "elemt"}
    assert ids("no such thing") == []
