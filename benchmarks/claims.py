"""Compare the figures in the documents with the files of benchmarks/results, and with the code.

    python benchmarks/claims.py [--write]

:data:`CLAIMS` has sentences, with {} for each figure, and what computes the figures from the files
or the code; :func:`tables` has tables. The script prints what differs, and its exit status is 1 if
anything does. With --write it also corrects the sentences and the tables of
``benchmarks/measure.py report``.
"""

from __future__ import annotations

import functools
import re
import statistics
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from measuring import report, results, targets
from measuring.results import Results
from measuring.suite import Layout, Operator, Part

from normgrad import testing

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks" / "results"


class Claim(NamedTuple):
    """Sentences in documents, with {} for each figure that ``figures`` returns."""

    sentences: dict[str, str]
    figures: Callable[[], Sequence[str]]


@functools.cache
def _load(prefix: str) -> list[tuple[Results, Path]]:
    return report.load(RESULTS, prefix)


def _runs() -> list[Results]:
    return [run for run, _ in _load(report.RUNS)]


def _newest() -> tuple[Results, Path]:
    """The newest run on a CPU, whose picture the README shows."""
    return max(_load(report.RUNS), key=lambda run: run[0].facts["date"])


def _means(
    operators: tuple[Operator, ...], layouts: tuple[Layout, ...], large: bool = True
) -> tuple[str, str]:
    """The least and the greatest of the README's means: machines' by layout, one thread."""
    means = []
    for run in _runs():
        for layout in layouts:
            figures = [
                row.figure("torch", "ours")
                for row in run.rows
                if row.threads == 1 and row.case.operator in operators and row.case.layout is layout
                if (row.case.elements >= targets.LARGE_LAYER) is large
            ]
            means.append(statistics.geometric_mean(figures))
    return f"{min(means):.1f}", f"{max(means):.1f}"


_BOTH = (Layout.CONTIGUOUS, Layout.CHANNELS_LAST)
_RMS = (Operator.RMS_NORM, Operator.FORWARD_RMS_NORM)
_ROWS = (Operator.LAYER_NORM, Operator.FORWARD_LAYER_NORM)


def _large() -> tuple[str, ...]:
    """The README's means of batch norm in training, of group norm by layout, and of RMS norm."""
    group = (Operator.LAYER_GROUP_NORM,)
    return (
        *_means((Operator.LAYER_BATCH_NORM,), _BOTH),
        *_means(group, _BOTH[:1]),
        *_means(group, _BOTH[1:]),
        *_means(_RMS, _BOTH[:1]),
    )


def _small() -> tuple[str, ...]:
    """The least and the greatest of the README's means of smaller contiguous layers."""
    kinds = ((Operator.LAYER_BATCH_NORM, Operator.LAYER_EVAL), (Operator.LAYER_GROUP_NORM,))
    means = [mean for each in kinds for mean in _means(each, _BOTH[:1], large=False)]
    return min(means, key=float), max(means, key=float)


def _all_large() -> tuple[str, ...]:
    """The same, with batch norm in evaluation and layer norm."""
    train, group, last, rms = (_large()[index : index + 2] for index in (0, 2, 4, 6))
    of_eval = _means((Operator.LAYER_EVAL,), _BOTH)
    return *train, *of_eval, *group, *last, *_means(_ROWS, _BOTH[:1]), *rms


def _models_path() -> Path:
    """The file of whole models on the newest run's machine."""
    path = _newest()[1]
    return path.with_name(path.name.replace("cpu-", report.MODELS, 1))


def _models() -> tuple[dict[str, str], list[dict[str, str]]]:
    """The facts and rows of whole models on the newest run's machine."""
    return results.read_table(_models_path())


def _steps() -> tuple[str, ...]:
    """How many whole models there are, and their gains in per cent: the median and the first and
    ninth decile, and the greatest of those with RMS norms."""
    rows = _models()[1]
    every = [float(row["measured"]) for row in rows]
    rms = max(float(row["measured"]) for row in rows if row["has_rms_norm"] == "1")
    first, *_, ninth = statistics.quantiles(every, n=10)
    percents = (round(100 * gain - 100) for gain in (statistics.median(every), first, ninth, rms))
    return str(len(rows)), *(str(each).replace("-", "−") for each in percents)


def _picture() -> tuple[str, ...]:
    """What the README's caption says of its picture."""
    run, path = _newest()
    of_models = _models()[0]
    made, theirs = (
        (facts["date"][:10], facts.get("commit", "unknown")) for facts in (run.facts, of_models)
    )
    kernels = (path.stem, str(max(run.counts)), *made)
    return path.stem, run.device, *kernels, _models_path().stem, of_models["threads"], *theirs


def _gpu() -> Results:
    ((run, _),) = _load(report.GPU_RUNS)
    return run


def _gpu_means() -> tuple[str, ...]:
    """An H200's means of gradients and forward passes: images', then rows'."""

    def mean(some: Callable[[Operator, Part], bool], least: int) -> str:
        figures = [
            row.figure("torch", "ours")
            for row in _gpu().rows
            if row.case.elements >= least and some(row.case.operator, row.case.part)
        ]
        return f"{statistics.geometric_mean(figures):.2g}"

    return (
        mean(lambda _, part: part is Part.GRADIENTS, 1 << 16),
        mean(lambda _, part: part is Part.FORWARD, 1 << 16),
        mean(lambda kind, _: kind in (Operator.LAYER_NORM, Operator.RMS_NORM), 0),
        mean(lambda kind, _: kind in (_ROWS[1], _RMS[1]), 0),
    )


def _slower(part: str) -> list[float]:
    """An H200's figures below 1 of the operators whose cases' ids have this part, in order."""
    return sorted(
        row.figure("torch", "ours")
        for row in _gpu().rows
        if part in row.case.id and row.case.part is not Part.LAYERS
        if row.figure("torch", "ours") < 1
    )


def _gpu_slower() -> tuple[str, ...]:
    first = _slower("/256x64x56x56/float32/channels-last")
    return tuple(f"{x:.2f}" for x in (first[0], first[-1], *_slower("elemt/256x1024x14x14/")))


def _gpu_rows() -> tuple[str, ...]:
    return tuple(f"{x:.2f}" for x in _slower("layer-norm/512x1024/"))


def _capi() -> tuple[str, ...]:
    rows = {row["what"]: row for row in results.read_table(RESULTS / "capi-amd-epyc.csv")[1]}
    shown = {"program start to first result": ".0f", "eight tensors, made and destroyed": ".2f",
             "a copy of 64 bytes to the device": ".2f",
             "64 bytes of device memory, allocated and freed": ".2f"}  # fmt: skip
    return tuple(
        f"{float(row['median']):{shown.get(what, '.1f')}}"
        for what, row in rows.items()
        if what != "C / Python"
    )


CLAIMS = (
    Claim(
        {
            "README.md": "Smaller contiguous layers are {} to {} times as fast.",
            "README.zh-CN.md": "张量更小、连续存储的层是 {} 到 {} 倍。",
        },
        _small,
    ),
    Claim(
        {
            "README.md": "`BatchNorm2d` trains {} to {} times as fast as PyTorch 2.13's, "
            "`GroupNorm` {} to {} times (channels-last {} to {} times), and RMS norm functions run "
            "{} to {} times as fast, in the geometric means of",
            "README.zh-CN.md": "`BatchNorm2d` 的训练速度是 PyTorch 2.13 的 {} 到 {} 倍，"
            "`GroupNorm` 是 {} 到 {} 倍（channels-last 布局下 {} 到 {} 倍），"
            "RMS 归一化函数是 {} 到 {} 倍",
        },
        _large,
    ),
    Claim(
        {
            "docs/performance.md": "`BatchNorm2d` is {} to {} times as fast in training and {} to "
            "{} times in evaluation; `GroupNorm` is {} to {} times as fast, channels-last {} to {} "
            "times; functions of layer norm are {} to {} times as fast, of RMS norm {} to {} times."
        },
        _all_large,
    ),
    Claim(
        {
            "README.md": "training steps of [{} models](docs/worth.md) are {} % faster in the "
            "median, {} to {} % from the first to the ninth decile, and with RMS norms up to {} %.",
            "README.zh-CN.md": "[{} 个模型](docs/worth.md)（英文）的整个训练步，中位数快 {} %，"
            "第一到第九个十分位数为 {} 到 {} %，含 RMS 归一化的最多快 {} %。",
        },
        _steps,
    ),
    Claim(
        {
            "README.md": "docs/performance/{}.svg) **y**: PyTorch 2.13's time divided by "
            "normgrad's, above 1 normgrad is faster. **x**: the size of one tensor; in the right panel "
            "the norms' share of PyTorch's training step. Points are cases or models, lines geometric "
            "means over the cases of a size. {}: [kernels](benchmarks/results/{}.csv) on {} threads, {}, "
            "commit {}; [models](benchmarks/results/{}.csv) on {}, {}, commit {}.",
            "README.zh-CN.md": "docs/performance/{}.svg) **纵轴**：PyTorch 2.13 的耗时除以 "
            "normgrad 的耗时，大于 1 表示 normgrad 更快。**横轴**：一个张量的大小；右图的横轴为归一化"
            "在 PyTorch 训练步中所占的时间比例。点是用例或模型，线是同一大小的用例的几何平均。{}："
            "[kernel](benchmarks/results/{}.csv) 用 {} 个线程，{}，commit {}；"
            "[模型](benchmarks/results/{}.csv)用 {} 个线程，{}，commit {}。",
        },
        _picture,
    ),
    Claim(
        {
            "docs/performance/gpus.md": "in the geometric mean, gradients are {} and forward "
            "passes {} times as fast as the fastest of PyTorch's and cuDNN's kernels. In float32 and "
            "channels-last, the kernels for (256, 64, 56, 56) are slower ({} to {} times as fast), and "
            "so is `elemt` of (256, 1024, 14, 14) ({} times).",
        },
        lambda: (*_gpu_means()[:2], *_gpu_slower()),
    ),
    Claim(
        {
            "docs/performance/gpus.md": "**Layer and RMS norm**: gradients are {} times and "
            "forward passes {} times as fast in the geometric mean; gradients of (512, 1024) are {} "
            "and {} times as fast.",
        },
        lambda: (*_gpu_means()[2:], *_gpu_rows()),
    ),
    Claim(
        {
            "docs/capi/behaviour.md": "| from the program's start to its first result | {} ms | "
            "| both phases of a known call, (1, 2, 4) | {} µs | | phase 2 of a repeated executor, "
            "(1, 2, 4) | {} µs | | eight tensors, made and destroyed | {} µs | | a copy of 64 "
            "bytes to the device | {} µs | | 64 bytes of device memory, allocated and freed | {} "
            "µs | | rate of calls of both phases on two threads, relative to one | {} | | both through C, "
            "(32, 64, 3136) | {} ms | | the same in Python, measured alternately | {} ms |"
        },
        _capi,
    ),
    Claim(
        {
            "README.md": "a conformance suite of {} cases",
            "README.zh-CN.md": "一致性测试，共 {} 个用例",
            "docs/verify.md": "a conformance suite of normalisation kernels: {} cases.",
            "docs/zh/verify.md": "一致性测试：共 {} 个用例。",
        },
        lambda: (f"{len(testing.cases()):,}",),
    ),
)


def _table(name: str) -> list[dict[str, str]]:
    return results.read_table(RESULTS / name)[1]


def _worth(row: dict[str, str], names: str) -> str:
    share, spread = (f"{float(row[name]):.0%}" for name in ("share", "spread"))
    figures = f"{row['predicted']} | {row['measured']} | {spread} |"
    return f"| {names} | {row['stock_ms']} ms | {share} | {figures}"


def stands_out(row: dict[str, str]) -> bool:
    """Whether a model's step differs by more than its times spread, or as its norms predict."""
    measured, predicted = float(row["measured"]), float(row["predicted"])
    least = max(0.05, float(row["spread"]) / 2)
    return abs(measured - 1) >= least and (measured - 1) * (predicted - 1) > 0


def tables() -> Iterator[tuple[str, list[str]]]:
    """Documents, and rows of tables that they should have, one after the other."""
    models = _models()[1]
    kinds = [row for row in models if row["set"] == "kinds"]
    yield "docs/worth.md", [_worth(row, f"{row['model']} | {row['input']}") for row in kinds]
    public = [row for row in models if row["set"] == "public" and stands_out(row)]
    yield "docs/worth.md", [_worth(row, row["model"]) for row in public]
    peers = _table("peers-amd-epyc-znver3.csv")
    yield (
        "docs/performance.md",
        [
            f"| {row['case']} | {float(row['ours_ms']):.2f} | {row['onednn']} | {row['xla']} |"
            for row in peers
        ],
    )
    yield "docs/distributed.md", [
        f"| {row['shape']} | {row['dtype']} | "
        + " | ".join(f"{float(row[f't_{name}_us']) / 1e3:.2f} ms"
                     for name in ("sync_batch_norm", "batch_norm", "torch"))
        + f" | {float(row['overhead_us']) / 1e3:.2f} ms |"
        for row in ({**row, "t_sync_batch_norm_us": row["t_sync_us"]}
                    for row in _table("sync-batch-norm-amd-epyc-znver4.csv"))
        if row["layout"] == "contiguous"
    ]  # fmt: skip
    yield (
        "docs/distributed.md",
        [
            f"| {row['ranks']} | {row['collectives']} | {int(row['values']):,} | "
            f"{results.spelled_bytes(int(row['sent_bytes']))} | {float(row['gather_us']) / 1e3:.2f} ms "
            f"| {float(row['model_us']) / 1e3:.2f} ms |"
            for row in _table("distributed-amd-epyc-znver4.csv")
        ],
    )


def _pattern(sentence: str) -> re.Pattern[str]:
    """What finds a sentence, however its lines are broken, with any figures."""
    parts = [r"\s+".join(map(re.escape, part.split(" "))) for part in sentence.split("{}")]
    return re.compile("(.{1,40}?)".join(parts), re.S)


def _corrected(text: str, sentence: str, figures: Sequence[str]) -> str | None:
    """The text with these figures in a sentence; None if it does not have the sentence once."""
    (found, *more) = [*_pattern(sentence).finditer(text), None][:2]
    if found is None or more != [None]:
        return None
    for index in reversed(range(len(figures))):
        if " ".join(found[index + 1].split()) != figures[index]:
            start, end = found.span(index + 1)
            text = text[:start] + figures[index] + text[end:]
    return text


def check(write: bool = False) -> list[str]:
    """A line for everything that differs from the files of results."""
    wrong = []
    for claim in CLAIMS:
        figures = claim.figures()
        for page, sentence in claim.sentences.items():
            text = (ROOT / page).read_text("utf-8")
            new = _corrected(text, sentence, figures)
            if new is None:
                wrong.append(f"{page}: should have once: {sentence}")
            elif new != text:
                wrong.append(f"{page}: should be: {sentence.format(*figures)}")
                if write:
                    (ROOT / page).write_text(new, "utf-8")
    for page, lines in tables():
        if "\n".join(lines) not in (ROOT / page).read_text("utf-8"):
            wrong.append("\n".join([f"{page}: should have the rows", *lines]))
    for path, content in report.documents(RESULTS, ROOT).items():
        if path.read_bytes() != content:
            wrong.append(
                f"{path.relative_to(ROOT)}: tables that do not agree with the files of results"
            )
            if write:
                path.write_bytes(content)
    return [*wrong, *unclaimed()]


#: What a figure of speed looks like in a sentence.
_SPEED = re.compile(r"[\d.]+(?:\s+to\s+[\d.]+)?\s+times\s+as\s+fast|[\d.]+\s+(?:到\s+[\d.]+\s+)?倍")
#: The documents whose figures of speed all have a claim, or name the command that measured them.
_HELD = ("README.md", "README.zh-CN.md", "docs/performance.md", "docs/performance/gpus.md")


def unclaimed() -> Iterable[str]:
    """A line for each paragraph with a figure of speed that no claim and no command is about."""
    for page in _HELD:
        for paragraph in re.split(r"\n\n|\n(?=- )", (ROOT / page).read_text("utf-8")):
            rest = paragraph
            for claim in CLAIMS:
                if page in claim.sentences:
                    rest = _pattern(claim.sentences[page]).sub("", rest)
            if _SPEED.search(rest) and "python benchmarks/" not in paragraph:
                yield f"{page}: a figure without a claim: {paragraph}"


if __name__ == "__main__":
    found = check(write="--write" in sys.argv[1:])
    print("\n".join(found) or "all figures agree with the files of results and with the code")
    sys.exit(bool(found))
