"""convert on models of public libraries; by `nox -s models`, which installs them.

Every model is compared with an unconverted copy, in float64, training and evaluating: outputs, all
gradients, and what became of the running statistics.
"""

from __future__ import annotations

import copy
import os
import re
import warnings
from pathlib import Path
from typing import Any, NamedTuple

import pytest

torch = pytest.importorskip("torch")
nt = pytest.importorskip("normgrad.torch")
from layer_pairs import InFloat64  # noqa: E402 - it imports torch

pytestmark = [
    pytest.mark.every_case,
    pytest.mark.skipif("NORMGRAD_MODELS" not in os.environ, reason="by nox -s models"),
    # The libraries use what PyTorch deprecates.
    pytest.mark.filterwarnings("ignore"),
]


def made(path, *arguments, **options):
    """A model of a library, by the name of its module and its class or function."""
    module, _, name = path.rpartition(".")
    return lambda library: getattr(library(module), name)(*arguments, **options)


def torchvision(name):
    return made(f"torchvision.models.{name}", num_classes=10)


def timm(name, **options):
    return made("timm.create_model", name, num_classes=10, **options)


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
        found = library("transformers")
        kind = getattr(found, config.removesuffix("Text") + head)
        return kind(getattr(found, f"{name}Config")(**options))

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
    return lambda model: (torch.randn(2, 3, size, size, dtype=torch.float64),)


def pictures_with_boxes(model):
    (pictures,) = images()(model)
    if not model.training:
        return (list(pictures),)
    boxes = torch.tensor([[4.0, 5, 40, 50], [10, 10, 30, 60]], dtype=torch.float64)
    return list(pictures), [{"boxes": boxes, "labels": torch.tensor([1, 2])} for _ in pictures]


def tokens(model):
    return (torch.randint(100, (2, 12)),)


def text_pairs(model):
    return {"input_ids": tokens(model)[0], "decoder_input_ids": tokens(model)[0]}


def sound(model):
    return (torch.randn(2, 2000, dtype=torch.float64),)


def noise(*shape):
    """What a diffusion model takes: images and times."""
    return lambda model: (torch.randn(shape, dtype=torch.float64), torch.tensor([3, 400]))


def to_transform(model):
    sample, times = noise(2, 16, 8, 8)(model)
    text = {"encoder_hidden_states": torch.randn(2, 5, 32, dtype=torch.float64)}
    pooled = {"pooled_projections": torch.randn(2, 32, dtype=torch.float64)}
    return {"hidden_states": sample, "timestep": times, **text, **pooled}


def volumes(channels, *sizes):
    return lambda model: (torch.randn(2, channels, *sizes, dtype=torch.float64),)


def rows(model):
    return (torch.randn(9, 16, dtype=torch.float64),)


class Tried(NamedTuple):
    """A model, the layers that are converted, how many norms are left, and its arguments."""

    build: Any
    layers: dict[str, int]
    left: int = 0
    example: Any = images()


def yolo(library):
    """A detector of ultralytics by its description; while training it gives its head's tensors."""
    return library("ultralytics.nn.tasks").DetectionModel("yolo11n.yaml", nc=3, verbose=False)


def text_and_noise(model):
    sample, times = noise(2, 4, 8, 8)(model)
    text = torch.randn(2, 5, 32, dtype=torch.float64)
    return {"sample": sample, "timestep": times, "encoder_hidden_states": text}


BATCH, GROUP, LAYER = "BatchNorm2d", "GroupNorm", "LayerNorm"
MODELS = {
    "torchvision resnet18": Tried(torchvision("resnet18"), {BATCH: 20}),
    "torchvision mobilenet_v2": Tried(torchvision("mobilenet_v2"), {BATCH: 52}),
    "torchvision convnext_tiny": Tried(
        torchvision("convnext_tiny"), {LAYER: 18, "LayerNorm2d": 5}
    ),
    "torchvision swin_t": Tried(torchvision("swin_t"), {LAYER: 29}),
    "torchvision FasterRCNN, resnet50": Tried(
        detector, {"FrozenBatchNorm2d": 53}, 0, pictures_with_boxes
    ),
    "torchvision densenet121": Tried(torchvision("densenet121"), {BATCH: 121}),
    "torchvision mobilenet_v3_small": Tried(torchvision("mobilenet_v3_small"), {BATCH: 34}),
    "torchvision deeplabv3_mobilenet_v3_large": Tried(
        made(
            "torchvision.models.segmentation.deeplabv3_mobilenet_v3_large", num_classes=3,
            weights_backbone=None,
        ),
        {BATCH: 53},
    ),
    "ultralytics YOLO11n": Tried(yolo, {BATCH: 81}),
    "timm resnetv2_50": Tried(timm("resnetv2_50"), {"BatchNormAct2d": 49}),
    "timm regnety_002": Tried(timm("regnety_002"), {"BatchNormAct2d": 44}),
    "timm efficientnet_b0": Tried(timm("efficientnet_b0"), {"BatchNormAct2d": 49}),
    "timm resnetv2_50x1_bit": Tried(timm("resnetv2_50x1_bit"), {"GroupNormAct": 49}),
    "timm resnet50_gn": Tried(timm("resnet50_gn"), {GROUP: 53}),
    "timm levit_128s": Tried(
        timm("levit_128s"), {"BatchNorm1d": 48, BATCH: 4}, 0, images(224)
    ),
    "timm vit_tiny_patch16_224": Tried(timm("vit_tiny_patch16_224", img_size=64), {LAYER: 25}),
    "timm vit_tiny_patch16_224, rmsnorm": Tried(
        timm("vit_tiny_patch16_224", img_size=64, norm_layer="rmsnorm"), {"RmsNorm": 25}
    ),
    "timm convnextv2_atto": Tried(timm("convnextv2_atto"), {"LayerNorm2d": 17}, 12),
    "timm edgenext_xx_small": Tried(timm("edgenext_xx_small"), {LAYER: 15, "LayerNorm2d": 5}),
    "transformers Llama": Tried(
        transformers("Llama", **GROUPED), {"LlamaRMSNorm": 5}, 0, tokens
    ),
    "transformers Mistral": Tried(
        transformers("Mistral", **GROUPED), {"MistralRMSNorm": 5}, 0, tokens
    ),
    "transformers Qwen3": Tried(
        transformers("Qwen3", **GROUPED), {"Qwen3RMSNorm": 9}, 0, tokens
    ),
    "transformers Gemma2": Tried(
        transformers("Gemma2", **GROUPED), {"Gemma2RMSNorm": 9}, 0, tokens
    ),
    "transformers Gemma3": Tried(
        transformers("Gemma3Text", **GROUPED), {"Gemma3RMSNorm": 13}, 0, tokens
    ),
    "transformers Phi3": Tried(
        transformers("Phi3", **{**SMALL, "num_key_value_heads": 2}), {"Phi3RMSNorm": 5}, 0, tokens
    ),
    "transformers DeepseekV3": Tried(
        transformers("DeepseekV3", **DEEPSEEK), {"DeepseekV3RMSNorm": 9}, 0, tokens
    ),
    "transformers Mixtral": Tried(
        transformers("Mixtral", **GROUPED, num_local_experts=2, experts_implementation="eager"),
        {"MixtralRMSNorm": 5}, 0, tokens,
    ),
    "transformers Olmo2": Tried(
        transformers("Olmo2", **{**SMALL, "num_key_value_heads": 2}), {"Olmo2RMSNorm": 9}, 0, tokens
    ),
    "transformers Cohere": Tried(
        transformers("Cohere", **{**SMALL, "num_key_value_heads": 2}),
        {"CohereLayerNorm": 3}, 0, tokens,
    ),
    "transformers Mamba": Tried(
        transformers("Mamba", **MAMBA, state_size=4), {"MambaRMSNorm": 3}, 0, tokens
    ),
    "transformers Mamba2": Tried(
        transformers("Mamba2", **MAMBA, state_size=8, num_heads=8, head_dim=16, n_groups=1),
        {"Mamba2RMSNorm": 3}, 2, tokens,
    ),
    "transformers T5": Tried(
        transformers(
            "T5", "ForConditionalGeneration", d_model=64, d_ff=96, num_layers=2, num_heads=4,
            d_kv=16, vocab_size=100, use_cache=False,
        ),
        {"T5LayerNorm": 12}, 0, text_pairs,
    ),
    "transformers GPT2": Tried(
        transformers(
            "GPT2", "LMHeadModel", n_embd=64, n_layer=2, n_head=4, vocab_size=100, use_cache=False
        ),
        {LAYER: 5}, 0, tokens,
    ),
    "transformers Bert": Tried(transformers("Bert", "Model", **SMALL), {LAYER: 5}, 0, tokens),
    "transformers ConvNext": Tried(
        transformers(
            "ConvNext", "ForImageClassification", hidden_sizes=[8, 16, 32, 64], depths=[1, 1, 1, 1]
        ),
        {"ConvNextLayerNorm": 8, LAYER: 1},
    ),
    "transformers Wav2Vec2": Tried(
        transformers(
            "Wav2Vec2", "Model", hidden_size=32, num_hidden_layers=1, num_attention_heads=4,
            intermediate_size=32, conv_dim=[16] * 7, num_conv_pos_embeddings=16,
            num_conv_pos_embedding_groups=4, apply_spec_augment=False,
        ),
        {GROUP: 1, LAYER: 4}, 0, sound,
    ),
    "torchvision resnet18, DETR's norms": Tried(detr_backbone, {"DetrFrozenBatchNorm2d": 20}),
    "diffusers UNet2DModel": Tried(
        made(
            "diffusers.UNet2DModel", sample_size=32, block_out_channels=(32, 64),
            down_block_types=("DownBlock2D", "AttnDownBlock2D"),
            up_block_types=("AttnUpBlock2D", "UpBlock2D"), norm_num_groups=8,
        ),
        {GROUP: 31}, 0, noise(2, 3, 32, 32),
    ),
    "diffusers UNet2DConditionModel": Tried(
        made(
            "diffusers.UNet2DConditionModel", sample_size=8, block_out_channels=(32, 64),
            down_block_types=("CrossAttnDownBlock2D", "DownBlock2D"),
            up_block_types=("UpBlock2D", "CrossAttnUpBlock2D"), layers_per_block=1,
            cross_attention_dim=32, attention_head_dim=4, norm_num_groups=8,
        ),
        {GROUP: 21, LAYER: 12}, 0, text_and_noise,
    ),
    "diffusers AutoencoderKL": Tried(
        made("diffusers.AutoencoderKL", block_out_channels=(32,), norm_num_groups=8),
        {GROUP: 18}, 0, images(32),
    ),
    "diffusers SD3Transformer2DModel": Tried(
        made(
            "diffusers.SD3Transformer2DModel", sample_size=8, num_layers=2, attention_head_dim=16,
            num_attention_heads=2, joint_attention_dim=32, caption_projection_dim=32,
            pooled_projection_dim=32, pos_embed_max_size=8, qk_norm="rms_norm",
        ),
        {LAYER: 8, "RMSNorm": 8}, 0, to_transform,
    ),
    "segmentation_models_pytorch Unet": Tried(
        made("segmentation_models_pytorch.Unet", "resnet18", encoder_weights=None), {BATCH: 30}
    ),
    "segmentation_models_pytorch Segformer": Tried(
        made("segmentation_models_pytorch.Segformer", "mit_b0", encoder_weights=None),
        {LAYER: 30, BATCH: 1},
    ),
    "MONAI UNet": Tried(
        made("monai.networks.nets.UNet", 3, 1, 2, (8, 16, 32), (2, 2)),
        {"InstanceNorm3d": 4}, 0, volumes(1, 16, 16, 16),
    ),
    "MONAI SegResNet": Tried(
        made("monai.networks.nets.SegResNet", init_filters=8),
        {GROUP: 25}, 0, volumes(1, 16, 16, 16),
    ),
    "torch_geometric norms": Tried(
        nodes, {"BatchNorm1d": 1, LAYER: 1, "InstanceNorm": 1}, 1, rows
    ),
}  # fmt: skip


def tensors(output):
    if isinstance(output, torch.Tensor):
        return [output]
    if isinstance(output, dict):
        output = [*output.values()]
    parts = output if isinstance(output, (list, tuple)) else []
    return [tensor for part in parts for tensor in tensors(part)]


def step(model, example, training):
    """Outputs, gradients and buffers."""
    model.train(training).zero_grad()
    torch.manual_seed(1)
    given = example(model)
    positional, named = ((), given) if isinstance(given, dict) else (given, {})
    torch.manual_seed(2)  # of dropout, and of the boxes that a detector samples
    # torchvision compiles a function of its own.
    with torch.compiler.set_stance("force_eager"), InFloat64():
        outputs = tensors(model(*positional, **named))
    loss = sum(output.square().mean() for output in outputs if output.requires_grad)
    if isinstance(loss, torch.Tensor):
        loss.backward()
    gradients = [parameter.grad for parameter in model.parameters()]
    return [*outputs, *(g for g in gradients if g is not None), *model.buffers()]


def difference(ours, theirs):
    """The greatest error relative to the tensor's norm, or to 1e-6 of the largest one's."""
    least = 1e-6 * max(float(value.detach().double().norm()) for value in theirs)
    return max(
        float((a.detach().double() - b.detach().double()).norm())
        / max(float(b.detach().double().norm()), least)
        for a, b in zip(ours, theirs, strict=True)
        if a.numel()
    )


@pytest.mark.parametrize("name", MODELS)
def test_models_compute_what_they_did(name, library):
    tried = MODELS[name]
    torch.manual_seed(0)
    theirs = tried.build(library).double()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        ours = nt.convert(copy.deepcopy(theirs))
    done = nt.converted(ours)
    layers = {kind.rpartition(".")[2]: count for kind, count in done.layers.items()}
    assert (layers, len(done.left)) == (tried.layers, tried.left)
    assert any("normgrad" in str(each.message) for each in caught) == bool(tried.left)
    found = []
    for training in (True, False):
        results = (step(model, tried.example, training) for model in (ours, theirs))
        found.append(difference(*results))
        assert found[-1] < 1e-8
    kinds = [type(layer) for layer in theirs.modules()]
    assert [type(layer) for layer in nt.revert(ours).modules()] == kinds
    print(row(name, tried, *found))


def row(name, tried, *found):
    """A model's row in docs/pytorch.md."""
    layers = ", ".join(f"{count} {kind}" for kind, count in tried.layers.items())
    cells = (name, layers, tried.left or "", *(f"{each:.0e}" for each in found))
    return f"| {' | '.join(map(str, cells))} |".replace("|  |", "| |")


def test_the_documents_have_these_models():
    """Their names, layers and numbers of layers left; errors are those of one run."""
    text = Path(__file__).parents[2].joinpath("docs", "pytorch.md").read_text("utf-8")
    libraries = "torchvision|timm|transformers|diffusers|seg|MONAI|torch_g|ultra"
    shown = re.findall(rf"^(\| (?:{libraries}).*)$", text, re.M)
    expected = [row(name, tried).removesuffix(" |") for name, tried in MODELS.items()]
    assert [line.rsplit("|", 3)[0].rstrip() for line in shown] == expected
