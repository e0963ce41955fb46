"""A training with normgrad's layers: a small ResNet on scikit-learn's digits, on the CPU.

One process, with normgrad's batch norm in the place of PyTorch's::

    python train.py

Two processes, with batch norm synchronised between them (gloo, DistributedDataParallel)::

    torchrun --nproc-per-node 2 train.py

``--compare`` trains the same network with PyTorch's layers too and draws both. It needs normgrad,
torch and scikit-learn; rich for the progress bar, matplotlib for the picture (normgrad's extra
``cli`` has both). The status is 0, or 1 below 97 % test accuracy, 2 for a wrong argument or a
missing package, 130 after Ctrl-C.
"""

from __future__ import annotations

import argparse
import importlib
import os
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext, redirect_stderr
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

import normgrad.torch

# torchrun says these; without it there is one process.
RANK = int(os.environ.get("RANK", "0"))
PROCESSES = int(os.environ.get("WORLD_SIZE", "1"))


class Block(nn.Module):
    """A residual block; where it changes the shape, a 1×1 convolution takes the shortcut along."""

    def __init__(self, before: int, after: int, stride: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(before, after, 3, stride, padding=1, bias=False),
            nn.BatchNorm2d(after),
            nn.ReLU(),
            nn.Conv2d(after, after, 3, padding=1, bias=False),
            nn.BatchNorm2d(after),
        )
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or before != after:
            self.shortcut = nn.Sequential(
                nn.Conv2d(before, after, 1, stride, bias=False), nn.BatchNorm2d(after)
            )

    def forward(self, input: Tensor) -> Tensor:
        return nn.functional.relu(self.body(input) + self.shortcut(input))


def network() -> nn.Module:
    """A ResNet of 77,000 parameters for 8×8 images, with PyTorch's layers."""
    return nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1, bias=False),
        nn.BatchNorm2d(16),
        nn.ReLU(),
        Block(16, 16, stride=1),
        Block(16, 32, stride=2),
        Block(32, 64, stride=2),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(64, 10),
    )


def digits(seed: int) -> tuple[TensorDataset, TensorDataset]:
    """Four fifths for training, one for testing: images (N, 1, 8, 8) in [0, 1], and labels."""
    from sklearn.datasets import load_digits
    from sklearn.model_selection import train_test_split

    data = load_digits()
    images = (data.images[:, None] / 16).astype(np.float32)
    split = train_test_split(
        images, data.target, test_size=0.2, stratify=data.target, random_state=seed
    )
    images, test_images, labels, test_labels = map(torch.from_numpy, split)
    return TensorDataset(images, labels), TensorDataset(test_images, test_labels)


def shifted(images: Tensor) -> Tensor:
    """Each image moved by up to a pixel in either direction."""
    count, _, height, width = images.shape
    padded = nn.functional.pad(images, (1, 1, 1, 1))
    down, right = torch.randint(3, (2, count, 1))
    rows, columns = down + torch.arange(height), right + torch.arange(width)
    image = torch.arange(count)[:, None, None]
    return padded[image, 0, rows[:, :, None], columns[:, None, :]][:, None]


class Run(NamedTuple):
    """A training: its layers, each step's loss, the test accuracy, and the median step's time."""

    layers: str
    losses: list[float]
    accuracy: float
    milliseconds: float
    model: nn.Module


def train(layers: str, arguments: argparse.Namespace) -> Run:
    # The same seed on every process and for either kind of layers: the same initial weights.
    torch.manual_seed(arguments.seed)
    plain: nn.Module = network()
    model = plain
    if layers == "normgrad":
        if PROCESSES > 1:
            normgrad.torch.convert_sync_batchnorm(plain)
        else:
            normgrad.torch.convert(plain)
    if PROCESSES > 1:
        model = DistributedDataParallel(plain)

    training, testing = digits(arguments.seed)
    sampler = DistributedSampler(training, PROCESSES, RANK, seed=arguments.seed)
    loader = DataLoader(training, arguments.batch_size, sampler=sampler)
    steps = arguments.epochs * len(loader)
    optimizer = torch.optim.AdamW(model.parameters(), lr=arguments.lr)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, arguments.lr, total_steps=steps)

    losses, times = [], []
    with progress(layers, steps) as advance:
        for epoch in range(arguments.epochs):
            sampler.set_epoch(epoch)
            model.train()
            for images, labels in loader:
                images = shifted(images)
                start = time.perf_counter()
                optimizer.zero_grad()
                loss = nn.functional.cross_entropy(model(images), labels)
                loss.backward()
                optimizer.step()
                times.append(time.perf_counter() - start)
                schedule.step()
                losses.append(loss.item())
                advance()
            mean, right = over_processes(losses[-len(loader) :]).mean(), accuracy(model, testing)
            say(f"{layers} epoch {epoch + 1:2}: loss {mean:.4f}, test accuracy {right:.2%}")
    milliseconds = 1000 * statistics.median(times)
    say(f"{layers}: test accuracy {right:.2%}, {milliseconds:.1f} ms per step")
    return Run(layers, over_processes(losses).tolist(), right, milliseconds, plain)


def accuracy(model: nn.Module, testing: TensorDataset) -> float:
    """Of the test images; each process looks at its share of them.

    In evaluation no batch norm waits for the others, so the shares may differ in size.
    """
    images, labels = (tensor[RANK::PROCESSES] for tensor in testing.tensors)
    model.eval()
    with torch.no_grad():
        right = (model(images).argmax(1) == labels).sum().item()
    return over_processes([right]).item() * PROCESSES / len(testing)


def over_processes(values: Sequence[float]) -> Tensor:
    """The values' means over all processes."""
    means = torch.tensor(values, dtype=torch.float64)
    if PROCESSES > 1:
        dist.all_reduce(means)
    return means / PROCESSES


def say(text: str) -> None:
    if RANK == 0:
        print(text, flush=True)


@contextmanager
def progress(layers: str, steps: int) -> Iterator[Callable[[], None]]:
    """A bar below what is printed, on a terminal and with rich; it gives what to call each step."""
    try:
        from rich.progress import MofNCompleteColumn, Progress
    except ModuleNotFoundError:
        yield lambda: None
        return
    disable = RANK != 0 or not sys.stdout.isatty()
    columns = (*Progress.get_default_columns(), MofNCompleteColumn())
    with Progress(*columns, transient=True, disable=disable) as bar:
        task = bar.add_task(layers, total=steps)
        yield lambda: bar.advance(task)


def draw(runs: Sequence[Run], path: Path) -> None:
    """Each run's loss by step: light as it was, bold the geometric mean of the steps around."""
    from matplotlib.figure import Figure  # without pyplot, no window is ever opened

    names = {"normgrad": "normgrad", "torch": "PyTorch"}
    title = "A small ResNet on scikit-learn's digits, one process"
    if PROCESSES > 1:
        names = {"normgrad": "normgrad's SyncBatchNorm", "torch": "PyTorch's BatchNorm"}
        title = (
            f"A small ResNet on scikit-learn's digits, {PROCESSES} processes\n"
            "PyTorch has no SyncBatchNorm on the CPU: its statistics are each process's own"
        )
    figure = Figure(figsize=(8, 4.5), dpi=110, layout="constrained")
    axes = figure.subplots()
    # The thin line on the wide one: where they are the same, both are seen.
    styles = (("#0072B2", 1.6, 3), ("#F0A830", 4, 2))
    for run, (colour, width, order) in zip(runs, styles, strict=True):
        steps = np.arange(1, len(run.losses) + 1)
        window = min(25, len(steps))
        around = np.full(window, 1 / window)
        label = f"{names[run.layers]}: {run.accuracy:.2%}, {run.milliseconds:.1f} ms per step"
        axes.plot(steps, run.losses, color=colour, alpha=0.3, linewidth=0.7, zorder=1)
        axes.plot(
            np.convolve(steps, around, "valid"),
            np.exp(np.convolve(np.log(np.maximum(run.losses, 1e-9)), around, "valid")),
            **{"color": colour, "linewidth": width, "zorder": order, "label": label},
        )
    axes.set(yscale="log", xlabel="step", ylabel="training loss (cross-entropy)")
    axes.set_title(title, fontsize=11)
    axes.legend(title="test accuracy, median time", alignment="left", frameon=False)
    axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(path)


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description="Train a small ResNet on scikit-learn's digits with normgrad's layers."
    )

    def add(name: str, default: Any, kind: Callable[[str], Any], help: str) -> None:
        if default is not None:
            help += " (default: %(default)s)"
        parser.add_argument(
            name, default=default, type=kind, help=help, metavar="FILE" if kind is Path else "N"
        )

    count = number(int, 1, 1_000_000)
    add("--epochs", 15, count, "how often each image is trained on")
    add("--batch-size", 32, count, "images per step, of each process")
    add("--lr", 0.004, number(float, 0, 1000), "the highest learning rate")
    add("--seed", 0, number(int, 0, 2**32 - 1), "of the split, the weights and the order")
    add("--threads", 1, count, "of each process; images this small gain nothing by more")
    kinds = parser.add_mutually_exclusive_group()
    kinds.add_argument(
        "--layers", default="normgrad", choices=("normgrad", "torch"), help="whose batch norm"
    )
    kinds.add_argument("--compare", action="store_true", help="train with both, draw a picture")
    add("--picture", None, Path, "where --compare draws; without it, training.png by the script")
    add("--save", None, Path, "write the weights, which PyTorch's own layers load as well")
    add("--min-accuracy", 97, number(float, 0, 100), "in percent; below it, the status is 1")
    arguments = parser.parse_args()

    # What would keep a training from its end is better found before it.
    for name, package in {"sklearn": "scikit-learn", "matplotlib": "matplotlib"}.items():
        if name == "sklearn" or arguments.compare:
            try:
                importlib.import_module(name)
            except ModuleNotFoundError:
                parser.exit(2, f"{package} is missing: pip install {package}\n")
    if arguments.compare:
        arguments.picture = arguments.picture or Path(__file__).with_name("training.png")
        from matplotlib.figure import Figure

        kinds = sorted(Figure().canvas.get_supported_filetypes())
        if arguments.picture.suffix[1:] not in kinds:
            parser.error(f"--picture: {str(arguments.picture)!r}; allowed: {', '.join(kinds)}")
    elif arguments.picture:
        parser.error("--picture: given without --compare, which draws it")
    for option in ("picture", "save"):
        path = getattr(arguments, option)
        if path:
            try:
                new = not path.exists()
                path.open("ab").close()
                if new:
                    path.unlink(missing_ok=True)
            except OSError as error:
                parser.error(f"--{option}: {str(path)!r}: {error.strerror}")
    return arguments


def number(kind: type, low: float, high: float) -> Callable[[str], Any]:
    def convert(text: str) -> Any:
        try:
            value = kind(text)
        except ValueError:
            value = None
        if value is None or not low <= value <= high:
            raise argparse.ArgumentTypeError(f"{text!r}; allowed: {low:,} to {high:,}")
        return value

    return convert


def main() -> int:
    # Every process finds the same mistakes; one says so.
    with nullcontext() if RANK == 0 else redirect_stderr(None):
        arguments = parse()
    torch.use_deterministic_algorithms(True)
    torch.set_num_threads(arguments.threads)  # normgrad's are as many
    if PROCESSES > 1:
        dist.init_process_group("gloo")
    kinds = ("normgrad", "torch") if arguments.compare else (arguments.layers,)
    runs = [train(layers, arguments) for layers in kinds]
    if RANK == 0 and arguments.compare:
        draw(runs, arguments.picture)
        say(f"wrote {arguments.picture}")
    if RANK == 0 and arguments.save:
        torch.save(runs[0].model.state_dict(), arguments.save)
        say(f"wrote {arguments.save}")
    if PROCESSES > 1:
        dist.destroy_process_group()
    if 100 * runs[0].accuracy < arguments.min_accuracy:
        say(f"the test accuracy is below {arguments.min_accuracy:g}%")
        return 1
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
