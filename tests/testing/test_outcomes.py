"""What a call's outcome is worth: levels of faults, and errors in units of two bounds."""

from __future__ import annotations

import re

import numpy as np
import plain_operators
import pytest
from common import HALVES, Producer, sampled
from trials import of, tried

import normgrad as ng
from normgrad import testing
from normgrad.operators import precision, reference
from normgrad.operators.reference import Exact
from normgrad.tensors import dtypes
from normgrad.testing import Level, Topic
from normgrad.testing.changes import LONG_SUMS
from normgrad.testing.judging import _factor
from normgrad.testing.outcomes import convention, wrong

WRONG, BEYOND, CONVENTION = Level
U32, UBF16 = 2.0**-24, 2.0**-8


# Verdicts


def test_the_gravest_fault_is_the_level():
    case = testing.cases()[0]
    faults = (convention("other bits"), testing.Fault(BEYOND, "output"), wrong("input: written to"))
    for some, level in ((faults, WRONG), (faults[:2], BEYOND), (faults[:1], CONVENTION)):
        judged = testing.Judged(case, some)
        assert (judged.level, judged.word, judged.passed) == (level, level.value, False)
    assert testing.Judged(case).word == "passed"
    absent = testing.Judged(case, absent="no operator")
    assert (absent.level, absent.word, absent.passed) == (None, "not offered", False)
    assert str(testing.Judged(case, faults[1:])) == "wrong: output; input: written to"


def test_all_faults_of_a_strict_implementation_are_wrong():
    case = testing.cases(kinds=("stats",))[0]
    outcome = testing.Outcome(faults=(convention("other bits"),), error=("ValueError", "no"))
    assert [each.level for each in testing.judge(case, outcome).faults] == [CONVENTION, WRONG]
    assert {each.level for each in testing.judge(case, outcome, strict=True).faults} == {WRONG}
    mistake = next(case for case in testing.cases(kinds=("stats",)) if case.is_mistake)
    unnamed = testing.Outcome(error=("RuntimeError", "no"))
    assert testing.judge(mistake, unnamed).passed
    assert testing.judge(mistake, unnamed, strict=True).level is WRONG
    assert testing.judge(mistake, testing.Outcome(), strict=True).level is WRONG


def test_a_wrong_call_is_checked_beside_the_right_one():
    class Refuses:
        def batch_norm_stats(self, input, *, eps):
            raise TypeError("input: no")

    cases = [case for case in testing.cases() if case.kind == "stats"]
    mistake = next(case for case in cases if case.change == "input: int32")
    assert testing.run(mistake, ng).passed
    assert testing.run(mistake, Refuses).word == "not offered"


@pytest.mark.parametrize(("fills", "level"), [(np.resize, CONVENTION), (None, WRONG)])
def test_what_is_read_past_an_end_is_no_convention(fills, level):
    """NaN lies there."""

    class Takes:
        def batch_norm_elemt(self, input, weight, bias, mean, invstd):
            if weight.shape != bias.shape:
                past = np.lib.stride_tricks.as_strided(weight, bias.shape)
                weight = np.resize(weight, bias.shape) if fills else past
            return ng.batch_norm_elemt(input, weight, bias, mean, invstd)

    change = "weight: an element short"
    (judged,) = tried(Takes, of(kind="normalise", change=change), quick=False)
    assert judged.level is level
    words = "accepts a wrong call" if fills else "reads past the end of weight"
    assert judged.faults[0].what == words


# What a function returned


def of_torch(result):
    torch = pytest.importorskip("torch")
    return tuple(map(torch.from_numpy, result))


def a_case_and_its_result():
    case = next(iter(testing.cases(kinds=("stats",))))
    call = case.call()
    return case, ng.batch_norm_stats(**call.tensors, **call.options)


@pytest.mark.parametrize("change", [tuple, lambda found: list(map(Producer, found)), of_torch])
def test_a_result_is_judged_by_itself(change):
    case, found = a_case_and_its_result()
    assert str(testing.check(case, change(found))) == "passed"
    judged = testing.check(case, change((found.mean, found.invstd * 2)))
    assert judged.level is WRONG
    assert str(judged).startswith("wrong: invstd: 4 of 4 wrong, first at channel 0; worst at chann")
    assert str(testing.check(case, change((found.mean,)))) == "wrong: invstd: not there"


def test_numbers_and_places_of_many_channels():
    """The first wrong element, which tells more of a cause than the worst."""
    case = next(e for e in testing.cases(kinds=("stats",)) if e.shape[1] == 1025)
    call = case.call()
    mean, invstd = ng.batch_norm_stats(**call.tensors, **call.options)
    wrong = invstd.copy()
    wrong[1000:] *= np.arange(2, 27, dtype=wrong.dtype)
    said = str(testing.check(case, (mean, wrong)))
    first = "wrong: invstd: 25 of 1,025 wrong, first at channel 1,000; worst at channel 1,0"
    assert said.startswith(first), said


def test_a_call_is_said_as_it_is_written():
    case, _ = a_case_and_its_result()
    assert str(case.call()) == "batch_norm_stats(float32(3, 4, 5), eps=1e-05)"


def test_factors_have_the_digits_that_tell_them_from_what_is_allowed():
    assert [
        _factor(each) for each in (0.99999, 1.0, 1.0096243726663483, 1.00012, 733.44, np.inf)
    ] == [f"{each} times" for each in ("1", "1", "1.01", "1.0001", "733", "inf")]
    assert _factor(np.nextafter(1, 2)) == "1.0000000000000002 times"


def test_what_is_no_tensor_is_named():
    case, found = a_case_and_its_result()
    with pytest.raises(TypeError, match=r"^float; allowed: an array or a tensor$"):
        testing.check(case, (found.mean, 1.0))
    message = "^result: an int; allowed: a sequence of tensors, for mean, invstd$"
    with pytest.raises(TypeError, match=message):
        testing.check(case, 3)


def test_an_error_may_be_the_result():
    refusal = ValueError("input: no")
    case, found = a_case_and_its_result()
    assert str(testing.check(case, refusal)).startswith("wrong: refuses a legal call: ValueError: ")
    cases = testing.cases(kinds=("stats",))
    mistake = next(case for case in cases if case.change == "input: int32")
    assert str(testing.check(mistake, refusal)) == "passed: ValueError: input: no"
    accepted = testing.check(mistake, found)
    assert str(accepted) == "another convention: accepts a wrong call: input: int32"


# Levels of errors

LEGAL = [topic for topic in Topic if topic is not Topic.MISTAKES]
QUICK = testing.cases(quick=True)


@pytest.mark.parametrize("kind", ["Plain", "Narrow"])
def test_plainly_good_code_is_never_wrong(kind):
    """In float64, rounded once; and in float32, term by term, but for what float64 must keep."""
    operators = getattr(plain_operators, kind)
    names = {name for name in vars(plain_operators.Plain) if "norm" in name}
    some = [case for case in QUICK if case.operator in names]
    if kind == "Narrow":
        some = [case for case in some if "float64" not in (case.dtype, case.x_dtype)]
    chosen = {case.name for case in sampled(some, 120, kind)}
    judged = tried(operators, lambda case: case.name in chosen)
    assert [each for each in judged if each.level is WRONG] == []
    levels = {each.level for each in judged}
    assert levels == {None, CONVENTION, *([BEYOND] if kind == "Narrow" else [])}


MANY_ROWS = (1 << 16, 2, 2)


@pytest.mark.parametrize(
    ("name", "kind", "fields"),
    [
        ("SumsInHalves", "layer_norm", {"change": LONG_SUMS, "shape": MANY_ROWS}),
        ("SumsInHalves", "train", {"change": LONG_SUMS, "shape": MANY_ROWS}),
        ("Squares", "forward", {"dtype": "float32", "mean": 1e4}),
        ("Squares", "forward_layer_norm", {"dtype": "float32", "mean": 1e5}),
    ],
)
def test_inaccurate_code_is_wrong(name, kind, fields):
    judged = tried(getattr(plain_operators, name), of(kind=kind, **fields), quick=False)
    if name == "SumsInHalves":
        judged = [each for each in judged if each.case.dtype in HALVES]
    assert [each.level for each in judged] == [WRONG, WRONG]


def test_halves_that_are_rounded_twice_are_beyond_the_bound():
    kinds = ("forward", "forward_group_norm", "forward_layer_norm")
    judged = tried(
        plain_operators.RoundsTwice,
        lambda case: case.topic is Topic.VALUES and case.kind in kinds,
    )
    by_dtype = {case: set() for case in ("float16", "bfloat16", "float32", "float64")}
    for each in judged:
        by_dtype[each.case.dtype].add(each.level)
    assert BEYOND in by_dtype["float16"] & by_dtype["bfloat16"]
    assert by_dtype["float16"] | by_dtype["bfloat16"] == {None, BEYOND}
    assert by_dtype["float32"] == by_dtype["float64"] == {None}


# The unit of plain code


def plain_units(actual, scale, plain=None, data=dtypes.float32, terms=100, one_way=False):
    exact = Exact(*(None if e is None else np.array([e]) for e in (1.0, scale, plain)))
    actual = np.array([actual], getattr(actual, "dtype", np.float32))
    (units,) = precision.plain_error(actual, exact, dtypes.float32, data, terms, one_way)
    return units


def test_plain_code_is_off_by_sixteen_roundoffs_and_the_root_of_the_terms():
    """36 roundoffs of the scale for 100 terms; 2⁻¹⁹ are 32 of float32's."""
    actual = np.float32(1 + 2**-19)
    assert plain_units(actual, 1.0) == pytest.approx(32 / 36)
    assert plain_units(actual, 2.0) == pytest.approx(16 / 36)
    assert plain_units(actual, 1.0, terms=1) == pytest.approx(32 / 18)
    # The plain scale, where there is one; all terms, where roundings go one way.
    assert plain_units(actual, 1.0, 4.0) == pytest.approx(8 / 36)
    assert plain_units(actual, 1.0, one_way=True) == pytest.approx(32 / 116)


def test_plain_code_rounds_halves_four_times():
    off = 1 + 8 * UBF16
    both = 4 * UBF16 + 36 * U32
    assert plain_units(np.float32(off), 1.0, data=dtypes.bfloat16) == pytest.approx(
        8 * UBF16 / both
    )
    assert plain_units(np.array(off, dtypes.bfloat16.numpy), 1.0) == pytest.approx(8 * UBF16 / both)
    # The scale itself: that of the terms apart says how the mean is rounded, which is no half.
    wide = plain_units(np.float32(off), 1.0, 4.0, data=dtypes.bfloat16)
    assert wide == pytest.approx(8 * UBF16 / (4 * UBF16 + 4 * 36 * U32))


def test_plain_code_may_overflow_only_near_the_largest_number():
    most = float(np.finfo(np.float16).max)
    for value, units in ((most, 0.0), (most / 2, np.inf)):
        exact = Exact(np.array([value]), np.array([value]))
        actual = np.array([np.inf], np.float16)
        (found,) = precision.plain_error(actual, exact, dtypes.float32, dtypes.float16, 1)
        assert found == units


def test_the_plain_scale_has_the_mean_as_a_term_of_its_own():
    """The data 9 and 11: mean 10, x − mean 1, 1/std 1."""
    x, zero = np.array([[9.0, 11.0]], np.float32).T, np.zeros(1, np.float32)
    found = reference.batch_norm(x, training=True, eps=0.0, running_var=zero, momentum=1.0)
    output, mean, invstd = (found[name] for name in ("output", "mean", "invstd"))
    assert output.value.ravel().tolist() == [-1, 1]
    assert output.scale.ravel().tolist() == [2, 2]  # |x − μ| + Σ|x − μ|/m
    assert output.plain.ravel().tolist() == [2 + 9 + 10, 2 + 11 + 10]
    assert (mean.value, mean.scale, mean.plain) == (10, 10, None)
    assert (invstd.value, invstd.scale, invstd.plain) == (1, 1, 1 + 10)
    var = found["running_var"]
    assert (var.value, var.scale, var.plain) == (2, 2, 2 * (1 + 10))
    given = reference.batch_norm_elemt(x, None, None, zero + 10, zero + 1)["output"]
    assert given.scale.ravel().tolist() == [1, 1]
    assert given.plain.ravel().tolist() == [19, 21]
    dy = np.array([[1.0, 2.0]], np.float32).T
    sums = reference.batch_norm_backward_reduce(dy, x, zero + 10, zero + 1)["sum_dy_xmu"]
    assert (sums.value, sums.scale) == (1, 3)
    assert sums.widest == pytest.approx(3 + 1 * 19 + 2 * 21, abs=1e-6)  # a difference quotient


# What may be compared


@pytest.mark.parametrize("shape", [(3,), (1, 3), ()])
def test_an_output_of_another_shape_is_an_error(shape):
    """Which NumPy would broadcast."""
    exact, actual = Exact(np.zeros((2, 3)), np.ones((2, 3))), np.zeros(shape, np.float32)
    message = re.escape(f"actual: shape {shape}; allowed: (2, 3)")
    with pytest.raises(ValueError, match=f"^{message}$"):
        precision.error(actual, exact, dtypes.float32)
    with pytest.raises(ValueError, match=f"^{message}$"):
        precision.plain_error(actual, exact, dtypes.float32, dtypes.float32, 1)


def test_dtypes_may_be_names_and_numpy_s():
    exact, actual = Exact(np.ones(1), np.ones(1)), np.full(1, 1 + 2**-20, np.float32)
    for spelling in (dtypes.float32, "float32", np.float32, np.dtype(np.float32)):
        assert precision.error(actual, exact, spelling) == 1.0 == 2**-20 / (16 * U32)
        assert precision.plain_error(actual, exact, spelling, spelling, 1) == 16 / 18
        assert precision.bound(exact, "bfloat16", spelling) > precision.bound(
            exact, spelling, spelling
        )


@pytest.mark.parametrize("dtype", ["bfloat16", np.int32, None, ">f4"])
def test_an_arithmetic_of_another_dtype_is_an_error(dtype):
    exact, actual = Exact(np.ones(1), np.ones(1)), np.ones(1, np.float32)
    message = re.escape(f"arithmetic: dtype {dtype}; allowed: float32, float64")
    with pytest.raises(TypeError, match=f"^{message}$"):
        precision.error(actual, exact, dtype)


@pytest.mark.parametrize("dtype", ["int64", "complex64", ">f4"])
def test_an_output_of_another_dtype_is_an_error(dtype):
    exact, actual = Exact(np.ones(1), np.ones(1)), np.ones(1, dtype)
    message = f"^actual: dtype {dtype}; allowed: float32, float16, bfloat16, float64$"
    with pytest.raises(TypeError, match=message):
        precision.error(actual, exact, dtypes.float32)


def test_the_oracle_refuses_rows_that_the_input_does_not_have():
    x = np.ones((2, 3, 4), np.float32)
    for row in (3, (2, 4), (2, 3, 4, 1)):
        with pytest.raises(ValueError, match=r"^normalized_shape: \(.*\); allowed: the last axes "):
            reference.layer_norm(x, row)
    with pytest.raises(ValueError, match=r"^normalized_shape: \(4, 4\); allowed: the last axes "):
        reference.layer_norm(x[0, 0], (4, 4))
    for row in (4, np.int64(4), (4,), [3, 4], (2, 3, 4)):
        assert reference.rms_norm(x, row)["output"].value.shape == x.shape
