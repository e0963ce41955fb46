"""Run the cases on public kernels, and print what docs/verify.md says of them.

``python compare.py run flax`` tries the adapters of a library, in an environment that has it. It
writes benchmarks/results/verify-flax.csv, the number of cases of each verdict by operator, and
docs/verify/flax.html, the page of evidence. ``python compare.py tables`` prints the page's table.
"""

from __future__ import annotations

import csv
import datetime
import sys
from collections import Counter
from collections.abc import Iterator, Mapping
from importlib import metadata
from pathlib import Path
from typing import NamedTuple

from normgrad.cli import info
from normgrad.testing import Case, Judged, Topic, Verdict, report, try_cases
from normgrad.testing.page import page
from normgrad.testing.tensors import HALVES

RESULTS = Path(__file__).parents[2] / "benchmarks" / "results"
PAGES = Path(__file__).parents[2] / "docs" / "verify"
NORMS = ("BatchNorm", "GroupNorm", "LayerNorm", "RMSNorm")


class Library(NamedTuple):
    """A library's adapters.

    Attributes:
        title: its name on the page.
        packages: the packages whose versions are told.
        specs: what ``--backend`` or ``--module`` takes.
        quick: whether only a quick run's cases are tried, since they take long.
        most_samples: the most samples of a case, of which each takes a while.
        topics: the topics of the cases that are tried.
    """

    title: str
    packages: tuple[str, ...]
    specs: tuple[str, ...]
    quick: bool = False
    most_samples: int = 1 << 20
    topics: tuple[Topic, ...] = tuple(Topic)

    def wants(self, case: Case) -> bool:
        """Whether a case is tried."""
        return case.shape[0] <= self.most_samples and case.topic in self.topics


def _modules(module: str, prefix: str = "") -> tuple[str, ...]:
    return tuple(f"{module}:{prefix}{norm}" for norm in NORMS)


LIBRARIES: Mapping[str, Library] = {
    "normgrad": Library("normgrad", ("normgrad",), ("normgrad",)),
    "torch": Library("PyTorch's operators", ("torch",), ("torch",)),
    "eager": Library("PyTorch's layers, eager", ("torch",), _modules("torch_norms")),
    "inductor": Library(
        "PyTorch's layers, inductor",
        ("torch",),
        _modules("torch_norms", "Compiled"),
        quick=True,
        topics=(Topic.PLAIN, Topic.MEAN, Topic.SPECIAL),
    ),
    "flax": Library("Flax, by jax.vjp", ("flax", "jax"), _modules("jax_norms"), quick=True),
    "keras": Library("Keras on JAX", ("keras", "jax"), _modules("keras_norms"), quick=True),
    "mlx": Library("MLX, on the CPU", ("mlx",), _modules("mlx_norms")),
    "onnx": Library("ONNX Runtime", ("onnxruntime",), ("onnx_norms:Ops",)),
    "onednn": Library("oneDNN", ("onednn",), _modules("onednn_norms")),
    "liger": Library(
        "Liger-Kernel, interpreted",
        ("liger_kernel", "triton"),
        ("liger_norms:Ops",),
        quick=True,
        most_samples=100,
        topics=(Topic.PLAIN, Topic.VALUES, Topic.MEAN, Topic.SHAPES, Topic.SIZES, Topic.SPECIAL),
    ),
}

#: Of halves, errors of up to four roundings to the output's dtype, where the bound has one.
ROUNDED = "wrong by rounding halves again"
HEADER = ("operator", "cases", *(each.value for each in Verdict), "max error / bound", ROUNDED)


def is_rounded(judged: Judged) -> bool:
    """Whether a wrong result differs by no more than halves that are rounded more than once."""
    is_half = judged.case.dtype in HALVES and judged.verdict is Verdict.BROKEN
    return is_half and 1 < (judged.units or 0) <= 4


def run(name: str) -> None:
    """Try a library's adapters, and write what is found."""
    library = LIBRARIES[name]
    trials, rows = [], []
    for spec in library.specs:
        trial = try_cases(spec, quick=library.quick, wanted=library.wants)
        trials.append(trial)
        rounded = Counter(each.case.kind for each in trial.judged if is_rounded(each))
        for title, *counts, worst in report.rows(trial, "kind"):
            numbers = [int(each or 0) for each in counts]
            if sum(numbers[:-1]):  # what has not all its cases not offered
                rows.append((title, sum(numbers), *numbers, worst or 0, rounded[title]))
    versions = ", ".join(f"{each} {metadata.version(each)}" for each in library.packages)
    with (RESULTS / f"verify-{name}.csv").open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerows([(versions, _cpu(), datetime.date.today().isoformat()), HEADER, *rows])
    facts = [(title, [each for each in of if each[0] != info.KEPT]) for title, of in info.gather()]
    command = f"python examples/verify/compare.py run {name}"
    when = f"{datetime.date.today().isoformat()}, {versions}"
    (PAGES / f"{name}.html").write_text(page(trials, command, when, facts), "utf-8")


def _cpu() -> str:
    return dict(dict(info.gather())["cpu"])["name"]


def tables() -> Iterator[str]:
    """The page's table, a line at a time; of three columns, for narrow screens."""
    yield f"| | {Verdict.MET.value} | other cases |"
    yield "| --- | ---: | --- |"
    for name, library in LIBRARIES.items():
        path = RESULTS / f"verify-{name}.csv"
        if path.exists():
            with path.open(newline="") as file:
                (versions, *_), _, *rows = csv.reader(file)
            columns = list(zip(*rows, strict=True))
            sums = [sum(map(int, column)) for column in (*columns[1:-2], columns[-1])]
            cases, met, *others, rounded = sums
            words = [
                f"{number} {verdict.value}"
                for number, verdict in zip(others, [*Verdict][1:], strict=True)
                if number
            ]
            if rounded:
                words[0] += f", of which {rounded} by rounding halves again"
            title = f"[{library.title}](verify/{name}.html): {versions}"
            yield f"| {title} | {met} of {cases} | {'; '.join(words)} |"


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["run", name] if name in LIBRARIES:
            run(name)
        case ["tables"]:
            print("\n".join(tables()))
        case _:
            sys.exit(f"usage: compare.py tables | compare.py run {{{','.join(LIBRARIES)}}}")
