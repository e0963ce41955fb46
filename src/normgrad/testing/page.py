"""Write trials as one self-contained HTML page."""

from __future__ import annotations

import base64
from collections.abc import Sequence

import normgrad

from .. import dtypes, precision
from . import explained, pictures, report
from .outcomes import Verdict
from .trials import Trial

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
    """Make the page, whose subject is the first of the trials, which ``command`` has made.

    Raises:
        ModuleNotFoundError: matplotlib or Jinja is not installed.
    """
    from jinja2 import Environment, PackageLoader, StrictUndefined

    environment = Environment(
        loader=PackageLoader("normgrad.testing", ""), autoescape=True, undefined=StrictUndefined
    )
    cases = [each.case for trial in trials for each in trial.judged]
    topics = dict.fromkeys(case.topic for case in cases)
    kinds = dict.fromkeys(case.kind for case in cases)
    layouts = dict.fromkeys(layout for case in cases for layout in case.data_layout.split("+"))
    about = [(each.name.lower(), f"({each.value}) {explained.TOPICS[each]}") for each in topics]
    drawn = ((title, caption, draw(trials)) for title, draw, caption in _CAPTIONS)
    return environment.get_template("page.html.j2").render(
        trials=trials,
        command=command,
        when=when,
        machine=machine,
        report=report,
        verdicts=list(Verdict),
        bad=[index for index, verdict in enumerate(Verdict) if verdict.is_defect],
        summary=[report.row(trial.name, trial.judged) for trial in trials],
        words=(
            ("what the case is about", about),
            ("operator", [(kind, explained.KINDS[kind]) for kind in kinds]),
            ("memory layout", [(layout, explained.LAYOUTS[layout]) for layout in layouts]),
        ),
        version=normgrad.__version__,
        any=f"{precision.ANY_DATA[dtypes.float32]:g}",
        normal=f"{precision.NORMAL_DATA[dtypes.float32]:g}",
        half=f"{precision.ANY_DATA[dtypes.bfloat16]:g}",
        pictures=[
            (title, caption, base64.b64encode(picture).decode())
            for title, caption, picture in drawn
            if picture is not None
        ],
    )
