"""ONNX Runtime's GroupNormalization loses its variance to cancellation at large means.

It is off by half a deviation where |mean| is 1,000 deviations, and gives NaN at 10,000.

ONNX defines the operator as (x - mean) / sqrt(variance + epsilon), in the precision of stash_type:
https://onnx.ai/onnx/operators/onnx__GroupNormalization.html. ONNX Runtime runs the function
body that ONNX attaches to it, in which Var = Sub(MeanOfSquare, SquareOfMean); the body of ONNX's
LayerNormalization subtracts the mean first. Seen in onnxruntime 1.32.0 and onnx 1.23.2, on the CPU.
"""

import sys

import numpy as np
import onnxruntime
from onnx import TensorProto, helper

names = ["x", "scale", "bias"]
given = [helper.make_tensor_value_info(each, TensorProto.FLOAT, None) for each in names]
found = [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)]
node = helper.make_node("GroupNormalization", names, ["y"], num_groups=4, epsilon=1e-5)
graph = helper.make_graph([node], "graph", given, found)
model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
session = onnxruntime.InferenceSession(model.SerializeToString())
noise, wrong = np.random.default_rng(0).standard_normal((2, 8, 32, 32)), False
for mean in (100, 1000, 10000):
    x = (noise + mean).astype(np.float32)
    y = session.run(None, {"x": x, "scale": np.ones(8, "f4"), "bias": np.zeros(8, "f4")})[0]
    wide = x.astype(np.float64).reshape(2, 4, -1)
    right = (wide - wide.mean(2, keepdims=True)) / np.sqrt(wide.var(2, keepdims=True) + 1e-5)
    worst = np.abs(y.ravel() - right.ravel()).argmax()
    print(f"{mean=}: computed {y.flat[worst]}, right {right.flat[worst]}")
    wrong |= not np.allclose(y.ravel(), right.ravel(), atol=1e-6 * mean)
sys.exit(int(wrong))
