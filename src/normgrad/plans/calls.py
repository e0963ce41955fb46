"""The way in of the public functions: a call finds its plan in the cache, or is checked first."""

from __future__ import annotations

from operator import is_
from typing import Any

from ..declarations import contract
from ..declarations.contract import Operator
from ..tensors import frameworks
from ..tensors.frameworks import COUNTED
from .arguments import Arguments, out_tuple
from .cache import Cache
from .plan import Plan

#: The plans of calls that were checked, by all that a check and a plan depend on: the operator, the
#: arguments that are not tensors, the types of these, and the signature of the tensors.
_plans: Cache[tuple[Any, ...] | None, Plan] = Cache()
#: The types of arguments that are distinguished by their values and types.
_PLAIN = frozenset((bool, int, float, tuple, type(None)))


def call(operator: Operator, tensors: tuple[Any, ...], out: Any, choices: tuple[Any, ...]) -> Any:
    """Compute an operator on behalf of its public function.

    ``choices`` are the arguments that are not tensors.
    """
    if frameworks.compute_in_cpp is not None and type(tensors[0]) in COUNTED:
        updates = out is not None and _updates_running(operator, tensors, out)
        if updates or out is None:
            results = frameworks.compute_in_cpp(operator.name, updates, tensors, choices)
            if results is not NotImplemented:
                if updates:
                    frameworks.count_writes(results[new] for new, _ in operator.running)
                return operator.result(results)
    arguments, kinds = Arguments(tensors, out_tuple(operator, out)), _kinds(choices)
    key = None if kinds is None else (operator, choices, kinds, arguments.signature)
    plan = _plans.get(key)
    if plan is None or not plan.holds(arguments):
        plan = _checked(operator, choices, kinds, arguments)
    return plan.run_checked(arguments, None)


def _updates_running(operator: Operator, tensors: tuple[Any, ...], out: Any) -> bool:
    """Whether ``out`` is the running statistics that the call updates in place, and no more."""
    if not operator.running or not isinstance(out, (tuple, list)):
        return False
    expected = [None] * len(operator.all_outputs)
    for new, old in operator.running:
        expected[new] = tensors[old]
    return len(out) == len(expected) and all(map(is_, out, expected))


def _checked(
    operator: Operator,
    choices: tuple[Any, ...],
    kinds: tuple[Any, ...] | None,
    arguments: Arguments,
) -> Plan:
    """The plan of a call, after a check of everything but the tensors' memory."""
    options = operator.read_options(*choices)
    arguments.open(operator, operator.outputs(options))
    if kinds is None or any(value != value for value in choices):  # no other NaN equals a NaN
        choices, kinds = options, None
    key = operator, choices, kinds, arguments.signature
    plan = _plans.get(key)
    if plan is None:
        specs = arguments.specs
        outputs = contract.check(operator, options, specs, specs)
        _plans[key] = plan = Plan(operator, options, specs, outputs, device=arguments.device)
    return plan


def _kinds(values: tuple[Any, ...]) -> tuple[Any, ...] | None:
    """The types of arguments, by which 1, 1.0 and True differ; None if one is of another type."""
    kinds = tuple(map(type, values))
    if tuple in kinds:
        kinds += tuple([type(each) for value in values if type(value) is tuple for each in value])
    return kinds if _PLAIN.issuperset(kinds) else None
