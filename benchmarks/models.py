"""Models whose training steps ``normgrad bench`` measures, in PyTorch's own layers."""

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
