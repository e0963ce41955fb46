"""Configure pytest: whether tests compute on the CPU or in Triton's interpreter, and which run.

With NORMGRAD_BACKEND=triton and TRITON_INTERPRET=1 the same tests check the GPU's kernels against
the same bounds. Tests marked ``cpu`` are about the CPU engine, or too large for an interpreter.
"""

from __future__ import annotations

import dataclasses
import os
import signal
from concurrent.futures import ThreadPoolExecutor
from importlib.util import find_spec
from pathlib import Path

import pytest
from common import FULL, INTERPRETED, sampled

from normgrad.backends.cpu.objects import store, units
from normgrad.support import torch_build

# A shell that runs the tests in the background makes them, and all processes that they start,
# ignore interrupts, but tests of interrupts need them.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# Many tests compare all that a process writes, which may be the first to need some kernel.
os.environ["NORMGRAD_QUIET"] = "1"

# PyTorch's threads would spin where its own kernels wait for each other. With as many processes as
# cores that takes most of the time: 26 ms for a batch norm of a few elements.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")

#: Folders and files whose tests name backends or private modules, so that a change there may need
#: them changed. They are marked ``internals``; the others are about what users see.
INTERNALS = {
    "backends", "support", "tensors", "test_plans.py", "test_repeated_calls.py"
}  # fmt: skip

#: The most cases of a test that run, if its cases differ only in numbers. An interpreter takes far
#: longer than a compiled kernel. With NORMGRAD_FULL=1, all cases run.
SAMPLE = 1 if INTERPRETED else 10

#: Folders and files whose tests each start a process, and so share few imports or fixtures.
APART = {"c", "cli", "examples", "faults", "test_documentation.py", "test_examples.py"}
#: Files in these folders whose tests wait for a library that one of them builds.
TOGETHER = {"test_races.py", "test_sanitizers.py"}

if INTERPRETED:
    from triton.runtime import interpreter

    # The interpreter's overflow checks take half of its time.
    builder = interpreter.interpreter_builder
    builder.options = dataclasses.replace(builder.options, sanitize_overflow=False)


def pytest_configure(config: pytest.Config) -> None:
    """With pytest-xdist's -n, run a file's tests in one process; see :func:`_keep_together`.

    Do not if a file's tests take long: in a run of all cases, or with an interpreter.
    """
    if config.getoption("dist", "no") == "load" and not (FULL or INTERPRETED):
        config.option.dist = "loadgroup"
    if not hasattr(config, "workerinput") and not INTERPRETED:
        _compile(kernels=bool(config.getoption("numprocesses", None)))


def _compile(kernels: bool) -> None:
    """Build the library that the tests of PyTorch's layers are about, before any process starts.

    One core does that. With pytest-xdist the others compile all kernels meanwhile: on demand, each
    process would start compilers for a few at a time, and some kernels be compiled by several.
    """
    with ThreadPoolExecutor(1) as pool:
        library = pool.submit(torch_build.build) if find_spec("torch") else None
        if kernels:
            store.addresses(units.every())
        if library is not None:
            library.result()


def _is_of(item: pytest.Item, names: set[str]) -> bool:
    """Whether an item is in a folder or a file of one of these names."""
    return not names.isdisjoint(item.path.relative_to(Path(__file__).parent).parts)


def _keep_together(items: list[pytest.Item]) -> None:
    """Make each file's tests a group for pytest-xdist, except for most of :data:`APART`.

    So a file's imports, compilations and fixtures are made once. Groups come first. The other tests
    then fill the processes one by one, so that all end at about the same time.
    """
    for item in items:
        if not _is_of(item, APART) or _is_of(item, TOGETHER):
            item.add_marker(pytest.mark.xdist_group(item.nodeid.partition("::")[0]))


@pytest.hookimpl(tryfirst=True)  # before pytest-xdist looks for groups
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Keep a sample of each test's cases; with Triton, also drop the tests marked ``cpu``.

    All cases of tests marked ``every_case`` run, since each tests something different. Tests marked
    ``full`` run only if all cases do.
    """
    if any(Path(__file__).parent not in item.path.parents for item in items):
        return  # pytest --pyargs normgrad.testing
    if INTERPRETED:
        reason = pytest.mark.skip(reason="of the CPU's kernels")
        for item in items:
            if item.get_closest_marker("cpu") is not None:
                item.add_marker(reason)
    cases: dict[str, list[pytest.Item]] = {}
    for item in items:
        if _is_of(item, INTERNALS):
            item.add_marker("internals")
        if item.get_closest_marker("full") is not None and not FULL:
            continue
        cases.setdefault(item.nodeid.partition("[")[0], []).append(item)
    kept: set[pytest.Item] = set()
    for name, of_one in cases.items():
        whole = of_one[0].get_closest_marker("every_case") is not None
        kept.update(of_one if whole else sampled(of_one, SAMPLE, name))
    config.hook.pytest_deselected(items=[item for item in items if item not in kept])
    items[:] = [item for item in items if item in kept]
    if config.pluginmanager.hasplugin("xdist"):
        _keep_together(items)
