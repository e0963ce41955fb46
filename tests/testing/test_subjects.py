"""Implementations in this process: what each defect is called, and how grave it is."""

from __future__ import annotations

import re

import numpy as np
import pytest
from trials import of, tried, words

import normgrad as ng
from normgrad import testing
from normgrad.testing import Level, Topic

WRONG, BEYOND, CONVENTION = Level
MASKED = "masks/train/3x4x5x6/float32/contiguous/mask=111"


def trial(name, wanted, quick=True):
    return tried(f"tried_operators:{name}", wanted, quick)


@pytest.mark.parametrize("name", ["Right", "right"])
def test_a_right_implementation_meets_what_it_offers(name):
    judged = trial(name, lambda case: case.topic in (Topic.MASKS, Topic.ABSENT))
    assert words(judged) == {"passed"}
    assert {each.case.operator for each in judged} == {"batch_norm_backward"}
    assert all(str(each) == "passed" and each.units <= 1 for each in judged)


@pytest.mark.parametrize(
    ("name", "wanted", "level", "said"),
    [
        ("OtherDtype", MASKED, WRONG, "grad_input: other dtype: dtype float64; allowed: float32"),
        ("TooFew", MASKED, WRONG, "grad_bias: not there"),
        ("OtherShape", MASKED, WRONG, "grad_input: other shape: shape (1, 3, 4, 5, 6); allowed: ("),
        ("WritesToInputs", MASKED, WRONG, "input: written to"),
        ("NoTensors", of(Topic.PLAIN), WRONG, "its result cannot be read: TypeError: int; allowed"),
        ("Lists", of(Topic.PLAIN), WRONG, "its result cannot be read: TypeError: list; allowed: "),
        ("Objects", of(Topic.PLAIN), WRONG, "its result cannot be read: TypeError: dtype object;"),
        ("Integers", of(Topic.PLAIN), WRONG, "mean: other dtype: dtype int64; allowed: float32, f"),
        ("ReturnsInputs", of(Topic.PLAIN), WRONG, "mean: in the memory of input; invstd: in the "),
        ("Refuses", of(Topic.PLAIN, kind="stats"), WRONG, "refuses a legal call: ValueError: grad"),
        ("OtherSignatures", of(Topic.PLAIN, kind="stats"), WRONG, "batch_norm_stats lacks a param"),
        ("OtherSignatures", of(Topic.PLAIN, kind="normalise"), WRONG, "refuses a legal call: Type"),
        ("Inexact", MASKED, BEYOND, "grad_weight: 4 of 4 beyond the bound, first at channel"),
    ],
)  # fmt: skip
def test_what_is_not_as_it_must_be(name, wanted, level, said):
    is_named = isinstance(wanted, str)
    judged = trial(name, (lambda case: case.name == wanted) if is_named else wanted)
    assert judged
    for each in judged:
        assert each.level is level
        assert str(each).startswith(f"{level.value}: {said}")


def test_what_an_implementation_lacks_is_not_held_against_it():
    judged = trial("Selective", of(Topic.VALUES, Topic.SHAPES, kind="stats"))
    assert words(judged) == {"passed", "not offered", "wrong"}
    absent = {each.absent for each in judged if each.absent}
    assert absent == {"float32 alone", "no parameter channel_axis"}
    # But it takes some other thing for wrong. Numbers do not make that several.
    whats = {fault.what for each in judged for fault in each.faults}
    assert whats == {"refuses a legal call: RuntimeError: four axes alone, not"}
    assert words(trial("Unwritten", of(kind="stats"))) == {"not offered"}


def test_statistics_that_have_a_meaning_in_normgrad_alone():
    """To refuse them, or to give them another meaning, is a convention."""
    judged = trial("Refuses", of(Topic.PLAIN, Topic.ABSENT, operator="batch_norm_backward"))
    levels = {(each.case.kind, each.case.absent): each.level for each in judged}
    assert levels["train_without_statistics", ()] is CONVENTION
    assert levels["eval", ("running_mean",)] is CONVENTION
    assert levels["eval", ()] is levels["train", ("weight",)] is WRONG


def test_wrong_calls_that_give_results_are_conventions():
    judged = trial("Careless", of(Topic.MISTAKES), quick=False)
    accepted = {each.case.change for each in judged if each.level is CONVENTION}
    assert accepted >= {
        "grad_out: a sample short",
        "input: int32",
        "mean: an element short",
        "weight: an element short",
        "sum_dy: an element long",
    }
    assert words(judged) == {"passed", "another convention", "not offered"}


def test_an_error_for_every_call_shows_nothing():
    judged = trial("Refuses", of(Topic.MISTAKES, kind="stats"))
    assert {each.absent for each in judged} == {
        "without its mistake the call is wrong: refuses a legal call: ValueError: grad_out: not "
        "today"
    }


def test_random_numbers_that_a_call_draws():
    class Draws:
        def batch_norm_stats(self, input, *, eps=1e-5):
            np.random.random()
            return ng.batch_norm_stats(input, eps=eps)

    (case,) = testing.cases(kinds=("stats",))[:1]
    assert str(testing.run(case, Draws)) == "wrong: changes NumPy's random numbers"


@pytest.mark.parametrize(
    ("name", "least"), [("KeepsAnObject", (0, 1)), ("KeepsMemoryOfC", (64, 0))]
)
def test_a_leak_at_every_call(name, least):
    judged = trial(name, of(Topic.MEMORY))[0]
    told = re.fullmatch(
        r"wrong: keeps memory: each call leaves (\d+) bytes, and (\d+) of Python's blocks",
        str(judged),
    )
    assert told, judged
    assert all(int(found) >= low for found, low in zip(told.groups(), least, strict=True)), judged


@pytest.mark.parametrize("name", ["KeepsCycles", "FillsACache"])
def test_memory_that_is_kept_for_a_while_is_no_leak(name):
    assert words(trial(name, of(Topic.MEMORY))) == {"passed"}


@pytest.mark.full
def test_torch_s_defects_are_found():
    """What is known of PyTorch 2.13's kernels for the CPU, but for what ends the process."""
    pytest.importorskip("torch")
    wanted = (
        "mean/forward_group_norm/8x4x16x16/float32/channels_last/groups=2/mean=1000",
        "special/layer_norm/65536x2x2/bfloat16/contiguous/change=long sums of one sign",
    )
    judged = tried("torch", lambda case: case.name in wanted)
    assert [each.level for each in judged] == [WRONG, WRONG]
