"""Models whose training steps ``measure.py`` measures, in PyTorch's own layers."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

#: Makes a layer for so many channels.
Norm = Callable[[int], nn.Module]


def _convolution(size: int, width: int, kernel: int, stride: int = 1, groups: int = 1) -> nn.Module:
    return nn.Conv2d(size, width, kernel, stride, kernel // 2, groups=groups, bias=False)


class _Residual(nn.Module):
    """ResNet's basic block."""

    def __init__(self, norm: Norm, size: int, width: int, stride: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            *(_convolution(size, width, 3, stride), norm(width), nn.ReLU(inplace=True)),
            *(_convolution(width, width, 3), norm(width)),
        )
        self.shortcut = nn.Sequential()
        if stride > 1 or size != width:
            self.shortcut.extend([_convolution(size, width, 1, stride), norm(width)])

    def forward(self, x: Tensor) -> Tensor:
        """The block's output."""
        return (self.body(x) + self.shortcut(x)).relu_()


class ResNet18(nn.Sequential):
    """ResNet-18 (He et al., 2015): 20 norms."""

    def __init__(self, norm: Norm = nn.BatchNorm2d) -> None:
        layers = [_convolution(3, 64, 7, 2), norm(64), nn.ReLU(inplace=True)]
        layers.append(nn.MaxPool2d(3, 2, 1))
        size = 64
        for width, stride in ((64, 1), (128, 2), (256, 2), (512, 2)):
            layers += [_Residual(norm, size, width, stride), _Residual(norm, width, width, 1)]
            size = width
        super().__init__(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(512, 1000))


class _Inverted(nn.Module):
    """MobileNetV2's inverted residual."""

    def __init__(self, size: int, width: int, stride: int, expansion: int) -> None:
        super().__init__()
        inner = size * expansion
        layers = _activated(size, inner, 1) if expansion > 1 else []
        layers += _activated(inner, inner, 3, stride, inner)
        self.body = nn.Sequential(*layers, _convolution(inner, width, 1), nn.BatchNorm2d(width))
        self.adds = stride == 1 and size == width

    def forward(self, x: Tensor) -> Tensor:
        """The block's output."""
        return x + self.body(x) if self.adds else self.body(x)


def _activated(
    size: int, width: int, kernel: int, stride: int = 1, groups: int = 1
) -> list[nn.Module]:
    convolution = _convolution(size, width, kernel, stride, groups)
    return [convolution, nn.BatchNorm2d(width), nn.ReLU6(inplace=True)]


class MobileNetV2(nn.Sequential):
    """MobileNetV2 (Sandler et al., 2018): 52 batch norms."""

    def __init__(self) -> None:
        layers = _activated(3, 32, 3, 2)
        size = 32
        for expansion, width, count, stride in (
            *((1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2)),
            *((6, 96, 3, 1), (6, 160, 3, 2), (6, 320, 1, 1)),
        ):
            for index in range(count):
                layers.append(_Inverted(size, width, 1 if index else stride, expansion))
                size = width
        layers += _activated(320, 1280, 1)
        super().__init__(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(1280, 1000))


class _Twice(nn.Module):
    """Two convolutions after group norms, and what they are added to, as diffusion models do."""

    def __init__(self, size: int, width: int) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        for channels in (size, width):
            layers += [nn.GroupNorm(8, channels), nn.SiLU(), nn.Conv2d(channels, width, 3, 1, 1)]
        self.body = nn.Sequential(*layers)
        self.shortcut = nn.Conv2d(size, width, 1) if size != width else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        """The block's output."""
        return self.body(x) + self.shortcut(x)


class UNet(nn.Module):
    """A U-Net of three scales with group norms of 8 groups (15 of them)."""

    def __init__(self) -> None:
        super().__init__()
        widths = (16, 32, 64)
        self.first = nn.Conv2d(3, widths[0], 3, 1, 1)
        self.down = nn.ModuleList(map(_Twice, (widths[0], *widths[:-1]), widths))
        self.middle = _Twice(widths[-1], widths[-1])
        self.up = nn.ModuleList(
            _Twice(width + size, width) for width, size in ((64, 64), (32, 64), (16, 32))
        )
        self.last = nn.Sequential(nn.GroupNorm(8, widths[0]), nn.Conv2d(widths[0], 3, 3, 1, 1))

    def forward(self, x: Tensor) -> Tensor:
        """An image of the input's size."""
        x = self.first(x)
        kept = []
        for block in self.down:
            kept.append(block(x))
            x = nn.functional.avg_pool2d(kept[-1], 2)
        x = self.middle(x)
        for block in self.up:
            x = nn.functional.interpolate(x, scale_factor=2.0)
            x = block(torch.cat([x, kept.pop()], 1))
        return self.last(x)


class _Attention(nn.Module):
    """A transformer's block, with a norm before attention and one before the two products."""

    def __init__(self, norm: Norm, width: int, heads: int, causal: bool) -> None:
        super().__init__()
        self.norms = nn.ModuleList([norm(width), norm(width)])
        self.heads, self.causal = heads, causal
        self.inputs, self.output = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.products = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )

    def forward(self, x: Tensor) -> Tensor:
        """The block's output."""
        parts = self.inputs(self.norms[0](x)).unflatten(-1, (3, self.heads, -1))
        query, key, value = parts.permute(2, 0, 3, 1, 4)
        y = nn.functional.scaled_dot_product_attention(query, key, value, is_causal=self.causal)
        x = x + self.output(y.transpose(1, 2).flatten(2))
        return x + self.products(self.norms[1](x))


class FamilyRMSNorm(nn.Module):
    """RMS norm as transformers' Llama computes it."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight, self.variance_epsilon = nn.Parameter(torch.ones(width)), 1e-6

    def forward(self, x: Tensor) -> Tensor:
        """The norm over the last axis."""
        wide = x.to(torch.float32)
        wide = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + self.variance_epsilon)
        return self.weight * wide.to(x.dtype)


class GPT(nn.Sequential):
    """A decoder of four blocks; with FamilyRMSNorm, like Llama."""

    def __init__(self, norm: Norm = nn.LayerNorm, width: int = 256, words: int = 1000) -> None:
        blocks = [_Attention(norm, width, 8, causal=True) for _ in range(4)]
        super().__init__(nn.Embedding(words, width), *blocks, norm(width), nn.Linear(width, words))


class ViT(nn.Sequential):
    """A vision transformer of four blocks on patches of 8 × 8."""

    def __init__(self, width: int = 192) -> None:
        blocks = [_Attention(nn.LayerNorm, width, 3, causal=False) for _ in range(4)]
        patches = nn.Conv2d(3, width, 8, 8), nn.Flatten(2), _Transposed()
        super().__init__(*patches, *blocks, nn.LayerNorm(width), nn.Linear(width, 100))


class _Transposed(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        """The last two axes changed."""
        return x.transpose(1, 2)


class PointNet(nn.Sequential):
    """Per-point layers with BatchNorm1d, and the greatest of each channel over the points."""

    def __init__(self) -> None:
        layers: list[nn.Module] = []
        for size, width in ((3, 64), (64, 64), (64, 128), (128, 512)):
            layers += [nn.Conv1d(size, width, 1), nn.BatchNorm1d(width), nn.ReLU(inplace=True)]
        pooled = nn.AdaptiveMaxPool1d(1), nn.Flatten(), nn.Linear(512, 40)
        super().__init__(*layers, *pooled)


class UNet3d(nn.Module):
    """A U-Net of two scales on volumes, with instance norms, as medical images are segmented."""

    def __init__(self, widths: tuple[int, int] = (16, 32)) -> None:
        super().__init__()
        first, second = widths
        self.first, self.middle = self._twice(1, first), self._twice(first, second)
        self.last = nn.Sequential(self._twice(first + second, first), nn.Conv3d(first, 2, 1))

    @staticmethod
    def _twice(size: int, width: int) -> nn.Sequential:
        layers: list[nn.Module] = []
        for channels in (size, width):
            layers += [nn.Conv3d(channels, width, 3, padding=1)]
            layers += [nn.InstanceNorm3d(width, affine=True), nn.LeakyReLU(inplace=True)]
        return nn.Sequential(*layers)

    def forward(self, x: Tensor) -> Tensor:
        """A volume of the input's size."""
        kept = self.first(x)
        x = self.middle(nn.functional.max_pool3d(kept, 2))
        return self.last(torch.cat([kept, nn.functional.interpolate(x, scale_factor=2.0)], 1))
