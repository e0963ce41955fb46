"""infiniop: descriptors, workspaces, statuses, from the documents."""

from __future__ import annotations

import itertools

import ml_dtypes
import numpy as np
import pytest

from normgrad.declarations import contract
from normgrad.dialects import infiniop as op
from normgrad.plans import cache
from normgrad.plans import plan as plans
from normgrad.tensors import dtypes

DTYPES = {
    "INVALID": 0, "BYTE": 1, "BOOL": 2, "I8": 3, "I16": 4, "I32": 5, "I64": 6, "U8": 7, "U16": 8,
    "U32": 9, "U64": 10, "F8": 11, "F16": 12, "F32": 13, "F64": 14, "C16": 15, "C32": 16,
    "C64": 17, "C128": 18, "BF16": 19,
}  # fmt: skip
STATUSES = {
    "SUCCESS": 0, "INTERNAL_ERROR": 1, "NOT_IMPLEMENTED": 2, "BAD_PARAM": 3, "NULL_POINTER": 4,
    "DEVICE_TYPE_NOT_SUPPORTED": 5, "DEVICE_NOT_FOUND": 6, "DEVICE_NOT_INITIALIZED": 7,
    "DEVICE_ARCHITECTURE_NOT_SUPPORTED": 8, "BAD_TENSOR_DTYPE": 10, "BAD_TENSOR_SHAPE": 11,
    "BAD_TENSOR_STRIDES": 12, "INSUFFICIENT_WORKSPACE": 13,
}  # fmt: skip
BAD_PARAM, NO_DEVICE, BAD_DTYPE, BAD_SHAPE, BAD_STRIDES, SMALL = 3, 5, 10, 11, 12, 13
NUMPY = {"F16": np.float16, "F32": np.float32, "BF16": ml_dtypes.bfloat16}
TENSORS = (
    "grad_input", "grad_weight", "grad_bias", "input", "grad_output", "weight", "running_mean",
    "running_var",
)  # fmt: skip
DATA = ("grad_input", "input", "grad_output")
VECTORS = tuple(name for name in TENSORS if name not in DATA)
X = (2, 3, 4)


def descriptor(shape, dtype="F32", strides=None):
    return op.infiniopCreateTensorDescriptor(len(shape), shape, strides, DTYPES[dtype])


def looks(dtype="F32", **changes):
    """Descriptors of the eight tensors, in the order of the C function."""
    found = {name: descriptor(X if name in DATA else (3,), dtype) for name in TENSORS}
    return {**found, **changes}


def create(changes=None, handle=None):
    handle = op.infiniopCreateHandle() if handle is None else handle
    return op.infiniopCreateBatchNormBackwardDescriptor(handle, *looks(**(changes or {})).values())


def fails(status, parameter, function, *call):
    with pytest.raises(op.InfiniError) as caught:
        function(*call)
    assert (caught.value.status, caught.value.parameter) == (status, parameter), caught.value
    assert isinstance(caught.value, ValueError)
    return str(caught.value)


def numbers(shape, dtype, seed):
    rng = np.random.default_rng(seed)
    x, dy = (rng.standard_normal(shape).astype(dtype) for _ in range(2))
    w = rng.standard_normal(shape[1]).astype(dtype)
    mean = x.astype(np.float64).mean(axis=(0, 2)).astype(dtype)
    var = x.astype(np.float64).var(axis=(0, 2)).astype(dtype)
    return x, dy, w, mean, var


def expected(x, dy, w, mean, var):
    """The document's formula, in float64."""
    x, dy, w, mean, var = (a.astype(np.float64) for a in (x, dy, w, mean, var))
    m = x.shape[0] * x.shape[2]
    with np.errstate(all="ignore"):
        r = 1 / np.sqrt(var)[:, None]
        xmu = x - mean[:, None]
        db = dy.sum(axis=(0, 2))
        q = (dy * xmu).sum(axis=(0, 2))
        terms = dy - db[:, None] / m - xmu * r**2 * q[:, None] / m
        return w[:, None] * r * terms, r[:, 0] * q, db


@pytest.mark.parametrize("dtype", NUMPY)
@pytest.mark.parametrize("shape", [X, (1, 1, 1), (8, 16, 33), (3, 5, 1)])
def test_the_whole_sequence(shape, dtype):
    kind = np.dtype(NUMPY[dtype])
    x, dy, w, mean, var = numbers(shape, kind, 1)
    var = np.abs(var) + kind.type(0.5)
    op.infinirtInit()
    op.infinirtSetDevice(op.INFINI_DEVICE_CPU, 0)
    handle = op.infiniopCreateHandle()
    made = {name: descriptor(shape if name in DATA else (shape[1],), dtype) for name in TENSORS}
    operator = op.infiniopCreateBatchNormBackwardDescriptor(handle, *made.values())
    for each in made.values():
        op.infiniopDestroyTensorDescriptor(each)  # legal before the computation
    size = op.infiniopGetBatchNormBackwardWorkspaceSize(operator)
    dx, dw, db = np.empty(shape, kind), np.empty(shape[1], kind), np.empty(shape[1], kind)
    op.infiniopBatchNormBackward(
        operator, np.empty(size, np.uint8), size, dx, dw, db, x, dy, w, mean, var, None
    )
    rstd = 1 / np.sqrt(var.astype(np.float64))
    right = expected(x, dy, w, mean, var)
    unit = {"F32": 2.0**-24, "F16": 2.0**-11, "BF16": 2.0**-8}[dtype]
    xmu = np.abs(x.astype(np.float64) - mean.astype(np.float64)[:, None])
    ady, r, m = np.abs(dy.astype(np.float64)), rstd[:, None], shape[0] * shape[2]
    s, q = ady.sum(axis=(0, 2)), (ady * xmu).sum(axis=(0, 2))
    scales = (
        np.abs(w.astype(np.float64))[:, None] * r
        * (ady + s[:, None] / m + xmu * r**2 * q[:, None] / m),
        rstd * q, s,
    )  # fmt: skip
    factor = 16 if dtype == "F32" else 1.05
    for found, true, scale in zip((dx, dw, db), right, scales, strict=True):
        error = np.abs(found.astype(np.float64) - true)
        assert (error <= factor * unit * scale + dtypes.parse(kind).smallest_subnormal).all()
    op.infiniopDestroyBatchNormBackwardDescriptor(operator)
    op.infiniopDestroyHandle(handle)


def run(operator, arrays, workspace=None, size=None):
    needed = op.infiniopGetBatchNormBackwardWorkspaceSize(operator)
    if workspace is None:
        workspace = np.empty(needed, np.uint8)
    op.infiniopBatchNormBackward(
        operator, workspace, needed if size is None else size, *arrays.values(), None
    )


def arrays_of(dtype=np.float32):
    x, dy, w, mean, var = numbers(X, dtype, 2)
    return {
        "grad_input": np.empty(X, dtype), "grad_weight": np.empty(3, dtype),
        "grad_bias": np.empty(3, dtype), "input": x, "grad_output": dy, "weight": w,
        "running_mean": mean, "running_var": var,
    }  # fmt: skip


def test_zero_variance_follows_the_formula():
    arrays = arrays_of()
    arrays["running_var"][1] = 0
    run(create(), arrays)
    names = ("input", "grad_output", "weight", "running_mean", "running_var")
    right = expected(*(arrays[name] for name in names))
    for name, true in zip(("grad_input", "grad_weight", "grad_bias"), right, strict=True):
        found = arrays[name]
        np.testing.assert_array_equal(np.isnan(found), np.isnan(true))
        np.testing.assert_array_equal(np.isinf(found), np.isinf(true))
        finite = np.isfinite(true)
        np.testing.assert_allclose(found[finite], true[finite], rtol=1e-4, atol=1e-5)


def test_strided_vectors_and_in_place():
    arrays = arrays_of()
    plain = {name: array.copy() for name, array in arrays.items()}
    run(create(), plain)
    storage = {name: np.full(7, 9, np.float32) for name in VECTORS}
    for name in VECTORS:
        storage[name][::3] = arrays[name]
    strided = create({name: descriptor((3,), strides=(3,)) for name in VECTORS})
    given = {**arrays, **storage}
    for place in ("input", "grad_output"):
        call = {name: array.copy() for name, array in given.items()}
        call["grad_input"] = call[place]
        run(strided, call)
        np.testing.assert_array_equal(call["grad_input"], plain["grad_input"])
        for name in ("grad_weight", "grad_bias"):
            np.testing.assert_array_equal(call[name][::3], plain[name])
            assert (call[name][[1, 2, 4, 5]] == 9).all()


@pytest.mark.parametrize("dtype", DTYPES)
def test_dtypes(dtype):
    if dtype in NUMPY:
        create(looks(dtype))
    else:
        fails(BAD_DTYPE, "input", create, looks(dtype))
    other = "F32" if dtype != "F32" else "F16"
    for name in TENSORS:
        shape = X if name in DATA else (3,)
        if dtype in NUMPY and name != "input":
            fails(BAD_DTYPE, name, create, {**looks(dtype), name: descriptor(shape, other)})


def test_shapes():
    for name in DATA:
        for shape in ((2, 3), (2, 3, 4, 1), (24,), ()):
            fails(BAD_SHAPE, name, create, {name: descriptor(shape)})
    for name in ("grad_input", "grad_output"):
        for shape in ((2, 3, 5), (3, 3, 4), (2, 4, 4)):
            fails(BAD_SHAPE, name, create, {name: descriptor(shape)})
    fails(BAD_SHAPE, "grad_input", create, {"input": descriptor((2, 4, 4))})
    for name in VECTORS:
        for shape in ((4,), (2,), (0,), (), (3, 1), (1, 3)):
            fails(BAD_SHAPE, name, create, {name: descriptor(shape)})
    for shape in ((0, 3, 4), (2, 3, 0), (2, 0, 4)):
        vectors = {name: descriptor((shape[1],)) for name in VECTORS}
        create({**vectors, **{name: descriptor(shape) for name in DATA}})


def test_strides():
    for name in DATA:
        for strides in ((12, 1, 3), (24, 4, 1), (12, 4, 2), (12, 4, -1), (0, 4, 1)):
            fails(BAD_STRIDES, name, create, {name: descriptor(X, strides=strides)})
    for name in VECTORS:
        for stride in (1, 2, 100):
            create({name: descriptor((3,), strides=(stride,))})
        for stride in (0, -1):
            fails(BAD_STRIDES, name, create, {name: descriptor((3,), strides=(stride,))})
    # An axis of one element may have any stride.
    shape = (1, 3, 1)
    create({name: descriptor(shape, strides=(777, 1, -5)) for name in DATA})


def test_the_order_of_the_checks(monkeypatch):
    """BAD_PARAM, device, dtype, shape, strides: each beats those after it, in any tensor."""
    wrong = {
        "running_var": descriptor((3,), "F64"), "weight": descriptor((4,)),
        "input": descriptor(X, strides=(1, 2, 3)),
    }  # fmt: skip
    elsewhere = op.infiniopHandle_t(op.INFINI_DEVICE_ASCEND)
    fails(BAD_PARAM, "grad_bias", create, {**wrong, "grad_bias": None}, elsewhere)
    fails(NO_DEVICE, "device", create, wrong, elsewhere)
    fails(BAD_DTYPE, "running_var", create, wrong)
    fails(BAD_SHAPE, "weight", create, {**wrong, "running_var": descriptor((3,))})
    right = {"running_var": descriptor((3,)), "weight": descriptor((3,))}
    fails(BAD_STRIDES, "input", create, {**wrong, **right})
    assert op.CONTRACT.stages


def test_nulls_and_the_dead():
    for name in TENSORS:
        fails(BAD_PARAM, name, create, {name: None})
        fails(BAD_PARAM, name, create, {name: "a descriptor"})
        dead = descriptor(X)
        op.infiniopDestroyTensorDescriptor(dead)
        fails(BAD_PARAM, name, create, {name: dead})
        fails(BAD_PARAM, "desc", op.infiniopDestroyTensorDescriptor, dead)
    fails(BAD_PARAM, "handle", op.infiniopCreateBatchNormBackwardDescriptor, None,
          *looks().values())  # fmt: skip
    handle = op.infiniopCreateHandle()
    op.infiniopDestroyHandle(handle)
    fails(BAD_PARAM, "handle", create, {}, handle)
    operator = create()
    op.infiniopDestroyBatchNormBackwardDescriptor(operator)
    for function in (
        op.infiniopGetBatchNormBackwardWorkspaceSize, op.infiniopDestroyBatchNormBackwardDescriptor,
    ):  # fmt: skip
        fails(BAD_PARAM, "desc", function, operator)
        fails(BAD_PARAM, "desc", function, None)
    for function in (op.infiniopDestroyHandle,):
        fails(BAD_PARAM, "handle", function, None)
        fails(BAD_PARAM, "handle", function, handle)


@pytest.mark.parametrize("name", TENSORS)
def test_memory_of_tensors(name):
    operator, arrays = create(), arrays_of()
    short = np.empty(arrays[name].size - 1, np.float32)
    for wrong in (None, short, "text", 12345, np.empty((24, 2), np.float32)[:, 0]):
        fails(BAD_PARAM, name, run, operator, {**arrays, name: wrong})
    run(operator, {**arrays, name: memoryview(bytearray(arrays[name].tobytes()))})


@pytest.mark.parametrize("name", TENSORS)
def test_gradients_that_would_be_lost(name):
    torch = pytest.importorskip("torch")
    operator, arrays = create(), {name: torch.tensor(array) for name, array in arrays_of().items()}
    arrays[name].requires_grad_()
    assert f"{name}: requires a gradient, which would be lost; allowed: detach()" in fails(
        BAD_PARAM, name, run, operator, arrays
    )
    with torch.no_grad():
        run(operator, arrays)


def test_outputs_that_cannot_be_written():
    operator, arrays = create(), arrays_of()
    frozen = np.zeros(X, np.float32)
    frozen.flags.writeable = False
    assert "read-only" in fails(
        BAD_PARAM, "grad_input", run, operator, {**arrays, "grad_input": frozen}
    )
    run(operator, {**arrays, "input": frozen})
    shared = {**arrays, "grad_weight": arrays["grad_bias"]}
    assert "shares memory" in fails(BAD_PARAM, None, run, operator, shared)


def test_workspaces():
    operator, arrays = create(), arrays_of()
    size = op.infiniopGetBatchNormBackwardWorkspaceSize(operator)
    assert size > 0
    for workspace in (
        bytearray(size),
        np.empty(size + 1, np.uint8)[1:],
        memoryview(bytearray(size)),
    ):
        run(operator, arrays, workspace)
    fails(SMALL, "workspace", run, operator, arrays, np.empty(size - 1, np.uint8))
    fails(SMALL, "workspace", run, operator, arrays, np.empty(size, np.uint8), size - 1)
    fails(BAD_PARAM, "workspace", run, operator, arrays, "text")
    fails(BAD_PARAM, "workspace", op.infiniopBatchNormBackward, operator, None, size,
          *arrays.values(), None)  # fmt: skip


@pytest.mark.parametrize("shape", [(0, 3, 4), (2, 3, 0), (2, 0, 4)])
def test_tensors_without_elements(shape):
    c = shape[1]
    vectors = {name: descriptor((c,)) for name in VECTORS}
    operator = create({**vectors, **{name: descriptor(shape) for name in DATA}})
    assert op.infiniopGetBatchNormBackwardWorkspaceSize(operator) == 0
    dw, db, ones = np.full(c, 7, np.float32), np.full(c, 7, np.float32), np.ones(c, np.float32)
    # Null memory is legal where there are no elements.
    op.infiniopBatchNormBackward(
        operator, None, 0, None, dw, db, None, None, ones, ones, ones, None
    )
    assert not dw.any()
    assert not db.any()


@pytest.mark.parametrize("device", range(11))
def test_devices(device):
    if device == 0:
        op.infinirtSetDevice(device, 0)
        assert op.infinirtGetDeviceCount(device) == 1
        assert op.infinirtGetDevice() == (op.INFINI_DEVICE_CPU, 0)
    else:
        fails(NO_DEVICE, "device", op.infinirtSetDevice, device, 0)
        assert op.infinirtGetDeviceCount(device) == 0
    fails(6, "device_id", op.infinirtSetDevice, 0, 1)
    fails(BAD_PARAM, "device", op.infinirtSetDevice, 99, 0)


@pytest.mark.parametrize(
    ("call", "parameter"),
    [
        ((2, (2, 3, 4), None, 13), "shape"), ((3, (2, -3, 4), None, 13), "shape"),
        ((3, 5, None, 13), "shape"), ((3, None, None, 13), "shape"),
        ((3, X, (1, 2), 13), "strides"),
        ((3, X, "abc", 13), "strides"), ((3, X, None, 99), "dtype"), ((3, X, None, None), "dtype"),
    ],
)  # fmt: skip
def test_what_describes_no_tensor(call, parameter):
    fails(BAD_PARAM, parameter, op.infiniopCreateTensorDescriptor, *call)


def test_numbers():
    assert {name: int(getattr(op, f"INFINI_DTYPE_{name}")) for name in DTYPES} == DTYPES
    assert {name: int(getattr(op, f"INFINI_STATUS_{name}")) for name in STATUSES} == STATUSES
    assert [int(kind) for kind in op.infiniDevice_t] == list(range(11))


def test_torch_memory():
    torch = pytest.importorskip("torch")
    arrays = arrays_of()
    run(create(), arrays)
    tensors = {name: torch.from_numpy(array.copy()) for name, array in arrays.items()}
    tensors["grad_input"].fill_(7)
    before = tensors["grad_input"]._version
    run(create(), tensors)
    assert tensors["grad_input"]._version > before
    for name, array in itertools.islice(arrays.items(), 3):
        np.testing.assert_array_equal(tensors[name].numpy(), array)


def test_numbers_that_are_none():
    """Whatever they do when they are compared."""
    for value in (np.zeros(3), "1", None, 1.0):
        with pytest.raises(op.InfiniError, match=r"ndim: .*; allowed: an integer") as caught:
            op.infiniopCreateTensorDescriptor(value, [], None, 13)
        assert caught.value.status == op.INFINI_STATUS_BAD_PARAM
        with pytest.raises(op.InfiniError, match=r"device_id: .*; allowed: an int") as caught:
            op.infinirtSetDevice(op.INFINI_DEVICE_CPU, value)
        assert caught.value.status == op.INFINI_STATUS_BAD_PARAM


# Operators of one look


def test_operators_of_one_look_are_planned_once(monkeypatch):
    checks = []

    def check(call, *rest):
        checks.append(call.contract.name)
        right(call, *rest)

    right = op.rules.check
    monkeypatch.setattr(op.rules, "check", check)
    op._plans.clear()
    first, second = create(), create()
    assert first is not second
    assert len(checks) == 1
    op.infiniopDestroyBatchNormBackwardDescriptor(first)
    assert op.infiniopGetBatchNormBackwardWorkspaceSize(second) >= 0
    for wrong, status in (
        ({"weight": descriptor((3,), "F16")}, BAD_DTYPE),
        ({"weight": descriptor((4,))}, BAD_SHAPE),
        ({"weight": descriptor((3,), strides=(0,))}, BAD_STRIDES),
        ({"input": descriptor(X, strides=(12, 1, 3))}, BAD_STRIDES),
        ({"input": None}, BAD_PARAM),
    ):
        (name,) = wrong
        assert len({fails(status, name, create, wrong) for _ in range(2)}) == 1
    create({"weight": descriptor((3,), strides=(2,))})
    assert len(checks) == 10  # a null is found before
    monkeypatch.setattr(cache, "SIZE", 2)
    for count in range(1, 5):
        create({name: descriptor((count, 3, 4)) for name in DATA})
        assert len(op._plans) <= 2


def test_what_the_contract_lets_pass_the_operator_lets_pass(monkeypatch):
    """A plan is made of what the dialect's rules have checked, without another check."""
    made = []

    class Checked(plans.Plan):
        def __init__(self, operator, options, specs, outputs, names):
            assert contract.check(operator, options, specs, outputs) == outputs
            made.append(outputs)
            super().__init__(operator, options, specs, outputs, names)

    monkeypatch.setattr(op, "Plan", Checked)
    op._plans.clear()
    shapes = [(2, 3, 4), (1, 1, 1), (0, 3, 4), (2, 0, 4), (2, 3, 0)]
    for shape, dtype, step in itertools.product(shapes, NUMPY, (1, 3)):
        vector = descriptor(shape[1:2], dtype, (step,))
        create({name: descriptor(shape, dtype) if name in DATA else vector for name in TENSORS})
    assert len(made) == 30
