"""``normgrad verify``: pytest with :mod:`normgrad.testing`'s tests and workers that may crash."""

from __future__ import annotations

import os
from typing import Annotated

import typer

from . import info, lack
from .archives import InputError

#: What follows SUBJECT goes to pytest.
SETTINGS = {"allow_extra_args": True, "ignore_unknown_options": True}
#: Seconds after which a case counts as hung: no case computes for a second, but a busy machine may
#: have to compile kernels first.
PATIENCE = 300

#: The options of every run: no settings of the current folder's, a worker that is replaced however
#: often it ends, and a summary in place of a traceback for each case.
_OPTIONS = (
    *("-c", os.devnull, "--rootdir=.", "-p", "no:cacheprovider", "--pyargs", "normgrad.testing"),
    *("--dist=load", "--max-worker-restart=1000000"),
    *(f"--timeout={PATIENCE}", "--timeout-method=thread"),
    *("-q", "--no-header", "--tb=no", "-rN", "-W", "ignore::pytest.PytestAssertRewriteWarning"),
)


def verify(
    context: typer.Context,
    subject: Annotated[
        str,
        typer.Argument(
            metavar="SUBJECT",
            help="What to test: module:Name (a Python object or class with some of the operators, "
            "or a class of torch.nn.Module), the path of a shared library that speaks infiniop or "
            "aclnn, torch (PyTorch's own kernels), or normgrad on this machine's CPU and GPUs.",
        ),
    ] = "normgrad",
    workers: Annotated[
        str,
        typer.Option("-n", metavar="N", help="How many processes run cases; 0: only this one."),
    ] = "auto",
) -> None:
    """Test every operator with every dtype, layout, mask and edge case, against a float64 oracle.

    This is pytest with normgrad's tests: --quick (a quarter of the cases), --case NAME, --bound X,
    --xfails FILE, --csv FILE and all of pytest's options may follow, such as -k, --junitxml=FILE
    or -x. Cases run in separate processes, so a crash or a hang fails only one case.

    The exit status is pytest's: 0 if no case fails, 1 if one does (it is wrong by any standard, or
    beyond --bound, and not among --xfails), 2 after an interrupt, 4 if there is no such subject or
    an option is wrong, and 5 if no case was run.
    """
    if needs := lack("pytest", "xdist", "pytest_timeout", extra="verify"):
        raise InputError("verify", needs)
    import pytest

    more = context.args
    if subject.startswith("-"):  # an option of pytest's, of which typer knows nothing
        subject, more = "normgrad", [subject, *more]
    if subject.partition(":")[0] == "normgrad":
        info.check_settings()
    is_one = any(each.partition("=")[0] == "--case" for each in more)
    number = "1" if is_one and workers == "auto" else workers
    # The stack at a crash has fifty lines, and is of use where one case is repeated.
    plugins = [] if is_one or number == "0" else ["-p", "no:faulthandler"]
    arguments = [*_OPTIONS, *plugins, "--subject", subject, "-n", number, *more]
    raise typer.Exit(int(pytest.main(arguments)))
