"""``python -m normgrad.cli``."""

from __future__ import annotations

from . import main

main()
