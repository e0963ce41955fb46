"""Make tables of runs, for the command to print and for the documents."""

from __future__ import annotations

import itertools
import math
import os
import statistics
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from . import picture, results, targets
from .results import Results, Row, spelled_bytes, spelled_threads
from .startup import TIMES
from .suite import DENSE, FLOAT32, Operator, Part
from .targets import geometric_mean

#: One name of a timed call, for its microseconds, or two, for the ratio of their times.
Figure = tuple[str, ...]
#: By a column's title, its figure, and the label of the rows that it is a mean of.
_Columns = Mapping[str, tuple[Figure, int | str]]

BEGIN, END = "<!-- bench: begin -->", "<!-- bench: end -->"
#: The documents with markers, and the folder of the pictures.
README, PICTURES = Path("README.md"), Path("docs", "performance")
CPUS, GPUS = PICTURES / "cpus.md", PICTURES / "gpus.md"

#: Prefixes of the files of runs on CPUs, on GPUs, and of models' steps. A run of a part of the
#: suite has a suffix too, and is left out.
RUNS, GPU_RUNS, MODELS = "cpu-", "cuda-", "models-"
PARTIAL = ("-quick", "-filtered", "-interrupted")

#: The number of misses listed for each target; the file has all of them.
MOST_MISSES = 12

#: The ratios of times that are shown for operators. ``ours`` is the public function.
_SPEEDUP: dict[str, Figure] = {"torch / ours": ("torch", "ours")}
FIGURES: dict[str, Figure] = {
    **_SPEEDUP,
    "torch / plan": ("torch", "plan"),
    "×triad": ("plan", "bound"),
}
#: The titles of timed calls in tables.
TITLES = {
    "ours": "ours",
    "python": "ours in Python",
    "plan": "plan",
    "numpy": "NumPy",
    "torch": "torch",
    "bound": "triad",
}


#: The README's lines: their names, their cases' operators, and whether the cases are large.
_GAINS: tuple[tuple[str, tuple[Operator, ...], bool], ...] = (
    ("BatchNorm2d in training, from 2¹⁵ elements", (Operator.LAYER_BATCH_NORM,), True),
    ("BatchNorm2d in evaluation, from 2¹⁵ elements", (Operator.LAYER_EVAL,), True),
    ("GroupNorm, from 2¹⁵ elements", (Operator.LAYER_GROUP_NORM,), True),
    ("layer norm, from 2¹⁵ elements", (Operator.LAYER_NORM, Operator.FORWARD_LAYER_NORM), True),
    ("RMS norm, from 2¹⁵ elements", (Operator.RMS_NORM, Operator.FORWARD_RMS_NORM), True),
    ("BatchNorm2d, smaller", (Operator.LAYER_BATCH_NORM, Operator.LAYER_EVAL), False),
    ("GroupNorm, smaller", (Operator.LAYER_GROUP_NORM,), False),
    ("training step of resnet18 (batch norm)", (Operator.RESNET18,), True),
    ("training step of a U-Net (group norm)", (Operator.UNET,), True),
)


class ReportError(Exception):
    """There are no runs to report, or no markers in a document to put a report between."""


class Table(NamedTuple):
    """A header and lines; names are aligned left, numbers right."""

    header: Sequence[str]
    lines: list[list[str]]

    def __str__(self) -> str:
        rows = [self.header, ["---", *["---:"] * (len(self.header) - 1)], *self.lines]
        return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def shown(value: float | None) -> str:
    """Format a figure; a missing one as a dash."""
    if value is None or math.isnan(value):
        return "–"
    return f"{value:.3g}" if value < 1000 else f"{value:,.0f}"


def held(found: Results) -> Table:
    """A table of the targets and their results with each number of threads."""
    by_threads = targets.by_threads(found)
    columns = [cell for n in by_threads for cell in (f"reached, {spelled_threads(n)}", "")]
    lines = []
    for line in zip(*by_threads.values(), strict=True):
        cells = [cell for one in line for cell in (shown(one.reached), one.verdict)]
        lines.append([line[0].target.name, line[0].target.sign, *cells])
    return Table(["target", "limit", *columns], lines)


def misses(found: Results) -> list[str]:
    """A line with the worst cases for each missed target and number of threads."""
    lines = []
    for count, reached in targets.by_threads(found).items():
        for one in reached:
            if one.met is False:
                worst = [f"`{case}` {shown(value)}" for case, value in one.misses[:MOST_MISSES]]
                if (more := len(one.misses) - MOST_MISSES) > 0:
                    worst.append(f"and {more} more")
                lines.append(
                    f"- {one.target.name} ({one.target.sign}), {spelled_threads(count)}: "
                    f"{len(one.misses)} of {one.cases}: {', '.join(worst)}"
                )
    return lines


def _labels(row: Row) -> tuple[int | str, ...]:
    """What a column may select rows by: the number of threads, the dtype, and the layout."""
    half = "" if row.case.parameters == FLOAT32 else ", half parameters"
    return row.threads, row.case.dtype + half, row.case.layout.value, "all"


def _of_threads(counts: Iterable[int], figures: Mapping[str, Figure]) -> _Columns:
    """A column for each figure and number of threads."""
    return {
        f"{title}, {spelled_threads(count)}": (figure, count)
        for count, (title, figure) in itertools.product(counts, figures.items())
    }


def _means(corner: str, lines: Mapping[str, Sequence[Row]], columns: _Columns) -> Table:
    """A table with a line for each group of rows: the geometric mean of each column's values."""
    table = Table([corner, *columns], [])
    for name, rows in lines.items():
        table.lines.append([name])
        for figure, label in columns.values():
            mine = (row.figure(*figure) for row in rows if label in _labels(row))
            table.lines[-1].append(shown(geometric_mean(mine)))
    return table


def _by_operator(rows: Sequence[Row]) -> dict[str, list[Row]]:
    """The rows by operator, without operators that have none."""
    found = {kind: [row for row in rows if row.case.operator is kind] for kind in Operator}
    return {kind.value: mine for kind, mine in found.items() if mine}


def starts(rows: Iterable[Mapping[str, Any]]) -> Table:
    """A table of processes' startup times in ms, from the rows of their file."""
    header = ["kernels, in ms", "processes", "whole process", "import numpy", "import normgrad"]
    lines = [
        [row["kernels"], str(int(row["runs"])), *(shown(float(row[name])) for name in TIMES)]
        for row in rows
    ]
    return Table([*header, "first call", "second call"], lines)


def _where(found: Results) -> str:
    facts, cache = found.facts, spelled_bytes(found.cache)
    if found.on_gpu:
        memory = spelled_bytes(int(facts["memory_bytes"]))
        place = (
            f"{found.device}, compute capability {facts['compute_capability']}, {memory}, "
            f"L2 {cache}; host {facts['cpu']}"
        )
        packages = ["driver", "CUDA", "cuDNN", "normgrad", "PyTorch", "Triton"]
    else:
        l2, l3 = (spelled_bytes(int(facts[name])) for name in ("l2_bytes", "l3_bytes"))
        place = f"{found.device}, {facts['cores']} cores, L2 {l2}, L3 {l3}"
        packages = ["normgrad", "Python", "NumPy", "Numba", "PyTorch"]
    versions = ", ".join(
        f"{title} {facts['torch' if title == 'PyTorch' else title.lower()]}" for title in packages
    )
    made = f", commit {facts['commit']}" if "commit" in facts else ""
    return f"{place}. {versions}. {facts['date'][:10]}{made}."


def _lines(found: Results) -> dict[str, list[Row]]:
    """The rows with a peer's time, by operator and then by group of cases."""
    lines: dict[str, list[Row]] = {}
    for part in Part:
        together = [row for row in found.rows if row.case.part is part and "torch" in row.us]
        if part is not Part.CALLS:
            lines |= _by_operator(together)
        if together:
            lines[f"**all {part.value}**"] = together
    return lines


def summary(found: Results) -> str:
    """A run's summary: its device, and means for each operator and each group of cases."""
    table = _means("", _lines(found), _of_threads(found.counts, FIGURES))
    cases = len({row.case for row in found.rows})
    return f"{_where(found)}\n\nGeometric means over {cases} cases:\n\n{table}"


def machines(runs: Sequence[tuple[Results, Path]], document: Path) -> str:
    """Each run's part of a document: its picture, its means, and its file."""
    sections = []
    for found, path in runs:
        link = Path(os.path.relpath(path, document.parent)).as_posix()
        sections += [
            f"## {found.device}",
            f"![Times as fast as PyTorch, by size]({path.stem}.svg)",
            summary(found),
            f"Every case: [{path.name}]({link}).",
        ]
    return "\n\n".join(sections)


def _range(values: Sequence[float]) -> str:
    """The mean of some figures and in brackets the least and the greatest; or the only one."""
    if len(values) < 2:
        return f"{values[0]:.2f}" if values else shown(None)
    mean, least, most = (
        f"{value:#.2g}".removesuffix(".")
        for value in (statistics.geometric_mean(values), min(values), max(values))
    )
    return f"{mean} ({least}–{most})"


#: The README's last lines, by whether the models have RMS norms.
_STEPS = {"1": "training steps of models with RMS norms", "0": "training steps of other models"}


def models(path: Path) -> list[dict[str, str]]:
    """The rows of whole models (``benchmarks/worth.py``) of a run's machine, if there are any."""
    of_models = path.with_name(f"{MODELS}{path.name.removeprefix(RUNS)}")
    return results.read_table(of_models)[1] if of_models.exists() else []


def gains(runs: Sequence[tuple[Results, Path]]) -> str:
    """The README's table: torch's time over ours with one thread, of layers and training steps."""
    table = Table(["forward and backward, one thread"], [[name] for name, *_ in _GAINS])
    for found, _ in runs:
        rows = [row for row in found.rows if row.threads == 1 and "torch" in row.us]
        for layout in DENSE:
            table = Table([*table.header, f"{found.device}, {layout.value}"], table.lines)
            for line, (_, operators, is_large) in zip(table.lines, _GAINS, strict=True):
                some = [
                    row.figure("torch", "ours")
                    for row in rows
                    if row.case.operator in operators and row.case.layout is layout
                    if is_large == (row.case.elements >= targets.LARGE_LAYER)
                ]
                line.append(_range(some))
    for has_rms_norm, name in _STEPS.items():
        line = [name]
        for _, path in runs:
            of_kind = [row for row in models(path) if row["has_rms_norm"] == has_rms_norm]
            # They are contiguous.
            line += [_range([float(row["measured"]) for row in of_kind]), shown(None)]
        table.lines.append(line)
    dates = (f"{found.device} on {found.facts['date'][:10]}" for found, _ in runs)
    return f"{table}\n\nMeasured in float32 and bfloat16: {', '.join(dates)}."


def replace_between(text: str, content: str, begin: str = BEGIN, end: str = END) -> str | None:
    """Replace the text between the markers; return None if there are no markers.

    Raises:
        ReportError: one marker is missing, or a marker occurs several times.
    """
    if (text.count(begin), text.count(end)) == (0, 0):
        return None
    before, opened, rest = text.partition(begin)
    _, closed, after = rest.partition(end)
    if not (opened and closed) or begin in rest or end in before + after:
        raise ReportError(f"markers do not pair; allowed: one {begin} and after it one {end}")
    return f"{before}{begin}\n\n{content}\n\n{end}{after}"


def load(folder: Path, prefix: str) -> list[tuple[Results, Path]]:
    """Load the full runs whose files' names have this prefix.

    Raises:
        ReportError: a file is not one of a run.
    """
    runs = []
    for path in sorted(folder.glob(f"{prefix}*.csv")):
        if path.stem.endswith(PARTIAL):
            continue
        try:
            runs.append((results.read(path), path))
        except (OSError, ValueError, KeyError) as error:
            raise ReportError(f"{path}: no file of a run ({error})") from None
    return runs


def documents(folder: Path, checkout: Path) -> dict[Path, bytes]:
    """What a checkout's documents should be by a folder's runs.

    Raises:
        ReportError: there are no runs, or no markers.
    """
    cpus, gpus = load(folder, RUNS), load(folder, GPU_RUNS)
    if not cpus + gpus:
        raise ReportError(f"{folder}: no file of a full run; make one with measure.py run")
    contents = {
        README: gains(cpus),
        CPUS: machines(cpus, checkout / CPUS),
        GPUS: machines(gpus, checkout / GPUS),
    }
    wanted: dict[Path, bytes] = {}
    for name, content in contents.items():
        document = checkout / name
        if document.exists():
            found = replace_between(document.read_text(encoding="utf-8"), content)
            if found is not None:
                wanted[document] = found.encode()
    if not wanted:
        raise ReportError(f"{checkout}: none of {', '.join(map(str, contents))} has {BEGIN}")
    return wanted


def pictures(folder: Path, checkout: Path) -> dict[Path, bytes]:
    """The pictures of gains that a checkout's documents show of a folder's runs."""
    wanted = {}
    for run, path in (*load(folder, RUNS), *load(folder, GPU_RUNS)):
        if drawn := picture.gains(run, models(path)):
            wanted[checkout / PICTURES / path.with_suffix(".svg").name] = drawn
    return wanted


def write(folder: Path, checkout: Path) -> list[Path]:
    """Bring a checkout's documents and their pictures up to date with a folder's runs.

    Returns:
        The files that changed.

    Raises:
        ReportError: there are no runs, or no markers.
    """
    wanted = documents(folder, checkout) | pictures(folder, checkout)
    written = [
        path for path, new in wanted.items() if not path.exists() or path.read_bytes() != new
    ]
    for path in written:
        path.parent.mkdir(parents=True, exist_ok=True)
        results.write(path, wanted[path])
    return written
