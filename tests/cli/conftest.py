"""Write small problems to files, and run the command line on them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file
from typer.testing import CliRunner

from normgrad.cli.app import app

SHAPE = (4, 6, 5, 3)


class Problem:
    """An operator's name, tensors and other arguments, which can be saved to files."""

    def __init__(
        self, operator: str, tensors: Mapping[str, Any], choices: Mapping[str, Any]
    ) -> None:
        self.operator = operator
        self.tensors = dict(tensors)
        self.choices = dict(choices)

    def save(self, path: Path, **extra: Any) -> Path:
        """Write everything to a file of the path's suffix."""
        if path.suffix == ".npz":
            np.savez(path, operator=self.operator, **self.choices, **self.tensors, **extra)
        else:
            words = {"operator": self.operator, **self.choices, **extra}
            metadata = {name: str(value) for name, value in words.items()}
            save_file(self.tensors, path, metadata=metadata)
        return path

    def textbook(self) -> list[Any]:
        """The gradients in float64, through the normalised input."""
        t = {name: value.astype(np.float64) for name, value in self.tensors.items()}
        dy, x = t["grad_out"], t["input"]
        if self.operator == "group_norm_backward":
            n, c = x.shape[:2]
            groups = (n, 3, c // 3, *x.shape[2:])
            mean, rstd = t["mean"][..., None], t["rstd"][..., None]
            xhat = ((x.reshape(n, 3, -1) - mean) * rstd).reshape(x.shape)
            g = (t["weight"][:, None, None] * dy).reshape(groups)
            h = xhat.reshape(groups)
            axes = (2, 3, 4)
            inner = g - g.mean(axes, keepdims=True) - h * (g * h).mean(axes, keepdims=True)
            dx = t["rstd"][..., None, None, None] * inner
            return [dx.reshape(x.shape), (dy * xhat).sum((0, 2, 3)), dy.sum((0, 2, 3))]

        def along(vector: Any) -> Any:
            return vector[:, None, None]

        axes = (0, 2, 3)
        mean = t.get("save_mean", t.get("mean"))
        invstd = t.get("save_invstd", t.get("invstd"))
        xhat = (x - along(mean)) * along(invstd)
        sums, projections = dy.sum(axes), (dy * xhat).sum(axes)
        if self.operator == "batch_norm_backward_reduce":
            return [sums, projections / invstd, projections, sums]
        if self.operator == "batch_norm_backward_elemt":
            n = t["count"].sum()
            inner = dy - along(t["sum_dy"] / n) - xhat * along(t["sum_dy_xmu"] * invstd / n)
            return [along(t["weight"] * invstd) * inner]
        m = x.size / x.shape[1]
        inner = dy - along(sums / m) - xhat * along(projections / m)
        return [along(t["weight"] * invstd) * inner, projections, sums]


def _statistics(x: Any, axes: tuple[int, ...]) -> tuple[Any, Any]:
    x = x.astype(np.float64)
    mean = x.mean(axes)
    invstd = 1 / np.sqrt(x.var(axes) + 1e-5)
    return mean.astype(np.float32), invstd.astype(np.float32)


def make_problem(name: str, dtype: Any = np.float32) -> Problem:
    rng = np.random.default_rng(7)
    x = (2 * rng.standard_normal(SHAPE) + 1).astype(dtype)
    dy = rng.standard_normal(SHAPE).astype(dtype)
    weight = rng.uniform(0.5, 2, SHAPE[1]).astype(np.float32)
    mean, invstd = _statistics(x, (0, 2, 3))
    data = {"grad_out": dy, "input": x}
    if name == "batch_norm_backward":
        tensors = {**data, "weight": weight, "save_mean": mean, "save_invstd": invstd}
        return Problem(name, tensors, {"training": True, "eps": 1e-5})
    if name == "batch_norm_backward_reduce":
        return Problem(name, {**data, "mean": mean, "invstd": invstd, "weight": weight}, {})
    if name == "batch_norm_backward_elemt":
        xmu = x - mean[:, None, None]
        sums = {
            "sum_dy": dy.sum((0, 2, 3), dtype=np.float32),
            "sum_dy_xmu": (dy * xmu).sum((0, 2, 3), dtype=np.float32),
            "count": np.array([20, 40], np.int32),
        }
        return Problem(name, {**data, "mean": mean, "invstd": invstd, "weight": weight, **sums}, {})
    mean, rstd = _statistics(x.reshape(4, 3, -1), (2,))
    tensors = {**data, "mean": mean, "rstd": rstd, "weight": weight}
    return Problem("group_norm_backward", tensors, {"num_groups": 3})


@pytest.fixture
def problem() -> Callable[..., Problem]:
    """A function that makes a problem for an operator."""
    return make_problem


@pytest.fixture
def batch_norm() -> Problem:
    return make_problem("batch_norm_backward")


@pytest.fixture
def cli() -> Callable[..., Any]:
    """A function that runs ``normgrad`` with these arguments in this process."""

    def invoke(*arguments: Any) -> Any:
        return CliRunner().invoke(
            app, [str(argument) for argument in arguments], catch_exceptions=False
        )

    return invoke


@pytest.fixture
def refused(cli: Callable[..., Any], tmp_path: Path) -> Callable[..., str]:
    """A function that runs a command that must fail with one line and leave all files unchanged.

    It returns the line without its start.
    """

    def run(file: Path, *arguments: Any, out: Path | None = None) -> str:
        out = tmp_path / "gradients.npz" if out is None else out
        if not out.exists() and out.parent.is_dir() and out.parent == tmp_path:
            out.write_bytes(b"what was there")
        before = snapshot(tmp_path)
        result = cli("run", file, "-o", out, *arguments)
        assert result.stdout == ""
        assert result.exit_code == 2, result.stderr
        assert snapshot(tmp_path) == before
        (line,) = result.stderr.splitlines()
        assert line.startswith("normgrad: ")
        return str(line.removeprefix("normgrad: "))

    return run


def snapshot(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}
