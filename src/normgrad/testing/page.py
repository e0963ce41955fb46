"""Trials as one page of HTML, with everything in it."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from typing import Any

import normgrad

from .. import dtypes, precision
from . import pictures, report
from .outcomes import Verdict
from .trials import Trial

_MEANINGS = (
    (Verdict.MET, "the result is within the bound, or the wrong call refused"),
    (Verdict.BROKEN, "a result beyond its bound, not as asked for, or written elsewhere too"),
    (Verdict.ACCEPTED, "a wrong call that is not refused"),
    (Verdict.CRASHED, "the process ended"),
    (Verdict.HUNG, "no answer"),
    (Verdict.REFUSED, "a legal call ends in an error"),
    (Verdict.ABSENT, "the implementation has no such operator, parameter, dtype or layout"),
)

_CAPTIONS = (
    (
        "Errors by dtype and layout",
        pictures.distributions,
        "The share of all elements of all outputs, by their error in units of the bound. What is "
        "to the right of 1 breaks it. Errors of 0, and below the axis, count at its left end.",
    ),
    (
        "Errors where the mean is large",
        pictures.large_means,
        "The largest error in units of the bound, against how many standard deviations the input's "
        "mean is from 0.",
    ),
)


def page(
    trials: Sequence[Trial],
    command: str,
    when: str,
    machine: Sequence[tuple[str, Sequence[tuple[str, str]]]],
) -> str:
    """The page.

    Args:
        trials: what was tried, first what the page is about.
        command: how it was tried.
        when: the date and time.
        machine: groups of names and values.

    Raises:
        ModuleNotFoundError: matplotlib or Jinja is not installed.
    """
    from jinja2 import Environment, PackageLoader, StrictUndefined

    environment = Environment(
        loader=PackageLoader("normgrad.testing", ""), autoescape=True, undefined=StrictUndefined
    )
    drawn = ((title, caption, draw(trials)) for title, draw, caption in _CAPTIONS)
    parts: list[dict[str, Any]] = [
        {
            "trial": trial,
            "claims": report.claims(trial),
            "topics": report.by_topic(trial),
            "kinds": report.by_kind(trial),
            "findings": (found := report.findings(trial)),
            "count": sum(len(finding.judged) for finding in found),
            "refusals": report.refusals(trial),
        }
        for trial in trials
    ]
    return environment.get_template("page.html.j2").render(
        trials=trials,
        command=command,
        when=when,
        headline=report.headline(trials[0]),
        version=normgrad.__version__,
        any=f"{precision.ANY_DATA[dtypes.float32]:g}",
        normal=f"{precision.NORMAL_DATA[dtypes.float32]:g}",
        half=f"{precision.ANY_DATA[dtypes.bfloat16]:g}",
        header=report.HEADER,
        bad=[index for index, verdict in enumerate(report.VERDICTS) if verdict.is_defect],
        summary=[report.row(trial.name, trial.judged) for trial in trials],
        meanings=[(verdict.value, meaning) for verdict, meaning in _MEANINGS],
        pictures=[
            (title, caption, base64.b64encode(picture).decode())
            for title, caption, picture in drawn
            if picture is not None
        ],
        parts=parts,
        machine=machine,
    )
