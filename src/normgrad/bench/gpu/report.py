"""A run on a GPU as it stands in docs/performance.md."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from ..markdown import means, missed, shown, table, verdict
from ..results import spelled_bytes
from ..suite import DENSE, Part
from . import results, targets
from .figures import Figures, figures
from .results import Results

#: Files of runs begin so.
RUNS = "cuda-"

#: What is measured with, where nothing has been.
COMMAND = "normgrad bench --device cuda"

NOTHING = f"""No figures have been measured on a GPU yet. On a machine with one,

<!-- not run: needs a GPU -->
```sh
{COMMAND}
```

writes them to `benchmarks/results/{RUNS}NAME.csv`, and `normgrad bench --report` puts their tables
here."""

#: Misses listed of each target; the file has them all.
MOST_MISSES = 12

_DTYPES = ("float32", "bfloat16", "float16")
_LAYOUTS = tuple(layout.value for layout in DENSE)


def section(runs: Sequence[Results]) -> str:
    """What stands between the markers: every run, or that there is none."""
    return "\n\n".join(map(details, runs)) or NOTHING


def _where(found: Results) -> str:
    facts = found.facts
    memory, l2 = (spelled_bytes(int(facts[name])) for name in ("memory_bytes", "l2_bytes"))
    versions = ", ".join(
        f"{title} {facts[name]}"
        for title, name in (
            *(("driver", "driver"), ("CUDA", "cuda"), ("cuDNN", "cudnn")),
            *(("normgrad", "normgrad"), ("PyTorch", "torch"), ("Triton", "triton")),
        )
    )
    commands = ", ".join(f"`{command}`" for command in facts["command"].split("; "))
    return (
        f"{facts['gpu']}, compute capability {facts['compute_capability']}, {memory}, L2 {l2}; "
        f"host {facts['cpu']}. {versions}. {facts['date'][:10]}, {commands}."
    )


def _targets(found: Sequence[Figures]) -> str:
    lines = [
        [target.name, target.limit if target.cases else "–", shown(target.reached), verdict(target)]
        for target in targets.evaluate(found)
    ]
    return table(["", "target", "reached", ""], lines)


def _misses(found: Sequence[Figures]) -> str:
    off = [target for target in targets.evaluate(found) if target.misses]
    return "\n".join(missed(target, MOST_MISSES) for target in off) or "None."


def _both_means(found: Sequence[Figures], figure: Callable[[Figures], float]) -> list[str]:
    return [
        means(found, "", lambda one: one.dtype, figure, _DTYPES),
        means(found, "", lambda one: one.layout, figure, _LAYOUTS),
    ]


def _bandwidths(found: Sequence[Figures]) -> str:
    lines = [
        [
            one.case,
            shown(one.moving_us),
            *(shown(one.tbs), shown(one.copy_tbs), f"{one.share:.0%}"),
            *(one.best or "–", shown(one.speedup)),
        ]
        for one in found
    ]
    header = ["", "µs", "TB/s", "copy's TB/s", "of it", "best contender", "best / ours"]
    return table(header, lines)


def _small(found: Sequence[Figures]) -> str:
    lines = [
        [one.case, shown(one.events_ours_us), shown(one.events_operator_us), shown(one.small_call)]
        for one in found
    ]
    return table(["µs a call, launching included", "ours", "torch's", "ours / torch's"], lines)


def details(found: Results) -> str:
    """A run in full."""
    every = figures(found)
    gradients = [one for one in every if one.part is Part.GRADIENTS]
    huge = [one for one in every if one.tensor_bytes > targets.TBS_BYTES]
    small = [one for one in gradients if one.shape in targets.SMALL_SHAPES]
    sections = [f"### {found.facts['gpu']}", _where(found)]
    if found.facts.get("not_measured"):
        sections.append(f"Not measured: {found.facts['not_measured']}.")
    sections += ["#### Targets", _targets(every), "#### Misses", _misses(every)]
    if every:
        sections += [
            "#### Times as fast as the best contender",
            "Geometric means of best contender / ours, both with new outputs.",
            *_both_means(every, lambda one: one.speedup),
        ]
    if huge:
        sections += ["#### Bandwidth on tensors over 200 MB", _bandwidths(huge)]
    if small:
        sections += ["#### Small tensors", _small(small)]
    return "\n\n".join(sections)


def load(folder: Path, partial: Sequence[str]) -> list[Results]:
    """The full runs in a folder.

    Args:
        folder: where they are.
        partial: how the names of others end.

    Raises:
        OSError: one cannot be read.
        ValueError: one is no file of a run.
    """
    found = []
    for path in sorted(folder.glob(f"{RUNS}*.csv")):
        if not path.stem.endswith(tuple(partial)):
            try:
                found.append(results.read(path))
            except (ValueError, KeyError) as error:
                raise ValueError(f"{path}: no file of a run ({error})") from None
    return found
