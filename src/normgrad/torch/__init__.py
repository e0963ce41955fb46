"""normgrad under PyTorch."""

from . import ops

__all__ = ["ops"]
