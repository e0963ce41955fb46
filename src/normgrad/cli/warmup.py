"""``normgrad warmup``: compile every kernel, so that no first call has to."""

from __future__ import annotations

import time

from ..backends import choice
from . import info, show
from .files import InputError


def warmup() -> None:
    """Compile every kernel that is not on disk yet; about a minute the first time."""
    choice.check_numba()
    from ..backends.cpu import runtime

    if runtime.cache_folder() is None:
        raise InputError(
            "warmup", "no folder for compiled kernels can be written; set NUMBA_CACHE_DIR to one"
        )
    units = runtime.everything()
    start = time.perf_counter()
    with show.progress(len(units)) as advance:
        for name, compile_it in units:
            advance(name, 0)
            compile_it()
            advance(name)
    seconds = time.perf_counter() - start
    show.table(
        [
            (
                "kernels",
                (
                    ("ready", f"{len(units)}, in {seconds:.1f} s"),
                    ("kept in", info.kernel_folder()),
                ),
            )
        ]
    )
