"""Real gradients to run normgrad on: train a small network, record what its norms' backward gets.

A convolutional network with a BatchNorm2d and a GroupNorm is trained on scikit-learn's digits for
a few epochs, on the CPU. Then, for one more training batch, the arguments with which PyTorch calls
its own native_batch_norm_backward and native_group_norm_backward are recorded and written to four
files: each norm in float32, and under autocast in bfloat16 with float32 parameters and statistics.
A file holds an operator's tensors under normgrad's names and, as metadata, its name and options.

It needs normgrad, torch, scikit-learn and safetensors::

    python capture.py [--out-dir DIR] [--epochs N] [--seed N]

At the end a table compares normgrad's and PyTorch's gradients with the float64 reference.
"""

from __future__ import annotations

import argparse
import copy
import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np
import numpy.typing as npt
import safetensors.torch
import torch
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

import normgrad
from normgrad.operators import precision, reference
from normgrad.tensors import dtypes

BATCH = 32
CHANNELS = 16
GROUPS = 8
LEARNING_RATE = 2e-3


class Operator(NamedTuple):
    """One of normgrad's operators, and how PyTorch's names in its schema correspond to it."""

    name: str
    backward: Callable[..., Any]
    exact: Callable[..., dict[str, reference.Exact]]
    tensors: Mapping[str, str]
    options: Mapping[str, str]


OPERATORS = {
    torch.ops.aten.native_batch_norm_backward.default: Operator(
        "batch_norm_backward",
        normgrad.batch_norm_backward,
        reference.batch_norm_backward,
        {
            "grad_out": "grad_out",
            "input": "input",
            "weight": "weight",
            "running_mean": "running_mean",
            "running_var": "running_var",
            "save_mean": "save_mean",
            "save_invstd": "save_invstd",
        },
        {"training": "train", "eps": "eps"},
    ),
    torch.ops.aten.native_group_norm_backward.default: Operator(
        "group_norm_backward",
        normgrad.group_norm_backward,
        reference.group_norm_backward,
        {
            "grad_out": "grad_out",
            "input": "input",
            "mean": "mean",
            "rstd": "rstd",
            "weight": "weight",
        },
        {"num_groups": "group"},
    ),
}


class Call(NamedTuple):
    """A recorded call: its arguments under normgrad's names, and what PyTorch returned."""

    operator: Operator
    tensors: dict[str, Tensor]
    options: dict[str, Any]
    results: tuple[Tensor, ...]


class Recorder(TorchDispatchMode):
    """Records the calls of :data:`OPERATORS` that are made while it is active."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[Call] = []

    def __torch_dispatch__(
        self,
        func: Any,
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        operator = OPERATORS.get(func)
        if operator is None:
            return func(*args, **kwargs)
        names = [argument.name for argument in func._schema.arguments]
        given = {**dict(zip(names, args, strict=False)), **kwargs}
        # Copied before the call, so that they are what it got.
        tensors = {ours: own(given[theirs]) for ours, theirs in operator.tensors.items()}
        options = {ours: given[theirs] for ours, theirs in operator.options.items()}
        results = func(*args, **kwargs)
        copies = tuple(own(result) for result in results)
        self.calls.append(Call(operator, tensors, {**options, "channel_axis": 1}, copies))
        return results


def own(tensor: Tensor) -> Tensor:
    """A row-major copy."""
    return tensor.detach().clone(memory_format=torch.contiguous_format)


def network() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, CHANNELS, 3, padding=1),
        nn.BatchNorm2d(CHANNELS),
        nn.ReLU(),
        nn.Conv2d(CHANNELS, CHANNELS, 3, padding=1),
        nn.GroupNorm(GROUPS, CHANNELS),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(CHANNELS * 4 * 4, 10),
    )


def digits(seed: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Training images and labels, then those for testing: (N, 1, 8, 8) in [0, 1], and (N,)."""
    data = load_digits()
    images = (data.images[:, None] / 16).astype(np.float32)
    split = train_test_split(
        images, data.target, test_size=0.2, stratify=data.target, random_state=seed
    )
    images, test_images, labels, test_labels = map(torch.from_numpy, split)
    return images, labels, test_images, test_labels


def train(model: nn.Module, seed: int, epochs: int) -> tuple[Tensor, Tensor]:
    """Train the model, and return the batch that would come next."""
    images, labels, test_images, test_labels = digits(seed)
    optimizer = torch.optim.Adam(model.parameters(), lr=LEARNING_RATE)
    for epoch in range(1, epochs + 1):
        model.train()
        total = 0.0
        for batch in torch.randperm(len(images)).split(BATCH):
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(images[batch]), labels[batch])
            loss.backward()
            optimizer.step()
            total += loss.item() * len(batch)
        model.eval()
        with torch.no_grad():
            right = (model(test_images).argmax(1) == test_labels).double().mean().item()
        print(f"epoch {epoch}: loss {total / len(images):.4f}, test accuracy {right:.2%}")
    batch = torch.randperm(len(images))[:BATCH]
    return images[batch], labels[batch]


def record(model: nn.Module, images: Tensor, labels: Tensor, dtype: torch.dtype) -> list[Call]:
    """The norms' backward calls for one training batch, with data in the dtype."""
    # The batch updates the running statistics: not those of the caller's model.
    model = copy.deepcopy(model).train()
    mixed = nullcontext() if dtype == torch.float32 else torch.autocast("cpu", dtype)
    with Recorder() as recorder:
        with mixed:
            loss = nn.functional.cross_entropy(model(images), labels)
        loss.backward()
    calls = sorted(recorder.calls, key=lambda call: call.operator.name)
    if [call.operator for call in calls] != list(OPERATORS.values()):
        raise RuntimeError(f"recorded {len(calls)} calls; expected one of each operator")
    for call in calls:
        for name, tensor in call.tensors.items():
            expected = dtype if name in ("grad_out", "input") else torch.float32
            if tensor.dtype != expected:
                raise RuntimeError(f"{call.operator.name}: {name} is {tensor.dtype}")
    return calls


def save(call: Call, path: Path) -> None:
    """Write a call's arguments; the same bytes for the same arguments."""
    options = {name: json.dumps(value) for name, value in call.options.items()}
    metadata = {"operator": call.operator.name, **options}
    data = safetensors.torch.save(call.tensors, metadata)
    # safetensors writes the metadata in random order. The file begins with the length of its JSON
    # header in 8 bytes; sorting leaves the length as it is.
    end = 8 + int.from_bytes(data[:8], "little")
    header = json.loads(data[8:end])
    header["__metadata__"] = dict(sorted(header["__metadata__"].items()))
    text = json.dumps(header, separators=(",", ":")).encode().ljust(end - 8)
    if len(text) != end - 8:
        raise RuntimeError("the header's length changed")
    temporary = path.with_suffix(".tmp")
    temporary.write_bytes(data[:8] + text + data[end:])
    temporary.replace(path)


def to_numpy(tensor: Tensor) -> npt.NDArray[Any]:
    if tensor.dtype == torch.bfloat16:
        return tensor.view(torch.int16).numpy().view(ml_dtypes.bfloat16)
    return tensor.numpy()


def compare(call: Call, path: Path) -> None:
    """Print each gradient's largest error, normgrad's from the file and PyTorch's as recorded."""
    tensors = safetensors.torch.load_file(path)
    arrays = {name: to_numpy(tensor) for name, tensor in tensors.items()}
    exact = call.operator.exact(**arrays, **call.options)
    ours = call.operator.backward(**tensors, **call.options)
    for name, mine, theirs in zip(ours._fields, ours, call.results, strict=True):
        errors = [
            precision.error(to_numpy(result), exact[name], dtypes.float32).max()
            for result in (mine, theirs)
        ]
        dtype = str(mine.dtype).removeprefix("torch.")
        print(f"{path.name:32} {name:12} {dtype:9} {errors[0]:9.3f} {errors[1]:9.3f}")


def main() -> None:
    parser = argparse.ArgumentParser(
        description="Train a small network on digits and record what its norms' backward gets."
    )
    parser.add_argument("--out-dir", type=Path, default=Path(__file__).parent, metavar="DIR")
    parser.add_argument("--epochs", type=int, default=5, metavar="N", help="default: 5")
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="default: 0")
    arguments = parser.parse_args()
    arguments.out_dir.mkdir(parents=True, exist_ok=True)

    torch.manual_seed(arguments.seed)
    torch.use_deterministic_algorithms(True)
    # One thread, so that no sum depends on how many cores there are.
    torch.set_num_threads(1)

    model = network()
    images, labels = train(model, arguments.seed, arguments.epochs)
    saved: list[tuple[Call, Path]] = []
    for dtype in (torch.float32, torch.bfloat16):
        for call in record(model, images, labels, dtype):
            operator = call.operator.name.removesuffix("_backward")
            ending = str(dtype).removeprefix("torch.")
            path = arguments.out_dir / f"{operator}_{ending}.safetensors"
            save(call, path)
            saved.append((call, path))

    print("\nlargest error, in units of the bound (normgrad.operators.precision)")
    print(f"{'file':32} {'gradient':12} {'dtype':9} {'normgrad':>9} {'torch':>9}")
    for call, path in saved:
        compare(call, path)


if __name__ == "__main__":
    main()
