"""normgrad passes the cases of `normgrad verify`; so do a GPU's kernels, in the interpreter.

What is tested here stands nowhere else: every kind of call in every dtype and layout, with masks,
absent tensors, given outputs, special values and mistakes (see normgrad/testing/operator_suite.py).
"""

from __future__ import annotations

import contextlib
import math

import pytest
from common import INTERPRETED, cut_finely, run, sampled

from normgrad import testing
from normgrad.testing import operator_suite
from normgrad.testing.cases import Topic

pytestmark = pytest.mark.every_case

OURS = testing.load("normgrad")
#: What an interpreter takes long for, and topics that are not about kernels.
LARGEST = 1500
#: The elements of cases of which a sample runs here, too.
LARGE = 100_000
NOT_OF_KERNELS = {Topic.MISTAKES, Topic.DETERMINISM, Topic.CONCURRENCY, Topic.MEMORY}


def check(case, context=contextlib.nullcontext):
    with context():
        judged = testing.run(case, OURS)
        assert judged.passed, f"{case}: {judged}"
        if case.topic is Topic.SPECIAL:  # the same infinities and NaNs as the formula's
            run(case.call())


@pytest.mark.cpu
@pytest.mark.parametrize("topic", [each for each in Topic if each is not Topic.MISTAKES])
def test_a_quick_run(topic):
    cases = [case for case in testing.cases(quick=True) if case.topic is topic]
    large = [case for case in cases if math.prod(case.shape) > LARGE]
    for case in cases:
        if case not in large:
            check(case)
    for case in sampled(large, 16, topic):
        check(case)


@pytest.mark.cpu
def test_every_mistake_is_refused_by_name():
    for case in testing.cases():
        if case.topic is Topic.MISTAKES:
            check(case)


@pytest.mark.parametrize("kind", operator_suite.KINDS)
@pytest.mark.parametrize("topic", [each for each in Topic if each not in NOT_OF_KERNELS])
def test_a_sample(topic, kind):
    """Cut as large tensors are, or small ones computed by the interpreter."""
    cases = operator_suite.part(topic, kind)
    if INTERPRETED:
        cases = (case for case in cases if math.prod(case.shape) <= LARGEST)
    for case in sampled(cases, 1 if INTERPRETED else 4, f"{topic} {kind}"):
        check(case, contextlib.nullcontext if INTERPRETED else cut_finely)
