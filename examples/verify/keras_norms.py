"""Keras's norms on JAX, forward and by `jax.vjp`: `--module keras_norms:LayerNorm` and so on."""

from __future__ import annotations

import os
from typing import ClassVar

os.environ.setdefault("KERAS_BACKEND", "jax")

from jax_norms import Jax
from keras import layers


class _Keras(Jax):
    """A layer of Keras's, which ``layer`` makes of the sizes and ``options``."""

    how: ClassVar[dict[str, bool]] = {}

    def applied(self, x, *parameters):
        layer = self.layer(*self.sizes, epsilon=self.eps, dtype=x.dtype.name)
        layer.build(x.shape)
        state = [each.value for each in layer.non_trainable_variables]
        return layer.stateless_call(parameters, state, x, **self.how)[0]


class LayerNorm(_Keras):
    def layer(self, size, **options):
        return layers.LayerNormalization(axis=-1, **options)


class RMSNorm(_Keras):
    biased = False

    def layer(self, size, **options):
        return layers.RMSNormalization(axis=-1, **options)


class GroupNorm(_Keras):
    def layer(self, groups, channels, **options):
        return layers.GroupNormalization(groups, axis=1, **options)


class BatchNorm(_Keras):
    how: ClassVar = {"training": True}

    def layer(self, channels, **options):
        return layers.BatchNormalization(axis=1, **options)
