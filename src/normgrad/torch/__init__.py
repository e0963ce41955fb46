"""normgrad under PyTorch: operators, functions and layers, in the place of PyTorch's own."""

from __future__ import annotations

from . import functional, nn, ops
from .conversion import convert, convert_sync_batchnorm, revert
from .overriding import install, override
from .warming import warmup

__all__ = [
    "convert",
    "convert_sync_batchnorm",
    "functional",
    "install",
    "nn",
    "ops",
    "override",
    "revert",
    "warmup",
]
