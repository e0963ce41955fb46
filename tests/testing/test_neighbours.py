"""What lies near the rules of the dialects' tables: each of them is just kept and just broken."""

from __future__ import annotations

import pytest

from normgrad.dialects import rules
from normgrad.dialects.aclnn import products
from normgrad.dialects.aclnn.contracts import CONTRACTS
from normgrad.dialects.infiniop import ANY_PRODUCT, CONTRACT
from normgrad.testing import aclnn_libraries, infiniop_libraries
from normgrad.testing.neighbours import breach

KINDS = {
    products.BATCH_NORM: "train",
    products.REDUCE: "reduce",
    products.ELEMT: "elemt",
    products.GROUP_NORM: "group_norm",
}
#: Each dialect's plain calls, with the tables that they keep.
CALLS = {
    "infiniop": (CONTRACT, ANY_PRODUCT, infiniop_libraries._BASE_CASE),
    **{
        f"{operator}, {product.name}": (
            CONTRACTS[operator],
            product,
            aclnn_libraries._base_case(KINDS[operator], product),
        )
        for product in products.PRODUCTS
        for operator in sorted(product.operators & {*KINDS})
    },
}


def broken_by(contract, product, request):
    """The parameter that a request breaks first, and in which respect."""
    with pytest.raises(rules.ContractError) as caught:
        rules.check(rules.BoundArguments(contract, product, request.arguments), (product,))
    return caught.value.parameter, caught.value.aspect


@pytest.mark.parametrize("name", CALLS)
def test_each_rule_is_broken_and_nothing_else_is_said_to_be(name):
    contract, product, plain = CALLS[name]
    request = plain.request()
    near = _near(name)
    assert breach(contract, product, request) is None
    found = set()
    for mistake in near.illegal.values():
        assert not mistake.computes
        found.add(broken_by(contract, product, request.changed(mistake.changes)))
    for row in contract.tensors:
        if row.when != rules.MAY_BE_NULL:
            assert (row.name, rules.Aspect.NULL) in found
        for rule in row.on(product.name).rules:
            assert (row.name, rule.aspect) in found, rule
    for scalar in contract.scalars:
        if scalar.is_pointer:
            assert (scalar.name, rules.Aspect.NULL) in found
        if isinstance(request.arguments[scalar.name], tuple):
            assert (scalar.name, rules.Aspect.VALUE) in found


@pytest.mark.parametrize("name", CALLS)
def test_what_is_kept_is_true_of_the_memory(name):
    contract, product, plain = CALLS[name]
    request = plain.request()
    for word, changes in _near(name).legal.items():
        changed = request.changed(changes)
        assert breach(contract, product, changed) is None, word
        for tensor, before in zip(changed.tensors.values(), request.tensors.values(), strict=True):
            assert tensor.array is before.array
            assert tensor.dtype_name == tensor.array.dtype.name
            view = tensor.array.reshape(tensor.dims)  # as many elements, in the same order
            assert tuple(step // view.itemsize for step in view.strides) == tensor.strides


@pytest.mark.parametrize("name", [name for name in CALLS if name != "infiniop"])
def test_every_format_that_a_table_names_is_kept(name):
    contract, product, _ = CALLS[name]
    legal = _near(name).legal
    for row in contract.tensors:
        for rule in row.on(product.name).formats:
            if not rule.text.startswith("as ") and "axes" not in rule.text:
                names = rule.text.split(", ")
                others = {f"{row.name}: {each}" for each in names if each != "ND"}
                is_alone = not any(each.text.startswith("as ") for each in row.formats)
                is_followed = any(
                    each.text == f"as {row.name}"
                    for one in contract.tensors
                    for each in one.formats
                )
                if is_alone and not is_followed:
                    assert others <= set(legal)


def _near(name):
    _, product, plain = CALLS[name]
    return (
        infiniop_libraries.near()
        if name == "infiniop"
        else aclnn_libraries.near(plain.kind, product)
    )
