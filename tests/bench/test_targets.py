"""The targets' arithmetic, on figures computed by hand."""

import math

import pytest
from measuring import targets
from measuring.suite import CALL, IMAGES, Operator, Part
from measuring.targets import TARGETS

MIB = 1 << 20
NAMES = (
    *("mean", "call", "reduce", "calls", "plans", "numpy"),
    *("small layers", "layers", "new sizes", "steps", "new", "known"),
)


def held(*rows, cache=MIB):
    found = [targets.hold(target, rows, cache) for target in TARGETS]
    return dict(zip(NAMES, found, strict=True))


def test_geometric_mean():
    assert targets.geometric_mean([1, 10, 100]) == pytest.approx(10)
    assert targets.geometric_mean([]) is None
    # What was not measured does not count.
    assert targets.geometric_mean([2, math.nan, 8]) == pytest.approx(4)
    assert targets.geometric_mean([math.nan]) is None


def test_nothing_counts():
    for one in held().values():
        assert (one.reached, one.cases, one.misses, one.met) == (None, 0, (), None)
        assert one.verdict == "no such case"


def test_what_is_wanted():
    assert {name: one.target.sign for name, one in held().items()} == {
        **{"mean": "≥ 2.4", "call": "≥ 0.95", "reduce": "≤ 1.3"},
        **{"calls": "≤ 1", "plans": "≤ 0.7", "numpy": "≤ 25"},
        **{"small layers": "≤ 1", "layers": "≤ 1", "new sizes": "≤ 1.3"},
        **{"steps": "≤ 1", "new": "≤ 80", "known": "≤ 8"},
    }


def test_means_are_of_public_functions_over_all_operators(row):
    rows = [row(speedup=1), row(Operator.LAYER_NORM, (64, 128), speedup=16, plan=1)]
    rows += [row(Operator.STATS, (8, 16, 8, 8), speedup=4)]
    found = held(*rows)["mean"]
    assert (found.cases, found.met, found.misses, found.verdict) == (3, True, (), "met")
    assert found.reached == pytest.approx(4)
    found = held(row(speedup=2.2), row(Operator.STATS, speedup=2.5))["mean"]
    # A mean that is missed names the worst cases too.
    assert found.misses == (("train/32x64x56x56/float32/contiguous", 2.2),)
    assert found.verdict == "**missed**"


def test_each_operator_is_no_slower(row):
    rows = [
        row(shape=(64, 1024), speedup=0.9),
        row(shape=(63, 1024), speedup=0.5, plan=200),
        row(shape=(64, 63), speedup=0.1),
        row(Operator.NORMALISE, speedup=2, plan=400),
        row(Operator.ELEMT, speedup=0.95),
    ]
    call = held(*rows)["call"]
    assert (call.reached, call.cases, call.met) == (0.5, 4, False)
    assert call.misses == (
        *(("train/63x1024/float32/contiguous", 0.5),),
        *(("train/64x1024/float32/contiguous", 0.9),),
    )
    assert call.verdict == "**missed** by 2 of 4"


def test_reduce_is_held_to_the_time_to_read_beyond_the_cache(row):
    rows = [
        row(Operator.REDUCE, xtriad=1.2),
        row(Operator.REDUCE, (256, 1024), xtriad=1.4),  # 2 MiB
        row(Operator.REDUCE, (8, 16, 8, 8), xtriad=20),
        row(xtriad=3),
    ]
    reduce = held(*rows)["reduce"]
    assert (reduce.reached, reduce.cases) == (pytest.approx(1.4), 2)
    assert [case for case, _ in reduce.misses] == ["reduce/256x1024/float32/contiguous"]
    assert held(*rows, cache=2 * MIB)["reduce"].cases == 1


def test_calls(row):
    rows = [
        row(shape=CALL, ours=5, speedup=2, plan=8),
        row(Operator.FORWARD, shape=CALL, ours=26, speedup=0.5, plan=6),
    ]
    found = held(*rows)
    assert [found[name].reached for name in ("calls", "plans", "numpy")] == [
        *(2, pytest.approx(0.8), 26)
    ]
    assert [found[name].met for name in ("calls", "plans", "numpy")] == [False] * 3
    # They are no gradients and no forward passes.
    assert [found[name].cases for name in ("mean", "call")] == [0] * 2


def test_layers(row):
    rows = [
        row(Operator.LAYER_BATCH_NORM, speedup=2),
        row(Operator.LAYER_GROUP_NORM, speedup=0.5),
        row(Operator.LAYER_EVAL, (8, 16, 8, 8), speedup=0.5),
        row(Operator.LAYER_BATCH_NORM, (2, 16, 32, 32), speedup=1),
    ]
    found = held(*rows)
    small, each = found["small layers"], found["layers"]
    assert (small.reached, small.cases, small.met) == (2, 1, False)
    assert (each.reached, each.cases, len(each.misses)) == (2, 3, 1)


def test_new_sizes(row):
    rows = [row(Operator.NEW_LAYER_NORM, (400, 768), speedup=each) for each in (0.5, 0.8)]
    found = held(*rows)["new sizes"]
    assert (found.reached, found.cases, len(found.misses)) == (2, 2, 1)


def test_steps_and_first_phases(row):
    rows = [
        row(Operator.RESNET18, IMAGES, speedup=1.0),
        row(Operator.UNET, IMAGES, speedup=0.8),
        row(Operator.ACLNN_NEW, CALL, ours=81),
        row(Operator.ACLNN_KNOWN, CALL, ours=7),
    ]
    found = held(*rows)
    assert [found[name].reached for name in ("steps", "new", "known")] == [1.25, 81, 7]
    assert [found[name].met for name in ("steps", "new", "known")] == [False, False, True]
    assert found["steps"].misses == (("step-unet/16x3x64x64/float32/contiguous", 1.25),)


def test_parts_do_not_count_for_each_other(row):
    rows = {
        Part.GRADIENTS: row(speedup=4),
        Part.FORWARD: row(Operator.STATS, speedup=0.5),
        Part.CALLS: row(shape=CALL),
        Part.LAYERS: row(Operator.LAYER_BATCH_NORM, speedup=0.8),
        Part.STEPS: row(Operator.RESNET18, IMAGES),
        Part.ACLNN: row(Operator.ACLNN_NEW, CALL),
    }
    together = held(*rows.values())
    for part, mine in rows.items():
        alone = held(mine)
        for name, target in zip(NAMES, TARGETS, strict=True):
            if target.parts == (part,):
                assert together[name] == alone[name]


def test_by_threads(row, results):
    found = targets.by_threads(results(row(speedup=2), row(speedup=8, threads=2)))
    assert {count: ones[0].reached for count, ones in found.items()} == {
        1: pytest.approx(2),
        2: pytest.approx(8),
    }


def test_a_figure_that_is_not_known(row):
    assert math.isnan(row().figure("numpy"))
    assert math.isnan(row().figure("numpy", "torch"))
