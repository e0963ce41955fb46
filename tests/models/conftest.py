"""The libraries of `nox -s models`."""

from __future__ import annotations

import importlib

import pytest

torch = pytest.importorskip("torch")


def overlaps(boxes, scores, threshold):
    """torchvision's nms, which is compiled, and not for every build of PyTorch's."""
    box_iou = importlib.import_module("torchvision.ops").box_iou
    kept, rest = [], scores.argsort(descending=True)
    while len(rest):
        kept.append(rest[0])
        rest = rest[1:][box_iou(boxes[rest[:1]], boxes[rest[1:]])[0] <= threshold]
    return torch.stack(kept) if kept else rest


@pytest.fixture(scope="session")
def library():
    """The libraries' modules, by name."""
    try:
        importlib.import_module("torchvision")
    except RuntimeError:  # its compiled operators are for another build of PyTorch's
        for name in ("nms", "qnms"):
            text = f"torchvision::{name}"
            torch.library.define(
                text, "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"
            )
            torch.library.impl(text, "CPU", overlaps)
        importlib.import_module("torchvision")
        importlib.import_module("torchvision.ops.boxes")._assert_has_ops = lambda: None
    return importlib.import_module
