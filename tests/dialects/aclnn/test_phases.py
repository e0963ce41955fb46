"""Phase 2: the gradients, the workspace, the executor; and what makes an aclTensor."""

from __future__ import annotations

import inspect
import threading
import warnings

import ml_dtypes
import numpy as np
import pytest
from aclnn_spec import (
    A2,
    BN,
    CODES,
    ELEMT,
    FORMATS,
    GN,
    HAS,
    NEW,
    REDUCE,
    T,
    arguments,
    built,
    phase_1,
)

import normgrad as ng
from normgrad.dialects import aclnn
from normgrad.dialects.aclnn import products

bfloat16 = np.dtype(ml_dtypes.bfloat16)
RNG = np.random.default_rng(20)


def normal(shape, dtype=np.float32):
    return RNG.standard_normal(shape).astype(dtype)


def run(operator, *call, workspace=None):
    """Both phases; the workspace of exactly the size that phase 1 says, unless one is given."""
    size, executor = getattr(aclnn, f"{operator}GetWorkspaceSize")(*call)
    if workspace is None and size:
        workspace = np.empty(size, np.uint8)
    getattr(aclnn, operator)(workspace, size, executor, None)
    return size


def same(found, expected):
    assert found.dtype == expected.dtype
    np.testing.assert_array_equal(
        found.view(f"u{found.itemsize}"), expected.view(f"u{expected.itemsize}")
    )


def batch_norm_data(shape, dtype=np.float32, channel_axis=1):
    c = shape[channel_axis]
    vectors = [normal((c,), dtype) for _ in range(3)] + [np.abs(normal((c,), dtype)) + 1]
    return normal(shape, dtype), normal(shape, dtype), vectors


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("dtype", [np.float32, np.float16, bfloat16])
@pytest.mark.parametrize("shape", [(4, 3), (2, 5, 7), (2, 3, 4, 5), (3, 8, 2, 3, 4)])
def test_batch_norm_is_the_functions(shape, dtype, training):
    dy, x, (w, rm, sm, var) = batch_norm_data(shape, dtype)
    rstd = (1 / np.sqrt(var.astype(np.float32))).astype(dtype)
    dx, dw, db = (np.full(s, np.nan, dtype) for s in (shape, w.shape, w.shape))
    t = aclnn.tensor
    run(BN, t(dy), t(x), t(w), t(rm), t(var), t(sm), t(rstd), training, 1e-5, [True] * 3, t(dx),
        t(dw), t(db))  # fmt: skip
    expected = ng.batch_norm_backward(dy, x, w, rm, var, sm, rstd, training=training, eps=1e-5)
    for found, right in zip((dx, dw, db), expected, strict=True):
        same(found, right)


@pytest.mark.parametrize("eps", [-0.5, -1, np.nan, np.inf, -np.inf])
def test_any_eps(eps):
    """The contract limits it to no range: the formula's value, whatever it is."""
    dy, x, (w, rm, sm, var) = batch_norm_data((2, 5, 7))
    dx, dw, db = (np.full(s, 7, np.float32) for s in (x.shape, w.shape, w.shape))
    t = aclnn.tensor
    run(BN, t(dy), t(x), t(w), t(rm), t(var), t(sm), t(var), False, eps, [True] * 3, t(dx), t(dw),
        t(db))  # fmt: skip
    with np.errstate(invalid="ignore"):
        exact = dy * (w / np.sqrt(var + np.float32(eps)))[:, None]
    np.testing.assert_allclose(dx, exact, rtol=1e-5, atol=1e-6)


def test_masked_outputs_are_not_written():
    dy, x, (w, rm, sm, var) = batch_norm_data((2, 3, 4))
    outs = [np.full(s, 7, np.float32) for s in ((2, 3, 4), (3,), (3,))]
    t = aclnn.tensor
    for mask in np.ndindex(2, 2, 2):
        for out in outs:
            out[...] = 7
        size = run(BN, t(dy), t(x), t(w), t(rm), t(var), t(sm), t(var), True, 1e-5,
                   [bool(m) for m in mask], *map(t, outs))  # fmt: skip
        for out, asked in zip(outs, mask, strict=True):
            assert (out == 7).all() != bool(asked)
        if not any(mask):
            assert size == 0


def test_reduce_and_elemt_are_the_functions():
    dy, x, (w, _, mean, invstd) = batch_norm_data((3, 5, 4, 2))
    sums = [np.empty(5, np.float32) for _ in range(4)]
    t = aclnn.tensor
    run(REDUCE, t(dy), t(x), t(mean), t(invstd), t(w), True, True, True, *map(t, sums))
    expected = ng.batch_norm_backward_reduce(dy, x, mean, invstd, w)
    for found, right in zip(sums, expected, strict=True):
        same(found, right)
    counter = np.array([24, 3], np.int32)
    dx = np.empty_like(x)
    run(ELEMT, t(dy), t(x), t(mean), t(invstd), t(w), t(sums[0]), t(sums[1]), t(counter), t(dx))
    same(dx, ng.batch_norm_backward_elemt(dy, x, mean, invstd, w, sums[0], sums[1], counter))


@pytest.mark.parametrize("shape", [(2, 6, 4, 5), (2, 6, 20), (240,), (12, 20), (1, 2, 3, 2, 20)])
def test_group_norm_reads_any_shape_as_n_c_hxw(shape):
    dy, x, gamma = normal((2, 6, 20)), normal((2, 6, 20)), normal((6,))
    mean, rstd = normal((2, 3)), np.abs(normal((2, 3))) + 1
    dx, dg, db = np.empty(shape, np.float32), np.empty((3, 2), np.float32), np.empty((3, 2), "f4")
    t = aclnn.tensor
    run(GN, t(dy.reshape(shape)), t(x.reshape(shape)), t(mean.reshape(6)), t(rstd.reshape(3, 2)),
        t(gamma.reshape(3, 2)), 2, 6, 20, 3, [True] * 3, t(dx), t(dg), t(db))  # fmt: skip
    expected = ng.group_norm_backward(dy, x, mean, rstd, gamma, num_groups=3)
    for found, right in zip((dx, dg, db), expected, strict=True):
        same(found.reshape(right.shape), right)


@pytest.mark.parametrize("dtype", [np.float32, bfloat16])
def test_group_norm_on_views_that_no_strides_reshape(dtype):
    """Dense copies in the workspace; outputs are written to their own elements only."""
    n, c, h, w = 2, 6, 4, 5
    # Lying in memory as N, HxW, C; as (N, C, H, W) no strides name it as (N, C, HxW)
    # once a row is left out.
    storage = [np.full((n, h, w + 1, c), 9, dtype) for _ in range(3)]
    dy, x, dx = (array[:, :, :w].transpose(0, 3, 1, 2) for array in storage)
    dy[...], x[...] = normal(dy.shape, dtype), normal(x.shape, dtype)
    stats = normal((n * 3, 2), dtype), np.abs(normal((n * 3, 2), dtype)) + dtype_one(dtype)
    mean, rstd = stats[0][:, 0], stats[1][:, 0]
    gamma, dg, db = normal((c,), dtype), np.empty((c,), dtype), np.empty((c,), dtype)
    t = aclnn.tensor
    size = run(GN, t(dy), t(x), t(mean), t(rstd), t(gamma), n, c, h * w, 3, [True] * 3, t(dx),
               t(dg), t(db))  # fmt: skip
    assert size >= 3 * x.nbytes
    expected = ng.group_norm_backward(
        np.ascontiguousarray(dy).reshape(n, c, -1), np.ascontiguousarray(x).reshape(n, c, -1),
        mean.reshape(n, 3), rstd.reshape(n, 3), gamma, num_groups=3,
    )  # fmt: skip
    same(np.ascontiguousarray(dx).reshape(n, c, -1), expected[0])
    same(dg, expected[1])
    assert (storage[2][:, :, w:] == 9).all()


def dtype_one(dtype):
    return np.ones((), dtype)


@pytest.mark.parametrize(("format", "shape"), [("NHWC", (2, 4, 5, 3)), ("NDHWC", (2, 2, 3, 2, 3))])
def test_channel_last_without_a_transposing_copy(format, shape):
    dy, x, (w, rm, sm, var) = batch_norm_data(shape, channel_axis=-1)
    dx, dw, db = np.empty(shape, np.float32), np.empty(3, np.float32), np.empty(3, np.float32)
    t, order = aclnn.tensor, FORMATS[format]
    with aclnn.product(NEW):
        size, executor = aclnn.aclnnBatchNormBackwardGetWorkspaceSize(
            t(dy, order), t(x, order), t(w), t(rm), t(var), t(sm), t(var), True, 1e-5, [True] * 3,
            t(dx, order), t(dw), t(db),
        )  # fmt: skip
    assert executor.prepared.dense_size == 0
    assert executor.prepared.plan.path.startswith("columns")
    aclnn.aclnnBatchNormBackward(np.empty(size, np.uint8), size, executor, None)
    expected = ng.batch_norm_backward(
        dy, x, w, rm, var, sm, var, training=True, eps=1e-5, channel_axis=-1
    )
    for found, right in zip((dx, dw, db), expected, strict=True):
        same(found, right)


def test_offsets_gaps_and_overlaps():
    """Inputs with an offset, gaps, and elements named twice; outputs write their own alone."""
    storage = normal((1000,))
    dims, strides = (2, 3, 4), (100, 7, 2)
    create = aclnn.aclCreateTensor
    x = create(dims, aclnn.ACL_FLOAT, strides, 11, aclnn.ACL_FORMAT_ND, (1000,), storage)
    one_row = create(dims, aclnn.ACL_FLOAT, (0, 0, 1), 5, aclnn.ACL_FORMAT_ND, (1000,), storage)
    dense = np.lib.stride_tricks.as_strided(storage[11:], dims, [4 * s for s in strides])
    rows = np.broadcast_to(storage[5:9], dims)
    target = np.full(1000, 5, np.float32)
    dx = create(dims, aclnn.ACL_FLOAT, strides, 200, aclnn.ACL_FORMAT_ND, (1000,), target)
    w = normal((3,))
    t = aclnn.tensor
    run(BN, one_row, x, t(w), None, None, None, None, True, 1e-5, [True, False, False], dx, None,
        None)  # fmt: skip
    expected = ng.batch_norm_backward(rows, dense, w, training=True)[0]
    view = np.lib.stride_tricks.as_strided(target[200:], dims, [4 * s for s in strides])
    same(np.ascontiguousarray(view), expected)
    view[...] = 5
    assert (target == 5).all()


@pytest.mark.parametrize("n", [0, 2])
def test_emptiness_fills_with_zeros(n):
    shape = (n, 3, 0 if n else 4)
    empty = np.empty(shape, np.float32)
    vectors = [np.ones(3, np.float32) for _ in range(5)]
    sums = [np.full(3, 7, np.float32) for _ in range(4)]
    t = aclnn.tensor
    size = run(BN, t(empty), t(empty), *map(t, vectors), True, 1e-5, [True] * 3, t(empty),
               t(sums[0]), t(sums[1]))  # fmt: skip
    assert size == 0
    assert run(REDUCE, t(empty), t(empty), *map(t, vectors[:3]), True, False, True,
               t(sums[2]), t(sums[3]), None, t(sums[0])) == 0  # fmt: skip
    assert not np.any(sums)
    mean = np.ones((n, 1), np.float32)
    grads = [np.full((3, 2), 7, np.float32)[:, 0] for _ in range(2)]
    assert run(GN, t(empty), t(empty), t(mean), t(mean), None, n, 3, shape[2], 1, [True] * 3,
               t(empty), *map(t, grads)) == 0  # fmt: skip
    assert not np.any(grads)


def call_of(operator=BN):
    return [*built(arguments(operator)).values()]


def memory(size, kind):
    if kind == "torch":
        torch = pytest.importorskip("torch")
        return torch.empty(size, dtype=torch.uint8)
    return {
        "array": np.empty(size, np.uint8), "bytearray": bytearray(size),
        "floats": np.empty(-(-size // 4), np.float32), "odd": np.empty(size + 3, np.uint8)[3:],
        "memoryview": memoryview(bytearray(size)),
    }[kind]  # fmt: skip


@pytest.mark.parametrize("kind", ["array", "bytearray", "memoryview", "floats", "odd", "torch"])
def test_any_writable_buffer_is_a_workspace(kind):
    dy, x, (w, rm, sm, var) = batch_norm_data((4, 3, 5))
    dx = np.empty_like(x)
    t = aclnn.tensor
    size, executor = aclnn.aclnnBatchNormBackwardGetWorkspaceSize(
        t(dy), t(x), t(w), t(rm), t(var), t(sm), t(var), True, 1e-5, [True, False, False], t(dx),
        None, None,
    )  # fmt: skip
    aclnn.aclnnBatchNormBackward(memory(size, kind), size, executor, None)
    same(dx, ng.batch_norm_backward(dy, x, w, rm, var, sm, var, training=True).grad_input)


def fails(status, parameter, function, *call):
    with pytest.raises(aclnn.AclnnError) as caught:
        function(*call)
    assert (caught.value.status, caught.value.parameter) == (status, parameter), caught.value
    assert isinstance(caught.value, ValueError)


@pytest.mark.parametrize("operator", HAS)
def test_what_phase_2_refuses(operator):
    second = getattr(aclnn, operator)
    size, executor = phase_1(operator, arguments(operator))
    assert size > 0
    workspace = np.empty(size, np.uint8)
    read_only = np.empty(size, np.uint8)
    read_only.flags.writeable = False
    for status, parameter, *call in (
        (161001, "executor", workspace, size, None),
        (161001, "workspace", None, size, executor),
        (161001, "workspace", None, 0, executor),
        (161002, "workspaceSize", workspace, size - 1, executor),
        (161002, "workspaceSize", workspace, None, executor),
        (161002, "executor", workspace, size, "an executor"),
        (161002, "executor", workspace, size, 12345),
        (161002, "workspace", workspace[1:], size, executor),
        (161002, "workspace", "text", size, executor),
        (161002, "workspace", read_only, size, executor),
        (161002, "workspace", np.empty((size, 2), np.uint8)[:, 0], size, executor),
    ):
        fails(status, parameter, second, *call, None)
    for other in HAS:
        if other != operator:
            fails(161002, "executor", getattr(aclnn, other), workspace, size + 10**6, executor)
    # None of that has used it up.
    second(workspace, size + 100, executor, None)
    fails(161002, "executor", second, workspace, size, executor, None)


def test_every_phase_2_has_the_signature_that_type_checkers_see():
    first = [*inspect.signature(aclnn.aclnnBatchNormBackward).parameters.values()]
    names = [name for name in aclnn.__all__ if f"{name}GetWorkspaceSize" in aclnn.__all__]
    assert len(names) == 8
    for name in names:
        function = getattr(aclnn, name)
        assert function.__name__ == name
        assert [*inspect.signature(function).parameters.values()] == first
    assert [*inspect.signature(aclnn._Phase2.__call__).parameters.values()][1:] == first


def test_of_many_threads_one_gets_the_executor():
    for _ in range(20):
        size, executor = phase_1(BN, arguments(BN))
        done, refused = [], []

        def second(size=size, executor=executor, done=done, refused=refused):
            try:
                aclnn.aclnnBatchNormBackward(np.empty(size, np.uint8), size, executor, None)
                done.append(1)
            except aclnn.AclnnError as error:
                refused.append(error.status)

        threads = [threading.Thread(target=second) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert (len(done), refused) == (1, [161002] * 3)


def test_a_repeatable_executor_runs_again():
    size, executor = phase_1(BN, arguments(BN))
    executor.repeatable = True
    for _ in range(3):
        aclnn.aclnnBatchNormBackward(np.empty(size, np.uint8), size, executor, None)


def test_phase_1_writes_nothing_and_reads_no_data():
    out = np.full((2, 3, 4), 7, np.float32)
    data = np.full((2, 3, 4), np.nan, np.float32)
    t = aclnn.tensor
    aclnn.aclnnBatchNormBackwardGetWorkspaceSize(
        t(data), t(data), None, None, None, None, None, True, 1e-5, (True, False, False), t(out),
        None, None,
    )  # fmt: skip
    assert (out == 7).all()


def test_devices_that_read_a_variance():
    dy, x, (w, rm, sm, var) = batch_norm_data((4, 3, 5))
    dx, dw = np.empty_like(x), np.empty_like(w)
    t = aclnn.tensor

    def gradients():
        run(BN, t(dy), t(x), t(w), t(rm), t(var), t(sm), t(var), True, 0.25, (True, True, False),
            t(dx), t(dw), None)  # fmt: skip
        return dx.copy(), dw.copy()

    as_documented = gradients()
    same(as_documented[0], ng.batch_norm_backward(
        dy, x, w, None, None, sm, var, training=True)[0])  # fmt: skip
    with aclnn.product(A2, save_invstd="variance"):
        as_devices = gradients()
    rstd = (1 / np.sqrt(var.astype(np.float64) + 0.25)).astype(np.float32)
    expected = ng.batch_norm_backward(dy, x, w, None, None, sm, rstd, training=True)
    np.testing.assert_allclose(as_devices[0], expected[0], rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(as_devices[1], expected[1], rtol=1e-5)
    same(gradients()[0], as_documented[0])


# Products


@pytest.mark.every_case
@pytest.mark.parametrize(
    ("name", "product"),
    [
        ("Atlas A2", "Atlas A2"), ("atlas a2", "Atlas A2"), ("Ascend910B1", "Atlas A2"),
        ("Ascend910B4-1", "Atlas A2"), ("Atlas 800I A2", "Atlas A2"), ("A200I A2 Box", "Atlas A2"),
        ("Ascend910", "Atlas training series"), ("Ascend910A", "Atlas training series"),
        ("910Pro", "Atlas training series"), ("Ascend910ProB", "Atlas training series"),
        ("Ascend910_9391", "Atlas A3"), ("910_9391", "Atlas A3"),
        ("Ascend910PremiumA", "Atlas training series"), ("Atlas A3", "Atlas A3"),
        ("Ascend950", "Ascend 950"), ("Ascend950PR", "Ascend 950"), ("950DT", "Ascend 950"),
        ("Ascend310P3", "Atlas inference series"), ("Ascend310B4", "Atlas 200I/500 A2"),
    ],
)  # fmt: skip
def test_product_names(name, product):
    with aclnn.product(name) as found:
        assert found.name == product
        assert products.current().product is found


def test_which_product_is_in_force(monkeypatch):
    assert products.current().product.name == "Atlas A2"
    monkeypatch.setenv("NORMGRAD_ACL_PRODUCT", "Ascend950")
    monkeypatch.setenv("NORMGRAD_ACL_SAVE_INVSTD", "variance")
    assert products.current() == products.Device(products.find("Ascend 950"), True)
    try:
        aclnn.set_product("Atlas A3")
        # What is not said here, the environment says.
        assert products.current() == products.Device(products.find("Atlas A3"), True)
        aclnn.set_product("Atlas A3", save_invstd="invstd")
        assert products.current() == products.Device(products.find("Atlas A3"), False)
        aclnn.set_product(None, save_invstd="invstd")
        assert products.current() == products.Device(products.find("Ascend 950"), False)
        aclnn.set_product("Atlas A3")
        with aclnn.product("Atlas training series"):
            with aclnn.product("Atlas A2"):
                assert products.current().product.name == "Atlas A2"
            assert products.current().product.name == "Atlas training series"
        assert products.current().product.name == "Atlas A3"
    finally:
        aclnn.set_product(None)


@pytest.mark.parametrize("name", ["Atlas A9", "Ascend", "", "910C"])
def test_unknown_products(name, monkeypatch):
    with pytest.raises(ValueError, match=r"^product: .*allowed: Atlas training series, Atlas A2"):
        aclnn.set_product(name)
    monkeypatch.setenv("NORMGRAD_ACL_PRODUCT", name)
    with pytest.raises(ValueError, match=r"^product: "):
        products.current()


def test_unknown_meanings_of_save_invstd():
    with pytest.raises(ValueError, match=r"save_invstd: 'std'; allowed: 'invstd' or 'variance'"):
        aclnn.set_product("Atlas A2", save_invstd="std")


# Tensors


@pytest.mark.parametrize("dtype", CODES)
@pytest.mark.parametrize("format", FORMATS)
def test_any_listed_dtype_and_format(dtype, format):
    made = aclnn.aclCreateTensor(
        (2,) * 12, CODES[dtype], None, 0, FORMATS[format], None, np.zeros(1 << 17, np.uint8)
    )
    assert (made.dtype_name, made.format_name, made.unusable) == (dtype, format, None)


@pytest.mark.parametrize(
    ("changes", "parameter"),
    [
        ({"view_dims": (2, -1)}, "viewDims"),
        ({"view_dims": 5}, "viewDims"),
        ({"view_dims": (2.0,)}, "viewDims"),
        ({"strides": (1,)}, "stride"),
        ({"strides": "ab"}, "stride"),
        ({"offset": None}, "offset"),
        ({"data_type": 99}, "dataType"),
        ({"format": 99}, "format"),
        ({"storage_dims": (-3,)}, "storageDims"),
        ({"data": 12345}, "tensorData"),
        ({"data": np.zeros((4, 4))[:, 0]}, "tensorData"),
        ({"data": np.zeros(4, object)}, "tensorData"),
    ],
)
def test_what_describes_no_view(changes, parameter):
    good = {
        "view_dims": (2, 3), "data_type": 0, "strides": None, "offset": 0, "format": 2,
        "storage_dims": None, "data": np.zeros(6, np.float32),
    }  # fmt: skip
    aclnn.aclCreateTensor(**good)
    fails(161002, parameter, lambda: aclnn.aclCreateTensor(**{**good, **changes}))


@pytest.mark.parametrize(
    ("dims", "strides", "offset", "fits"),
    [
        ((2, 3), None, 0, True), ((2, 3), None, 4, True), ((2, 3), None, 5, False),
        ((2, 3), (5, 2), 0, True), ((2, 3), (6, 2), 0, False), ((3,), (-1,), 2, True),
        ((3,), (-1,), 1, False), ((3,), None, -1, False), ((0, 9), None, 99, True),
        ((1 << 40, 1 << 40), None, 0, False),
    ],
)  # fmt: skip
def test_views_outside_their_memory(dims, strides, offset, fits):
    made = aclnn.aclCreateTensor(
        dims, aclnn.ACL_FLOAT, strides, offset, aclnn.ACL_FORMAT_ND, None, np.zeros(10, np.float32)
    )
    assert (made.unusable is None) is fits
    x = np.zeros((2, 3), np.float32)
    t = aclnn.tensor
    if dims == (2, 3):
        call = (made, t(x), None, None, None, None, None, True, 1e-5, [True, False, False], t(x),
                None, None)  # fmt: skip
        if fits:
            run(BN, *call)
        else:
            fails(161002, "gradOut", aclnn.aclnnBatchNormBackwardGetWorkspaceSize, *call)


@pytest.mark.parametrize("name", ["gradOut", "input", "weight"])
def test_views_beyond_all_addresses(name):
    call = arguments(BN)
    tensors, shape = built(call), call[name].shape
    array = np.lib.stride_tricks.as_strided(np.ones(1, np.float32), shape, (2**62,) * len(shape))
    tensors[name] = aclnn.tensor(array)
    fails(161002, name, aclnn.aclnnBatchNormBackwardGetWorkspaceSize, *tensors.values())


def test_null_memory():
    call = arguments(BN)
    tensors = built(call)
    tensors["input"] = aclnn.aclCreateTensor(
        call["input"].shape, aclnn.ACL_FLOAT, None, 0, aclnn.ACL_FORMAT_ND, None, None
    )
    fails(161002, "input", aclnn.aclnnBatchNormBackwardGetWorkspaceSize, *tensors.values())


def test_a_read_only_output_fails_in_phase_2():
    dy, x, _ = batch_norm_data((4, 3, 5))
    dx = np.empty_like(x)
    dx.flags.writeable = False
    t = aclnn.tensor
    with pytest.raises(aclnn.AclnnError, match="read-only") as caught:
        run(BN, t(dy), t(x), None, None, None, None, None, True, 1e-5, [True, False, False], t(dx),
            None, None)  # fmt: skip
    assert caught.value.status == aclnn.ACLNN_ERR_RUNTIME_ERROR


def test_the_short_form():
    array = normal((2, 3, 4), bfloat16)[:, ::-1]
    made = aclnn.tensor(array)
    assert (made.dims, made.strides, made.dtype_name) == ((2, 3, 4), (12, -4, 1), "bfloat16")
    same(made.array, array)
    fails(161002, "array", lambda: aclnn.tensor(np.zeros(3, np.longdouble)))
    fails(161002, "format", lambda: aclnn.tensor(array, 77))


@pytest.mark.parametrize("name", ["float32", "bfloat16", "float16"])
def test_torch_tensors(name):
    torch = pytest.importorskip("torch")
    dtype = getattr(torch, name)
    dy, x = torch.randn(4, 3, 5).to(dtype), torch.randn(4, 3, 5).to(dtype)
    w, dx = torch.randn(3).to(dtype), torch.empty(4, 3, 5, dtype=dtype)
    t = aclnn.tensor
    before = dx._version
    run(BN, t(dy), t(x), t(w), None, None, None, None, True, 1e-5, (True, False, False), t(dx),
        None, None)  # fmt: skip
    assert dx._version == before + 1
    assert torch.equal(dx, ng.batch_norm_backward(dy, x, w, training=True).grad_input)


def test_bool_arrays():
    assert tuple(aclnn.aclCreateBoolArray([1, 0, True])) == (True, False, True)
    assert len(aclnn.aclCreateBoolArray([])) == 0
    mask = aclnn.aclCreateBoolArray([False] * 3)
    assert phase_1(BN, arguments(BN, {"outputMask": mask}))[0] == 0


def test_constants_have_cann_s_numbers():
    assert {name: int(getattr(aclnn, f"ACL_FORMAT_{name}")) for name in FORMATS} == FORMATS
    assert (aclnn.ACL_FLOAT, aclnn.ACL_FLOAT16, aclnn.ACL_BF16, aclnn.ACL_DOUBLE) == (0, 1, 27, 11)
    assert [int(one) for one in aclnn.Status] == [0, 161001, 161002, 361001, 561000, 561003, 561103]


def test_something_unforeseen(monkeypatch):
    from normgrad.dialects.aclnn import phases

    def broken(*_):
        raise RuntimeError("the moon")

    size, executor = phase_1(BN, arguments(BN))
    monkeypatch.setattr(phases, "_run", broken)
    fails(361001, None, aclnn.aclnnBatchNormBackward, np.empty(size, np.uint8), size, executor)
    monkeypatch.setattr(phases, "check", broken)
    with pytest.raises(aclnn.AclnnError, match="the moon") as caught:
        phase_1(BN, arguments(BN, {"weight": None, "gradOut": T((2, 3, 9))}))
    assert caught.value.status == aclnn.ACLNN_ERR_INNER


# What a review found


def batch_norm_call(**changes):
    x = np.ones((2, 3, 4), np.float32)
    call = arguments(BN, {"gradOut": x, "input": x, "gradInput": np.empty_like(x), **changes})
    for name, value in call.items():
        if isinstance(value, T):
            call[name] = np.ones(value.shape, np.float32)
    return [aclnn.tensor(v) if isinstance(v, np.ndarray) else v for v in call.values()]


@pytest.mark.parametrize("how", ["resize_", "set_", "shrink"])
def test_memory_that_moved_between_the_phases(how):
    torch = pytest.importorskip("torch")
    out = torch.zeros(2, 3, 4)
    size, executor = aclnn.aclnnBatchNormBackwardGetWorkspaceSize(
        *batch_norm_call(gradInput=aclnn.tensor(out))
    )
    if how == "resize_":
        out.resize_(100000)
    elif how == "set_":
        out.set_(torch.zeros(2, 3, 4))
    else:
        out.untyped_storage().resize_(0)
    fails(161002, "gradInput", aclnn.aclnnBatchNormBackward, bytearray(size), size, executor)


def test_an_array_resized_between_the_phases():
    out = np.zeros(24, np.float32)
    view = aclnn.aclCreateTensor((2, 3, 4), aclnn.ACL_FLOAT, None, 0, 2, None, out)
    size, executor = aclnn.aclnnBatchNormBackwardGetWorkspaceSize(*batch_norm_call(gradInput=view))
    out.resize(1 << 20, refcheck=False)
    fails(161002, "gradInput", aclnn.aclnnBatchNormBackward, bytearray(size), size, executor)


def group_norm_views(x, dy, stats, gamma_out, dx=None):
    mask = [dx is not None, gamma_out is not None, False]
    return aclnn.aclnnGroupNormBackwardGetWorkspaceSize(
        dy, x, stats, stats, stats, 2, 4, 6, 2, mask, dx, gamma_out, None
    )


def test_dense_copies_share_memory_with_nothing():
    def make(dims, strides, data, offset=0):
        order = aclnn.ACL_FORMAT_ND
        return aclnn.aclCreateTensor(dims, aclnn.ACL_FLOAT, strides, offset, order, None, data)

    x, dy = normal((60,)), normal((60,))
    before = x.copy(), dy.copy()
    stats = aclnn.tensor(np.ones((2, 2), np.float32))
    dims = (2, 4, 6)
    inputs = make(dims, None, x), make(dims, None, dy), stats
    # An output in an input's memory, and one that no strides reshape.
    transposed = make((2, 2), (1, 2), x)
    size, executor = group_norm_views(*inputs, transposed)
    assert executor.prepared.dense_size
    with pytest.raises(aclnn.AclnnError, match="gradGammaOut: shares memory with input") as caught:
        aclnn.aclnnGroupNormBackward(bytearray(size), size, executor)
    assert caught.value.status == aclnn.ACLNN_ERR_RUNTIME_ERROR
    shifted = make((2, 6, 4), (24, 1, 6), x, 5)
    x_again, dy_again = (make((2, 6, 4), (24, 1, 6), data) for data in (x, dy))
    size, executor = group_norm_views(x_again, dy_again, stats, None, shifted)
    with pytest.raises(aclnn.AclnnError, match="gradInput: shares memory with input"):
        aclnn.aclnnGroupNormBackward(bytearray(size), size, executor)
    # The workspace in an input's memory.
    size, executor = group_norm_views(*inputs, make((2, 2), (1, 2), np.ones(4, np.float32)))
    big = np.zeros(size + 4 * 60, np.uint8)
    lying_in_it = make(dims, None, big[: 4 * 60])
    size, executor = group_norm_views(
        lying_in_it, inputs[1], stats, make((2, 2), (1, 2), np.ones(4, np.float32))
    )
    with pytest.raises(aclnn.AclnnError, match="workspace: shares memory with input"):
        aclnn.aclnnGroupNormBackward(big, size, executor)
    np.testing.assert_array_equal((x, dy), before)
    # An output that names elements twice.
    twice = make((2, 2), (1, 1), np.ones(4, np.float32))
    fails(161002, "gradGammaOut", group_norm_views, *inputs, twice)
    # In place, through a dense copy.
    fresh = np.empty(60, np.float32)
    for out in (make((2, 6, 4), (24, 1, 6), fresh), x_again):
        size, executor = group_norm_views(x_again, dy_again, stats, None, out)
        aclnn.aclnnGroupNormBackward(bytearray(size), size, executor)
    np.testing.assert_array_equal(x[:48], fresh[:48])


def test_masks_of_every_sort():
    torch = pytest.importorskip("torch")
    whole = np.array([True, False, True])
    for mask in (whole, bytearray([1, 0, 1]), torch.tensor([1, 0, 1]), (np.True_, np.False_, 1)):
        call = batch_norm_call()
        call[9] = mask
        aclnn.aclnnBatchNormBackwardGetWorkspaceSize(*call)
    for mask in (np.ones((3, 2), bool), [[], [1], np.ones(2)], 7):
        call = batch_norm_call()
        call[9] = mask
        fails(161002, "outputMask", aclnn.aclnnBatchNormBackwardGetWorkspaceSize, *call)


def test_a_mask_that_changes_is_another_mask():
    torch = pytest.importorskip("torch")
    mask = torch.tensor([True, False, False])
    dx, db = np.full((2, 3, 4), 7, np.float32), np.full(3, 7, np.float32)
    call = batch_norm_call(outputMask=mask, gradInput=dx, gradBias=db)
    aclnn.aclnnBatchNormBackwardGetWorkspaceSize(*call)
    mask[0], mask[2] = False, True
    run(BN, *call)
    assert (dx == 7).all()
    assert (db == 8).all()


def test_numpy_integers_are_integers():
    call = built(arguments(GN))
    for name in ("N", "C", "HxW", "group"):
        call[name] = np.int64(call[name])
    size, executor = aclnn.aclnnGroupNormBackwardGetWorkspaceSize(*call.values())
    aclnn.aclnnGroupNormBackward(bytearray(size), np.int64(size), executor, None)
    call["N"] = 2**70
    fails(161002, "N", aclnn.aclnnGroupNormBackwardGetWorkspaceSize, *call.values())


def test_nulls_and_products_come_before_what_is_malformed():
    first = aclnn.aclnnBatchNormBackwardGetWorkspaceSize
    call = batch_norm_call(outputMask=5)
    fails(161002, "outputMask", first, *call)
    fails(161001, "gradOut", first, None, *call[1:])
    call = batch_norm_call()
    call[2] = 3
    with aclnn.product("Ascend310P3"):
        fails(561003, "product", first, *call)
    fails(161002, "weight", first, *call)
    reduce = [*built(arguments(REDUCE)).values()]
    reduce[5] = np.array([True, False])
    fails(161002, "inputG", aclnn.aclnnBatchNormReduceBackwardGetWorkspaceSize, *reduce)


def test_exotic_numbers():
    first = aclnn.aclnnBatchNormBackwardGetWorkspaceSize
    fails(161002, "eps", first, *batch_norm_call(eps=10**400))
    # The stride of an axis with one element is never taken.
    data = np.ones(12, np.float32)
    one = aclnn.aclCreateTensor((1, 3, 4), aclnn.ACL_FLOAT, (2**62, 4, 1), 0, 2, None, data)
    run(BN, *batch_norm_call(gradOut=one, input=one, gradInput=np.empty((1, 3, 4), np.float32)))
    huge = aclnn.aclCreateTensor((0, 3, 2**62), aclnn.ACL_FLOAT, None, 0, 2, None, b"")
    assert run(BN, *batch_norm_call(gradOut=huge, input=huge, gradInput=huge)) == 0
    wide = aclnn.aclCreateTensor((2**40, 3, 2**40), aclnn.ACL_FLOAT, (0, 0, 0), 0, 2, None, data)
    fails(161002, "gradOut", first, *batch_norm_call(gradOut=wide, input=wide, gradInput=wide))


def test_a_used_executor_cannot_be_made_repeatable():
    size, executor = phase_1(BN, arguments(BN))
    aclnn.aclnnBatchNormBackward(bytearray(size), size, executor, None)
    executor.repeatable = True
    fails(161002, "executor", aclnn.aclnnBatchNormBackward, bytearray(size), size, executor, None)


def test_torch_tensors_of_odd_sorts():
    torch = pytest.importorskip("torch")
    negated = torch._neg_view(torch.ones(2, 3, 4))
    fails(161002, "tensorData", lambda: aclnn.aclCreateTensor(
        (2, 3, 4), aclnn.ACL_FLOAT, None, 0, 2, None, negated))  # fmt: skip
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # quantized tensors are on their way out
        quantized = torch.quantize_per_tensor(torch.ones(3), 0.1, 0, torch.qint8)
    fails(161002, "array", aclnn.tensor, quantized)


@pytest.mark.parametrize("empty", [np.empty(0, np.float32), np.zeros((3, 0), np.float32)[0]])
def test_statistics_of_length_0_in_evaluation(empty):
    """Legal, whatever strides an empty array has."""
    x = np.linspace(-1, 1, 24, dtype=np.float32).reshape(2, 3, 4)
    w, mean, var = np.array([[1, 2, 3], [0, 1, 2], [1, 4, 9]], np.float32)
    dx, dw, db = np.empty_like(x), np.empty_like(w), np.empty_like(w)
    t = aclnn.tensor
    size, executor = aclnn.aclnnBatchNormBackwardGetWorkspaceSize(
        t(x), t(x), t(w), t(mean), t(var), t(empty), t(empty), False, 0.0, [True] * 3, t(dx),
        t(dw), t(db),
    )  # fmt: skip
    aclnn.aclnnBatchNormBackward(np.empty(size, np.uint8), size, executor, None)
    np.testing.assert_array_equal(dx, x)  # w / sqrt(var) is 1


def test_masks_of_what_is_no_boolean():
    """A word of three letters has three entries, and each of them is true to Python."""
    for entries in ("yes", [2, 0, 1], [1.0, 0.0, 1.0], [None] * 3):
        with pytest.raises(aclnn.AclnnError, match=r"outputMask: .*; allowed on .*: an aclBoolArr"):
            phase_1(BN, arguments(BN, {"outputMask": entries}))
        with pytest.raises(aclnn.AclnnError, match=r"value: .*; allowed: a sequence of booleans"):
            aclnn.aclCreateBoolArray(entries)
