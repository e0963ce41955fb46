"""Implementations in a process of their own: every defect is seen, and none takes us down."""

from __future__ import annotations

import re
import sys

import pytest
from support import FLOATS, FULL

from normgrad.operators.by_name import FUNCTIONS
from normgrad.testing import SubjectError, Verdict, process, report, try_cases
from normgrad.testing.cases import Topic

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="descriptors are handed on")

#: Of tests of verdicts and reports, for which it does not matter where the cases run.
in_process = pytest.mark.usefixtures("in_process")


def tried(name, wanted):
    return try_cases(f"tried_operators:{name}", quick=True, wanted=wanted)


def of(topic, kind="train"):
    return lambda case: (case.topic, case.kind) == (topic, kind)


def verdicts(trial):
    return {each.verdict for each in trial.judged}


@in_process
def test_a_right_class_passes():
    passes("Right", "train", "eval")


def test_a_right_object_passes():
    """In a process of its own."""
    passes("right", "eval")


def passes(name, *kinds):
    trial = tried(name, lambda case: case.kind in kinds)
    assert verdicts(trial) == {Verdict.MET}
    assert trial.passed
    assert trial.name == f"tried_operators:{name}"
    assert all(claim.holds for claim in report.claims(trial))


@in_process
def test_what_it_has_not_got_is_not_held_against_it():
    trial = tried("Right", lambda case: case.topic is Topic.MASKS)
    assert trial.passed
    assert {each.case.kind for each in trial.judged if each.verdict is Verdict.ABSENT} == {
        "reduce",
        "group_norm",
        "layer_norm",
        "rms_norm",
    }
    assert ("not offered: no group_norm_backward", 4) in report.refusals(trial)


@in_process
def test_a_method_without_a_parameter_is_not_called_with_it():
    trial = tried("Talks", of(Topic.OUTPUTS))
    assert {(each.verdict, each.detail) for each in trial.judged} == {
        (Verdict.ABSENT, "no parameter out")
    }


def test_what_it_prints_does_not_matter():
    assert verdicts(tried("Talks", of(Topic.ABSENT))) == {Verdict.MET}


@in_process
def test_a_result_beyond_the_bound():
    trial = tried("Inexact", of(Topic.MEAN))
    assert not trial.passed
    broken = [each for each in trial.judged if each.verdict is Verdict.BROKEN]
    # float64 and float32 results are off by 2⁻¹⁶; bfloat16's parameters are float32.
    assert len(broken) == len(trial.judged)
    assert all(each.units > 1 for each in broken)
    assert broken[0].detail.startswith("grad_weight: ")
    assert " of the bound at (" in broken[0].detail
    claims = {claim.title: claim for claim in report.claims(trial)}
    assert claims["precision"].text.startswith("beyond the bound: train (")
    assert not claims["precision"].holds


@in_process
@pytest.mark.parametrize(
    ("name", "detail"),
    [
        ("OtherDtype", "grad_input: dtype float64; allowed: float32"),
        ("TooFew", "grad_bias: not there"),
        ("OtherShape", "grad_input: shape (1, 3, 4, 5, 6); allowed: (3, 4, 5, 6)"),
        ("WritesToInputs", "input: written to"),
    ],
)
def test_what_is_not_as_asked_for(name, detail):
    trial = tried(name, lambda case: case.name == "masks/train/3x4x5x6/float32/contiguous/mask=111")
    assert [each.verdict for each in trial.judged] == [Verdict.BROKEN]
    assert trial.judged[0].detail.startswith(detail)


@in_process
def test_what_is_written_beside_an_output():
    trial = tried("WritesBeside", of(Topic.OUTPUTS, "normalise"))
    beside = [each for each in trial.judged if each.verdict is Verdict.BROKEN]
    assert beside
    assert {each.detail for each in beside} == {"out: written beside"}
    assert all("out=sliced" in each.case.name or "out=odd" in each.case.name for each in beside)


@in_process
def test_an_out_that_is_ignored():
    trial = tried("IgnoresOut", of(Topic.OUTPUTS, "normalise"))
    assert verdicts(trial) == {Verdict.BROKEN}
    details = {each.detail.partition(";")[0] for each in trial.judged}
    assert details == {"out: what was returned is not written to it"}


@in_process
def test_results_that_are_no_tensors():
    pytest.importorskip("torch")
    trial = tried("NoTensors", of(Topic.MEAN, "stats"))
    assert verdicts(trial) == {Verdict.BROKEN}
    assert trial.judged[0].detail.startswith("its result cannot be read: TypeError: int; allowed: ")
    trial = tried("Integers", of(Topic.MEAN, "stats"))
    assert verdicts(trial) == {Verdict.BROKEN}
    assert trial.judged[0].detail.startswith("mean: dtype int64; allowed: float32, float64; ")


@in_process
def test_other_bits_from_call_to_call():
    trial = tried("Unsteady", of(Topic.DETERMINISM))
    assert verdicts(trial) == {Verdict.BROKEN}
    claims = {claim.title: claim for claim in report.claims(trial)}
    assert claims["determinism"].text == "other bits from call to call: train"


@in_process
def test_wrong_calls_that_are_not_refused():
    trial = tried("Careless", of(Topic.MISTAKES, "elemt"))
    assert {
        each.case.change for each in trial.judged if each.verdict is Verdict.ACCEPTED
    } >= ACCEPTED
    assert not trial.passed
    values = tried("Careless", of(Topic.VECTORS, "elemt"))
    assert verdicts(values) == {Verdict.MET}


#: Of a quick run's mistakes, those that a formula without a look at its arguments does not mind.
ACCEPTED = {
    "grad_out: a sample short",
    "input: int32",
    "mean: an element short",
    "invstd: an element short",
    "weight: an element short",
    "sum_dy: an element long",
    "sum_dy_xmu: an element long",
    "count: missing",
}


@in_process
def test_refusals_are_no_defects():
    trial = tried("Selective", lambda case: case.kind == "stats" and case.topic is Topic.VALUES)
    assert verdicts(trial) == {Verdict.MET, Verdict.ABSENT, Verdict.REFUSED}
    assert trial.passed
    reasons = dict(report.refusals(trial))
    assert "not offered: float32 alone" in reasons
    assert "refused: RuntimeError: four axes alone" in reasons


def test_a_crash_is_a_verdict():
    """And the cases after it are tried none the less."""
    topics = (Topic.VALUES, Topic.VECTORS, Topic.DETERMINISM)
    # Each crash starts a process.
    dtypes = FLOATS if FULL else ("float32",)
    trial = tried(
        "Crashes",
        lambda case: case.kind == "train" and case.topic in topics and case.dtype in dtypes,
    )
    crashed = [each for each in trial.judged if each.verdict is Verdict.CRASHED]
    assert len(crashed) > 2
    assert {each.detail for each in crashed} == {"SIGSEGV: going down"}
    assert trial.judged[-1].case.topic is Topic.DETERMINISM
    assert Verdict.MET in verdicts(trial)
    assert report.findings(trial)[0].first.verdict is Verdict.CRASHED


def test_a_process_that_leaves():
    trial = tried("Leaves", of(Topic.ABSENT))
    assert {(each.verdict, each.detail) for each in trial.judged} == {
        (Verdict.CRASHED, "exit status 3")
    }


@pytest.mark.full
def test_a_crash_between_two_cases_shifts_no_verdict(monkeypatch):
    """Of what crashes after its answer the answer counts, and no other case is judged by it."""
    trial = tried("CrashesLater", lambda case: case.kind == "stats")
    assert verdicts(trial) <= {Verdict.MET, Verdict.CRASHED, Verdict.ABSENT}
    crashed = [each for each in trial.judged if each.verdict is Verdict.CRASHED]
    assert crashed
    assert {each.detail for each in crashed} == {"SIGABRT"}
    assert Verdict.MET in {each.verdict for each in trial.judged[-3:]}


def test_what_cannot_be_loaded_again(tmp_path, monkeypatch):
    monkeypatch.setenv("CRASHED", str(tmp_path / "crashed"))
    trial = tried("CrashesOnceAndForAll", of(Topic.MEAN, "stats"))
    assert verdicts(trial) == {Verdict.CRASHED}
    assert trial.judged[0].detail == "SIGABRT"
    assert trial.judged[-1].detail == (
        "not tried: tried_operators:CrashesOnceAndForAll: cannot be made: RuntimeError: the device "
        "is gone, after it crashed"
    )


def test_a_crash_that_leaves_programs_behind(monkeypatch):
    """Its end is seen though they hold its connection, also when its child ends on a case."""
    monkeypatch.setattr(process, "_GLANCE", 0.1)
    few = [f"mean/stats/8x4x16x16/float64/channels_last/mean={mean}" for mean in (1, 1000)]
    trial = tried("StartsPrograms", lambda case: case.name in few)
    assert len(trial.judged) == 2
    assert {(each.verdict, each.detail) for each in trial.judged} == {(Verdict.CRASHED, "SIGABRT")}


@pytest.mark.full
def test_one_that_never_answers(monkeypatch):
    monkeypatch.setattr(process, "PATIENCE", 4.0)
    monkeypatch.setattr(process, "LITTLE_PATIENCE", 1.0)
    monkeypatch.setattr(process, "MOST_HUNG", 2)
    trial = tried("Hangs", lambda case: case.kind == "train" and case.layout == "channels_last")
    details = [each.detail for each in trial.judged if each.verdict is Verdict.HUNG]
    assert details[:2] == ["no answer in 4 s", "no answer in 1 s"]
    assert set(details[2:]) == {"not tried: 2 of its kind have hung"}
    assert trial.judged[-1].detail == details[-1]


# What might be taken for right


@pytest.fixture(scope="module")
def fooled():
    """Each of `fooling_operators` with statistics, or all, as far as a test wants it."""

    def run(name, wanted=lambda case: case.kind == "stats", only=""):
        return try_cases(f"fooling_operators:{name}", quick=True, wanted=wanted, only=only)

    return run


@pytest.mark.parametrize(
    ("name", "verdict", "reason"),
    [
        ("Raises", Verdict.REFUSED, "ValueError: grad_out: not today"),
        ("RaisesOddly", Verdict.CRASHED, "exit status 1: fooling_operators._Odd: no Exception"),
        ("ExitsInPython", Verdict.CRASHED, "exit status 0"),
        ("Exits", Verdict.CRASHED, "exit status 0"),
    ],
)
def test_what_answers_nothing(request, fooled, name, verdict, reason):
    """Its errors for wrong calls are not to its credit."""
    # What crashes is started anew for each case.
    refuses = verdict is Verdict.REFUSED
    if refuses:
        request.getfixturevalue("in_process")
    topics = (Topic.PLAIN, Topic.MASKS, Topic.MISTAKES)[: 3 if refuses or FULL else 1]
    dtypes = ("float32",) if not (refuses or FULL) else ("float64", "float32", "bfloat16")
    trial = fooled(name, lambda case: case.topic in topics and case.dtype in dtypes)
    assert not trial.passed
    assert Verdict.MET not in verdicts(trial)
    assert set(trial.silent) == set(FUNCTIONS)
    claim = report.claims(trial)[0]
    assert (claim.title, claim.holds) == ("operators", False)
    assert claim.text == (
        f"{', '.join(trial.silent)}: each answers no legal call; the first was "
        f"plain/train/3x4x5/float32/contiguous: {verdict.value}: {reason}"
    )
    findings = {finding.title: finding.first for finding in report.findings(trial)}
    for operator in FUNCTIONS:
        first = findings[f"{operator} answers no legal call"]
        assert (first.case.topic, first.verdict, first.detail) == (Topic.PLAIN, verdict, reason)
    assert report.headline(trial).startswith("batch_norm_backward, batch_norm_backward_reduce, ")
    if verdict is Verdict.REFUSED:
        wrong = [each for each in trial.judged if each.case.topic is Topic.MISTAKES]
        assert {(each.verdict, each.detail) for each in wrong} == {
            (Verdict.ABSENT, f"without its mistake the call is refused too: {reason}")
        }


@in_process
def test_what_offers_nothing(fooled):
    trial = fooled("Unwritten")
    assert not trial.passed
    assert verdicts(trial) == {Verdict.ABSENT}
    assert report.claims(trial) == [
        report.Claim(
            "operators",
            "nothing is met; the first was plain/stats/3x4x5/float32/contiguous: not offered: "
            "not implemented",
            False,
        )
    ]


@in_process
def test_what_is_not_written_yet_is_not_held_against_it(fooled):
    trial = fooled("WrittenInPart", lambda case: case.kind in ("stats", "normalise"))
    assert {"not offered: to come", "not offered: no parameter out"} <= dict(
        report.refusals(trial)
    ).keys()
    assert trial.silent == {}
    assert trial.passed
    assert report.headline(trial).startswith("no defect found, ")


@in_process
def test_functions_with_other_parameters(fooled):
    plain_ones = (Topic.PLAIN, Topic.MASKS)
    kinds = ("stats", "normalise")
    trial = fooled("OtherSignatures", lambda case: case.topic in plain_ones or case.kind in kinds)
    assert not trial.passed
    refused = "TypeError: OtherSignatures.batch_norm_elemt() takes 2 positional arguments but 6 "
    assert trial.silent["batch_norm_stats"].detail == "no parameter eps"
    assert trial.silent["batch_norm_elemt"].detail.startswith(refused)
    assert set(trial.silent) == {"batch_norm_stats", "batch_norm_elemt"}


@in_process
def test_one_that_answers_where_there_is_nothing_to_compute(fooled):
    trial = fooled("OnlyNothing", lambda case: case.kind in ("train", "eval"))
    assert verdicts(trial) >= {Verdict.MET, Verdict.REFUSED}
    assert not trial.passed
    assert list(trial.silent) == ["batch_norm_backward"]


@pytest.mark.full
def test_one_that_answers_beside_one_that_does_not(fooled):
    trial = fooled("OneAnswers", lambda case: True)
    assert not trial.passed
    assert list(trial.silent) == ["batch_norm_elemt"]
    assert [finding.title for finding in report.findings(trial)] == [
        "batch_norm_elemt answers no legal call"
    ]
    # What refuses the plain call refuses each change of it.
    told = {
        kind: {e.verdict for e in trial.judged if (e.case.topic, e.case.kind) == (MISTAKES, kind)}
        for kind in ("stats", "normalise", "forward_group_norm")
    }
    assert told == {
        "stats": {Verdict.MET},
        "normalise": {Verdict.ABSENT},
        "forward_group_norm": {Verdict.ABSENT},
    }
    # Whatever part of the suite is tried.
    assert fooled("OneAnswers", of(MISTAKES, "stats")).passed
    for kind in ("normalise", "forward_group_norm"):
        trial = fooled("OneAnswers", of(MISTAKES, kind))
        assert verdicts(trial) == {Verdict.ABSENT}
        assert not trial.passed
    assert fooled("OneAnswers", of(Topic.VECTORS, "forward_group_norm")).passed


MISTAKES = Topic.MISTAKES


@in_process
@pytest.mark.parametrize(
    ("name", "topic", "detail"),
    [
        ("ReturnsInputs", Topic.PLAIN, "mean: in the memory of input; invstd: in the memory of "),
        ("OneBuffer", Topic.DETERMINISM, "mean: a later call writes to what an earlier one retu"),
        ("Remembers", Topic.DETERMINISM, "mean: other bits with 1 threads; invstd: other bits w"),
        ("Lists", Topic.PLAIN, "its result cannot be read: TypeError: list; allowed: an array"),
        ("Objects", Topic.PLAIN, "its result cannot be read: TypeError: dtype object; allowed: "),
    ],
)
def test_results_that_are_not_the_call_s_own(fooled, name, topic, detail):
    trial = fooled(name, of(topic, "stats"))
    assert [each.verdict for each in trial.judged] == [Verdict.BROKEN]
    assert trial.judged[0].detail.startswith(detail)
    assert not trial.passed
    if FULL:  # nor of all that there is to try
        assert not fooled(name).passed


@in_process
@pytest.mark.parametrize(
    ("name", "kind", "detail"),
    [
        ("OneMemory", "reduce", "grad_bias: in the memory of sum_dy"),
        ("OverGradOut", "elemt", "grad_out: written to; grad_input: in the memory of grad_out"),
    ],
)
def test_results_in_memory_that_is_another_s(fooled, name, kind, detail):
    trial = fooled(name, of(Topic.PLAIN, kind))
    assert [(each.verdict, each.detail) for each in trial.judged] == [(Verdict.BROKEN, detail)]


SIZES, MEMORY = Topic.SIZES, Topic.MEMORY


@in_process
@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("WrongBeyond64Channels", "train"),
        ("WrongBeyond64Channels", "forward"),
        ("WrongBeyond64Channels", "stats"),
        ("WrongBeyond64Channels", "forward_layer_norm"),
        ("WrongBeyond8Groups", "group_norm"),
        ("WrongBeyond8Groups", "forward_group_norm"),
        ("WrongBeyond65536Samples", "train"),
        ("WrongBeyond65536Samples", "forward_eval"),
        ("WrongBeyond65536Samples", "forward_rms_norm"),
    ],
)
def test_what_is_wrong_beyond_a_size(fooled, name, kind):
    """A quick run shows it, and nothing else does."""
    trial = fooled(name, of(SIZES, kind))
    assert not trial.passed
    assert verdicts(trial) == {Verdict.MET, Verdict.BROKEN}
    assert fooled(name, lambda case: case.kind == kind and case.topic is Topic.PLAIN).passed


@in_process
@pytest.mark.parametrize(
    ("name", "least"), [("KeepsAnObject", (0, 1)), ("KeepsMemoryOfC", (64, 0))]
)
def test_a_leak_at_every_call(fooled, name, least):
    trial = fooled(name, of(MEMORY, "stats"))
    assert [each.verdict for each in trial.judged] == [Verdict.BROKEN]
    detail = trial.judged[0].detail
    told = re.fullmatch(r"each call leaves (\d+) bytes, and (\d+) of Python's blocks", detail)
    assert told, detail
    assert all(int(found) >= low for found, low in zip(told.groups(), least, strict=True)), detail


@in_process
@pytest.mark.parametrize("name", ["KeepsCycles", "FillsACache", "WrongBeyond8Groups"])
def test_memory_that_is_kept_for_a_while_is_no_leak(fooled, name):
    assert fooled(name, of(MEMORY, "stats")).passed


def test_a_process_that_ends_as_it_begins(fooled):
    with pytest.raises(SubjectError, match=r"^it cannot be loaded: exit status 0$"):
        fooled("ExitsWhenMade")


@pytest.mark.full
def test_nothing_is_answered_in_time(monkeypatch):
    monkeypatch.setattr(process, "PATIENCE", 5.0)
    monkeypatch.setattr(process, "LITTLE_PATIENCE", 1.0)
    trial = try_cases("tried_operators:HangsAlways", quick=True, wanted=of(Topic.VECTORS))
    assert not trial.passed
    assert verdicts(trial) == {Verdict.HUNG}
    assert trial.silent["batch_norm_backward"].detail.startswith("no answer in ")


@in_process
def test_the_name_of_a_case_is_that_case():
    """Though others have it in their names."""
    name = "values/stats/4x6x9x11/float32/contiguous"
    trial = try_cases("tried_operators:Selective", only=name)
    assert [each.case.name for each in trial.judged] == [name]
    more = try_cases("tried_operators:Selective", only=name[:-1])
    assert len(more.judged) > 3
    assert all(each.case.name.startswith(name) for each in more.judged)


@pytest.mark.full
def test_torch_s_defects_are_found():
    """What is known of PyTorch 2.13's kernels for the CPU."""
    pytest.importorskip("torch")
    wanted = (
        ("shapes/train/0x4x5/float32/contiguous", Verdict.CRASHED),
        ("shapes/train/2x0x5/float32/contiguous", Verdict.CRASHED),
        ("absent/train/3x4x25/float32/contiguous/absent=save_mean", Verdict.CRASHED),
        ("absent/eval/3x4x25/float32/contiguous/absent=running_mean", Verdict.CRASHED),
        ("masks/group_norm/3x4x5x6/float32/channels_last/groups=2/mask=011", Verdict.CRASHED),
        ("mistakes/train/3x4x5/float32/contiguous/change=grad_out: a sample short",
         Verdict.ACCEPTED),
        ("mistakes/train/3x4x5/float32/contiguous/change=weight: an element short",
         Verdict.ACCEPTED),
        ("mistakes/train/3x4x5/float32/contiguous/change=save_mean: an element short",
         Verdict.ACCEPTED),
        ("mistakes/group_norm/3x4x5/float32/contiguous/groups=2/change=num_groups: no divisor",
         Verdict.ACCEPTED),
        ("vectors/train/3x4x5x6/float32/channels_last/vectors=sliced", Verdict.BROKEN),
        ("vectors/eval/3x4x5x6/float32/channels_last/vectors=sliced", Verdict.BROKEN),
        ("vectors/group_norm/3x4x5x6/float32/contiguous/vectors=sliced/groups=2", Verdict.BROKEN),
        ("values/train/4x6x9x11/bfloat16/contiguous/x_layout=channels_last", Verdict.BROKEN),
        ("mean/group_norm/8x4x16x16/float32/contiguous/groups=2/mean=1000", Verdict.BROKEN),
        ("mean/group_norm/8x4x16x16/float32/channels_last/groups=2/mean=1000", Verdict.BROKEN),
        ("mean/forward_group_norm/8x4x16x16/float32/channels_last/groups=2/mean=1000",
         Verdict.BROKEN),
    )  # fmt: skip
    names = dict(wanted)
    trial = try_cases("torch", wanted=lambda case: case.name in names)
    assert {each.case.name: each.verdict for each in trial.judged} == names
