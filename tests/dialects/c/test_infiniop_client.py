"""A ctypes client of libinfiniop with torch's buffers, as InfiniCore's own tests are written."""

from __future__ import annotations

import ctypes
import sys
from ctypes import POINTER, byref, c_int, c_size_t, c_ssize_t, c_void_p

import ml_dtypes
import numpy as np
import pytest

from normgrad.operators import precision, reference
from normgrad.tensors import dtypes

from .conftest import run

torch = pytest.importorskip("torch")

F16, F32, BF16 = 12, 13, 19
KINDS = {F16: torch.float16, F32: torch.float32, BF16: torch.bfloat16}
NUMPY = {F16: np.float16, F32: np.float32, BF16: ml_dtypes.bfloat16}
SHAPES = [(2, 3, 4), (8, 16, 100), (1, 1, 2), (4, 64, 196)]


class Client:
    """The libraries, with their functions' types; a status that is not 0 is an AssertionError."""

    def __init__(self, out):
        self.op = ctypes.CDLL(str(out / "lib" / "libinfiniop.so"))
        self.rt = ctypes.CDLL(str(out / "lib" / "libinfinirt.so"))
        self.op.infiniopCreateTensorDescriptor.argtypes = [
            POINTER(c_void_p), c_size_t, POINTER(c_size_t), POINTER(c_ssize_t), c_int,
        ]  # fmt: skip
        self.op.infiniopCreateBatchNormBackwardDescriptor.argtypes = [
            c_void_p, POINTER(c_void_p), *[c_void_p] * 8,
        ]  # fmt: skip
        self.op.infiniopGetBatchNormBackwardWorkspaceSize.argtypes = [c_void_p, POINTER(c_size_t)]
        self.op.infiniopBatchNormBackward.argtypes = [c_void_p, c_void_p, c_size_t, *[c_void_p] * 9]
        for name in ("Handle", "TensorDescriptor", "BatchNormBackwardDescriptor"):
            getattr(self.op, f"infiniopDestroy{name}").argtypes = [c_void_p]

    def __call__(self, name, *arguments):
        library = self.rt if name.startswith("infinirt") else self.op
        status = getattr(library, name)(*arguments)
        assert status == 0, f"{name}: {status}"

    def describe(self, tensor, kind):
        desc = c_void_p()
        rank = tensor.dim()
        shape, strides = (c_size_t * rank)(*tensor.shape), (c_ssize_t * rank)(*tensor.stride())
        self("infiniopCreateTensorDescriptor", byref(desc), rank, shape, strides, kind)
        return desc

    def run(self, kind, *tensors):
        """The call sequence; tensors in the order of the C function."""
        self("infinirtInit")
        self("infinirtSetDevice", 0, 0)
        handle, operator = c_void_p(), c_void_p()
        self("infiniopCreateHandle", byref(handle))
        descs = [self.describe(tensor, kind) for tensor in tensors]
        self("infiniopCreateBatchNormBackwardDescriptor", handle, byref(operator), *descs)
        for desc in descs:
            self("infiniopDestroyTensorDescriptor", desc)
        size = c_size_t()
        self("infiniopGetBatchNormBackwardWorkspaceSize", operator, byref(size))
        workspace = torch.empty(size.value, dtype=torch.uint8)
        pointers = [tensor.data_ptr() for tensor in tensors]
        self("infiniopBatchNormBackward", operator, workspace.data_ptr(), size, *pointers, None)
        self("infinirtDeviceSynchronize")
        self("infiniopDestroyBatchNormBackwardDescriptor", operator)
        self("infiniopDestroyHandle", handle)


@pytest.fixture(scope="module")
def client(libraries):
    return Client(libraries.out)


def problem(shape, kind, seed):
    """Data whose mean and biased variance are numbers of every dtype, so that autograd's own
    statistics are the ones that the call is given: each channel is m ± s/2 and m ± 3s/2 in equal
    shares (or m ± s where it is too short), whose variance is 5/4 of s² (or s²)."""
    generator = torch.Generator().manual_seed(seed)
    n, c, length = shape
    count = n * length
    step, factor = ([-1.5, -0.5, 0.5, 1.5], 1.25) if count % 4 == 0 else ([-1.0, 1.0], 1.0)
    scale = torch.tensor([0.5, 1.0, 2.0]).repeat(c)[:c]
    middle = torch.tensor([0.0, 2.0, -1.0, 4.0]).repeat(c)[:c]
    pattern = torch.tensor(step).repeat(count // len(step))
    x = torch.stack([pattern[torch.randperm(count, generator=generator)] for _ in range(c)])
    x = (middle[:, None] + scale[:, None] * x).reshape(c, n, length).transpose(0, 1).contiguous()
    dtype = KINDS[kind]
    dy = torch.randn(shape, generator=generator).to(dtype)
    weight = torch.randn(c, generator=generator).to(dtype)
    return x.to(dtype), dy, weight, middle.to(dtype), (factor * scale**2).to(dtype)


def autograd(x, dy, weight):
    """The gradients in float64. (torch's own layer demands an eps.)"""
    x, weight = (each.double().requires_grad_() for each in (x, weight))
    bias = torch.zeros_like(weight, requires_grad=True)
    variance, mean = torch.var_mean(x, (0, 2), correction=0, keepdim=True)
    y = (x - mean) / variance.sqrt() * weight[:, None] + bias[:, None]
    return torch.autograd.grad(y, (x, weight, bias), dy.double())


def as_numpy(tensor, kind):
    if kind == BF16:
        return tensor.contiguous().view(torch.uint16).numpy().view(ml_dtypes.bfloat16)
    return tensor.contiguous().numpy()


def check(kind, results, x, dy, weight, mean, variance):
    arrays = [as_numpy(each, kind) for each in (dy, x, weight, mean)]
    exact = reference.batch_norm_backward(
        *arrays[:3],
        save_mean=arrays[3],
        save_invstd=1 / np.sqrt(variance.double().numpy()),
        training=True,
    )
    gradients = autograd(x, dy, weight)
    for name, result, gradient in zip(
        ("grad_input", "grad_weight", "grad_bias"), results, gradients, strict=True
    ):
        torch_says = reference.Exact(gradient.numpy(), exact[name].scale)
        units = precision.error(as_numpy(result, kind), torch_says, dtypes.float32)
        assert units.max() <= 1, (name, units.max())


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("shape", SHAPES)
def test_out_of_place(client, shape, kind):
    x, dy, weight, mean, variance = problem(shape, kind, 1)
    dx, dw, db = (torch.full_like(each, torch.nan) for each in (x, weight, weight))
    before = [each.clone() for each in (x, dy, weight, mean, variance)]
    client.run(kind, dx, dw, db, x, dy, weight, mean, variance)
    for old, new in zip(before, (x, dy, weight, mean, variance), strict=True):
        assert torch.equal(old, new)
    check(kind, (dx, dw, db), x, dy, weight, mean, variance)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("over", ["grad_output", "input"])
def test_in_place(client, kind, over):
    x, dy, weight, mean, variance = problem((8, 16, 100), kind, 2)
    dw, db = torch.empty_like(weight), torch.empty_like(weight)
    x_given, dy_given = x.clone(), dy.clone()
    dx = dy_given if over == "grad_output" else x_given
    client.run(kind, dx, dw, db, x_given, dy_given, weight, mean, variance)
    check(kind, (dx, dw, db), x, dy, weight, mean, variance)


@pytest.mark.parametrize("kind", KINDS)
def test_strided_vectors(client, kind):
    x, dy, *vectors = problem((4, 64, 196), kind, 3)

    def strided(vector, step):
        wide = torch.full((len(vector) * step,), torch.nan, dtype=vector.dtype)
        wide[::step] = vector
        return wide[::step]

    weight, mean, variance = (strided(each, 2 + i) for i, each in enumerate(vectors))
    dx = torch.full_like(x, torch.nan)
    dw, db = (strided(torch.full_like(vectors[0], torch.nan), step) for step in (3, 5))
    client.run(kind, dx, dw, db, x, dy, weight, mean, variance)
    check(kind, (dx, dw, db), x, dy, weight, mean, variance)
    gaps = torch.as_strided(dw, (64, 2), (3, 1), 1)[:-1]
    assert gaps.isnan().all()


def test_statuses(client):
    """What the descriptors refuse, as C sees it."""
    x, dy, weight, mean, variance = problem((2, 3, 4), F32, 4)
    handle, operator = c_void_p(), c_void_p()
    client("infiniopCreateHandle", byref(handle))
    good = client.describe(x, F32)
    vector = client.describe(weight, F32)
    turned = client.describe(x.transpose(1, 2).contiguous().transpose(1, 2), F32)
    double = client.describe(x, 14)
    create = client.op.infiniopCreateBatchNormBackwardDescriptor

    def status(data, vectors):
        tensors = [data, vectors, vectors, data, data, vectors, vectors, vectors]
        return create(handle, byref(operator), *tensors)

    assert status(double, vector) == 10
    assert status(good, good) == 11
    assert status(turned, vector) == 12
    assert status(None, vector) == 3
    assert status(good, vector) == 0
    assert client.op.infiniopDestroyBatchNormBackwardDescriptor(operator) == 0
    assert client.op.infiniopDestroyBatchNormBackwardDescriptor(operator) == 3
    assert (dy.shape, mean.shape, variance.shape) == (x.shape, weight.shape, weight.shape)


def test_operators_that_are_absent_have_their_symbols(libraries):
    """InfiniCore's tests look all operators up as they are imported, and run one."""
    script = f"""
import ctypes
import sys
lib = ctypes.CDLL({str(libraries.out / "lib" / "libinfiniop.so")!r})
lib.normgradGetRecentErrMsg.restype = ctypes.c_char_p
for name in ("CreateRMSNormDescriptor", "GetRMSNormWorkspaceSize", "RMSNorm"):
    print(getattr(lib, "infiniop" + name)(None, ctypes.c_float(1)))
print(lib.normgradGetRecentErrMsg().decode())
print(lib.infinirtGraphLuanch(), hasattr(lib, "infiniopDestroyRMSNormDescriptor"))
"""
    done = run(sys.executable, "-I", "-S", "-c", script)
    said = "normgrad has no infiniopRMSNorm; it has: infiniopBatchNormBackward"
    assert done.stdout.splitlines() == ["2", "2", "2", said, "2 True"], done.stderr
