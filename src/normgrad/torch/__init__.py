"""Functions and layers that replace PyTorch's own."""

from __future__ import annotations

from ..support.torch_build import build
from . import functional, native, nn
from .adapting import register
from .conversion import Conversion, convert, convert_sync_batchnorm, converted, revert
from .estimating import Estimate, estimate
from .overriding import install, override, uninstall
from .warming import warmup

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
