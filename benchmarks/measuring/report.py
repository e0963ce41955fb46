"""Make tables of runs, for the command to print and for the documents."""

from __future__ import annotations

import itertools
import math
import os
import re
import statistics
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from . import picture, results, targets
from .results import Results, Row, spelled_bytes, spelled_threads
from .startup import TIMES
from .suite import DENSE, FLOAT32, GPU_BATCH, RESNET_50, Layout, Operator, Part
from .targets import geometric_mean

#: One name of a timed call, for its microseconds, or two, for the ratio of their times.
Figure = tuple[str, ...]
#: By a column's title, its figure, and the label of the rows that it is a mean of.
_Columns = Mapping[str, tuple[Figure, int | str]]

BEGIN, END = "<!-- bench: begin -->", "<!-- bench: end -->"
#: The documents with markers, the folder of a page for each machine, and the document of targets.
README, PERFORMANCE = Path("README.md"), Path("docs", "performance.md")
PAGES, TARGETS = Path("docs", "performance"), Path("benchmarks", "targets.md")

#: Prefixes of the files of runs on CPUs, on GPUs, and of startup times. A run of a part of the
#: suite has a suffix too, and is left out.
RUNS, GPU_RUNS, STARTS = "cpu-", "cuda-", "startup-"
PARTIAL = ("-quick", "-filtered", "-interrupted")

#: The number of misses listed for each target; the file has all of them.
MOST_MISSES = 12

#: The first lines of a document that is generated whole.
GENERATED = (
    "This page is generated: `python benchmarks/measure.py report` makes it from a file in "
    "[benchmarks/results]({results})."
)

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


def every(rows: Sequence[Row]) -> Table:
    """A table of every case's times in µs, and of torch's time over the public function's."""
    lines: dict[str, list[Row]] = {}
    for row in rows:
        lines.setdefault(row.case.id, []).append(row)
    names = [name for name in TITLES if any(name in row.us for row in rows)]
    figures: dict[str, Figure] = {TITLES[name]: (name,) for name in names}
    if "torch" in names:
        figures |= _SPEEDUP
    return _means("times in µs", lines, _of_threads(sorted({row.threads for row in rows}), figures))


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
    # A file that was measured in parts has the command of each part.
    commands = facts["command"].replace("; ", "`, `")
    return f"{place}. {versions}. {facts['date'][:10]}, `{commands}`."


def _link(path: Path, folder: Path) -> str:
    """A link from a document in a folder."""
    return Path(os.path.relpath(path, folder)).as_posix()


def page(found: Results, begun: Table | None, path: Path, folder: Path) -> str:
    """The document on the run in the file ``path``, in ``folder``."""
    how = "[Method](method.md) says what the columns mean."
    generated = GENERATED.format(results=_link(path, folder))
    sections = [f"# {found.device}", f"{generated} {how}", summary(found)]
    if reasons := found.facts.get("not_measured"):
        # Split only after each reason's cases in brackets, as an error's text may have semicolons.
        sections.append("\n- ".join(["Not measured:\n", *re.split(r"(?<=\)); ", reasons)]))
    if (drawn := path.with_suffix(".svg")).exists():
        sections.append(f"![Times over the bandwidth-bound (triad) time]({_link(drawn, folder)})")
    parts = {part: [row for row in found.rows if row.case.part is part] for part in Part}
    for part, figures in _MEANS.items():
        if parts[part]:
            name = f"{part.value[0].upper()}{part.value[1:]}"
            sections.append(f"## {name}: geometric means")
            for count, (title, figure) in itertools.product(found.counts, figures.items()):
                mine = [row for row in parts[part] if row.threads == count]
                layouts = {row.case.layout for row in mine}
                labels = [_labels(row)[1] for row in mine]
                labels += [each.value for each in Layout if each in layouts]
                columns = {str(label): (figure, label) for label in (*labels, "all")}
                title = f"{title}, {spelled_threads(count)}"
                sections.append(str(_means(title, _by_operator(mine), columns)))
    batch = GPU_BATCH if found.on_gpu else RESNET_50[0][0]
    layers = {(batch, *shape[1:]) for shape in RESNET_50}
    parts[Part.GRADIENTS] = [
        row
        for row in parts[Part.GRADIENTS]
        if row.case.operator is Operator.TRAIN and row.case.shape in layers
        if row.case.parameters == FLOAT32 and row.case.layout in DENSE
    ]
    for part, title in _EVERY.items():
        if parts[part]:
            table = every(parts[part])
            sections += [f"## {title.format(batch)}", str(table)]
    if begun is not None:
        sections += ["## Starting", str(begun)]
    return "\n\n".join(sections) + "\n"


def goals(runs: Sequence[tuple[Results, Table | None, Path]], folder: Path) -> str:
    """The document of the targets that each run met or missed, in ``folder``."""
    sections = ["# Targets", GENERATED.format(results=_link(runs[0][2].parent, folder))]
    for found, _, _ in runs:
        sections += [f"## {found.device}", _where(found), str(held(found))]
        sections += ["### Misses", "\n".join(misses(found)) or "None."]
    return "\n\n".join(sections) + "\n"


#: The figures of which a part's tables show means for each operator.
_MEANS = {
    **dict.fromkeys((Part.GRADIENTS, Part.FORWARD, Part.ROWS), FIGURES),
    **dict.fromkeys((Part.LAYERS, Part.NEW_SIZES), _SPEEDUP),
}
#: The tables that show every case.
_EVERY = {
    Part.CALLS: "Call overhead: tiny tensors",
    Part.ROWS: "Layer norm and RMS norm, case by case",
    Part.LAYERS: "Layers, forward and backward",
    Part.NEW_SIZES: "Layers, forward and backward, with a new size at each step",
    Part.STEPS: "Training steps, stock models and converted ones",
    Part.ACLNN: "aclnn's first phase",
    Part.GRADIENTS: "ResNet-50 at batch {}, training: gradients",
}


def _lines(found: Results, *, by_operator: bool) -> dict[str, list[Row]]:
    """The rows with a peer's time by group of cases, and if wanted by operator before."""
    lines: dict[str, list[Row]] = {}
    for part in Part:
        together = [row for row in found.rows if row.case.part is part and "torch" in row.us]
        if by_operator and part is not Part.CALLS:
            lines |= _by_operator(together)
        if together:
            lines[f"**all {part.value}**" if by_operator else part.value] = together
    return lines


def summary(found: Results) -> str:
    """A run's summary: its device, and means for each operator and each group of cases."""
    table = _means("", _lines(found, by_operator=True), _of_threads(found.counts, FIGURES))
    cases = len({row.case for row in found.rows})
    return f"{_where(found)}\n\nGeometric means over {cases} cases:\n\n{table}"


def overview(runs: Sequence[tuple[Results, Table | None, Path]], folder: Path) -> str:
    """Each run's part of the document with all machines, in ``folder``."""
    sections = []
    for found, _, path in runs:
        columns = {spelled_threads(count): (("torch", "ours"), count) for count in found.counts}
        link = _link(Path(PAGES.name, f"{path.stem}.md"), Path())
        sections += [
            f"### {found.device}",
            f"![Times as fast as PyTorch, by size]({PAGES.name}/{path.stem}.svg)",
            str(_means("times as fast as PyTorch", _lines(found, by_operator=False), columns)),
            f"{found.facts['date'][:10]}, PyTorch {found.facts['torch']}; [every table]({link}).",
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


def gains(runs: Sequence[tuple[Results, Table | None, Path]]) -> str:
    """The README's table: torch's time over ours with one thread, of layers and training steps."""
    table = Table(["forward and backward, one thread"], [[name] for name, *_ in _GAINS])
    for found, _, _ in runs:
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
    dates = (f"{found.device} on {found.facts['date'][:10]}" for found, _, _ in runs)
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


def _load(folder: Path, prefix: str) -> list[tuple[Results, Table | None, Path]]:
    """Load the full runs whose files' names have this prefix."""
    runs = []
    for path in sorted(folder.glob(f"{prefix}*.csv")):
        if path.stem.endswith(PARTIAL):
            continue
        begin = folder / f"{STARTS}{path.stem.removeprefix(prefix)}.csv"
        try:
            begun = starts(results.read_table(begin)[1]) if begin.exists() else None
            runs.append((results.read(path), begun, path))
        except (OSError, ValueError, KeyError) as error:
            raise ReportError(f"{path}: no file of a run ({error})") from None
    return runs


def write(folder: Path, checkout: Path) -> list[Path]:
    """Bring a checkout's documents up to date with a folder's runs, and return those that changed.

    README.md and docs/performance.md have markers for their parts. Each run has a page and a
    picture in docs/performance; the targets are in benchmarks/targets.md.

    Raises:
        ReportError: there are no runs, or no markers.
    """
    cpus = _load(folder, RUNS)
    runs = [*cpus, *_load(folder, GPU_RUNS)]
    if not runs:
        raise ReportError(f"{folder}: no file of a full run; make one with measure.py run")
    changed: dict[Path, bytes] = {}
    for name, content in ((README, gains(cpus)), (PERFORMANCE, overview(runs, PERFORMANCE.parent))):
        document = checkout / name
        if document.exists():
            found = replace_between(document.read_text(encoding="utf-8"), content)
            if found is not None:
                changed[document] = found.encode()
    if not changed:
        raise ReportError(f"{checkout}: neither {README} nor {PERFORMANCE} has the marker {BEGIN}")
    for run in runs:
        path = checkout / PAGES / run[2].name
        changed[path.with_suffix(".md")] = page(*run, path.parent).encode()
        if drawn := picture.gains(run[0]):
            changed[path.with_suffix(".svg")] = drawn
    changed[checkout / TARGETS] = goals(runs, checkout / TARGETS.parent).encode()
    written = [
        path for path, new in changed.items() if not path.exists() or path.read_bytes() != new
    ]
    for path in written:
        path.parent.mkdir(parents=True, exist_ok=True)
        results.write(path, changed[path])
    return written
