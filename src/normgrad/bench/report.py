"""Tables for the documents, made from the files of runs and put between markers."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path

from . import results, targets
from .markdown import means, missed, shown, table, verdict
from .results import Results, Row, spelled_bytes, spelled_threads
from .startup import Start
from .suite import GPU_BATCH, RESNET_50, Layout, Operator, Part, spelled
from .targets import geometric_mean

BEGIN, END = "<!-- bench: begin -->", "<!-- bench: end -->"
#: Between these stands what was measured on GPUs.
GPU_BEGIN, GPU_END = "<!-- bench-gpu: begin -->", "<!-- bench-gpu: end -->"

#: Files of runs begin so, and those of starts so; a run of a part has a suffix and is left out.
RUNS, GPU_RUNS, STARTS = "cpu-", "cuda-", "startup-"
PARTIAL = ("-quick", "-filtered")

#: Misses listed of each target; the file has them all.
MOST_MISSES = 12


NO_GPU = """No figures have been measured on a GPU yet. On a machine with one,

<!-- not run: needs a GPU -->
```sh
normgrad bench --device cuda
```

writes them to `benchmarks/results/cuda-NAME.csv`, and `normgrad bench --report` puts their tables
here."""


class ReportError(Exception):
    """There is nothing to report, or nowhere to put it."""


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
        place = (
            f"{found.device}, {facts['cores']} cores, L2 {l2}, L3 {l3}, of which {cache} are "
            "counted on"
        )
        packages = ["normgrad", "Python", "NumPy", "Numba", "PyTorch"]
    versions = ", ".join(
        f"{title} {facts['torch' if title == 'PyTorch' else title.lower()]}" for title in packages
    )
    # Where a file was measured in parts, it has the command of each.
    commands = facts["command"].replace("; ", "`, `")
    return f"{place}. {versions}. {facts['date'][:10]}, `{commands}`."


def _targets(found: Results) -> str:
    by_threads = targets.by_threads(found)
    counts = list(by_threads)
    header = [
        "",
        *(cell for n in counts for cell in (f"target, {spelled_threads(n)}", "reached", "")),
    ]
    rows = []
    for line in zip(*by_threads.values(), strict=True):
        cells = [[t.limit if t.cases else "–", shown(t.reached), verdict(t)] for t in line]
        rows.append([line[0].name, *(cell for group in cells for cell in group)])
    return table(header, rows)


def _dtype(row: Row) -> str:
    return row.dtype if row.parameters == "float32" else f"{row.dtype}, half parameters"


_DTYPES = (
    *("float32", "bfloat16", "float16"),
    *("bfloat16, half parameters", "float16, half parameters"),
)
_LAYOUTS = tuple(layout.value for layout in Layout)


def _batch(found: Results) -> int:
    """What ResNet-50's layers have in the run's suite."""
    return GPU_BATCH if found.on_gpu else RESNET_50[0][0]


def _resnet(found: Results) -> str:
    """The layers of ResNet-50 in training."""
    counts = sorted({row.threads for row in found.rows})
    shapes = tuple(spelled((_batch(found), *shape[1:])) for shape in RESNET_50)
    mine: dict[str, dict[int, Row]] = {}
    for row in found.rows:
        common = row.parameters == "float32" and row.layout in _LAYOUTS[:2]
        if row.operator == Operator.TRAIN.value and row.shape in shapes and common:
            name = f"{row.shape} {row.dtype} {row.layout}"
            mine.setdefault(name, {})[row.threads] = row
    lines = []
    for name, rows in mine.items():
        cells = [name]
        for count in counts:
            row = rows[count]
            times = (row.t_ours_us, row.t_out_us, row.t_torch_us, row.t_triad_us)
            cells += [f"{time / 1e3:.3g}" for time in times]
            cells += [shown(row.speedup), shown(row.xtriad)]
        lines.append(cells)
    columns = ("ours", "`out=`", "torch", "triad", "torch / ours", "×triad")
    header = [f"{column}, {spelled_threads(n)}" for n in counts for column in columns]
    return table(["times in ms", *header], lines)


def _layers(rows: Sequence[Row]) -> str:
    """Every layer's step."""
    counts = sorted({row.threads for row in rows})
    lines = []
    for case in dict.fromkeys(row.case for row in rows):
        cells = [case]
        for count in counts:
            (row,) = (row for row in rows if (row.case, row.threads) == (case, count))
            cells += [f"{time / 1e3:.3g}" for time in (row.t_ours_us, row.t_torch_us)]
            cells.append(shown(row.speedup))
        lines.append(cells)
    columns = ("ours", "torch", "torch / ours")
    header = [f"{column}, {spelled_threads(n)}" for n in counts for column in columns]
    return table(["times in ms", *header], lines)


def _misses(found: Results) -> str:
    lines = [
        missed(target, MOST_MISSES, spelled_threads(count))
        for count, reached in targets.by_threads(found).items()
        for target in reached
        if target.met is False and target.misses
    ]
    return "\n".join(lines) or "None."


def _starts(starts: Sequence[Start]) -> str:
    rows = [
        [
            f"{start.kernels}, {start.operator} {start.dtype}",
            *(
                shown(value)
                for value in (
                    *(start.process_ms, start.numpy_ms, start.import_ms),
                    *(start.first_call_ms, start.second_call_ms),
                )
            ),
        ]
        for start in starts
    ]
    header = ["kernels", "whole process", "import numpy", "import normgrad", "first call", "second"]
    return table([f"{header[0]} (times in ms)", *header[1:]], rows)


def details(found: Results, starts: Sequence[Start], picture: str | None) -> str:
    """A run in full: for docs/performance.md."""
    parts = {part: [row for row in found.rows if row.part is part] for part in Part}
    gradients, forward, layers = parts.values()
    missing = found.facts.get("not_measured")
    sections = [
        f"### {found.device}",
        _where(found),
        *([f"Not measured: {missing}."] if missing else []),
        *([f"![Times over the memory's own time]({picture})"] if picture else []),
        "#### Targets",
        _targets(found),
        "#### Misses",
        _misses(found),
    ]
    if gradients:
        sections += [
            "#### Gradients: times as fast as PyTorch",
            "Geometric means of torch / ours, both with new outputs.",
            *_both_means(gradients, lambda row: row.speedup),
            "#### Gradients: times the memory's own time",
            "Geometric means of ours with `out=` over what stands for the memory.",
            *_both_means(gradients, lambda row: row.xtriad),
        ]
    if forward:
        sections += [
            "#### The forward pass",
            "Geometric means of torch / ours, both with new outputs:",
            *_both_means(forward, lambda row: row.speedup),
            "And of ours with `out=` over what stands for the memory:",
            *_both_means(forward, lambda row: row.xtriad),
        ]
    if layers:
        sections += [
            "#### Layers, forward and backward",
            "Geometric means of torch / ours:",
            *_both_means(layers, lambda row: row.speedup),
            "And every case:",
            _layers(layers),
        ]
    if gradients:
        title = f"#### ResNet-50 at batch {_batch(found)}, training: gradients"
        sections += [title, _resnet(found)]
    return "\n\n".join([*sections, *(["#### Starting", _starts(starts)] if starts else [])])


def _both_means(rows: Sequence[Row], figure: Callable[[Row], float]) -> list[str]:
    """The means by dtype and by layout, for each number of threads."""
    tables = []
    for count in sorted({row.threads for row in rows}):
        mine = [row for row in rows if row.threads == count]
        tables.append(means(mine, spelled_threads(count), _dtype, figure, _DTYPES))
        tables.append(means(mine, spelled_threads(count), lambda row: row.layout, figure, _LAYOUTS))
    return tables


def summary(found: Results) -> str:
    """A run in short: for the README; the operators, and the means of what belongs together."""
    counts = sorted({row.threads for row in found.rows})

    def cells(rows: Sequence[Row]) -> list[str]:
        return [
            cell
            for n in counts
            for cell in (
                shown(geometric_mean(row.speedup for row in rows if row.threads == n)),
                shown(geometric_mean(row.xtriad for row in rows if row.threads == n)),
            )
        ]

    lines = []
    for part in Part:
        together = [row for row in found.rows if row.part is part]
        lines += [
            [operator.value, *cells(mine)]
            for operator in Operator
            if (mine := [row for row in together if row.operator == operator.value])
        ]
        if together:
            lines.append([f"**all {part.value}**", *cells(together)])
    columns = (
        f"{what}, {spelled_threads(n)}" for n in counts for what in ("torch / ours", "×triad")
    )
    cases = len({row.case for row in found.rows})
    return f"{_where(found)} Geometric means over {cases} cases:\n\n" + table(["", *columns], lines)


def replace_between(text: str, content: str, begin: str = BEGIN, end: str = END) -> str | None:
    """The text with what stands between the markers replaced; None if they are not there.

    Raises:
        ReportError: one is missing, or there are several.
    """
    if (text.count(begin), text.count(end)) == (0, 0):
        return None
    before, opened, rest = text.partition(begin)
    _, closed, after = rest.partition(end)
    if not (opened and closed) or begin in rest or end in before + after:
        raise ReportError(f"markers do not pair; allowed: one {begin} and after it one {end}")
    return f"{before}{begin}\n\n{content}\n\n{end}{after}"


def _load(folder: Path, prefix: str) -> list[tuple[Results, list[Start], Path]]:
    """The full runs whose files begin so."""
    found = []
    for path in sorted(folder.glob(f"{prefix}*.csv")):
        if path.stem.endswith(PARTIAL):
            continue
        begin = folder / f"{STARTS}{path.stem.removeprefix(prefix)}.csv"
        try:
            starts = results.read_table(begin, Start)[1] if begin.exists() else []
            found.append((results.read(path), starts, path))
        except (OSError, ValueError, KeyError) as error:
            raise ReportError(f"{path}: no file of a run ({error})") from None
    return found


def _in_full(runs: Sequence[tuple[Results, list[Start], Path]], documents: Path) -> str:
    return "\n\n".join(
        details(found, starts, _picture(path, documents)) for found, starts, path in runs
    )


def write(folder: Path, checkout: Path) -> list[Path]:
    """Bring the documents of a checkout up to date with the runs in a folder.

    Returns:
        The documents that have markers, written: of GPUs too, or that nothing was measured there.

    Raises:
        ReportError: there are no runs, or no markers.
        OSError: what the system says.
    """
    runs, gpus = _load(folder, RUNS), _load(folder, GPU_RUNS)
    if not runs and not gpus:
        raise ReportError(f"{folder}: no file of a full run; make one with normgrad bench")
    readme, performance = checkout / "README.md", checkout / "docs" / "performance.md"
    contents = {
        readme: "\n\n".join(summary(found) for found, _, _ in runs),
        performance: _in_full(runs, performance.parent),
    }
    on_gpus = _in_full(gpus, performance.parent) or NO_GPU
    changed = {}
    for document, content in contents.items():
        if not document.exists():
            continue
        old = document.read_text(encoding="utf-8")
        # Where there is no run on a CPU, what is said of one stays.
        new = replace_between(old, content) if runs else None
        both = replace_between(new or old, on_gpus, GPU_BEGIN, GPU_END)
        if (found := both or new) is not None:
            changed[document] = found
    if not changed:
        names = " nor ".join(str(document.relative_to(checkout)) for document in contents)
        raise ReportError(f"{checkout}: neither {names} has the marker {BEGIN}")
    for document, text in changed.items():
        results.write(document, text.encode())
    return list(changed)


def _picture(path: Path, documents: Path) -> str | None:
    """A run's picture as a document refers to it."""
    picture = path.with_suffix(".svg")
    if not picture.exists():
        return None
    return Path(os.path.relpath(picture, documents)).as_posix()
