"""Findings: faults of many cases, grouped by their causes."""

from __future__ import annotations

from trials import of, tried

from normgrad import testing
from normgrad.testing import Fault, Judged, Level, Topic, findings
from normgrad.testing.outcomes import wrong
from normgrad.testing.plugin import _table, conclusion

WRONG, BEYOND, CONVENTION = Level
STATS = len(testing.cases(kinds=("stats",)))


def test_two_causes_in_one_operator_are_two_findings():
    layouts = ("contiguous", "odd", "channels_last")
    judged = tried(
        "tried_operators:Doubles",
        lambda case: case.topic is Topic.VALUES and case.layout in layouts and len(case.shape) > 2,
        quick=False,
    )
    first, second = findings(judged)
    assert (first.level, first.what, first.where) == (WRONG, "invstd", "dtype is float16")
    number = sum(each.case.dtype == "float16" for each in judged)
    assert (len(first.found), first.tried) == (number, number)
    assert str(first) == (
        f"wrong: batch_norm_stats: invstd where dtype is float16 ({number} of {number} cases; "
        "layers reach it)"
    )
    case, fault = first.smallest
    assert (case.shape, fault.what) == ((4, 6, 9, 11), "invstd")
    assert second.where == "layout is channels_last"
    assert {case.dtype for case, _ in second.found} == {"float64", "float32", "bfloat16"}


def failing(kinds, is_wrong, *faults, quick=False):
    """Verdicts as if a kind's cases that a function names had these faults."""
    cases = testing.cases(quick=quick, kinds=kinds)
    return [Judged(case, faults if is_wrong(case) else ()) for case in cases]


def test_outputs_that_are_never_wrong_together_are_findings_of_their_own():
    """But those that share a case are one, directly or through a third."""
    cases = testing.cases(kinds=("train",))

    def found(*outputs):
        """Of verdicts in which each tenth of the cases has the faults of one set of outputs."""
        judged = [Judged(case) for case in cases]
        for index, names in enumerate(outputs):
            for place in range(index, len(cases) // 10 * 10, 10):
                judged[place] = Judged(cases[place], tuple(map(wrong, names)))
        return sorted(each.what for each in findings(judged))

    assert found(["grad_input"], ["grad_weight"]) == ["grad_input", "grad_weight"]
    joined = found(["grad_input"], ["grad_bias"], ["grad_input", "grad_weight"])
    assert joined == ["grad_bias", "grad_input"]  # the first of each case
    through = found(["mean"], ["mean", "output"], ["output", "invstd"], ["invstd"])
    assert len(through) == 1
    assert set(through[0].split(", ")) == {"mean", "output", "invstd"}


def test_conditions_are_in_the_words_that_select_cases():
    for where, words in (
        (of(Topic.MEAN), "topic is mean"),
        (of(absent=("weight",)), "only weight is left out"),
        (of(absent=("weight", "save_mean")), "only weight and save_mean are left out"),
        (lambda case: "eps" in case.absent, "eps is left out"),
        (lambda case: "weight" in case.absent, "weight is left out"),
        (of(mask=(True, False, True)), "mask is 101"),
    ):
        (found,) = findings(failing(("train_without_statistics", "train"), where, wrong("mean")))
        assert found.where == words


def test_crashes_with_masks_are_one_finding():
    lost = wrong("the process ends or hangs", "worker 'gw0' crashed")
    judged = failing(("train",), lambda case: case.mask and not case.mask[1], lost)
    (found,) = findings(judged)
    assert (found.what, found.where) == (lost.what, "mask has no entry 1")
    assert len(found.found) == found.tried == 8
    assert found.by_layers


def test_what_fails_everywhere_has_no_condition():
    judged = failing(("stats",), lambda case: not case.is_mistake, wrong("mean"), wrong("invstd"))
    (found,) = findings(judged)
    assert (found.what, found.where) == ("mean", "")
    assert len(found.found) == len([each for each in judged if each.faults])


def test_lesser_levels_are_one_finding_each():
    """For all operators; and a case may have several faults."""
    beyond = Fault(BEYOND, "grad_input")
    strides = Fault(CONVENTION, "other strides", "grad_input: (1, 3)")
    kinds = ("train", "group_norm")
    judged = failing(kinds, lambda case: case.layout == "channels_last", beyond, strides)
    first, second = findings(judged)
    assert (first.level, first.what) == (BEYOND, "grad_input")
    assert (second.level, second.what) == (CONVENTION, "other strides")
    assert second.operators == ("batch_norm_backward", "group_norm_backward")
    # What is wrong stands before them.
    some = failing(("eval",), lambda case: case.topic is Topic.PLAIN, wrong("grad_bias"))
    assert [each.level for each in findings([*judged, *some])] == [WRONG, BEYOND, CONVENTION]


def test_what_layers_reach_stands_first():
    """Though it is in fewer cases than what is not."""
    others = failing(("elemt",), lambda case: case.topic is Topic.OUTPUTS, wrong("grad_input"))
    reached = failing(("eval",), lambda case: case.topic is Topic.PLAIN, wrong("grad_bias"))
    first, *rest = findings([*others, *reached])
    assert (first.operators, len(first.found)) == (("batch_norm_backward",), 1)
    assert not any(each.by_layers for each in rest)
    assert max(len(each.found) for each in rest) > 1


def test_the_table_has_eighty_columns_and_none_without_a_number():
    kinds = ("gather", "stats")
    passed = failing(kinds, lambda case: False)
    gathers = len(passed) - STATS
    assert _table(passed) == [
        f"{'operator':35} offered passed",
        f"{'batch_norm_gather_stats_with_counts':35}{gathers:8}{gathers:7}",
        f"{'batch_norm_stats':35}{STATS:8}{STATS:7}",
    ]
    judged = [Judged(each.case, units=1.23456e16, plain=2.0) for each in passed]
    indices = [index for index, each in enumerate(passed) if each.case.kind == "gather"]
    for index, level in zip(indices, Level, strict=False):
        judged[index] = Judged(passed[index].case, (Fault(level, "mean"),))
    upper, lower, name, numbers, second = _table(judged)
    assert upper.split() == ["beyond", "another", "error", "/", "error", "/"]
    assert lower.startswith("operator ")
    assert name == "batch_norm_gather_stats_with_counts"
    assert numbers.split() == [f"{gathers}", f"{gathers - 3}", "1", "1", "1", "1.23e+16", "2"]
    assert second.split() == ["batch_norm_stats", f"{STATS}", f"{STATS}", "1.23e+16", "2"]
    assert all(len(line) <= 80 for line in (upper, lower, name, numbers, second))


def test_where_only_an_operator_may_be_called_so_no_layer_reaches_it():
    judged = failing(("elemt",), lambda case: case.out == "odd", wrong("grad_input"))
    (found,) = findings(judged)
    assert found.where == "out is odd"
    assert "; no layer reaches it)" in str(found)


def test_the_conclusion_says_how_many_of_what_was_offered():
    judged = failing(("stats",), lambda case: case.dtype == "bfloat16", wrong("mean"), quick=True)
    number = sum(each.case.dtype == "bfloat16" for each in judged)
    absent = Judged(judged[0].case, absent="no parameter out")
    assert conclusion([*judged, absent], findings(judged)) == (
        f"{len(judged)} cases offered: {number} wrong (1 finding), {len(judged) - number} passed"
    )
    beyond = Judged(judged[0].case, (Fault(BEYOND, "mean"),))
    assert (
        conclusion([beyond], findings([beyond]))
        == "1 case offered: 0 wrong, 1 beyond the bound, 0 passed"
    )
    found = findings(judged)
    assert "wrong (1 finding, 1 expected), " in conclusion(judged, found, expected=found)
