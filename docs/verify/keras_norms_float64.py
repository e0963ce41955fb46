"""Keras's norms compute float64 in float32, and return float64, except on TensorFlow.

Documented is of a layer's `compute_dtype`, here float64: "The dtype of the layer's computations"
(https://keras.io/api/layers/base_layer/). `backend.result_type(inputs.dtype, "float32")`, which was
to upcast halves alone (https://github.com/keras-team/keras/pull/20257), is float32 for float64.
Seen in keras 3.15.1 on jax 0.10.2.
"""

import os
import sys

os.environ |= {"KERAS_BACKEND": "jax", "JAX_ENABLE_X64": "1"}
import keras
import numpy as np

x = np.random.default_rng(0).standard_normal((8, 32))
layer = keras.layers.LayerNormalization(epsilon=1e-5, dtype="float64")
computed = np.asarray(layer(x))
right = (x - x.mean(1, keepdims=True)) / np.sqrt(x.var(1, keepdims=True) + 1e-5)
print(f"computed {computed.dtype} {computed[0, :2].tolist()}, right {right[0, :2].tolist()}")
sys.exit(int(not np.allclose(computed, right, rtol=1e-12, atol=1e-12)))
