"""Profiles of the fuzz tests, and their count at the end.

The normal suite runs a small sample, the same each time. ``pytest tests/fuzz
--hypothesis-profile=fuzz`` runs 100,000 cases and more, others each time.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from fuzz import ledger


def pytest_sessionfinish(session: pytest.Session) -> None:
    """A worker of pytest-xdist sends what it has counted."""
    output = getattr(session.config, "workeroutput", None)
    if output is not None:
        output["fuzz"] = [[*key, n] for key, n in ledger.COUNTS.items()]


class _Workers:
    """Adds up what the workers send."""

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
