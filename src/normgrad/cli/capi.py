"""``normgrad capi``: build the C libraries, and print the flags of programs that use them."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import Annotated

import typer

from .. import __version__
from ..compilers import BuildError
from . import show
from .files import InputError, blaming, one_of

app = typer.Typer(
    cls=show.Commands,
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="markdown",
    help="The dialects as C libraries.",
)

_Out = Annotated[
    Path, typer.Option("--out", metavar="DIR", help="Where the libraries are, or shall be.")
]


@app.command("build")
def _build(out: _Out) -> None:
    """Compile the libraries of both dialects, with headers and pkg-config files.

    The C compiler is $CC, else cc, gcc or clang. The libraries are bound to this Python and this
    installation of normgrad: build them again after either has moved.
    """
    from ..capi import build
    from ..capi.declarations import DIALECTS

    try:
        with show.progress(len(build.LIBRARIES)) as advance, blaming("capi build", BuildError):
            build.build(out, advance)
    except OSError as error:
        raise InputError("--out", f"{error.filename or out}: {error.strerror}") from None
    folder = shlex.quote(str(out))
    typer.echo(f"C libraries of normgrad {__version__}, for {sys.executable}, in {out}. Use them:")
    for dialect in DIALECTS:
        line = f"c++ host.cpp $(normgrad capi flags --out {folder} {dialect.name}) -o host"
        # A shell keeps quotes that come from a substitution, so a quoted path needs eval.
        typer.echo(f"  {line if folder == str(out) else f'eval {chr(34)}{line}{chr(34)}'}")


@app.command("functions")
def _functions(
    stubs: Annotated[
        bool, typer.Option("--stubs", help="List what only says that it is not supported.")
    ] = False,
) -> None:
    """List the functions of the libraries, by header."""
    from ..capi.declarations import HEADERS

    for header in HEADERS:
        names = [each.name for each in (header.stubs if stubs else header.functions)]
        if names:
            typer.echo(header.path)
        for name in names:
            typer.echo(f"  {name}")


@app.command("needs")
def _needs(
    files: Annotated[
        list[Path],
        typer.Argument(
            metavar="FILE...", exists=True, dir_okay=False, help="Objects, libraries or programs."
        ),
    ],
) -> None:
    """Say which functions that a program needs are there, stubs, or missing.

    A stub links, and returns that it is not supported. The exit status is 1 unless all are there.
    """
    from ..capi.needs import needs

    complete = True
    for file in files:
        with blaming(file, OSError, ValueError):
            needed = needs(file)
        typer.echo(
            f"{file}: {len(needed.available)} of {sum(map(len, needed))} functions are there"
        )
        for what, names in (("stub", needed.stubs), ("missing", needed.missing)):
            for name in names:
                typer.echo(f"  {what}: {name}")
                complete = False
    raise typer.Exit(0 if complete else 1)


@app.command("flags")
def _flags(
    out: _Out, dialect: Annotated[str, typer.Argument(metavar="DIALECT", help="acl or infini.")]
) -> None:
    """Print what a program is compiled and linked with.

    c++ host.cpp $(normgrad capi flags --out DIR acl) -o host
    """
    from ..capi import build
    from ..capi.declarations import DIALECTS

    known = {each.name: each for each in DIALECTS}
    one_of("DIALECT", dialect, known)
    with blaming("--out", BuildError):
        typer.echo(build.flags(out, known[dialect]))
