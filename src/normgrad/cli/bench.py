"""``normgrad bench``: how fast layers are on this machine, beside PyTorch's."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import geometric_mean
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..support.machine import this_machine, version
from ..support.values import describe
from . import info, lack, show
from .archives import InputError, blaming, one_of, rewriting

if TYPE_CHECKING:
    from ..bench.layers import LayerTimes

#: The dtypes of inputs and parameters that layers are timed with.
DTYPES = ("float32", "bfloat16", "float16")
#: The formats of a picture.
PICTURES = (".png", ".svg", ".pdf")
#: For how long a case is timed, in seconds, unless it takes longer.
SECONDS, QUICK_SECONDS = 0.8, 0.1
#: The longest bar in characters, each of which is drawn in eighths.
LONGEST_BAR = 4
_EIGHTHS: tuple[str, ...] = ("", *"▏▎▍▌▋▊▉")


def bench(
    dtype: Annotated[
        str, typer.Option(metavar="NAME", help="The layers' dtype: float32, bfloat16, float16.")
    ] = "float32",
    threads: Annotated[
        int | None,
        typer.Option(metavar="N", min=1, help="The number of threads; the default is all."),
    ] = None,
    quick: Annotated[
        bool, typer.Option("--quick", help="Measure for 5 seconds rather than half a minute.")
    ] = False,
    plot: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Also draw the table, as .png, .svg or .pdf."),
    ] = None,
    model: Annotated[
        str | None,
        typer.Option(
            metavar="MODULE:FUNCTION",
            help="Instead, measure how much faster converting makes a model: the function returns "
            "the model, and a tensor or a tuple of arguments for a call. MODULE may be in this "
            "directory.",
        ),
    ] = None,
) -> None:
    """Time layers in training and evaluation on this machine, alternating with PyTorch's.

    It takes half a minute. Training is a forward and a backward pass, evaluation a forward pass
    without gradients, each on an input of about 25 MB.
    """
    if needs := lack("torch", extra="torch"):
        raise InputError("bench", needs)
    one_of("--dtype", dtype, DTYPES)
    if plot is not None:
        if needs := lack("matplotlib"):
            raise InputError("--plot", needs)
        if plot.suffix not in PICTURES:
            raise InputError("--plot", str(plot), ", ".join(PICTURES))
    most = this_machine().cores
    if threads is not None and threads > most:
        raise InputError("--threads", str(threads), f"1 to {most}, this process's cores")
    info.check_settings()
    if model is not None:
        _model(model)
        return
    import torch

    import normgrad

    from ..bench import layers

    count = threads or most
    torch.set_num_threads(count)
    normgrad.set_num_threads(count)
    cases, seconds = layers.cases(), QUICK_SECONDS if quick else SECONDS
    groups: dict[str, list[LayerTimes]] = {}
    with show.progress(len(cases), "cases") as advance:
        for case in cases:
            advance(str(case), 0)
            times = layers.measure(case, getattr(torch, dtype), seconds)
            groups.setdefault(case.timed_pass, []).append(times)
            advance(str(case))
    where = f"{info.cpu_name()}, {count} thread{'s' if count > 1 else ''}, {dtype}"
    if plot is not None:
        with rewriting(plot) as opened:
            opened.write(_picture(groups, where, plot.suffix))
    _print(groups, where)
    if plot is not None:
        show.print_lines(f"written    {plot}")


def _print(groups: Mapping[str, Sequence[LayerTimes]], where: str) -> None:
    """Print a table for each pass, which fits 80 columns, and the mean gains."""
    header = ("layer", "input", "PyTorch", "normgrad", "gain", "")
    results = [each for group in groups.values() for each in group]
    longest = max(each.gain for each in results)
    means = []
    for timed_pass, group in groups.items():
        lines = [
            (
                *(each.case.name, "×".join(map(str, each.case.shape))),
                *(f"{each.torch * 1e3:.3g}", f"{each.ours * 1e3:.3g}", f"{each.gain:.2f}"),
                _bar(each.gain / longest),
            )
            for each in group
        ]
        show.columns(header, lines, title=timed_pass, right=("PyTorch", "normgrad", "gain"))
        gain = geometric_mean(each.gain for each in group)
        means.append(
            f"{timed_pass}: {gain:.2f} times as fast as PyTorch {version('torch')} (geometric mean)"
        )
    notes = [f"times in ms, on {where}", *means]
    from ..bench.timing import NOISY

    noisy = sum(each.spread > NOISY for each in results)
    if noisy:
        notes.append(
            f"noise: the times of {noisy} of {len(results)} cases spread by more than {NOISY:.0%}; "
            "the machine had other work"
        )
    show.print_lines(*notes)


def _bar(share: float) -> str:
    """A bar of this share of the longest one's length."""
    whole, rest = divmod(max(1, round(8 * LONGEST_BAR * share)), 8)
    return "█" * whole + _EIGHTHS[rest]


def _picture(groups: Mapping[str, Sequence[LayerTimes]], where: str, ending: str) -> bytes:
    """Draw the gains as bars, a panel for each pass."""
    import io

    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 0.5 + 0.3 * max(map(len, groups.values()))), layout="constrained")
    panels: Any = figure.subplots(1, len(groups), sharey=True, squeeze=False)[0]
    longest = max(each.gain for group in groups.values() for each in group)
    for axes, (timed_pass, group) in zip(panels, groups.items(), strict=True):
        names = [each.case.name for each in group]
        bars = axes.barh(names, [each.gain for each in group])
        axes.bar_label(bars, fmt="%.1f×", padding=3)
        axes.axvline(1, color="black", linewidth=1)
        # Leave room for the longest bar's label.
        axes.set(title=f"{timed_pass}: times as fast as PyTorch", xlim=(0, 1.25 * longest))
        axes.invert_yaxis()
    figure.supxlabel(where, fontsize="small")
    file = io.BytesIO()
    figure.savefig(file, format=ending[1:], dpi=150)
    return file.getvalue()


def _model(spec: str) -> None:
    """Print what converting a model would bring, which a function of the user's returns."""
    import torch

    from ..torch import estimate

    module, _, function = spec.partition(":")
    allowed = "allowed: MODULE:FUNCTION, a function without arguments"
    sys.path.insert(0, str(Path.cwd()))
    with blaming(f"--model: {spec}", ImportError, AttributeError, ValueError, allowed=allowed):
        imported = importlib.import_module(module)
        if not function:
            raise ValueError("no function")
        make = getattr(imported, function)
    match make() if callable(make) else None:
        case tuple((torch.nn.Module() as model, example)):
            arguments = example if isinstance(example, tuple) else (example,)
            show.print_lines(*str(estimate(model, *arguments)).splitlines())
        case other:
            text = f"{spec} returns {describe(other)}"
            raise InputError("--model", text, "a model, and a tensor or a tuple of arguments")
