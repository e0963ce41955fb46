"""Flax's norms, forward and by `jax.vjp`: `normgrad verify jax_norms:LayerNorm`, say."""

from __future__ import annotations

import jax
import torch
from bridge import Bridged
from flax import linen

jax.config.update("jax_enable_x64", True)  # float64 tensors stay float64


def to_jax(tensor):
    return jax.numpy.from_dlpack(tensor.detach().contiguous())


class Jax(Bridged):
    """A layer of JAX, which ``applied`` computes."""

    def vjp(self, x, *parameters):
        output, pull = jax.vjp(self.applied, to_jax(x), *map(to_jax, parameters))

        def gradients(grad_out):
            return [torch.from_dlpack(each) for each in pull(to_jax(grad_out))]

        return torch.from_dlpack(output), gradients


class _Flax(Jax):
    """A layer of Flax's, which ``layer`` makes of the sizes and options.

    Its variance is that of centred values: Flax documents the default's as less stable.
    """

    def applied(self, x, *parameters):
        zeros = jax.numpy.zeros(self.sizes[-1])
        variables = {
            "params": dict(zip(("scale", "bias"), parameters, strict=False)),
            "batch_stats": {"mean": zeros, "var": zeros},
        }
        layer = self.layer(*self.sizes, epsilon=self.eps, use_fast_variance=False)
        return layer.apply(variables, x, mutable=["batch_stats"])[0]


class LayerNorm(_Flax):
    def layer(self, size, **options):
        return linen.LayerNorm(**options)


class RMSNorm(_Flax):
    biased = False

    def layer(self, size, **options):
        return linen.RMSNorm(**options)


class GroupNorm(_Flax):
    channels_last = True

    def layer(self, groups, channels, **options):
        return linen.GroupNorm(groups, **options)


class BatchNorm(_Flax):
    def layer(self, channels, **options):
        return linen.BatchNorm(use_running_average=False, axis=1, **options)
