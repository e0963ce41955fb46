"""Profiles of the fuzz tests, and the number of their cases at the end.

The normal suite runs a small sample, the same each time. ``pytest tests/fuzz
--hypothesis-profile=fuzz`` runs more than 100,000 cases, different ones each time.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from fuzz import ledger


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Have a pytest-xdist worker send its counts."""
    output = getattr(session.config, "workeroutput", None)
    if output is not None:
        output["fuzz"] = [[*key, n] for key, n in ledger.COUNTS.items()]


class _Workers:
    """Adds up the workers' counts."""

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any) -> None:
        for surface, outcome, n in getattr(node, "workeroutput", {}).get("fuzz", ()):
            ledger.COUNTS[surface, outcome] += n


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(_Workers())


def pytest_terminal_summary(terminalreporter: Any) -> None:
    counts: Counter[tuple[str, str]] = ledger.COUNTS
    if counts and ledger.profile() == "fuzz":
        terminalreporter.section("fuzz")
        for line in ledger.lines(counts):
            terminalreporter.line(line)
