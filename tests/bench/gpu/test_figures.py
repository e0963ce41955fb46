"""What follows from rows, and how it is held against the targets."""

import math

import pytest

from normgrad.bench.gpu import figures, targets
from normgrad.bench.gpu.timing import EVENTS, GRAPH
from normgrad.bench.suite import Layout, Operator

HUGE = (256, 256, 56, 56)  # 822 MB in float32


def only(found):
    (one,) = figures.figures(found)
    return one


def test_a_case(rows, results):
    one = only(results(rows(ours=600.0, others={"aten::a": 1200.0, "b": 900.0}, copy=500.0)))
    tensor = 256 * 256 * 56 * 56 * 4
    assert (one.tensor_bytes, one.bytes) == (tensor, 3 * tensor)
    assert (one.timing, one.best, one.path, one.cold) == (GRAPH, "b", "rows", True)
    assert one.speedup == 1.5
    assert one.tbs == pytest.approx(3 * tensor / 600e-6 / 1e12)
    assert one.copy_tbs == pytest.approx(3 * tensor / 500e-6 / 1e12)
    assert one.share == pytest.approx(5 / 6)
    assert one.xbound == pytest.approx(1.2)
    assert one.small_call == 0.5


def test_the_copy_is_of_another_size(rows, results):
    """It is the bandwidth that counts."""
    mine = rows()
    mine = [
        type(row)(**{**vars(row), "bytes": row.bytes * 2}) if row.contender == "copy" else row
        for row in mine
    ]
    assert only(results(mine)).t_copy_us == 40.0


def test_bandwidth_is_that_with_outputs_given(rows, results):
    mine = rows(ours=100.0)
    mine = [
        type(row)(**{**vars(row), "t_us": 50.0}) if row.contender == "out" else row for row in mine
    ]
    one = only(results(mine))
    assert (one.t_ours_us, one.moving_us, one.speedup) == (100.0, 50.0, 2.0)


def test_events_where_not_everybody_was_captured(rows, results):
    mine = rows(ours=10.0, others={"aten::a": 30.0}, events={"ours": 20.0, "aten::a": 25.0})
    assert only(results(mine)).speedup == 3.0
    mine = [row for row in mine if (row.contender, row.timing) != ("aten::a", GRAPH)]
    one = only(results(mine))
    assert (one.timing, one.speedup) == (EVENTS, 1.25)


def test_nobody_to_compare_with(rows, results):
    one = only(results(rows(others={})))
    assert (one.best, math.isnan(one.speedup), math.isnan(one.small_call)) == ("", True, True)
    (_, mean, each, *_) = targets.evaluate([one])
    assert (mean.met, each.met) == (None, None)


def test_a_layer_has_ours_alone(rows, results):
    one = only(results(rows(Operator.LAYER_BATCH_NORM, others={"torch.nn.BatchNorm2d": 150.0})))
    assert math.isnan(one.t_out_us)
    assert one.moving_us == one.t_ours_us == 100.0
    assert one.speedup == 1.5


def held(found):
    return {target.name: target for target in targets.evaluate(figures.figures(found))}


def test_targets_met_and_missed(rows, results):
    found = results(
        # 2466 MB in 600 µs are 4.1 TB/s, and in 800 µs 3.1.
        rows(ours=600.0, others={"aten::a": 1200.0}),
        rows(ours=800.0, others={"aten::a": 600.0}, layout=Layout.CHANNELS_LAST),
        rows(shape=(20, 6, 65536), dtype="float16", ours=30.0, copy=14.0, others={"a": 60.0}),
        rows(shape=(8, 16, 8, 8), others={"aten::a": 1.0}, events={"ours": 9.0, "aten::a": 10.0}),
        rows(shape=(64, 128), others={"aten::a": 1.0}, events={"ours": 11.0, "aten::a": 10.0}),
        rows(Operator.FORWARD, ours=10.0, others={"a": 9.0}),
        rows(Operator.LAYER_GROUP_NORM, ours=10.0, others={"a": 11.0}),
    )
    bandwidth, mean, slower, long, small, forward, layer = held(found).values()
    channels_last = "train/256x256x56x56/float32/channels-last"
    assert (bandwidth.limit, bandwidth.cases, bandwidth.met) == ("≥ 3.6", 2, False)
    assert bandwidth.misses == ((channels_last, pytest.approx(3.0828, rel=1e-4)),)
    assert (mean.limit, mean.cases) == ("≥ 1.5", 3)
    assert mean.reached == pytest.approx((2 * 0.75 * 2) ** (1 / 3))
    assert (slower.limit, slower.misses) == ("≥ 1", ((channels_last, 0.75),))
    assert (long.limit, long.cases, long.met) == ("≤ 2", 1, False)
    assert long.misses == (("train/20x6x65536/float16/contiguous", pytest.approx(30 / 14)),)
    assert (small.limit, small.cases, small.misses) == (
        *("≤ 1", 2, (("train/64x128/float32/contiguous", 1.1),)),
    )
    assert (forward.met, layer.met) == (False, True)


def test_no_such_case():
    assert {target.met for target in targets.evaluate([])} == {None}


def test_the_worst_is_large_and_a_gradient(rows, results):
    found = results(
        rows(ours=100.0, copy=80.0),
        rows(Operator.EVAL, ours=100.0, copy=50.0),
        rows(Operator.FORWARD, ours=100.0, copy=1.0),
        rows(shape=(8, 16, 8, 8), ours=100.0, copy=1.0),
    )
    assert figures.worst(figures.figures(found)).operator == "eval"
    small = results(rows(shape=(8, 16, 8, 8)))
    assert figures.worst(figures.figures(small)).shape == "8x16x8x8"
    assert figures.worst([]) is None
