"""ONNX Runtime's forward operators on the CPU: `normgrad verify onnx_norms:Ops`."""

from __future__ import annotations

from functools import cache

import onnx
import onnxruntime
from onnx import helper

import normgrad

#: The versions of ONNX's operators; ONNX Runtime has RMS norm with 1/rms under its own name.
OPSET = 21


@cache
def _session(name, inputs, outputs, dtype, attributes):
    kind = helper.np_dtype_to_tensor_dtype(dtype)
    given = [helper.make_tensor_value_info(f"in{i}", kind, None) for i in range(inputs)]
    wide = onnx.TensorProto.FLOAT if "Layer" in name else kind  # layer norm's statistics
    kinds = [kind] + [wide] * (outputs - 1)
    found = [helper.make_tensor_value_info(f"out{i}", each, None) for i, each in enumerate(kinds)]
    names = ([each.name for each in values] for values in (given, found))
    node = helper.make_node(name, *names, **dict(attributes))
    model = helper.make_model(
        helper.make_graph([node], name, given, found),
        opset_imports=[helper.make_opsetid("", OPSET)],
        ir_version=10,
    )
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    return onnxruntime.InferenceSession(
        model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )


def _axis(input, normalized_shape):
    """The first axis of a row, of which ONNX takes the number and not the sizes."""
    row = (normalized_shape,) if isinstance(normalized_shape, int) else tuple(normalized_shape)
    axis = input.ndim - len(row)
    if not row or input.shape[axis:] != row:
        raise ValueError(f"normalized_shape: {normalized_shape}; allowed: the last axes' sizes")
    if 0 in row:
        raise NotImplementedError("ONNX Runtime refuses rows without elements")
    return axis


def _run(name, tensors, outputs=1, **attributes):
    if any(each is None or each.dtype != tensors[0].dtype for each in tensors):
        raise NotImplementedError("all tensors are there, and of one dtype")
    dtype = tensors[0].dtype
    if dtype not in ("float32", "float16"):
        raise NotImplementedError("ONNX's epsilon is of float32, and NumPy's bfloat16 is unknown")
    if attributes["epsilon"] is None:
        raise NotImplementedError("ONNX has another default")
    try:
        session = _session(name, len(tensors), outputs, dtype, tuple(attributes.items()))
    except onnxruntime.capi.onnxruntime_pybind11_state.NotImplemented as error:
        raise NotImplementedError(str(error)) from None
    return session.run(None, {f"in{i}": each for i, each in enumerate(tensors)})


class Ops:
    def layer_norm(self, input, normalized_shape, weight=None, bias=None, *, eps=1e-5):
        axis = _axis(input, normalized_shape)
        tensors = (input, weight, bias)
        return _run("LayerNormalization", tensors, 3, axis=axis, epsilon=eps)

    def rms_norm(self, input, normalized_shape, weight=None, *, eps=None):
        axis = _axis(input, normalized_shape)
        return _run("SimplifiedLayerNormalization", (input, weight), 2, axis=axis, epsilon=eps)

    def group_norm(self, input, weight=None, bias=None, *, num_groups, eps=1e-5):
        if not input.size:
            raise NotImplementedError("ONNX Runtime refuses empty tensors in group norm")
        tensors, options = (input, weight, bias), {"num_groups": num_groups, "epsilon": eps}
        (output,) = _run("GroupNormalization", tensors, **options)
        # ONNX has no statistics; normgrad's stand in their place.
        return output, *normgrad.group_norm(*tensors, num_groups=num_groups, eps=eps)[1:]

    def batch_norm(
        self, input, weight=None, bias=None, running_mean=None, running_var=None, *,
        training, momentum=0.1, eps=1e-5,
    ):  # fmt: skip
        tensors = (input, weight, bias, running_mean, running_var)
        options = {"epsilon": eps, "momentum": 1 - momentum, "training_mode": int(training)}
        output, *others = _run("BatchNormalization", tensors, 3 if training else 1, **options)
        if not training:
            return (output,)
        theirs = normgrad.batch_norm(*tensors, training=True, momentum=momentum, eps=eps)
        # ONNX's running variance is the biased one, by its specification.
        return output, *theirs[1:3], *others[:1], theirs.running_var
