"""The libraries of `nox -s models`."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")
import public_models


@pytest.fixture(scope="session")
def library():
    """The libraries' modules, by name."""
    return public_models.library
