"""``normgrad verify``: its options and output; :mod:`normgrad.testing` does the work."""

from __future__ import annotations

import contextlib
import datetime
import shlex
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.text import Text

from .. import devices
from ..unusable import represent
from . import FAILED, escaped, files, info, lack, say, show
from .files import InputError, blaming

if TYPE_CHECKING:
    from ..testing import Case, Judged, Trial

#: The page's name, unless another is given.
PAGE = "normgrad-verify.html"

#: The most findings to print in the terminal; the page has all.
_MOST_FINDINGS = 20

#: The topics that pictures compare implementations in.
_COMPARED = ("VALUES", "MEAN")


def verify(
    backend: Annotated[
        str | None,
        typer.Option(
            "--backend",
            "--module",
            metavar="SPEC",
            help="What to try: module:Name (a Python object or class with some of the operators, "
            "or a class of torch.nn.Module), the path of a shared library that speaks infiniop or "
            "aclnn, or torch (PyTorch's own kernels); without it, normgrad on this machine's CPU "
            "and GPUs.",
        ),
    ] = None,
    quick: Annotated[bool, typer.Option("--quick", help="Only a quarter of the suite.")] = False,
    only: Annotated[
        str | None,
        typer.Option(
            metavar="TEXT",
            help="The case of this name; if there is none, those with this in their names.",
        ),
    ] = None,
    report: Annotated[
        str | None,
        typer.Option(
            "-o",
            "--report",
            metavar="FILE",
            help=f"Where the page is written. Without this: {PAGE}, and with --only no page.",
        ),
    ] = None,
    alone: Annotated[
        bool,
        typer.Option(
            "--alone",
            help="Do not try a second implementation for comparison. Without this, PyTorch's "
            "kernels are compared with normgrad, and normgrad with any other implementation.",
        ),
    ] = False,
) -> None:
    """Try every operator with every dtype, layout, mask and edge case, against a float64 oracle.

    Each result's largest error is given in units of the bound that the library keeps, in a table
    and in a self-contained page of HTML with pictures. The implementation under test runs in a
    separate process: where it crashes, that is a row of the table.

    The exit status is 0 if all is as it should be; 1 if a bound is broken, a wrong call is not
    refused, the process crashes or hangs, an operator answers no legal call, or nothing at all is
    met; and 2 if FILE cannot be written or there is nothing of that name to try. Where another
    implementation refuses some legal calls of an operator, that does not count against it. After an
    interrupt the table and the page have what was judged until then, and the status is 130.
    """
    if report is None and only is None:
        report = PAGE
    page = None if report is None else files.out_path(report)
    if page is not None:
        files.check_writable(page)
        if needs := lack("jinja2", "matplotlib"):
            raise InputError("--report", f"the page {needs}")
    if backend is None:
        info.check_settings()
    trials: list[Trial] = []
    specs = _ours() if backend is None else [backend]
    passed, is_interrupted = True, False
    try:
        for spec in specs:
            trials += [_try(spec, quick, only)]
        if not any(trial.judged for trial in trials):
            where = f"no case {'of --quick ' if quick else ''}has {represent(only)} in its name"
            raise InputError("--only", where, "a part of one")
        passed = all(trial.passed for trial in trials)
        if not alone:
            trials += _beside(backend, quick, only, trials)
    except KeyboardInterrupt as error:
        trials = [each for each in (*trials, getattr(error, "trial", None)) if each and each.judged]
        if not trials:
            raise
        is_interrupted = True
    # Print first, since writing the page may fail.
    _print(trials, page, len(specs))
    if page is not None:
        _write(page, trials)
        show.print_lines(f"written  {page}")
    _conclude(trials[: len(specs)])
    if is_interrupted:
        raise KeyboardInterrupt
    if not passed:
        raise typer.Exit(FAILED)


def _ours() -> list[str]:
    """normgrad on every device that it can use here."""
    names = ["normgrad"]
    try:
        import torch
    except ModuleNotFoundError:
        return names
    if devices.unusable() is None:
        names += [f"normgrad:cuda:{index}" for index in range(torch.cuda.device_count())]
    return names


def _beside(
    backend: str | None, quick: bool, only: str | None, trials: Sequence[Trial]
) -> list[Trial]:
    """Try the implementation to compare the first with: PyTorch, or normgrad."""
    other = "torch" if backend is None else "normgrad"
    if trials[0].suite != "operators" or other == (backend or "").partition(":")[0]:
        return []
    try:
        trial = _try(other, quick, only, compared=quick)
    except InputError as error:
        say(f"note: not compared: {error}")
        return []
    return [trial] if trial.judged else []


def _try(spec: str, quick: bool, only: str | None, compared: bool = False) -> Trial:
    from ..testing import SubjectError, try_cases

    def wanted(case: Case) -> bool:
        return not compared or case.topic.name in _COMPARED

    with contextlib.ExitStack() as stack, blaming("--backend", SubjectError):
        advance: list[Callable[[str], None]] = []

        def started(name: str, count: int) -> None:
            bar = stack.enter_context(show.progress(count, "cases"))
            advance.append(lambda text: bar(f"{name}: {text}"))

        def progress(judged: Judged) -> None:
            advance[0](f"{judged.case.topic.value}, {judged.case.kind}")

        return try_cases(spec, quick, wanted, started, progress, only or "")


def _write(path: Path, trials: Sequence[Trial]) -> None:
    from ..testing.page import page

    command = shlex.join(["normgrad", *sys.argv[1:]])
    when = datetime.datetime.now().astimezone().isoformat(" ", "minutes")
    # Leave out the local folders, as the page is for others to read.
    machine = [
        (title, [(name, value) for name, value in facts if name != info.FOLDER])
        for title, facts in info.gather()
    ]
    text = page(trials, command, when, machine)
    with files.rewriting(path) as file:
        file.write(text.encode("utf-8", "backslashreplace"))


def _conclude(trials: Sequence[Trial]) -> None:
    """Print the verdict on each implementation under test."""
    from ..testing import report

    for trial in trials:
        verdict = "passed" if trial.passed else "interrupted" if trial.unjudged else "failed"
        show.print_lines(f"{verdict}  {escaped(trial.name)}: {escaped(report.headline(trial))}")


def _print(trials: Sequence[Trial], path: Path | None, tested: int) -> None:
    """Print all tables, and the findings on the first ``tested`` trials."""
    from ..testing import report

    for trial in trials:
        rows = report.rows(trial, "topic")
        total = report.row("in all", trial.judged)
        claims = [f"{claim.title}: {claim.text}" for claim in report.claims(trial)]
        show.columns(("", *report.HEADER), [*rows, total], *claims, title=trial.name)
    for trial in trials[:tested]:
        findings = report.findings(trial)
        if not findings:
            continue
        title = f"{trial.name}: what is wrong, and the command that repeats the first of each"
        show.print_lines("", Text(escaped(title), "bold"))
        for each in findings[:_MOST_FINDINGS]:
            first, number = each.first, len(each.judged)
            show.print_lines(
                f"{first.verdict.value}, {number} case{'s' if number > 1 else ''}: {each.title}",
                f"    {first.case.name}: {first.detail}",
                f"    {report.command(trial, first)}",
            )
        if len(findings) > _MOST_FINDINGS:
            where = path or "a page (-o FILE)"
            say(f"note: {len(findings) - _MOST_FINDINGS} more are in {where}")
