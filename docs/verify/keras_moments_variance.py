"""Keras's norms lose their variance to cancellation on the PyTorch and NumPy backends.

It is off by a deviation where |mean| is 1,000 deviations, and gives NaN at 10,000: `ops.moments`
computes E[x²] − E[x]² in float32, for BatchNormalization and GroupNormalization.

`ops.moments` "calculates the mean and variance" (https://keras.io/api/ops/nn/#moments-function); a
comment in the source calls this "faster but less numerically stable". For JAX and TensorFlow it was
mended in https://github.com/keras-team/keras/pull/18795. Seen in keras 3.15.1.
"""

import os
import sys

os.environ.setdefault("KERAS_BACKEND", "numpy")  # or torch
import keras
import numpy as np

layer, wrong = keras.layers.GroupNormalization(4, epsilon=1e-5), False
for mean in (100, 1000, 10000):
    x = (np.random.default_rng(0).standard_normal((4, 64, 32)) + mean).astype(np.float32)
    y = keras.ops.convert_to_numpy(layer(x))
    centred = x.astype(np.float64).reshape(4, 64, 4, 8)
    centred -= centred.mean((1, 3), keepdims=True)
    right = centred / np.sqrt((centred**2).mean((1, 3), keepdims=True) + 1e-5)
    worst = np.abs(y.ravel() - right.ravel()).argmax()
    print(f"{mean=}: computed {y.flat[worst]}, right {right.flat[worst]}")
    wrong |= not np.allclose(y.ravel(), right.ravel(), atol=1e-6 * mean)
sys.exit(int(wrong))
