"""The suites of operators and of libraries, and what can be tried with them."""

from __future__ import annotations

import re
from operator import attrgetter
from pathlib import Path

import pytest

from normgrad import testing
from normgrad.dialects.aclnn import products
from normgrad.testing import SubjectError, aclnn_libraries, infiniop_libraries, load
from normgrad.testing.cases import Topic
from normgrad.testing.loading import SUITES
from normgrad.testing.tensors import operator_of

ROOT = Path(__file__).parents[2]
A2 = {"product": products.A2, "saveInvstd": "invstd"}


def test_documents_say_how_many_cases_the_libraries_have():
    verify = (ROOT / "docs" / "verify" / "own.md").read_text("utf-8")
    assert f"# {len(SUITES['infiniop'](False, {})):,} cases\n" in verify
    assert f"# {len(SUITES['aclnn'](False, A2)):,} cases on the Atlas A2\n" in verify


@pytest.mark.parametrize("page", ["docs/verify.md", "docs/zh/verify.md"])
def test_documents_have_the_words_that_select_cases(page):
    text = (ROOT / page).read_text("utf-8")
    section = re.search(r"^### (?:Selecting cases|选择用例)$(.*?)^## ", text, re.M | re.S)[1]
    rows = re.findall(r"^\| `(\w+)` \| (.*) \|$", section, re.M)
    assert [word for word, said in rows if "`" not in said] == [topic.word for topic in Topic]
    expected = {}
    for kind in (*testing.GRADIENTS, *testing.FORWARD):
        expected.setdefault(operator_of(kind), []).append(kind)
    found = {name: re.findall(r"`(\w+)`", said) for name, said in rows if "`" in said}
    assert found == expected


@pytest.mark.parametrize("suite", [aclnn_libraries, infiniop_libraries])
def test_suites_have_every_topic_and_so_do_quick_ones(suite):
    whole, quick = suite.cases(False, A2), suite.cases(True, A2)
    assert len({case.name for case in whole}) == len(whole)
    assert {case.name for case in quick} < {case.name for case in whole}
    assert len(quick) < len(whole) / 3
    missing = {
        Topic.CONCURRENCY,
        Topic.MEMORY,
        *([Topic.MASKS] if suite is infiniop_libraries else []),
    }
    expected = set(Topic) - missing
    for cases in (whole, quick):
        assert {case.topic for case in cases} == expected
        assert {case.dtype for case in cases} == {"float32", "float16", "bfloat16"}
    for fields in (("kind",), ("layout", "x_layout")):
        values = attrgetter(*fields)
        assert set(map(values, quick)) == set(map(values, whole))


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("no_such_module:Ops", "cannot import no_such_module: ModuleNotFoundError"),
        ("tried_operators.py", "a file; allowed: its module and a name in it, such as mine:Ops"),
        (":Ops", "':Ops': no module; allowed: module:Name"),
        ("normgrad:cuda:99", "normgrad:cuda:99: device: 'cuda:99'"),
        ("tried_operators:Missing", "tried_operators has no Missing"),
        ("tried_operators:Nothing", "no operators; allowed: an object with some of batch_norm"),
        ("tried_operators:OtherFramework", "framework 'jax'; allowed: numpy, torch"),
        ("tried_operators:CannotBeMade", "cannot be made: SystemExit: no device"),
        ("tried_operators:OtherDevice", "torch on device 'nowhere' cannot be used ("),
    ],
)
def test_what_cannot_be_tried(spec, message):
    with pytest.raises(SubjectError) as caught:
        load(spec)
    assert message in str(caught.value)
