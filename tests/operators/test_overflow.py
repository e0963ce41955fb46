"""Outputs next to where a half type overflows: the largest number, or infinity, as both may be.

float16 has its largest number for 65520, which lies between it and infinity, and for no more.
"""

from __future__ import annotations

import numpy as np
import pytest
from common import FLOATS, HALVES, INTERPRETED, OPERATORS, make, named, run

import normgrad as ng
from normgrad.operators import precision
from normgrad.operators.reference import Exact
from normgrad.tensors import dtypes
from normgrad.testing import FORWARD

#: The largest numbers, and the numbers from which on rounding gives infinity.
LARGEST = {"float16": 65504.0, "bfloat16": (2 - 2.0**-7) * 2.0**127}
END = {"float16": 65520.0, "bfloat16": (2 - 2.0**-8) * 2.0**127}
#: The numbers of float32 next to float16's.
BELOW, ABOVE = (np.nextafter(np.float32(65520), np.float32(to)) for to in (0, np.inf))
#: The roundoffs of float32 from there on to an output. The arithmetic may err by 16 of the scale.
AWAY = (-40, 0, 40) if INTERPRETED else (-40, -2, 0, 2, 40)
#: The kinds of calls whose first output is proportional to the weight and bias.
AFFINE = tuple(kind for kind in (*OPERATORS, *FORWARD) if kind not in ("reduce", "stats", "gather"))


def every_case(test):
    """Run all cases of a test; in the interpreter, where each takes seconds, a sample."""
    return test if INTERPRETED else pytest.mark.every_case(test)


def units(value, exact, scale, dtype="float16", arithmetic=dtypes.float32):
    """The error of one number."""
    found, wanted, size = (np.array([each]) for each in (value, exact, scale))
    return precision.error(found.astype(FLOATS[dtype]), Exact(wanted, size), arithmetic)[0]


@pytest.mark.parametrize("sign", [1, -1])
@pytest.mark.parametrize("dtype", HALVES)
def test_what_the_bound_allows(dtype, sign):
    largest, end = sign * LARGEST[dtype], sign * END[dtype]
    inf, ulp = sign * np.inf, end * 2.0**-24
    for away, largest_may_be, inf_may_be in (
        (-17, True, False), (-15, True, True), (0, True, True), (15, True, True), (17, False, True)
    ):  # fmt: skip
        exact = end + away * ulp
        assert (units(largest, exact, abs(end), dtype) <= 1) == largest_may_be, away
        assert units(inf, exact, abs(end), dtype) == (0 if inf_may_be else np.inf), away
        for other in (-inf, np.nan, -largest, largest * (1 - 2.0**-6)):
            assert units(other, exact, abs(end), dtype) > 1, (away, other)
    # The scale decides, and the arithmetic.
    assert units(inf, end - 40 * ulp, 3 * abs(end), dtype) == 0
    assert units(largest, end + 40 * ulp, 3 * abs(end), dtype) <= 1
    assert units(inf, end - ulp, abs(end), dtype, dtypes.float64) == np.inf


@pytest.mark.parametrize("exact", [np.inf, -np.inf, np.nan])
def test_an_infinity_of_the_formula_allows_every_other_and_nan(exact):
    """The order of evaluation decides which it is."""
    for value in (np.inf, -np.inf, np.nan):
        assert units(value, exact, np.inf) == 0
    for value in (LARGEST["float16"], -1, 0):
        assert units(value, exact, np.inf) == np.inf


@pytest.mark.parametrize("sign", [1, -1])
@pytest.mark.parametrize("length", [1, 7, 33, 64])
def test_a_result_that_float32_rounds_to_the_end(length, sign):
    """The exact value is 65519.998046875: halfway between two numbers of float32."""
    weight, bias, mean, invstd = np.array([[sign], [sign * 65519.99609375], [0], [2.0**-9]], "f4")
    x = np.ones((2, 1, length), np.float16)
    output = ng.batch_norm_elemt(x, weight, bias, mean, invstd)
    np.testing.assert_array_equal(output, np.full_like(x, sign * 65504))


@every_case
@pytest.mark.parametrize("layout", ["contiguous", "channels_last"])
@pytest.mark.parametrize("kind", AFFINE)
def test_float16_overflows_from_above_65520_on(kind, layout):
    """Outputs that are ± the weight, or the bias, in float32 and float64 arithmetic."""
    forward = kind in FORWARD
    # Along each axis gradients add up to 0.
    signs = (-1.0) ** np.indices((2, 4, 70)).sum(0)
    for number, expected in (
        *((BELOW, 65504), (65520, 65504), (ABOVE, np.inf), (65536, np.inf), (1e30, np.inf)),
        *(((np.inf, np.inf), (-np.inf, -np.inf), (-65520, -65504)) if forward else ()),
    ):  # fmt: skip
        for dtype in ("float16",) if forward else ("float16", "float64"):
            case = make(kind, signs.shape, dtype=dtype, x_dtype="float16", layout=layout)
            for name, tensor in case.tensors.items():
                if name in ("weight", "bias"):
                    case.tensors[name] = np.full(tensor.shape, number, np.float32)
                elif name != "count":
                    tensor[...] = name in ("save_invstd", "invstd", "rstd")
            if kind == "forward_rms_norm":
                case.tensors["input"][...] = 1
            elif forward:
                for name in {"weight"} & case.tensors.keys():
                    case.tensors[name][...] = 1
            else:
                case.tensors["grad_out"][...] = signs
            if {"eps", "training"} & case.options.keys():  # 1/std is 1
                case.options["eps"] = float(kind != "forward_rms_norm")
            with np.errstate(all="ignore"):
                output = np.asarray(next(iter(named(case.call()).values())))
            assert output.dtype == np.float16
            wanted = np.full_like(output, expected) if forward else expected * signs
            np.testing.assert_array_equal(output, wanted, err_msg=f"{number} {dtype}")


@every_case
@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("kind", AFFINE)
def test_data_outputs(kind, dtype):
    found = []
    for away in AWAY:
        # No intermediate may overflow: in forward passes w·r, in gradients sums of w·dy.
        case = make(kind, (2, 2, 6), dtype=dtype, std=2.0 if kind in FORWARD else 0.25)
        name = case.results[0]
        for each in {"weight"} & case.tensors.keys():
            case.tensors[each] = np.sign(case.arrays[each])
        exact = case.exact()[name].value
        place = np.unravel_index(np.argmax(abs(exact)), exact.shape)
        factor = END[dtype] * (1 + away * 2.0**-24) / abs(exact[place])
        for each in {"weight", "bias"} & case.tensors.keys():
            case.tensors[each] = (factor * case.arrays[each]).astype(np.float32)
        exact = case.exact()[name].value
        assert abs(abs(exact[place]) / END[dtype] * 2.0**24 - 2.0**24 - away) < 4
        found.append(np.isinf(np.asarray(next(iter(named(run(case)).values())))[place]))
    assert not found[0]
    assert found[-1]


@every_case
@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("kind", ["train", "eval", "group_norm", "layer_norm"])
def test_sums(kind, dtype):
    """Gradients of a bias in a half type, which are sums of three halves of dy."""
    largest, step = LARGEST[dtype], END[dtype] - LARGEST[dtype]
    found = []
    for last in (0, 1 - 2.0**-7, 1, 1 + 2.0**-7, 2):
        case = make(kind, (3, 2), dtype=dtype, parameter_dtype=dtype)
        terms = [largest, step * (1 - 2.0**-7), step * 2.0**-7 * last]
        case.tensors["grad_out"][:, 0] = terms
        exact = case.exact()["grad_bias"]
        assert exact.value[0] == sum(terms)
        with np.errstate(all="ignore"):
            value = np.asarray(named(case.call())["grad_bias"])
        assert precision.error(value, exact, case.arithmetic).max() <= 1
        found.append(np.isinf(value[0]))
    assert not found[0]
    assert found[-1]
