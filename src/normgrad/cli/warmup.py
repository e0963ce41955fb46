"""``normgrad warmup``: compile kernels in advance, so that no first call has to."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import closing
from typing import Annotated, Any

import typer

from .. import dtypes
from ..loading import check_numba
from ..machine import this_machine
from ..operators.by_name import PLANNED
from . import info, show, typical
from .files import InputError, one_of

_DTYPES = tuple(dtype.name for dtype in dtypes.FLOATS)


def warmup(
    operator: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help=f"Only for this operator: {', '.join(PLANNED)}."),
    ] = None,
    dtype: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help=f"Only for data of this dtype: {', '.join(_DTYPES)}."),
    ] = None,
    layout: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME",
            help=f"Only for data in this layout: {', '.join(typical.LAYOUTS)} (several layouts, or "
            "dtypes, in one call).",
        ),
    ] = None,
) -> None:
    """Compile kernels now, so that no first call has to.

    As many processes compile as there are cores: all kernels take two of them some 25 seconds,
    and less than one where they are on disk. What the package brings for this processor is not
    compiled. Options can be given several times; without any, everything is compiled.
    """
    for option, given, allowed in (
        ("--operator", operator, PLANNED),
        ("--dtype", dtype, _DTYPES),
        ("--layout", layout, typical.LAYOUTS),
    ):
        for name in given or ():
            one_of(option, name, allowed)
    check_numba()
    from ..backends.cpu import disk, kernels, packaged
    from ..backends.cpu.units import needed

    if kernels.cache_folder() is None:
        raise InputError(
            "warmup", "no folder for compiled kernels can be written; set NUMBA_CACHE_DIR to one"
        )
    units = kernels.usable()
    if operator or dtype or layout:
        kinds = [dtypes.BY_NAME[name] for name in dtype or _DTYPES]
        programs = typical.programs(operator or tuple(PLANNED), kinds, layout or typical.LAYOUTS)
        wanted = {unit for program in programs for unit in needed(program)}
        units = [unit for unit in units if unit in wanted]
    rest = [unit for unit in units if packaged.address(unit) is None]
    start = time.perf_counter()
    disk.beforehand()
    with show.progress(len(rest)) as advance:
        _compile(rest, advance)
    ready = ("ready", f"{len(units)}, in {time.perf_counter() - start:.1f} s")
    show.table([("kernels", (ready, *info.kernels_kept()))])


def _compile(units: Sequence[str], advance: Callable[..., Any]) -> None:
    """Compile the kernels that are not on disk, in separate processes if there are many."""
    from ..backends.cpu import kernels, processes

    rest = []
    for unit in units:
        if kernels.is_kept(unit):
            advance(unit)
        else:
            rest.append(unit)
    count = min(this_machine().cores, len(rest) // processes.UNITS)
    if count > 1:
        advance(f"starting {count} processes", 0)
        with closing(processes.compiled(rest, count)) as done:
            for unit in done:
                advance(unit)
                rest.remove(unit)
    for unit in rest:
        advance(unit, 0)
        kernels.compiled(unit)
        advance(unit)
