"""oneDNN's layer normalization with `dnnl_rms_norm` subtracts the mean of diff_dst from diff_src.

That term is layer norm's; finite differences of RMS norm do not have it. Documented is that "the
library calculates the derivative with respect to the RMS norm only, assuming the mean is zero":
https://uxlfoundation.github.io/oneDNN/enum_dnnl_normalization_flags_t.html. Seen in oneDNN 3.13.2
(package onednn 2026.1.0), on the CPU. Run it with LD_LIBRARY_PATH=$VIRTUAL_ENV/lib.
"""

import ctypes as c
import os
import sys

import numpy as np

os.environ.setdefault("OCL_ICD_FILENAMES", f"{sys.prefix}/lib/libintelocl.so")
dnnl = c.CDLL("libdnnl.so.3")


def new(name, *arguments):
    """Call dnnl_<name>, which creates something."""
    made = c.c_void_p()
    assert getattr(dnnl, f"dnnl_{name}")(c.byref(made), *arguments) == 0, name
    return made


engine = new("engine_create", 1, c.c_size_t(0))
stream = new("stream_create", engine, 1)
one = new("memory_desc_create_with_tag", 1, (c.c_int64 * 12)(1), 3, 2)  # float32, a
row = new("memory_desc_create_with_tag", 2, (c.c_int64 * 12)(1, 4), 3, 3)  # float32, ab
rms = (one, c.c_float(1e-5), c.c_uint(32))  # of the statistics; epsilon; dnnl_rms_norm
name = "layer_normalization_{}_primitive_desc_create"
forward = new(name.format("forward"), engine, 64, row, row, *rms, None)
backward = new(name.format("backward"), engine, 128, row, row, row, *rms, forward, None)

x, dy = np.float32([1, 2, 3, 4]), np.float32([1, 0, 0, 0])
y, dx, square = np.zeros(4, "f4"), np.zeros(4, "f4"), np.zeros(1, "f4")
for made, arrays in (
    (forward, {1: x, 17: y, 50: square}),  # DNNL_ARG_SRC, DST, VARIANCE
    (backward, {1: x, 50: square, 145: dy, 129: dx}),  # ..., DIFF_DST, DIFF_SRC
):
    arguments = (c.c_void_p * 8)()  # of dnnl_exec_arg_t: int, dnnl_memory_t
    for i, (argument, array) in enumerate(arrays.items()):
        shape, data = one if array is square else row, c.c_void_p(array.ctypes.data)
        arguments[2 * i], arguments[2 * i + 1] = argument, new("memory_create", shape, engine, data)
    dnnl.dnnl_primitive_execute(new("primitive_create", made), stream, len(arrays), arguments)
    dnnl.dnnl_stream_wait(stream)


def rms_norm(x):
    """RMS norm in float64."""
    return x / np.sqrt((x**2).mean(-1, keepdims=True) + 1e-5)


steps = 1e-6 * np.eye(4)
right = ((rms_norm(x + steps) - rms_norm(x - steps)) / 2e-6) @ dy
print("output: computed", y, "right", rms_norm(x.astype("f8")))
print("gradient: computed", dx, "right", right)
sys.exit(int(not np.allclose(dx, right, atol=1e-4)))
