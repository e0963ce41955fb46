"""The entry point that loads the plugin for ``pytest --pyargs normgrad.testing`` alone.

This module is what every run of pytest imports where normgrad is installed, so it imports nothing.
"""

from __future__ import annotations

from typing import Any

#: What is named on the command line, and the module whose tests that stands for.
_NAMED, _MODULE = "normgrad.testing", "normgrad.testing.test_subject"


def pytest_load_initial_conftests(early_config: Any, args: list[str]) -> None:
    """Load the plugin if the tests of ``normgrad.testing`` are asked for.

    Elsewhere its options might clash with those of the project whose tests run.
    """
    indices = [index for index, each in enumerate(args) if each.partition("::")[0] == _NAMED]
    for index in indices:  # a module is collected whatever names pytest's settings give test files
        args[index] = args[index].replace(_NAMED, _MODULE, 1)
    if indices:
        early_config.pluginmanager.import_plugin("normgrad.testing.plugin")
