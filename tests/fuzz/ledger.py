"""What the cases of this folder came to: counted by surface and outcome, over all processes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

from hypothesis import HealthCheck, settings

#: The profiles, and about how many cases all tests of this folder have together in each.
TOTALS = {"sample": 1_000, "fuzz": 110_000}

_COMMON: dict[str, Any] = {
    "deadline": None,  # first calls compile
    "database": None,
    "print_blob": True,
    "suppress_health_check": list(HealthCheck),
}
settings.register_profile("sample", derandomize=True, **_COMMON)
settings.register_profile("fuzz", **_COMMON)

#: Shares of all the cases add up to this.
_WHOLE = 1360


def profile() -> str:
    """The profile that the tests run under: "sample", unless --hypothesis-profile asks for more."""
    return "fuzz" if settings.get_current_profile_name() == "fuzz" else "sample"


#: (surface, outcome) → cases.
COUNTS: Counter[tuple[str, str]] = Counter()


def cases(share: float) -> Callable[[Any], Any]:
    """Settings for a test that has this share, of :data:`_WHOLE`, of all cases.

    The shares of a test that is parametrised count for each of its parameters.
    """
    most = max(1, round(TOTALS[profile()] * share / _WHOLE))
    return settings(settings.get_profile(profile()), max_examples=most)


def count(surface: str, outcome: str) -> None:
    """One more case: "accepted", or how it was refused."""
    COUNTS[surface, outcome] += 1


def lines(counts: Counter[tuple[str, str]]) -> list[str]:
    """A line for each surface, and one for all."""
    told = []
    for surface in sorted({surface for surface, _ in counts}):
        of_it = {outcome: n for (name, outcome), n in sorted(counts.items()) if name == surface}
        told.append(_line(surface, of_it))
    outcomes: Counter[str] = Counter()
    for (_, outcome), n in counts.items():
        outcomes[outcome.split(":")[0]] += n
    return [*told, _line("all", outcomes)]


def _line(name: str, outcomes: Any) -> str:
    listed = ", ".join(f"{n} {outcome}" for outcome, n in sorted(outcomes.items()))
    return f"{name}: {sum(outcomes.values())} cases: {listed}"


def refusal(call: Callable[[], Any]) -> Exception | None:
    """The TypeError or ValueError that a call raises; None if it raises none.

    Whatever else it raises is a defect, and goes on.
    """
    try:
        call()
    except (TypeError, ValueError) as error:
        return error
    return None
