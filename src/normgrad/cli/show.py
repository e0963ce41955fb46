"""Print tables for people, which are readable in a pipe too."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any, Literal

import typer
import typer.core
from rich import box
from rich.console import Console
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

from ..support.forks import KernelError
from ..support.settings import SettingError
from . import UNUSABLE, ending_in_one_line, escaped, say
from .archives import InputError

#: The width of output that is no terminal, in columns: wider than any table, so that none is cut.
PIPE_WIDTH = 240


def _without_types_of_flags(options: Any) -> Any:
    for option in options:
        if getattr(option, "is_flag", False) and option.metavar is None:
            option.metavar = ""
    return options


class Commands(typer.core.TyperGroup):
    """Commands that end in one line where input, a setting, memory or the user stops the work."""

    def get_params(self, ctx: Any) -> Any:
        """The options; the help shows no type of flags."""
        return _without_types_of_flags(super().get_params(ctx))

    def get_command(self, ctx: Any, name: str) -> Any:
        """Find a command; its help shows no type of flags either."""
        command: Any = super().get_command(ctx, name)
        if command is not None:
            _without_types_of_flags(command.get_params(ctx))
        return command

    def make_context(self, *args: Any, **kwargs: Any) -> Any:
        """Parse the command; Typer would end in silence on an interrupt."""
        with ending_in_one_line():
            return super().make_context(*args, **kwargs)

    def invoke(self, ctx: Any) -> Any:
        """Run the command that was asked for."""
        with ending_in_one_line():
            try:
                return super().invoke(ctx)
            except (InputError, KernelError, SettingError) as error:
                say(error)
                raise typer.Exit(UNUSABLE) from None


@contextmanager
def interruptible() -> Iterator[None]:
    """Raise an interrupt at the end that would otherwise be lost.

    Python drops, with a warning, an interrupt that arrives while compiled code calls back into
    Python, as LLVM does when it has compiled something.
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
    """Show a spinner on stderr, if that is a terminal, during interruptible work."""
    console = Console(stderr=True)
    spinner = console.status(Text(f"{what} …")) if console.is_terminal else nullcontext()
    with interruptible(), spinner:
        yield


def _console() -> Console:
    """Standard output, as wide as the terminal, or as wide as needed without one."""
    console = Console(highlight=False)
    if not console.is_terminal:
        console.width = PIPE_WIDTH
    return console


def print_lines(*lines: Table | Text | str) -> None:
    """Write to standard output."""
    console = _console()
    encoding = sys.stdout.encoding or "utf-8"
    with console.capture() as capture:
        for line in lines:
            renderable = Text(escaped(line)) if isinstance(line, str) else line
            console.print(renderable, soft_wrap=isinstance(renderable, Text))
    sys.stdout.write(capture.get().encode(encoding, "replace").decode(encoding))
    sys.stdout.flush()


def _widths(cells: Sequence[Sequence[Text]]) -> list[int]:
    """The width of each column: the widest are narrowed to fit, but not below their longest word.

    Rich would narrow them without regard to words, and break names.
    """
    console = _console()
    ranges = [
        [Measurement.get(console, console.options, cell) for cell in column]
        for column in zip(*cells, strict=True)
    ]
    words = [max(each.minimum for each in column) for column in ranges]
    widths = [max(each.maximum for each in column) for column in ranges]
    room = console.width - 2 * len(widths)  # two between columns, and one at each edge
    while sum(widths) > room and widths != words:
        width, index = max((w, i) for i, w in enumerate(widths) if w > words[i])
        widths[index] = width - 1
    return widths


def columns(
    header: Sequence[str],
    rows: Iterable[Sequence[object]],
    *notes: str,
    title: str = "",
    right: Container[str] = (),
) -> None:
    """Print a table below its title, with notes below it; columns wrap wide cells.

    A cell is styled text, or any object, which is printed on one line. ``right`` has the names of
    columns that are aligned right.
    """
    grid = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
    cells = [
        [each if isinstance(each, Text) else Text(escaped(each)) for each in row]
        for row in (header, *rows)
    ]
    for name, width in zip(header, _widths(cells), strict=True):
        side: Literal["left", "right"] = "right" if name in right else "left"
        grid.add_column(name, justify=side, overflow="fold", width=width)
    for row in cells[1:]:
        grid.add_row(*row)
    print_lines(*([Text(escaped(title), "bold")] if title else []), grid, *notes)


def table(groups: Sequence[tuple[str, Sequence[tuple[str, str]]]]) -> None:
    """Print groups of names and values in one table."""
    grid = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_header=False)
    for _ in range(3):
        grid.add_column(overflow="fold")
    for title, group in groups:
        for index, row in enumerate(group):
            cells = (Text(escaped(each)) for each in row)
            grid.add_row(Text("" if index else title, "bold"), *cells)
        grid.add_section()
    print_lines(grid)


#: Seconds between two lines of progress.
EVERY = 30.0


def _counter(total: int, noun: str) -> Callable[..., None]:
    """A function that counts, and says on stderr how far it is, if it has not for some time."""
    count, last = 0, time.monotonic()

    def advance(text: str, step: int = 1) -> None:
        nonlocal count, last
        count += step
        if time.monotonic() - last >= EVERY:
            last = time.monotonic()
            say(f"{count} of {total} {noun}: {text}")

    return advance


@contextmanager
def progress(total: int, noun: str = "") -> Iterator[Any]:
    """Show a bar on stderr, if that is a terminal; yield a function that moves and labels it.

    With a noun for what is counted, there are lines instead of the bar where it is no terminal.
    """
    from rich import progress as bars

    console = Console(stderr=True)
    if noun and not console.is_terminal:
        with interruptible():
            yield _counter(total, noun)
        return
    count, remaining = bars.MofNCompleteColumn(), bars.TimeRemainingColumn()
    columns = (bars.BarColumn(), count, remaining, bars.TextColumn("{task.description}"))
    bar = bars.Progress(*columns, console=console, transient=True, disable=not console.is_terminal)
    with interruptible(), bar:
        task = bar.add_task("", total=total)
        yield lambda text, step=1: bar.update(task, advance=step, description=text)


def scaled(value: float, units: Sequence[tuple[float, str]]) -> str:
    """Format a value in the largest unit that it reaches, else in the smallest."""
    size, unit = next((each for each in units if value >= each[0]), units[-1])
    return f"{value / size:.3g} {unit}"
