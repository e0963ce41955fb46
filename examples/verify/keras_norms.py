"""Keras's norms on JAX, forward and backward: `normgrad verify keras_norms:LayerNorm`, say."""

from __future__ import annotations

import os
from typing import ClassVar

os.environ.setdefault("KERAS_BACKEND", "jax")

import torch
from jax_norms import Jax
from keras import layers


class _Keras(Jax):
    """A layer of Keras's, which ``layer`` makes of the sizes and ``options``.

    Keras computes float64 in float32: docs/verify/keras_norms_float64.py shows that once for all.
    """

    how: ClassVar[dict[str, bool]] = {}

    def why_not(self, x):
        if not x.numel():
            return "Keras documents no empty tensors"
        return "Keras computes float64 in float32" if x.dtype == torch.float64 else ""

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
