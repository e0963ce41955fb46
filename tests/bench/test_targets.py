"""The summary's arithmetic, on figures computed by hand."""

import math

import pytest

from normgrad.bench import targets
from normgrad.bench.suite import Layout, Operator

MIB = 1 << 20
NAMES = (
    *("mean", "slower", "beyond", "within", "reduce", "call", "plan"),
    *("forward", "layers", "layer"),
)
GRADIENTS = NAMES[:7]


def evaluated(*rows, cache=16 * MIB):
    return dict(zip(NAMES, targets.evaluate(rows, cache), strict=True))


def test_geometric_mean():
    assert targets.geometric_mean([1, 10, 100]) == pytest.approx(10)
    assert targets.geometric_mean([]) is None
    # What was not measured does not count.
    assert targets.geometric_mean([2, math.nan, 8]) == pytest.approx(4)
    assert targets.geometric_mean([math.nan]) is None


def test_nothing_counts():
    for target in evaluated().values():
        assert (target.reached, target.cases, target.misses, target.met) == (None, 0, (), None)


def test_the_mean_is_over_all_gradients(row):
    rows = [row(speedup=2), row(Operator.REDUCE, speedup=4), row(shape=(8, 16, 8, 8), speedup=8)]
    mean = evaluated(*rows)["mean"]
    assert (mean.limit, mean.cases, mean.met, mean.misses) == ("≥ 3", 3, True, ())
    assert mean.reached == pytest.approx(4)
    assert evaluated(row(speedup=2.99))["mean"].met is False


def test_slower_than_torch_counts_from_two_to_the_sixteenth(row):
    rows = [
        row(shape=(64, 1024), speedup=0.9),
        row(shape=(63, 1024), speedup=0.1),
        row(speedup=0.5),
        row(Operator.ELEMT, speedup=1.0),
    ]
    slower = evaluated(*rows)["slower"]
    assert (slower.limit, slower.reached, slower.cases, slower.met) == ("≥ 1", 0.5, 3, False)
    assert slower.misses == (
        ("train/32x64x56x56/float32/contiguous", 0.5),
        ("train/64x1024/float32/contiguous", 0.9),
    )


def test_the_triad_beyond_the_cache_and_within(row):
    # 32x64x56x56 in float32 is 24.5 MiB, 8x16x8x8 is 32 KiB.
    rows = [
        row(xtriad=1.25),
        row(Operator.EVAL, xtriad=1.5),
        row(Operator.GROUP_NORM, xtriad=1.3),
        row(Operator.REDUCE, xtriad=9),
        row(shape=(8, 16, 8, 8), xtriad=1.0),
        row(Operator.ELEMT, (8, 16, 8, 8), xtriad=4.41),
    ]
    found = evaluated(*rows)
    beyond, within = found["beyond"], found["within"]
    assert (beyond.limit, beyond.reached, beyond.cases, beyond.met) == ("≤ 1.25", 1.5, 3, False)
    assert [case.split("/")[0] for case, _ in beyond.misses] == ["eval", "group-norm"]
    assert (within.limit, within.cases, within.met) == ("≤ 2", 2, False)
    assert within.reached == pytest.approx(2.1)
    # In a cache that holds all three tensors, everything but reduce is in the mean.
    found = evaluated(*rows, cache=74 * MIB)
    assert (found["beyond"].cases, found["within"].cases) == (0, 5)


def test_what_exceeds_the_cache_is_the_traffic(row):
    assert row().bytes == 3 * 32 * 64 * 56 * 56 * 4
    assert targets.exceeds_cache(row(), row().bytes - 1)
    assert not targets.exceeds_cache(row(), row().bytes)
    assert row(Operator.EVAL_INPUT).bytes == 2 * 32 * 64 * 56 * 56 * 4


def test_the_limit_of_wide_stripes(row):
    narrow = row(layout=Layout.CHANNELS_LAST)  # 2 · 64 · 32·56·56 bytes: 12.25 MiB
    wide = row(layout=Layout.CHANNELS_LAST, shape=(32, 64, 112, 112))  # 49 MiB
    assert targets.stripe_bytes(narrow) == 49 * MIB // 4
    assert targets.xtriad_limit(narrow, 16 * MIB) == 1.25
    assert targets.xtriad_limit(narrow, 12 * MIB) == 1.7
    assert targets.xtriad_limit(wide, 16 * MIB) == 1.7
    assert targets.xtriad_limit(row(shape=(32, 64, 112, 112)), 16 * MIB) == 1.25
    found = evaluated(
        row(layout=Layout.CHANNELS_LAST, shape=(32, 64, 112, 112), xtriad=1.6), row(xtriad=1.4)
    )["beyond"]
    assert found.limit == "≤ 1.25 or 1.7"
    # The worst is the one furthest over its own limit.
    assert (found.reached, len(found.misses)) == (1.4, 1)


def test_reduce_is_held_to_the_time_to_read(row):
    rows = [
        row(Operator.REDUCE, xtriad=1.2),
        row(Operator.REDUCE, (256, 1024), xtriad=1.3),
        row(Operator.REDUCE, (8, 16, 8, 8), xtriad=20),
        row(xtriad=3),
    ]
    reduce = evaluated(*rows)["reduce"]
    assert (reduce.limit, reduce.reached, reduce.cases) == ("≤ 1.25", 1.3, 2)
    assert reduce.misses == (("reduce/256x1024/float32/contiguous", 1.3),)


def test_small_tensors(row):
    rows = [
        row(shape=(8, 16, 8, 8), ours=25, speedup=0.4, plan=12),  # torch takes 10
        row(shape=(64, 128), ours=26, speedup=10 / 26, plan=12.5),
        row(shape=(256, 1024), ours=1000, speedup=0.01, plan=1000),
    ]
    found = evaluated(*rows)
    call, plan = found["call"], found["plan"]
    assert (call.limit, call.cases, call.met) == ("≤ 2.5", 2, False)
    assert call.reached == pytest.approx(2.6)
    assert [case for case, _ in call.misses] == ["train/64x128/float32/contiguous"]
    assert (plan.limit, plan.cases) == ("≤ 1.2", 2)
    assert plan.misses == (("train/64x128/float32/contiguous", pytest.approx(1.25)),)


def test_by_threads(row, results):
    found = targets.by_threads(results(row(speedup=2), row(speedup=8, threads=2)))
    assert {count: held[0].reached for count, held in found.items()} == {
        1: pytest.approx(2),
        2: pytest.approx(8),
    }


def test_gradients_forward_passes_and_layers_do_not_count_for_each_other(row):
    gradients = [row(speedup=4), row(Operator.REDUCE, speedup=0.9, xtriad=2)]
    forward = [row(Operator.STATS, speedup=0.5), row(Operator.NORMALISE, speedup=2)]
    layers = [row(Operator.LAYER_BATCH_NORM, speedup=0.8), row(Operator.LAYER_GROUP_NORM)]
    found = evaluated(*gradients, *forward, *layers)
    alone = evaluated(*gradients)
    assert [found[name] for name in GRADIENTS] == [alone[name] for name in GRADIENTS]
    assert found["forward"] == evaluated(*forward)["forward"]
    assert [found[name] for name in ("layers", "layer")] == [
        evaluated(*layers)[name] for name in ("layers", "layer")
    ]


def test_forward_passes_are_no_slower(row):
    forward = evaluated(
        row(Operator.FORWARD, speedup=0.5),
        row(Operator.FORWARD_GROUP_NORM, speedup=1),
        row(Operator.STATS, (8, 16, 8, 8), speedup=0.1),
    )["forward"]
    assert (forward.limit, forward.reached, forward.cases) == ("≥ 1", 0.5, 2)
    assert forward.name == "torch / ours, each forward pass of 2¹⁶ elements or more"
    assert forward.misses == (("forward/32x64x56x56/float32/contiguous", 0.5),)


def test_layers_have_a_mean_of_their_own(row):
    rows = [
        row(Operator.LAYER_BATCH_NORM, speedup=4),
        row(Operator.LAYER_GROUP_NORM, speedup=0.9),
        row(Operator.LAYER_BATCH_NORM, (8, 16, 8, 8), speedup=0.5),
    ]
    found = evaluated(*rows)
    layers, layer = found["layers"], found["layer"]
    assert (layers.limit, layers.cases, layers.met) == ("≥ 2", 3, False)
    assert layers.reached == pytest.approx(1.8 ** (1 / 3))
    assert (layer.limit, layer.reached, layer.cases) == ("≥ 1", 0.9, 2)
    assert [case.split("/")[0] for case, _ in layer.misses] == ["layer-group-norm"]
    assert evaluated(*rows[:2])["layers"].met is False
    assert evaluated(rows[0])["layers"].met is True
