"""What decides where the tests compute: on the CPU, or by Triton's interpreter.

With NORMGRAD_BACKEND=triton and TRITON_INTERPRET=1 the same tests hold the GPU's kernels to the
same bounds. Those marked ``cpu`` are about the CPU's own ways, or too large for an interpreter.
"""

from __future__ import annotations

import dataclasses
import signal

import mapped_pages
import pytest
from support import INTERPRETED, sampled

# Whoever runs the tests in the background of a shell has them, and all that they start, ignore
# interrupts; those that are about interrupts want them.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

#: Cases of each test that an interpreter runs.
SAMPLE = 2

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
    """Where Triton computes: leave out what is the CPU's alone, and all but a sample of the rest.

    An interpreter takes far longer than a compiled kernel. NORMGRAD_FULL=1 has it run all.
    """
    if not INTERPRETED:
        return
    reason = pytest.mark.skip(reason="of the CPU's kernels")
    for item in items:
        if item.get_closest_marker("cpu") is not None:
            item.add_marker(reason)
    cases: dict[str, list[pytest.Item]] = {}
    for item in items:
        cases.setdefault(item.nodeid.partition("[")[0], []).append(item)
    kept = {item for name, of_one in cases.items() for item in sampled(of_one, SAMPLE, name)}
    config.hook.pytest_deselected(items=[item for item in items if item not in kept])
    items[:] = [item for item in items if item in kept]
