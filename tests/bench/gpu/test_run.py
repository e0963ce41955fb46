"""What was not measured, runs that are put together, and the files."""

import dataclasses

import pytest

pytest.importorskip("torch")

from measuring import results as files
from measuring import suite, targets
from measuring.results import Measured, added, nothing, unmeasured
from measuring.suite import Operator, Part

SUITE = suite.on_gpu(suite.suite())


def test_the_suite_is_the_cpus_with_resnet_at_batch_256():
    host = (Part.CALLS, Part.ACLNN, Part.NEW_SIZES)
    theirs = [case for case in suite.suite() if case.part not in host]
    assert len({case.id for case in SUITE}) == len(theirs)
    for case, other in zip(SUITE, theirs, strict=True):
        batch = 256 if other.shape in suite.RESNET_50 else other.shape[0]
        assert case == dataclasses.replace(other, shape=(batch, *other.shape[1:]))
    assert set(suite.on_gpu(suite.quick())) <= set(SUITE)


def test_a_file_says_what_the_device_was(tmp_path, row, content, results):
    found = results(row(), row(Operator.LAYER_BATCH_NORM))
    path = tmp_path / "cuda-x.csv"
    path.write_bytes(content(found))
    again = files.read(path)
    assert again.facts == found.facts
    assert (again.on_gpu, again.device, again.cache) == (True, "NVIDIA H200", 50 << 20)
    assert [one.case for one in again.rows] == [one.case for one in found.rows]
    facts = {name: value for name, value in found.facts.items() if name != "driver"}
    path.write_bytes(content(files.Results(facts, found.rows)))
    with pytest.raises(ValueError, match="no driver"):
        files.read(path)


def test_a_part_is_added(row, results):
    order = SUITE
    train = row(shape=(256, 64, 56, 56), ours=1.0)
    evaluation = row(Operator.EVAL, shape=(256, 64, 56, 56), ours=2.0)
    elemt = row(Operator.ELEMT, shape=(64, 128))
    old = results(elemt, train, evaluation)
    new = results(dataclasses.replace(evaluation, us={**evaluation.us, "ours": 3.0}))
    new = files.Results({**new.facts, "command": "normgrad bench --filter eval"}, new.rows)
    both = added(old, new, order)
    assert both.facts["command"] == "normgrad bench --device cuda; normgrad bench --filter eval"
    assert added(both, new, order).facts["command"] == both.facts["command"]
    assert [one.case for one in both.rows] == [train.case, evaluation.case, elemt.case]
    assert [one.us["ours"] for one in both.rows] == [1.0, 3.0, 100.0]
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
    assert [(one.target.sign, one.cases, one.met) for one in held] == [
        *(("≥ 1", 2, False), ("≥ 1", 1, True), *[("≥ 1", 0, None)] * 2)
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
    assert unmeasured(found) == [
        ("the case", "ValueError: on device cuda:0", "1", "a"),
        ("aten::x", "RuntimeError: no", "3", "b, c, and 1 more"),
        ("y", "disagrees", "1", "c"),
    ]


def test_nothing_was_measured():
    found = unmeasured(nothing(SUITE, "no GPU"))
    parts = {case.part.value for case in SUITE}
    assert {what.partition(" ")[2] for what, *_ in found} == parts
    assert sum(int(count) for _, _, count, _ in found) == len(SUITE)
    assert {why for _, why, _, _ in found} == {"no GPU"}
