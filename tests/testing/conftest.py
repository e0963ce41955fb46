"""What the tests of trying share: where modules are found, and our own shared libraries."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from normgrad.aclnn import products
from normgrad.capi import build


@pytest.fixture(autouse=True)
def _here(monkeypatch):
    """Modules are found where the user is."""
    monkeypatch.chdir(Path(__file__).parent)


@pytest.fixture(autouse=True)
def _no_settings(monkeypatch):
    for name in (products.PRODUCT_VARIABLE, products.SAVE_INVSTD_VARIABLE):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture(scope="session")
def ours(tmp_path_factory):
    """The folder of our own libraries."""
    if shutil.which("cc") is None:
        pytest.skip("no C compiler")
    out = tmp_path_factory.mktemp("libraries")
    build.build(out)
    return out / "lib"
