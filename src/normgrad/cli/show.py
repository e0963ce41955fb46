"""What the commands print: tables for people, readable in a pipe too."""

from __future__ import annotations

import sys
from collections.abc import Container, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import typer
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from ..backends.choice import KernelError
from ..settings import SettingError
from . import UNUSABLE, one_line_ends, say
from .files import InputError
from .run import Report

#: Columns, where there is no terminal to fit: wider than any table, so that none is cut.
PIPE_WIDTH = 240


@contextmanager
def one_line_errors() -> Iterator[None]:
    """End the process with one line where input, a setting, memory or the user stops the work."""
    with one_line_ends():
        try:
            yield
        except (InputError, KernelError, SettingError) as error:
            complain(error)
            raise typer.Exit(UNUSABLE) from None


def plain(text: object) -> str:
    """The text on one line, with whatever would drive a terminal written out."""
    return "".join(
        character
        if character.isprintable()
        else character.encode("unicode_escape", "surrogatepass").decode()
        for character in str(text)
    )


def complain(message: object) -> None:
    """One line on stderr."""
    say(plain(message))


@contextmanager
def interruptible() -> Iterator[None]:
    """Let no interrupt get lost.

    One that comes while compiled code calls back into Python, as LLVM does when it has compiled
    something, is dropped there with a complaint; here it counts, at the end.
    """
    dropped = False
    before = sys.unraisablehook

    def hook(unraisable: sys.UnraisableHookArgs) -> None:
        nonlocal dropped
        if issubclass(unraisable.exc_type, KeyboardInterrupt):
            dropped = True
        else:
            before(unraisable)

    sys.unraisablehook = hook
    try:
        yield
    finally:
        sys.unraisablehook = before
    if dropped:
        raise KeyboardInterrupt


@contextmanager
def working(what: str) -> Iterator[None]:
    """A spinner on stderr, if that is a terminal, while something is done that can be stopped."""
    console = Console(stderr=True)
    with interruptible():
        if not console.is_terminal:
            yield
            return
        with console.status(Text(f"{what} …")):
            yield


def print_lines(*lines: Table | Text) -> None:
    """Write to standard output: as wide as the terminal, or else as wide as it takes."""
    console = Console(file=sys.stdout, highlight=False)
    if not console.is_terminal:
        console = Console(file=sys.stdout, highlight=False, width=PIPE_WIDTH)
    encoding = sys.stdout.encoding or "utf-8"
    with console.capture() as capture:
        for line in lines:
            console.print(line, soft_wrap=isinstance(line, Text))
    sys.stdout.write(capture.get().encode(encoding, "replace").decode(encoding))
    sys.stdout.flush()


def grid(
    header: Sequence[str],
    rows: Iterable[Sequence[object]],
    right: Container[str] = (),
    **style: Any,
) -> Table:
    """A table whose columns fold what is too wide rather than cutting it.

    Args:
        header: the columns' titles.
        rows: their cells, text in a style of its own or anything that is printed on one line.
        right: titles of columns whose cells stand to the right.
        style: rich's options of a table.
    """
    made = Table(box=box.SIMPLE_HEAD, pad_edge=False, **style)
    for title in header:
        made.add_column(title, justify="right" if title in right else "left", overflow="fold")
    for row in rows:
        made.add_row(*(each if isinstance(each, Text) else Text(plain(each)) for each in row))
    return made


def _verdict(passed: bool) -> Text:
    return Text("pass", "green") if passed else Text("FAIL", "bold red")


def _bytes(count: int) -> str:
    for size, unit in ((1e9, "GB"), (1e6, "MB"), (1e3, "kB")):
        if count >= size:
            return f"{count / size:.3g} {unit}"
    return f"{count} bytes"


def _seconds(seconds: float) -> str:
    for factor, unit in ((1e6, "µs"), (1e3, "ms")):
        if seconds * factor < 1000:
            return f"{seconds * factor:.3g} {unit}"
    return f"{seconds:.3g} s"


def report(found: Report, out: Path | None) -> None:
    """A run's table, and below it its time."""
    right = ("L2 norm", "max error / bound")
    rows = [
        (
            *(each.name, each.array.shape, each.array.dtype.name),
            *(f"{each.norm:.6g}", f"{each.units:.3g}", _verdict(each.passed)),
        )
        for each in found.results
    ]
    table = grid(("output", "shape", "dtype", *right, "check"), rows, right)
    moved = sum(found.traffic.values())
    facts = [
        f"time       {_seconds(found.seconds)} a call (median of {found.calls}, after a first one "
        "that compiles)",
        f"bandwidth  {moved / found.seconds / 1e9:.3g} GB/s (effective: {_bytes(moved)} of "
        f"{', '.join(found.traffic) or 'nothing'}, over the time)",
        f"path       {found.path}",
        *([f"written    {plain(out)}"] if out is not None else []),
    ]
    print_lines(Text(found.operator, "bold"), table, *map(Text, facts))


def table(groups: Sequence[tuple[str, Sequence[tuple[str, str]]]]) -> None:
    """Groups of names and values, in one table."""
    made = grid(("group", "name", "value"), (), show_header=False)
    for title, group in groups:
        for index, row in enumerate(group):
            made.add_row(Text("" if index else title, "bold"), *(Text(plain(each)) for each in row))
        made.add_section()
    print_lines(made)


@contextmanager
def progress(total: int) -> Iterator[Any]:
    """A bar on stderr, if that is a terminal; gives what moves it and what names the work."""
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
    from rich.progress import TimeRemainingColumn as Remaining

    console = Console(stderr=True)
    columns = (BarColumn(), MofNCompleteColumn(), Remaining(), TextColumn("{task.description}"))
    with (
        interruptible(),
        Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar,
    ):
        task = bar.add_task("", total=total)
        yield lambda text, step=1: bar.update(task, advance=step, description=text)


def columns(title: str, header: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """A table with a title."""
    print_lines(Text(plain(title), "bold"), grid(header, rows))
