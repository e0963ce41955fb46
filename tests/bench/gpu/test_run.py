"""What was not measured, runs that are put together, and the files."""

import dataclasses

import pytest

from normgrad.bench import results as files
from normgrad.bench import suite, targets
from normgrad.bench.gpu import run
from normgrad.bench.gpu.added import added
from normgrad.bench.gpu.run import Measured
from normgrad.bench.suite import Operator, Part

SUITE = suite.on_gpu(suite.suite())


def test_the_suite_is_the_cpus_with_resnet_at_batch_256():
    assert len({case.id for case in SUITE}) == len(suite.suite())
    for case, other in zip(SUITE, suite.suite(), strict=True):
        batch = 256 if other.shape in suite.RESNET_50 else other.shape[0]
        assert case == dataclasses.replace(other, shape=(batch, *other.shape[1:]))
    assert set(suite.on_gpu(suite.quick())) <= set(SUITE)


def test_a_file_says_what_the_device_was(tmp_path, row, results):
    found = results(row(), row(Operator.LAYER_BATCH_NORM))
    path = tmp_path / "cuda-x.csv"
    path.write_bytes(files.table_of(found.facts, found.rows))
    again = files.read(path)
    assert again.facts == found.facts
    assert (again.on_gpu, again.device, again.cache) == (True, "NVIDIA H200", 50 << 20)
    assert [one.case for one in again.rows] == [one.case for one in found.rows]
    facts = {name: value for name, value in found.facts.items() if name != "driver"}
    path.write_bytes(files.table_of(facts, found.rows))
    with pytest.raises(ValueError, match="no driver"):
        files.read(path)


def test_a_part_is_added(row, results):
    order = [case.id for case in SUITE]
    train = row(shape=(256, 64, 56, 56), ours=1.0)
    evaluation = row(Operator.EVAL, shape=(256, 64, 56, 56), ours=2.0)
    elemt = row(Operator.ELEMT, shape=(64, 128))
    old = results(elemt, train, evaluation)
    new = results(dataclasses.replace(evaluation, t_ours_us=3.0))
    new = files.Results({**new.facts, "command": "normgrad bench --filter eval"}, new.rows)
    both = added(old, new, order)
    assert both.facts["command"] == "normgrad bench --device cuda; normgrad bench --filter eval"
    assert added(both, new, order).facts["command"] == both.facts["command"]
    assert [one.case for one in both.rows] == [train.case, evaluation.case, elemt.case]
    assert [one.t_ours_us for one in both.rows] == [1.0, 3.0, 100.0]
    with pytest.raises(ValueError, match=r"driver 570\.1 there, 580 here"):
        added(old, files.Results({**new.facts, "driver": "580"}, new.rows), order)


def test_no_case_is_to_be_slower(row, results):
    """Nothing else is a target: nothing has been measured by which it could be set."""
    found = results(
        row(speedup=0.5),
        row(Operator.EVAL, speedup=2.0),
        row(Operator.EVAL, shape=(8, 16, 8, 8), speedup=0.1),
        row(Operator.FORWARD, speedup=1.5),
    )
    ((threads, held),) = targets.by_threads(found).items()
    assert threads == files.ON_GPU
    assert [(one.limit, one.cases, one.met) for one in held] == [
        *(("≥ 1", 2, False), ("≥ 1", 1, True), ("≥ ", 0, None))
    ]
    assert held[0].misses == (("train/32x64x56x56/float32/contiguous", 0.5),)


def test_what_was_not_measured():
    found = [
        Measured("a", None, {"the case": "ValueError: on device cuda:0"}),
        Measured("b", None, {"aten::x": "RuntimeError: no"}),
        Measured("c", None, {"aten::x": "RuntimeError: no", "y": "disagrees"}),
        Measured("d", None, {"aten::x": "RuntimeError: no"}),
        Measured("e", None, {}),
    ]
    assert [str(one) for one in run.unmeasured(found)] == [
        "the case: ValueError: on device cuda:0 (a)",
        "aten::x: RuntimeError: no (b, c, and 1 more)",
        "y: disagrees (c)",
    ]


def test_nothing_was_measured():
    found = run.nothing(SUITE, "no GPU")
    assert [one.what.partition(" ")[2] for one in found] == [part.value for part in Part]
    assert sum(len(one.cases) for one in found) == len(SUITE)
    assert {one.why for one in found} == {"no GPU"}
