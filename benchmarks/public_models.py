"""The public models that `nox -s models` converts and `benchmarks/worth.py public` times.

A model is built by a function that takes :func:`library`, so that importing this file imports no
library.
"""

from __future__ import annotations

import importlib
from functools import cache
from types import ModuleType
from typing import Any, NamedTuple

import torch


def overlaps(boxes, scores, threshold):
    """torchvision's nms, which is compiled, and not for every build of PyTorch's."""
    box_iou = importlib.import_module("torchvision.ops").box_iou
    kept, rest = [], scores.argsort(descending=True)
    while len(rest):
        kept.append(rest[0])
        rest = rest[1:][box_iou(boxes[rest[:1]], boxes[rest[1:]])[0] <= threshold]
    return torch.stack(kept) if kept else rest


@cache
def load_torchvision() -> None:
    """Import torchvision, which other libraries import, even if its compiled part does not load."""
    try:
        importlib.import_module("torchvision")
    except RuntimeError:  # its compiled operators are for another build of PyTorch's
        schema = "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"
        for operator in ("torchvision::nms", "torchvision::qnms"):
            torch.library.define(operator, schema)
            torch.library.impl(operator, "CPU", overlaps)
        importlib.import_module("torchvision")
        importlib.import_module("torchvision.ops.boxes")._assert_has_ops = lambda: None


def library(name: str) -> ModuleType:
    """A library's module, by name."""
    load_torchvision()
    return importlib.import_module(name)


def built(path, *arguments, **options):
    """A model of a library, by the name of its module and its class or function."""
    module, _, name = path.rpartition(".")
    return lambda library: getattr(library(module), name)(*arguments, **options)


def torchvision(name):
    """A classifier of torchvision, by its name."""
    return built(f"torchvision.models.{name}", num_classes=10)


def timm(name, **options):
    """A classifier of timm, by its name."""
    return built("timm.create_model", name, num_classes=10, **options)


SMALL = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "vocab_size": 100}
SMALL |= {"intermediate_size": 96, "pad_token_id": 0, "use_cache": False}
GROUPED = {**SMALL, "num_key_value_heads": 2, "head_dim": 16}
MAMBA = {"hidden_size": 64, "num_hidden_layers": 2, "vocab_size": 100, "use_cache": False}
DEEPSEEK = {
    **{name: value for name, value in GROUPED.items() if name != "head_dim"},
    **{"q_lora_rank": 32, "kv_lora_rank": 32, "qk_rope_head_dim": 8, "qk_nope_head_dim": 8},
    **{"v_head_dim": 16, "n_routed_experts": 4, "num_experts_per_tok": 2, "n_group": 1},
    **{"topk_group": 1, "moe_intermediate_size": 32, "first_k_dense_replace": 1},
    "experts_implementation": "eager",  # the other one takes no float64
}


def transformers(name, head="ForCausalLM", **options):
    """A model of transformers, by the name of its family."""
    config = name if name.endswith("Text") else name.removesuffix("Text")

    def build(library):
        transformers = library("transformers")
        kind = getattr(transformers, config.removesuffix("Text") + head)
        return kind(getattr(transformers, f"{name}Config")(**options))

    return build


def detector(library):
    """Faster R-CNN over a backbone whose batch norms are frozen, as its trained weights have it."""
    frozen = library("torchvision.ops.misc").FrozenBatchNorm2d
    utilities = library("torchvision.models.detection.backbone_utils")
    backbone = utilities.resnet_fpn_backbone(
        backbone_name="resnet50", weights=None, norm_layer=frozen, trainable_layers=5
    )
    freeze(backbone, frozen)
    detection = library("torchvision.models.detection")
    return detection.FasterRCNN(backbone, num_classes=3, min_size=64, max_size=64)


def freeze(model, frozen):
    """Statistics and weights that matter, in layers of a class."""
    for layer in model.modules():
        if isinstance(layer, frozen):
            layer.running_mean.uniform_(-0.1, 0.1)
            layer.running_var.uniform_(0.5, 1.5)
            layer.weight.uniform_(0.1, 0.5)


def detr_backbone(library):
    """torchvision's ResNet with the frozen batch norms of transformers' DETR."""
    frozen = library("transformers.models.detr.modeling_detr").DetrFrozenBatchNorm2d
    model = library("torchvision.models").resnet18(num_classes=10, norm_layer=frozen)
    freeze(model, frozen)
    return model


def nodes(library):
    """Layers of torch_geometric on the nodes of one graph."""
    nn = library("torch_geometric.nn")
    linear = torch.nn.Linear
    norms = nn.BatchNorm(16), nn.LayerNorm(16, mode="node"), nn.InstanceNorm(16), nn.GraphNorm(16)
    layers = [layer for norm in norms for layer in (linear(16, 16), norm, torch.nn.Tanh())]
    return torch.nn.Sequential(*layers)


def images(size=64):
    """Two square images."""
    return lambda model: (torch.randn(2, 3, size, size, dtype=torch.float64),)


def images_with_boxes(model):
    """What a detector takes: images, and while training their objects."""
    (batch,) = images()(model)
    if not model.training:
        return (list(batch),)
    boxes = torch.tensor([[4.0, 5, 40, 50], [10, 10, 30, 60]], dtype=torch.float64)
    return list(batch), [{"boxes": boxes, "labels": torch.tensor([1, 2])} for _ in batch]


def tokens(model):
    """Two texts of twelve words."""
    return (torch.randint(100, (2, 12)),)


def text_pairs(model):
    """Texts for an encoder and for a decoder."""
    return {"input_ids": tokens(model)[0], "decoder_input_ids": tokens(model)[0]}


def sound(model):
    """Two waveforms."""
    return (torch.randn(2, 2000, dtype=torch.float64),)


def noise(*shape):
    """What a diffusion model takes: images and times."""
    return lambda model: (torch.randn(shape, dtype=torch.float64), torch.tensor([3, 400]))


def to_transform(model):
    """What SD3's transformer takes: images, times, and encoded texts."""
    sample, times = noise(2, 16, 8, 8)(model)
    text = {"encoder_hidden_states": torch.randn(2, 5, 32, dtype=torch.float64)}
    pooled = {"pooled_projections": torch.randn(2, 32, dtype=torch.float64)}
    return {"hidden_states": sample, "timestep": times, **text, **pooled}


def volumes(channels, *sizes):
    """Two volumes."""
    return lambda model: (torch.randn(2, channels, *sizes, dtype=torch.float64),)


def rows(model):
    """Nine nodes of a graph."""
    return (torch.randn(9, 16, dtype=torch.float64),)


class Public(NamedTuple):
    """A model, the layers that are converted, how many norms are left, and its arguments."""

    build: Any
    layers: dict[str, int]
    left: int = 0
    example: Any = images()

    def arguments(self, model: torch.nn.Module) -> tuple[Any, dict[str, Any]]:
        """The arguments of a step, by position and by name."""
        example = self.example(model)
        return ((), example) if isinstance(example, dict) else (example, {})


def yolo(library):
    """A detector of ultralytics by its description; while training it gives its head's tensors."""
    return library("ultralytics.nn.tasks").DetectionModel("yolo11n.yaml", nc=3, verbose=False)


def text_and_noise(model):
    """What a conditional U-Net takes: images, times, and encoded texts."""
    sample, times = noise(2, 4, 8, 8)(model)
    text = torch.randn(2, 5, 32, dtype=torch.float64)
    return {"sample": sample, "timestep": times, "encoder_hidden_states": text}


BATCH, GROUP, LAYER = "BatchNorm2d", "GroupNorm", "LayerNorm"
MODELS = {
    "torchvision resnet18": Public(torchvision("resnet18"), {BATCH: 20}),
    "torchvision mobilenet_v2": Public(torchvision("mobilenet_v2"), {BATCH: 52}),
    "torchvision convnext_tiny": Public(
        torchvision("convnext_tiny"), {LAYER: 18, "LayerNorm2d": 5}
    ),
    "torchvision swin_t": Public(torchvision("swin_t"), {LAYER: 29}),
    "torchvision FasterRCNN, resnet50": Public(
        detector, {"FrozenBatchNorm2d": 53}, 0, images_with_boxes
    ),
    "torchvision densenet121": Public(torchvision("densenet121"), {BATCH: 121}),
    "torchvision mobilenet_v3_small": Public(torchvision("mobilenet_v3_small"), {BATCH: 34}),
    "torchvision deeplabv3_mobilenet_v3_large": Public(
        built(
            "torchvision.models.segmentation.deeplabv3_mobilenet_v3_large", num_classes=3,
            weights_backbone=None,
        ),
        {BATCH: 53},
    ),
    "ultralytics YOLO11n": Public(yolo, {BATCH: 81}),
    "timm resnetv2_50": Public(timm("resnetv2_50"), {"BatchNormAct2d": 49}),
    "timm regnety_002": Public(timm("regnety_002"), {"BatchNormAct2d": 44}),
    "timm efficientnet_b0": Public(timm("efficientnet_b0"), {"BatchNormAct2d": 49}),
    "timm resnetv2_50x1_bit": Public(timm("resnetv2_50x1_bit"), {"GroupNormAct": 49}),
    "timm resnet50_gn": Public(timm("resnet50_gn"), {GROUP: 53}),
    "timm levit_128s": Public(
        timm("levit_128s"), {"BatchNorm1d": 48, BATCH: 4}, 0, images(224)
    ),
    "timm vit_tiny_patch16_224": Public(timm("vit_tiny_patch16_224", img_size=64), {LAYER: 25}),
    "timm vit_tiny_patch16_224, rmsnorm": Public(
        timm("vit_tiny_patch16_224", img_size=64, norm_layer="rmsnorm"), {"RmsNorm": 25}
    ),
    "timm convnextv2_atto": Public(timm("convnextv2_atto"), {"LayerNorm2d": 17}, 12),
    "timm edgenext_xx_small": Public(timm("edgenext_xx_small"), {LAYER: 15, "LayerNorm2d": 5}),
    "transformers Llama": Public(
        transformers("Llama", **GROUPED), {"LlamaRMSNorm": 5}, 0, tokens
    ),
    "transformers Mistral": Public(
        transformers("Mistral", **GROUPED), {"MistralRMSNorm": 5}, 0, tokens
    ),
    "transformers Qwen3": Public(
        transformers("Qwen3", **GROUPED), {"Qwen3RMSNorm": 9}, 0, tokens
    ),
    "transformers Gemma2": Public(
        transformers("Gemma2", **GROUPED), {"Gemma2RMSNorm": 9}, 0, tokens
    ),
    "transformers Gemma3": Public(
        transformers("Gemma3Text", **GROUPED), {"Gemma3RMSNorm": 13}, 0, tokens
    ),
    "transformers Phi3": Public(
        transformers("Phi3", **{**SMALL, "num_key_value_heads": 2}), {"Phi3RMSNorm": 5}, 0, tokens
    ),
    "transformers DeepseekV3": Public(
        transformers("DeepseekV3", **DEEPSEEK), {"DeepseekV3RMSNorm": 9}, 0, tokens
    ),
    "transformers Mixtral": Public(
        transformers("Mixtral", **GROUPED, num_local_experts=2, experts_implementation="eager"),
        {"MixtralRMSNorm": 5}, 0, tokens,
    ),
    "transformers Olmo2": Public(
        transformers("Olmo2", **{**SMALL, "num_key_value_heads": 2}), {"Olmo2RMSNorm": 9}, 0, tokens
    ),
    "transformers Cohere": Public(
        transformers("Cohere", **{**SMALL, "num_key_value_heads": 2}),
        {"CohereLayerNorm": 3}, 0, tokens,
    ),
    "transformers Mamba": Public(
        transformers("Mamba", **MAMBA, state_size=4), {"MambaRMSNorm": 3}, 0, tokens
    ),
    "transformers Mamba2": Public(
        transformers("Mamba2", **MAMBA, state_size=8, num_heads=8, head_dim=16, n_groups=1),
        {"Mamba2RMSNorm": 3}, 2, tokens,
    ),
    "transformers T5": Public(
        transformers(
            "T5", "ForConditionalGeneration", d_model=64, d_ff=96, num_layers=2, num_heads=4,
            d_kv=16, vocab_size=100, use_cache=False,
        ),
        {"T5LayerNorm": 12}, 0, text_pairs,
    ),
    "transformers GPT2": Public(
        transformers(
            "GPT2", "LMHeadModel", n_embd=64, n_layer=2, n_head=4, vocab_size=100, use_cache=False
        ),
        {LAYER: 5}, 0, tokens,
    ),
    "transformers Bert": Public(transformers("Bert", "Model", **SMALL), {LAYER: 5}, 0, tokens),
    "transformers ConvNext": Public(
        transformers(
            "ConvNext", "ForImageClassification", hidden_sizes=[8, 16, 32, 64], depths=[1, 1, 1, 1]
        ),
        {"ConvNextLayerNorm": 8, LAYER: 1},
    ),
    "transformers Wav2Vec2": Public(
        transformers(
            "Wav2Vec2", "Model", hidden_size=32, num_hidden_layers=1, num_attention_heads=4,
            intermediate_size=32, conv_dim=[16] * 7, num_conv_pos_embeddings=16,
            num_conv_pos_embedding_groups=4, apply_spec_augment=False,
        ),
        {GROUP: 1, LAYER: 4}, 0, sound,
    ),
    "torchvision resnet18, DETR's norms": Public(detr_backbone, {"DetrFrozenBatchNorm2d": 20}),
    "diffusers UNet2DModel": Public(
        built(
            "diffusers.UNet2DModel", sample_size=32, block_out_channels=(32, 64),
            down_block_types=("DownBlock2D", "AttnDownBlock2D"),
            up_block_types=("AttnUpBlock2D", "UpBlock2D"), norm_num_groups=8,
        ),
        {GROUP: 31}, 0, noise(2, 3, 32, 32),
    ),
    "diffusers UNet2DConditionModel": Public(
        built(
            "diffusers.UNet2DConditionModel", sample_size=8, block_out_channels=(32, 64),
            down_block_types=("CrossAttnDownBlock2D", "DownBlock2D"),
            up_block_types=("UpBlock2D", "CrossAttnUpBlock2D"), layers_per_block=1,
            cross_attention_dim=32, attention_head_dim=4, norm_num_groups=8,
        ),
        {GROUP: 21, LAYER: 12}, 0, text_and_noise,
    ),
    "diffusers AutoencoderKL": Public(
        built("diffusers.AutoencoderKL", block_out_channels=(32,), norm_num_groups=8),
        {GROUP: 18}, 0, images(32),
    ),
    "diffusers SD3Transformer2DModel": Public(
        built(
            "diffusers.SD3Transformer2DModel", sample_size=8, num_layers=2, attention_head_dim=16,
            num_attention_heads=2, joint_attention_dim=32, caption_projection_dim=32,
            pooled_projection_dim=32, pos_embed_max_size=8, qk_norm="rms_norm",
        ),
        {LAYER: 8, "RMSNorm": 8}, 0, to_transform,
    ),
    "segmentation_models_pytorch Unet": Public(
        built("segmentation_models_pytorch.Unet", "resnet18", encoder_weights=None), {BATCH: 30}
    ),
    "segmentation_models_pytorch Segformer": Public(
        built("segmentation_models_pytorch.Segformer", "mit_b0", encoder_weights=None),
        {LAYER: 30, BATCH: 1},
    ),
    "MONAI UNet": Public(
        built("monai.networks.nets.UNet", 3, 1, 2, (8, 16, 32), (2, 2)),
        {"InstanceNorm3d": 4}, 0, volumes(1, 16, 16, 16),
    ),
    "MONAI SegResNet": Public(
        built("monai.networks.nets.SegResNet", init_filters=8),
        {GROUP: 25}, 0, volumes(1, 16, 16, 16),
    ),
    "torch_geometric norms": Public(
        nodes, {"BatchNorm1d": 1, LAYER: 1, "InstanceNorm": 1}, 1, rows
    ),
}  # fmt: skip
