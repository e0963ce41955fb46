"""``normgrad warmup``: compile kernels in advance, so that no first call has to."""

from __future__ import annotations

import time
from contextlib import closing
from typing import Annotated

import typer

from .. import dtypes, torch_build
from ..compilers import BuildError
from ..machine import NOT_INSTALLED, version
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

    As many processes compile as there are cores. What is compiled already, or what the package
    brings for this processor, is not compiled again. Options can be given several times; without
    any, everything is compiled, and where PyTorch is installed the C++ library for its layers too.
    """
    for option, names, allowed in (
        ("--operator", operator, PLANNED),
        ("--dtype", dtype, _DTYPES),
        ("--layout", layout, typical.LAYOUTS),
    ):
        for name in names or ():
            one_of(option, name, allowed)
    from ..backends.cpu import store
    from ..backends.cpu.units import every, needed

    units = every()
    if operator or dtype or layout:
        kinds = [dtypes.BY_NAME[name] for name in dtype or _DTYPES]
        schedules = typical.schedules(operator or tuple(PLANNED), kinds, layout or typical.LAYOUTS)
        selected = {unit for each in schedules for unit in needed(each)}
        units = [unit for unit in units if unit in selected]
    start = time.perf_counter()
    stored = store.find(units)
    rest = [unit for unit in units if unit not in stored]
    if rest:
        with show.progress(len(rest)) as advance:
            compiled = store.compiled(rest, lambda: None)
            with closing(compiled):  # an interrupt ends its processes
                for unit, content in compiled:
                    _keep(unit, content)
                    advance(unit)
    summary = ("ready", f"{len(units)}, in {time.perf_counter() - start:.1f} s")
    rows = [("kernels", (summary, *info.kernels_kept()))]
    if not (operator or dtype or layout) and version("torch") != NOT_INSTALLED:
        rows.append(("pytorch", (("layers run", _library()),)))
    show.table(rows)


def _library() -> str:
    """Build the C++ library for PyTorch's layers; returns which way they run."""
    missing = torch_build.missing()
    if missing is not None and torch_build.is_on():
        start = time.perf_counter()
        try:
            with show.progress(1) as advance:
                torch_build.build()
                advance("library for PyTorch")
        except (BuildError, OSError) as error:
            return f"by Python; the C++ library is not built: {error}"
        return f"by the C++ library, built in {time.perf_counter() - start:.1f} s"
    return "by the C++ library" if missing is None else f"by Python; the C++ library is {missing}"


def _keep(unit: str, content: bytes) -> None:
    from ..backends.cpu import store

    try:
        store.keep(unit, content)
    except OSError as error:
        reason = f"no kernel can be kept ({error})"
        raise InputError("warmup", reason) from None
