"""oneDNN's norms through its C library: `normgrad verify onednn_norms:LayerNorm`, say.

The package `onednn` needs OCL_ICD_FILENAMES to name its libintelocl.so, by which it finds the CPU.
"""

from __future__ import annotations

import ctypes
from ctypes import byref, c_float, c_int, c_int64, c_size_t, c_uint, c_void_p
from functools import cache

import torch
from bridge import Bridged

_UNIMPLEMENTED = 3
_FORWARD, _BACKWARD, _SCALE, _SHIFT, _RMS = 64, 128, 2, 4, 32  # dnnl_types.h
_DTYPES = {torch.float16: 1, torch.bfloat16: 2, torch.float32: 3, torch.float64: 7}
SRC, DST, MEAN, VARIANCE, SCALE, SHIFT = 1, 17, 49, 50, 51, 52
DIFF_SRC, DIFF_DST, DIFF_SCALE, DIFF_SHIFT = 129, 145, 255, 256


class _Argument(ctypes.Structure):
    _fields_ = [("name", c_int), ("memory", c_void_p)]


@cache
def _library():
    return ctypes.CDLL("libdnnl.so.3")


def _call(name, *arguments):
    status = getattr(_library(), f"dnnl_{name}")(*arguments)
    if status == _UNIMPLEMENTED:
        raise NotImplementedError(f"dnnl_{name}: unimplemented")
    if status:
        raise RuntimeError(f"dnnl_{name}: status {status}")


def _new(name, *arguments):
    made = c_void_p()
    _call(f"{name}_create", byref(made), *arguments)
    return made


@cache
def _engine():
    return _new("engine", c_int(1), c_size_t(0))


def _described(tensor):
    """The descriptor of a tensor, which oneDNN reads with its strides."""
    sizes = c_int64 * tensor.ndim
    made, dtype = c_void_p(), c_int(_DTYPES[tensor.dtype])
    arguments = (sizes(*tensor.shape), dtype, sizes(*tensor.stride()))
    _call("memory_desc_create_with_strides", byref(made), c_int(tensor.ndim), *arguments)
    return made


def _copied(memory, tensor, back=False):
    there, size = c_void_p(), tensor.numel() * tensor.element_size()
    _call("memory_map_data", memory, byref(there))
    ends = (tensor.data_ptr(), there) if back else (there, tensor.data_ptr())
    ctypes.memmove(*ends, size)
    _call("memory_unmap_data", memory, there)


def _execute(description, given, wanted):
    """Run a primitive on dense tensors by the names of its arguments; ``wanted`` are written to."""
    stream, primitive = _new("stream", _engine(), c_uint(1)), _new("primitive", description)
    memories = {}
    for name, tensor in (given | wanted).items():
        memories[name] = _new("memory", _described(tensor), _engine(), c_void_p(-1))
        _copied(memories[name], tensor)
    arguments = (_Argument * len(memories))(*memories.items())
    _call("primitive_execute", primitive, stream, c_int(len(memories)), arguments)
    _call("stream_wait", stream)
    for name, tensor in wanted.items():
        _copied(memories[name], tensor, back=True)
    destroyed = {"primitive_desc": [description], "primitive": [primitive], "stream": [stream]}
    for kind, made in (destroyed | {"memory": memories.values()}).items():
        for each in made:
            _call(f"{kind}_destroy", each)


class _OneDnn(Bridged):
    """A layer of oneDNN's, of the ``kind`` that its functions are named after."""

    flags = _SCALE | _SHIFT
    least_axes = 2

    def statistics(self, x):
        """The shape of the statistics."""
        return (self.sizes[-1],)

    def described(self, direction, tensors, x, *hint):
        """The primitive's descriptor: oneDNN's own names for the order of its arguments."""
        options = (c_float(self.eps), c_uint(self.flags), *hint, None)
        descriptions = [_described(each) for each in tensors]
        name = f"{self.kind}_normalization_{direction}_primitive_desc"
        prop = c_int(_BACKWARD if hint else _FORWARD)
        return _new(name, _engine(), prop, *descriptions, *self.between(x), *options)

    def between(self, x):
        return ()

    def why_not(self, x):
        fits = self.least_axes <= x.ndim <= 5
        return "" if fits else f"oneDNN documents {self.least_axes} to 5 axes"

    def vjp(self, x, *parameters):
        is_dense = x.is_contiguous() or (
            x.ndim == 4 and x.is_contiguous(memory_format=torch.channels_last)
        )
        x = x.detach() if is_dense else x.detach().contiguous()
        wide = dict(
            zip((SCALE, SHIFT), (each.detach().float() for each in parameters), strict=False)
        )
        mean, variance, y = *torch.zeros(2, *self.statistics(x)), torch.empty_like(x)
        found = {VARIANCE: variance} if self.flags & _RMS else {MEAN: mean, VARIANCE: variance}
        _execute(self.described("forward", (x, y), x), {SRC: x, **wide}, {DST: y, **found})

        def gradients(grad_out):
            dy, dx = torch.empty_like(x).copy_(grad_out), torch.empty_like(x)
            hint = self.described("forward", (x, y), x)
            backward = self.described("backward", (dx, dy, x), x, hint)
            names = (DIFF_SCALE, DIFF_SHIFT)
            vectors = {name: torch.empty(self.sizes[-1]) for name in names[: len(wide)]}
            _execute(backward, {SRC: x, DIFF_DST: dy, **found, **wide}, {DIFF_SRC: dx, **vectors})
            _call("primitive_desc_destroy", hint)
            return [dx, *(each.to(x.dtype) for each in vectors.values())]

        return y, gradients


class BatchNorm(_OneDnn):
    kind = "batch"


class GroupNorm(_OneDnn):
    kind, least_axes = "group", 3

    def why_not(self, x):
        return super().why_not(x) if x.shape[1] else "oneDNN refuses a group of no channels"

    def statistics(self, x):
        return (x.shape[0], self.sizes[0])

    def between(self, x):
        return (c_int64(self.sizes[0]),)


class LayerNorm(_OneDnn):
    kind = "layer"

    def statistics(self, x):
        return x.shape[:-1]

    def between(self, x):
        return (_described(torch.empty(self.statistics(x))),)


class RMSNorm(LayerNorm):
    flags, biased = _SCALE | _RMS, False
