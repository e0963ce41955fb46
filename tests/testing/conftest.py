"""Fixtures of the tests of normgrad.testing: the module path, and normgrad's shared libraries."""

from __future__ import annotations

import shutil
from pathlib import Path

import c_libraries
import pytest

from normgrad.dialects.aclnn import products


@pytest.fixture(autouse=True)
def _here(monkeypatch):
    """Find modules in the current folder."""
    monkeypatch.chdir(Path(__file__).parent)


@pytest.fixture(autouse=True)
def _no_settings(monkeypatch):
    for name in (products.PRODUCT_VARIABLE, products.SAVE_INVSTD_VARIABLE):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture(scope="session")
def ours(tmp_path_factory):
    """The folder of normgrad's own shared libraries."""
    if shutil.which("cc") is None:
        pytest.skip("no C compiler")
    return c_libraries.built(tmp_path_factory) / "lib"
