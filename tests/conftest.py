"""What decides where the tests compute: on the CPU, or by Triton's interpreter.

With NORMGRAD_BACKEND=triton and TRITON_INTERPRET=1 the same tests hold the GPU's kernels to the
same bounds. Those marked ``cpu`` are about the CPU's own ways, or too large for an interpreter.
"""

from __future__ import annotations

import dataclasses
import signal

import mapped_pages
import pytest
from support import FULL, INTERPRETED, sampled

# Whoever runs the tests in the background of a shell has them, and all that they start, ignore
# interrupts; those that are about interrupts want them.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

#: The most cases of a test that run, of those that differ in numbers alone. An interpreter takes
#: far longer than a compiled kernel. NORMGRAD_FULL=1 has all cases run.
SAMPLE = 1 if INTERPRETED else 16

if INTERPRETED:
    from triton.runtime import interpreter

    # Its checks of overflow take half of the time.
    builder = interpreter.interpreter_builder
    builder.options = dataclasses.replace(builder.options, sanitize_overflow=False)


@pytest.fixture
def mapped():
    """Maps memory, of so many bytes, from a file or from none; unmapped at the end."""
    with mapped_pages.mapping() as make:
        yield make


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out all but a sample of each test's cases, and what is the CPU's where Triton computes.

    Tests marked ``every_case``, whose cases are about different things, run whole; those marked
    ``full`` run where all do.
    """
    if INTERPRETED:
        reason = pytest.mark.skip(reason="of the CPU's kernels")
        for item in items:
            if item.get_closest_marker("cpu") is not None:
                item.add_marker(reason)
    cases: dict[str, list[pytest.Item]] = {}
    for item in items:
        if item.get_closest_marker("full") is not None and not FULL:
            continue
        cases.setdefault(item.nodeid.partition("[")[0], []).append(item)
    kept: set[pytest.Item] = set()
    for name, of_one in cases.items():
        whole = of_one[0].get_closest_marker("every_case") is not None
        kept.update(of_one if whole else sampled(of_one, SAMPLE, name))
    config.hook.pytest_deselected(items=[item for item in items if item not in kept])
    items[:] = [item for item in items if item in kept]
