"""Functions and layers that replace PyTorch's own."""

from __future__ import annotations

from ..support.torch_build import build
from . import functional, native, nn
from .aten_kernels import install, override, uninstall
from .compilation import warmup
from .conversion.classes import register
from .conversion.gain import Estimate, estimate
from .conversion.model import Conversion, convert, convert_sync_batchnorm, converted, revert

__all__ = [
    "Conversion",
    "Estimate",
    "build",
    "convert",
    "convert_sync_batchnorm",
    "converted",
    "estimate",
    "functional",
    "install",
    "nn",
    "override",
    "register",
    "revert",
    "uninstall",
    "warmup",
]

native.load()


def __dir__() -> list[str]:
    """List the public names alone."""
    return sorted(__all__)
