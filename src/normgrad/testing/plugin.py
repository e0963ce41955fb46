"""The plugin of ``pytest --pyargs normgrad.testing``: its options, and what is under test."""

from __future__ import annotations

from pathlib import Path

import pytest

from .cases import Case
from .process import Process
from .subjects import Runner, SubjectError
from .suites import cases_of, load

_RUNNER = pytest.StashKey[Runner]()
_TESTS = Path(__file__).with_name("test_backend.py")


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options."""
    group = parser.getgroup("normgrad")
    group.addoption(
        "--backend",
        "--module",
        metavar="SPEC",
        default="normgrad",
        help="what to test: module:Name (a class or object with some of the operators, or a class "
        "of torch.nn.Module), the path of a shared library, torch, or normgrad",
    )
    group.addoption("--quick", action="store_true", help="only a quarter of the cases")
    group.addoption(
        "--isolate",
        action="store_true",
        help="run the cases in a process of their own, where a crash or a hang fails one test",
    )


def pytest_configure(config: pytest.Config) -> None:
    """Load the implementation before anything is collected."""
    config.addinivalue_line(
        "markers", "case(topic, kind, operator, dtype, layout): what a case of normgrad's is about"
    )
    spec: str = config.getoption("backend")
    try:
        if config.getoption("isolate"):
            process = config.stash[_RUNNER] = Process(spec)
            config.add_cleanup(process.end)
        else:
            config.stash[_RUNNER] = load(spec)
    except SubjectError as error:
        raise pytest.UsageError(f"--backend: {error}") from None


def pytest_pycollect_makemodule(
    module_path: Path, parent: pytest.Collector
) -> pytest.Module | None:
    """Give the tests the same names wherever normgrad is installed."""
    if module_path != _TESTS:
        return None
    name = "normgrad/testing/test_backend.py"
    return pytest.Module.from_parent(parent, path=module_path, nodeid=name)


def runner_of(config: pytest.Config) -> Runner:
    """The implementation under test."""
    return config.stash[_RUNNER]


def cases_for(config: pytest.Config) -> list[Case]:
    """The cases of the operators that the implementation has."""
    runner = runner_of(config)
    return [each for each in cases_of(runner, config.getoption("quick")) if runner.has(each)]
