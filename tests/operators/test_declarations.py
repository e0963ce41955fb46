"""New operators that consist of a declaration alone, as CONTRIBUTING.md says; and wrong ones."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from common import lay_out

from normgrad.declarations.contract import (
    GRAD_INPUT,
    GRAD_OUT,
    INPUT,
    Input,
    Kind,
    Operator,
    Output,
)
from normgrad.declarations.problem import Role
from normgrad.operators import precision
from normgrad.operators.reference import Exact
from normgrad.plans.calls import call
from normgrad.tensors import dtypes

_WEIGHT = Input("weight", Kind.CHANNEL, Role.WEIGHT)
_INVSTD = Input("invstd", Kind.CHANNEL, Role.INVSTD, required=True)

#: Batch norm's gradients with frozen statistics.
FROZEN = Operator(
    "frozen_batch_norm_backward",
    inputs=(
        GRAD_OUT, INPUT, Input("mean", Kind.CHANNEL, Role.MEAN, required=True), _INVSTD,
        _WEIGHT,
    ),
    options=("output_mask", "channel_axis"),
    all_outputs=(
        GRAD_INPUT,
        Output("grad_weight", Kind.CHANNEL, Role.GRAD_WEIGHT, ("weight", "mean"), mask=1),
        Output("grad_bias", Kind.CHANNEL, Role.GRAD_BIAS, ("weight", "mean"), mask=2),
    ),
    result=tuple,
    has_constant_statistics=True,
)  # fmt: skip

#: The gradients of an RMS norm whose groups are channels.
CHANNEL_RMS = Operator(
    "channel_rms_norm_backward",
    inputs=(GRAD_OUT, INPUT, _INVSTD, _WEIGHT),
    options=("output_mask", "channel_axis"),
    all_outputs=(
        GRAD_INPUT,
        Output("grad_weight", Kind.CHANNEL, Role.GRAD_WEIGHT, ("weight", "invstd"), mask=1),
    ),
    result=tuple,
    is_centred=False,
)


def frozen(dy, x, mean, r, w, sign):
    xmu = x + sign * mean
    return w * r * dy, (dy * r * xmu).sum((0, 2)), dy.sum((0, 2))


def channel_rms(dy, x, r, w, sign):
    projection = (dy * x * r).mean((0, 2), keepdims=True)
    return w * r * (dy + sign * x * r * projection), (dy * x * r).sum((0, 2))


@pytest.mark.parametrize("layout", ["contiguous", "channels_last"])
@pytest.mark.parametrize("shape", [(3, 5, 7), (4, 40, 600)])
@pytest.mark.parametrize("operator", [FROZEN, CHANNEL_RMS], ids=lambda operator: operator.name)
def test_a_declaration_suffices(operator, shape, layout):
    rng = np.random.default_rng(0)
    dy, x = (lay_out(rng.standard_normal(shape).astype(np.float32), layout) for _ in range(2))
    vectors = rng.random((len(operator.inputs) - 2, shape[1])).astype(np.float32) + 0.5
    formula = frozen if operator is FROZEN else channel_rms
    wide = [each.astype(np.float64) for each in (dy, x, *vectors[:, None, :, None])]
    values = formula(*wide, -1)
    scales = formula(*map(abs, wide), 1)
    mask = (True,) * len(operator.all_outputs)
    found = call(operator, (dy, x, *vectors), None, (mask, 1))
    for value, *exact in zip(found, values, scales, strict=True):
        assert precision.error(value, Exact(*exact), dtypes.float32, normal=True).max() <= 1


def test_an_unknown_option():
    with pytest.raises(
        ValueError, match=r"^frozen_batch_norm_backward: options: epsilon; allowed: "
    ):
        replace(FROZEN, options=("epsilon",))


def test_a_dtype_from_an_unknown_input():
    outputs = (GRAD_INPUT._replace(dtype_from=("gamma",)),)
    message = "grad_input: gamma; allowed: grad_out, input, invstd, weight$"
    with pytest.raises(ValueError, match=message):
        replace(CHANNEL_RMS, all_outputs=outputs)
