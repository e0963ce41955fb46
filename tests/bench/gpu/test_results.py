"""The files, runs that are put together, and what was not measured."""

import dataclasses

import pytest

from normgrad.bench.gpu import results as files
from normgrad.bench.gpu import unmeasured
from normgrad.bench.gpu.run import Measured
from normgrad.bench.gpu.suite import suite
from normgrad.bench.results import table_of
from normgrad.bench.suite import Operator


def written(path, found):
    path.write_bytes(table_of(found.facts, found.rows))
    return path


def test_there_and_back(tmp_path, rows, results):
    found = results(rows(), rows(Operator.LAYER_BATCH_NORM))
    again = files.read(written(tmp_path / "cuda-x.csv", found))
    assert again.rows == found.rows
    assert again.facts == found.facts
    assert {"gpu", "driver", "cuda", "cudnn", "torch", "triton", "date", "command"} <= set(
        again.facts
    )


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"operator": "no-such"}, "no-such"),
        ({"timing": "guess"}, "timing 'guess'; allowed: events, graph"),
        ({"t_us": float("nan")}, "no t_us"),
    ],
)
def test_damaged_rows(tmp_path, rows, results, change, message):
    found = results(rows())
    found = files.Results(found.facts, (dataclasses.replace(found.rows[0], **change),))
    with pytest.raises(ValueError, match=message):
        files.read(written(tmp_path / "cuda-x.csv", found))


def test_a_file_of_another_kind(tmp_path, rows, results):
    found = results(rows())
    facts = {name: value for name, value in found.facts.items() if name != "driver"}
    with pytest.raises(ValueError, match="no driver"):
        files.read(written(tmp_path / "cuda-x.csv", files.Results(facts, found.rows)))
    (tmp_path / "cpu-x.csv").write_text("# cpu: x\na,b\n1,2\n")
    with pytest.raises(ValueError, match="columns"):
        files.read(tmp_path / "cpu-x.csv")


def test_a_case_without_ours_or_the_copy(tmp_path, rows, results):
    for name in ("ours", "copy"):
        found = results([row for row in rows() if row.contender != name])
        with pytest.raises(ValueError, match=f"contiguous: no {name}"):
            files.read(written(tmp_path / "cuda-x.csv", found))


def test_a_part_is_added(rows, results):
    order = [case.id for case in suite()]
    old = results(rows(ours=1.0), rows(Operator.EVAL, ours=2.0))
    new = results(rows(Operator.EVAL, ours=3.0), rows(Operator.ELEMT, shape=(64, 128)))
    new = files.Results({**new.facts, "command": "normgrad bench --filter eval"}, new.rows)
    both = files.added(old, new, order)
    assert both.facts["command"] == "normgrad bench --device cuda; normgrad bench --filter eval"
    assert files.added(both, new, order).facts["command"] == both.facts["command"]
    ours = {row.case: row.t_us for row in both.rows if row.contender == "ours"}
    assert list(ours) == sorted(ours, key=order.index)
    assert list(ours.values()) == [1.0, 3.0, 100.0]
    with pytest.raises(ValueError, match=r"driver 570\.1 there, 580 here"):
        files.added(old, files.Results({**new.facts, "driver": "580"}, new.rows), order)


def test_what_was_not_measured():
    found = [
        Measured("a", reason="ValueError: on device cuda:0"),
        Measured("b", left_out={"aten::x": "RuntimeError: no"}, uncaptured={"ours": "syncs"}),
        Measured("c", left_out={"aten::x": "RuntimeError: no", "y": "disagrees"}),
        Measured("d", left_out={"aten::x": "RuntimeError: no"}),
    ]
    assert [str(one) for one in unmeasured.of(found, {"liger_kernel": "not installed"})] == [
        "the case: ValueError: on device cuda:0 (a)",
        "liger_kernel: not installed (all cases)",
        "aten::x: RuntimeError: no (b, c, and 1 more)",
        "y: disagrees (c)",
        "ours, in a graph: syncs (b)",
    ]
    assert unmeasured.of([Measured("a")], {}) == []


def test_nothing_was_measured():
    found = unmeasured.nothing(suite(), "no GPU")
    assert [one.what.partition(" ")[2] for one in found] == [
        *("gradients", "forward passes", "layers"),
    ]
    assert sum(len(one.cases) for one in found) == len(suite())
    assert {one.why for one in found} == {"no GPU"}
