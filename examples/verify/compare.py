"""Run the cases on public kernels, and print what docs/verify/libraries.md says.

``python compare.py run flax`` tries the adapters of a library, in an environment that has it. It
writes the cases that do not pass to docs/verify/flax.csv, what is wrong by any standard to
docs/verify/findings.csv, and the counts to docs/verify/runs.csv. ``python compare.py pages`` makes
of these the page docs/verify/findings.md, and prints the table of docs/verify/libraries.md.
"""

from __future__ import annotations

import csv
import datetime
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import NamedTuple

from normgrad.cli import info
from normgrad.testing import Fault, Judged, Level, findings, load, loading

RESULTS = Path(__file__).parents[2] / "docs" / "verify"
RUNS, FINDINGS = RESULTS / "runs.csv", RESULTS / "findings.csv"
PAGE = RESULTS / "findings.md"
NORMS = ("BatchNorm", "GroupNorm", "LayerNorm", "RMSNorm")


def _of(*topics: str) -> tuple[str, str]:
    return "-m", " or ".join(f"case(topic='{topic}')" for topic in topics)


class Library(NamedTuple):
    """A library's adapters.

    Attributes:
        title: its name on the page.
        packages: the packages whose versions are told.
        specs: what ``normgrad verify`` takes.
        options: pytest's options, for what takes long.
        scripts: the programs in docs/verify that show a finding in plain code, one for each of its
            causes, by what the finding begins with.
    """

    title: str
    packages: tuple[str, ...]
    specs: tuple[str, ...]
    options: tuple[str, ...] = ()
    scripts: Mapping[str, tuple[str, ...]] = {}


def _modules(module: str, prefix: str = "") -> tuple[str, ...]:
    return tuple(f"{module}:{prefix}{norm}" for norm in NORMS)


LIBRARIES: Mapping[str, Library] = {
    "normgrad": Library("normgrad", ("normgrad",), ("normgrad",)),
    "torch": Library(
        "PyTorch's operators",
        ("torch",),
        ("torch",),
        scripts={
            "group_norm: output": ("torch_group_norm_channels_last_variance",),
            "group_norm_backward: the process": ("torch_group_norm_channels_last_crash",),
            "batch_norm_backward: grad_input": ("torch_batch_norm_strided_weight",),
            "layer_norm_backward: grad_": ("torch_layer_norm_bfloat16_sums",),
        },
    ),
    "eager": Library(
        "PyTorch's layers, eager",
        ("torch",),
        _modules("torch_norms"),
        scripts={
            "batch_norm: output": ("torch_bfloat16_statistics",),
            "group_norm: output": ("torch_group_norm_channels_last_variance",),
            "layer_norm: grad_": ("torch_bfloat16_statistics", "torch_layer_norm_bfloat16_sums"),
        },
    ),
    "inductor": Library(
        "PyTorch's layers, inductor",
        ("torch",),
        _modules("torch_norms", "Compiled"),
        ("--quick", *_of("plain", "mean", "special")),
        {"layer_norm: grad_": ("torch_bfloat16_statistics",)},
    ),
    "flax": Library("Flax, by jax.vjp", ("flax", "jax"), _modules("jax_norms"), ("--quick",)),
    "keras": Library("Keras on JAX", ("keras", "jax"), _modules("keras_norms"), ("--quick",)),
    "mlx": Library(
        "MLX, on the CPU",
        ("mlx",),
        _modules("mlx_norms"),
        scripts={"batch_norm: ": ("mlx_batch_norm_half_mean", "mlx_batch_norm_float16_overflow")},
    ),
    "onnx": Library(
        "ONNX Runtime",
        ("onnxruntime", "onnx"),
        ("onnx_norms:Ops",),
        scripts={"group_norm: output": ("onnxruntime_group_norm_variance",)},
    ),
    "onednn": Library(
        "oneDNN",
        ("onednn",),
        _modules("onednn_norms"),
        scripts={"rms_norm: grad_input": ("onednn_rms_norm_gradient",)},
    ),
    "liger": Library(
        "Liger-Kernel, interpreted",
        ("liger_kernel", "triton"),
        ("liger_norms:Ops",),
        (
            *("--quick", "-k", "not 65536x2 and not 65537x2"),
            *_of("plain", "values", "mean", "shapes", "sizes", "special"),
        ),
        {"group_norm: ": ("liger_group_norm_variance",)},
    ),
}


def run(name: str) -> None:
    """Try a library's adapters, and write what is found."""
    library = LIBRARIES[name]
    judged = [each for spec in library.specs for each in _tried(spec, library.options)]
    offered = [each for each in judged if not each.absent]
    rows = (
        (each.case.name, each.word, _short(each.units), _short(each.plain), fault.what)
        + ((fault.text,) if fault.level is Level.WRONG else ("",))
        for each in offered
        for fault in each.faults
    )
    head = ("case", "verdict", "error / bound", "error / plain code", "what", "text")
    _write(RESULTS / f"{name}.csv", head, rows)
    wrong = [each for each in findings(judged) if each.level is Level.WRONG]
    told = [
        (name, str(each).partition(": ")[2], each.smallest[0].name, each.smallest[1].text)
        for each in wrong
    ]
    _replace(FINDINGS, name, ("library", "finding", "smallest case", "text"), told)
    words = Counter(each.word for each in offered)
    counts = {"offered": len(offered)} | {word: words[word] for word in WORDS}
    about = {
        "library": name,
        "versions": ", ".join(f"{each} {metadata.version(each)}" for each in library.packages),
        "cpu": dict(dict(info.gather())["cpu"])["name"],
        "date": datetime.date.today().isoformat(),
    }
    worst = max((each.units or 0.0 for each in offered), default=0.0)
    row = {**about, **counts, "error / bound": _short(worst)}
    _replace(RUNS, name, tuple(row), [tuple(map(str, row.values()))])


WORDS = ("passed", *(level.value for level in Level))


def _tried(spec: str, options: Sequence[str]) -> Iterator[Judged]:
    """The verdicts of ``normgrad verify``, each with its gravest fault."""
    cases = {case.name: case for case in loading.cases_of(load(spec))}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "found.csv")
        command = ("-m", "normgrad", "verify", spec, *options, "--csv", str(path))
        subprocess.run([sys.executable, *command], check=False)
        for row in _read(path):
            word, what = row["verdict"], row["what"]
            faults = (Fault(Level(word), what, row["text"]),) if what else ()
            absent = word if word == "not offered" else ""
            units, plain = (
                float(row[key]) if row[key] else None
                for key in ("error / bound", "error / plain code")
            )
            yield Judged(cases[row["case"]], faults, absent, units, plain)


def _short(units: float | None) -> str:
    return "" if units is None else f"{units:.3g}"


def _read(path: Path) -> list[dict[str, str]]:
    if not path.exists():
        return []
    with path.open(newline="", encoding="utf-8") as file:
        return [*csv.DictReader(file)]


def _write(path: Path, head: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    with path.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file, lineterminator="\n").writerows([head, *rows])


def _replace(path: Path, name: str, head: Sequence[str], rows: list[tuple[str, ...]]) -> None:
    """Put a library's rows in place of its old ones in a file of all libraries."""
    others = [tuple(each.values()) for each in _read(path) if each["library"] != name]
    order = [*LIBRARIES]
    _write(path, head, sorted([*others, *rows], key=lambda row: order.index(row[0])))


def table() -> Iterator[str]:
    """The page's table, a line at a time."""
    found = _read(FINDINGS)
    yield "| | offered | passed | wrong | beyond the bound | another convention | largest error |"
    yield "| --- | ---: | ---: | ---: | ---: | ---: | ---: |"
    for row in _read(RUNS):
        name, counts = row["library"], [row["offered"], *(row[word] for word in WORDS)]
        if some := [each for each in found if each["library"] == name]:
            causes = {script for each in some for script in scripts_of(each)}
            counts[2] += f" ({_number(some, 'finding')}, {_number(causes, 'cause')})"
        title = f"[{LIBRARIES[name].title}]({name}.csv): {row['versions']}"
        yield f"| {title} | {' | '.join(counts)} | {row['error / bound']} |"


def _number(some: Collection[object], word: str) -> str:
    return f"{len(some)} {word}{'s' * (len(some) != 1)}"


def page() -> Iterator[str]:
    """The page of what is wrong by any standard, by library, a line at a time."""
    yield "# What is wrong by any standard"
    yield ""
    yield "This page lists what [`normgrad verify`](libraries.md#what-public-kernels-get) finds in"
    yield "public kernels: the operator, the outputs, the condition, the smallest case and its"
    yield "worst element, and a script that shows the fault in plain code of the library."
    yield "`python compare.py pages` in `examples/verify` makes this page."
    for name, library in LIBRARIES.items():
        some = [each for each in _read(FINDINGS) if each["library"] == name]
        if some:
            yield from ("", f"## {library.title}", "")
        for each in some:
            links = "".join(f" ([{script}]({script}))" for script in scripts_of(each))
            yield f"- {each['finding']}; `{each['smallest case']}`: {each['text']}{links}"


def scripts_of(finding: Mapping[str, str]) -> list[str]:
    """The programs that show a finding."""
    scripts = LIBRARIES[finding["library"]].scripts
    found = (each for begin, each in scripts.items() if finding["finding"].startswith(begin))
    return [f"{script}.py" for each in found for script in each]


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["run", name] if name in LIBRARIES:
            run(name)
        case ["pages"]:
            PAGE.write_text("\n".join([*page(), ""]), "utf-8")
            print("\n".join(table()))
        case _:
            sys.exit(f"usage: compare.py pages | compare.py run {{{','.join(LIBRARIES)}}}")
