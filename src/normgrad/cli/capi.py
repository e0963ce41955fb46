"""``normgrad capi``: build the C libraries, and print the flags of programs that use them."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Annotated

import typer

from .. import __version__
from ..support.compilers import BuildError
from . import show
from .archives import InputError, blaming, one_of

app = typer.Typer(
    cls=show.Commands,
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="markdown",
    help="The dialects as C libraries.",
)

#: The names of functions of the vendors' libraries.
_NAME = re.compile(r"(?:acl(?:nn|rt|mdl|op|prof|tdt)?[A-Z]|Hccl[A-Z]|infini(?:op|rt|ccl)[A-Z])\w+")

_Out = Annotated[Path, typer.Option("--out", metavar="DIR", help="The folder of the libraries.")]


@app.command("build")
def _build(
    out: _Out,
    sanitize: Annotated[
        str | None,
        typer.Option(
            "--sanitize",
            metavar="SANITIZER",
            help="Build for programs that a sanitizer checks: thread, address or undefined; flags "
            "prints their flags.",
        ),
    ] = None,
) -> None:
    """Compile the libraries of both dialects, with headers and pkg-config files.

    The C compiler is $CC, else cc, gcc or clang. The libraries are bound to this Python and this
    installation of normgrad: build them again after either has moved.
    """
    from ..dialects.c import build
    from ..dialects.c.declarations import DIALECTS

    if sanitize is not None:
        one_of("--sanitize", sanitize, build.SANITIZERS)
    try:
        with blaming("capi build", BuildError):
            build.build(out, sanitize)
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
        bool, typer.Option("--stubs", help="List the functions that are only stubs.")
    ] = False,
) -> None:
    """List the functions of the libraries, by header."""
    from ..dialects.c.declarations import HEADERS

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
    """List the functions that a program needs and that are stubs or missing.

    A stub links, and returns the status "not supported". The exit status is 1 unless all functions
    are available.
    """
    from ..dialects.c.declarations import HEADERS

    functions = {each.name for header in HEADERS for each in header.functions}
    stubs = {each.name for header in HEADERS for each in header.stubs}
    is_complete = True
    for file in files:
        with blaming(file, OSError, ValueError):
            needed = _functions_of_vendors(file, functions | stubs)
        typer.echo(f"{file}: {len(needed & functions)} of {len(needed)} functions are available")
        for what, names in (("stub", needed & stubs), ("missing", needed - functions - stubs)):
            for name in sorted(names):
                typer.echo(f"  {what}: {name}")
                is_complete = False
    raise typer.Exit(0 if is_complete else 1)


def _functions_of_vendors(path: Path, known: set[str]) -> set[str]:
    """The functions of the vendors' libraries that an object, a library or a program needs.

    These are its undefined symbols, and the names in its texts, which programs pass to ``dlsym``.
    """
    content = path.read_bytes()
    symbols: set[str] = set()
    for table in ([], ["-D"]):  # a stripped program has the second one alone
        command = ["nm", "-u", *table, str(path)]
        nm = subprocess.run(command, capture_output=True, text=True, check=False)
        if nm.returncode != 0:
            raise ValueError(nm.stderr.strip().splitlines()[-1])
        symbols |= {line.split()[-1].partition("@")[0] for line in nm.stdout.splitlines() if line}
    texts = {text.decode() for text in re.findall(rb"(?<!\w)[A-Za-z]\w+(?=\0)", content)}
    # Texts of this form are certainly functions, even if they are unknown here.
    operators = filter(re.compile(r"aclnn[A-Z]\w+").fullmatch, texts)
    return {*filter(_NAME.fullmatch, symbols), *operators} | (texts & known)


@app.command("flags")
def _flags(
    out: _Out, dialect: Annotated[str, typer.Argument(metavar="DIALECT", help="aclnn or infiniop.")]
) -> None:
    """Print the flags with which a program is compiled and linked.

    c++ host.cpp $(normgrad capi flags --out DIR aclnn) -o host
    """
    from ..dialects.c import build
    from ..dialects.c.declarations import DIALECTS

    known = {each.name: each for each in DIALECTS}
    one_of("DIALECT", dialect, known)
    with blaming("--out", BuildError):
        typer.echo(build.flags(out, known[dialect]))
