"""convert on the models of torchvision and timm; by `nox -s models`, which installs both.

Every model is compared with an unconverted copy, in float64, training and evaluating: outputs, all
gradients, and what became of the running statistics.
"""

from __future__ import annotations

import copy
import importlib
import os
import warnings

import pytest

torch = pytest.importorskip("torch")
nt = pytest.importorskip("normgrad.torch")

pytestmark = [
    pytest.mark.skipif("NORMGRAD_MODELS" not in os.environ, reason="by nox -s models"),
    # The libraries use what PyTorch deprecates.
    pytest.mark.filterwarnings("ignore"),
]


def overlaps(boxes, scores, threshold):
    """torchvision's nms, which is compiled, and not for every build of PyTorch's."""
    box_iou = importlib.import_module("torchvision.ops").box_iou
    kept, rest = [], scores.argsort(descending=True)
    while len(rest):
        kept.append(rest[0])
        rest = rest[1:][box_iou(boxes[rest[:1]], boxes[rest[1:]])[0] <= threshold]
    return torch.stack(kept) if kept else rest


@pytest.fixture(scope="module")
def library():
    """torchvision's and timm's modules, by name."""
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


def torchvision(name):
    return lambda library: getattr(library("torchvision.models"), name)(num_classes=10)


def timm(name, **options):
    return lambda library: library("timm").create_model(name, num_classes=10, **options)


def detector(library):
    """Faster R-CNN over a backbone whose batch norms are frozen, as its trained weights have it."""
    frozen = library("torchvision.ops.misc").FrozenBatchNorm2d
    utilities = library("torchvision.models.detection.backbone_utils")
    backbone = utilities.resnet_fpn_backbone(
        backbone_name="resnet50", weights=None, norm_layer=frozen, trainable_layers=5
    )
    for layer in backbone.modules():
        if isinstance(layer, frozen):
            layer.running_mean.uniform_(-0.1, 0.1)
            layer.running_var.uniform_(0.5, 1.5)
            layer.weight.uniform_(0.1, 0.5)
    detection = library("torchvision.models.detection")
    return detection.FasterRCNN(backbone, num_classes=3, min_size=64, max_size=64)


BATCH, GROUP, LAYER = "BatchNorm2d", "GroupNorm", "LayerNorm"
MODELS = {
    "torchvision resnet18": (torchvision("resnet18"), {BATCH: 20}, 0),
    "torchvision mobilenet_v2": (torchvision("mobilenet_v2"), {BATCH: 52}, 0),
    "torchvision convnext_tiny": (torchvision("convnext_tiny"), {LAYER: 18, "LayerNorm2d": 5}, 0),
    "torchvision swin_t": (torchvision("swin_t"), {LAYER: 29}, 0),
    "torchvision FasterRCNN": (detector, {"FrozenBatchNorm2d": 53}, 0),
    "timm resnetv2_50": (timm("resnetv2_50"), {"BatchNormAct2d": 49}, 0),
    "timm regnety_002": (timm("regnety_002"), {"BatchNormAct2d": 44}, 0),
    "timm efficientnet_b0": (timm("efficientnet_b0"), {"BatchNormAct2d": 49}, 0),
    "timm resnetv2_50x1_bit": (timm("resnetv2_50x1_bit"), {"GroupNormAct": 49}, 0),
    "timm resnet50_gn": (timm("resnet50_gn"), {GROUP: 53}, 0),
    "timm levit_128s": (timm("levit_128s"), {"BatchNorm1d": 48, BATCH: 4}, 0),
    "timm vit_tiny_patch16_224": (timm("vit_tiny_patch16_224", img_size=64), {LAYER: 25}, 0),
    "timm vit_tiny, rmsnorm": (
        timm("vit_tiny_patch16_224", img_size=64, norm_layer="rmsnorm"),
        {"RmsNorm": 25},
        0,
    ),
    "timm convnextv2_atto": (timm("convnextv2_atto"), {"LayerNorm2d": 17}, 0),
    "timm edgenext_xx_small": (timm("edgenext_xx_small"), {LAYER: 15, "LayerNorm2d": 5}, 0),
}


def given(model, name):
    torch.manual_seed(1)
    size = 224 if "levit" in name else 64
    images = torch.randn(2, 3, size, size, dtype=torch.float64)
    if "RCNN" not in name:
        return (images,)
    if not model.training:
        return (list(images),)
    boxes = torch.tensor([[4.0, 5, 40, 50], [10, 10, 30, 60]], dtype=torch.float64)
    return list(images), [{"boxes": boxes, "labels": torch.tensor([1, 2])} for _ in images]


def tensors(output):
    if isinstance(output, torch.Tensor):
        return [output]
    if isinstance(output, dict):
        output = output.values()
    return [tensor for part in output for tensor in tensors(part)]


def step(model, name, training):
    """Outputs, gradients and buffers."""
    model.train(training).zero_grad()
    arguments = given(model, name)
    torch.manual_seed(2)  # of dropout, and of the boxes that a detector samples
    with torch.compiler.set_stance("force_eager"):  # torchvision compiles a function of its own
        outputs = tensors(model(*arguments))
    loss = sum(output.square().mean() for output in outputs if output.requires_grad)
    if isinstance(loss, torch.Tensor):
        loss.backward()
    gradients = [parameter.grad for parameter in model.parameters()]
    return [*outputs, *(g for g in gradients if g is not None), *model.buffers()]


def difference(ours, theirs):
    """The greatest error relative to the tensor's norm, or to 1e-6 of the largest one's."""
    least = 1e-6 * max(float(value.double().norm()) for value in theirs)
    return max(
        float((a.double() - b.double()).norm()) / max(float(b.double().norm()), least)
        for a, b in zip(ours, theirs, strict=True)
        if a.numel()
    )


@pytest.mark.parametrize("name", MODELS)
def test_models_compute_what_they_did(name, library, record_property):
    build, layers, left = MODELS[name]
    torch.manual_seed(0)
    theirs = build(library).double()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        ours = nt.convert(copy.deepcopy(theirs))
    done = nt.converted(ours)
    assert (done.layers, len(done.left)) == (layers, left)
    assert len(caught) == bool(left)
    for training in (True, False):
        found = difference(*(step(model, name, training) for model in (ours, theirs)))
        print(f"{name}, {'training' if training else 'evaluation'}: {found:.1e}")
        assert found < 1e-8
    kinds = [type(layer) for layer in theirs.modules()]
    assert [type(layer) for layer in nt.revert(ours).modules()] == kinds
