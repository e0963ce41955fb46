"""What the suite for GPUs promises in its docstring."""

import itertools

import pytest

from normgrad.bench import suite as cpu
from normgrad.bench.gpu import suite
from normgrad.bench.suite import DENSE, Case, Layout, Operator, Part

SUITE = suite.suite()
DTYPES = ("float32", "bfloat16", "float16")


def of(part):
    return [case for case in SUITE if case.operator.part is part]


def test_ids_are_unique():
    assert len({case.id for case in SUITE}) == len(SUITE) == 758


def test_gradients_meet_everything():
    shapes = (*suite.RESNET_50_256, *cpu.RESNET_50, *cpu.OTHERS, *cpu.SMALL)
    wanted = {
        Case(operator, shape, dtype, "float32", layout)
        for operator, shape, dtype, layout in itertools.product(
            suite.GRADIENTS, shapes, DTYPES, DENSE
        )
        if len(shape) == 4 or layout is Layout.CONTIGUOUS
    }
    wanted |= {
        Case(Operator.GROUP_NORM, shape, dtype, "float32", layout, groups)
        for (shape, groups), dtype, layout in itertools.product(
            (*cpu.GROUP_NORM, *cpu.SMALL_GROUP_NORM), DTYPES, DENSE
        )
    }
    wanted |= {Case(operator, (20, 6, 65536), "float16") for operator in suite.GRADIENTS}
    assert set(of(Part.GRADIENTS)) == wanted


def test_resnet_at_batch_256():
    assert len(set(suite.RESNET_50_256)) == 12
    assert all(shape[0] == 256 for shape in suite.RESNET_50_256)


@pytest.mark.parametrize("part", [Part.FORWARD, Part.LAYERS])
def test_what_forward_passes_and_layers_meet(part):
    mine = of(part)
    assert {case.dtype for case in mine} == set(DTYPES)
    assert {case.layout for case in mine} == set(DENSE)
    assert {case.operator.value.endswith("group-norm") for case in mine} == {True, False}
    if part is Part.LAYERS:
        assert all(len(case.shape) == 4 for case in mine)


def test_there_are_tensors_over_200_megabytes_in_every_dtype_and_layout():
    huge = {(case.dtype, case.layout) for case in SUITE if case.tensor_bytes > 200_000_000}
    assert huge == set(itertools.product(DTYPES, DENSE))


def test_cases_with_the_same_data_are_together():
    looks = [case.look for case in SUITE]
    assert len(list(itertools.groupby(looks))) == len(set(looks))


def test_the_quick_run():
    quick = suite.quick()
    assert {case.id for case in quick} == suite._QUICK
    assert len(quick) == 19
    assert {case.operator for case in quick} == {case.operator for case in SUITE}
    assert {(case.dtype, case.layout) for case in quick} >= {
        *(("float32", Layout.CONTIGUOUS), ("bfloat16", Layout.CHANNELS_LAST)),
        *(("float16", Layout.CHANNELS_LAST), ("float16", Layout.CONTIGUOUS)),
    }
