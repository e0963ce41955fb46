"""NumPy arrays, PyTorch tensors and DLPack producers: the same kind comes out, without copies."""

from __future__ import annotations

import itertools
import re
from functools import partial

import array_api_strict as xp
import ml_dtypes
import numpy as np
import pytest
from common import FLOATS, OPERATORS, bits, check, make, named

import normgrad as ng
from normgrad.dialects import aclnn
from normgrad.operators.by_name import PLANNED
from normgrad.tensors import dlpack, frameworks
from normgrad.tensors.strides import contiguous_strides
from normgrad.testing import FORWARD

torch = pytest.importorskip("torch")

TORCH = {name: getattr(torch, name) for name in FLOATS}


def to_torch(array: np.ndarray | None) -> torch.Tensor | None:
    """The same values and strides."""
    if array is None:
        return None
    if array.dtype == ml_dtypes.bfloat16:
        return to_torch(array.view(np.uint16)).view(torch.bfloat16)
    flat = torch.empty(array.size, dtype=getattr(torch, str(array.dtype)))
    strides = [step // array.itemsize for step in array.strides]
    tensor = torch.empty_strided(array.shape, strides, dtype=flat.dtype)
    tensor.copy_(torch.from_numpy(np.ascontiguousarray(array)))
    return tensor


def to_numpy(tensor: torch.Tensor | None) -> np.ndarray | None:
    if tensor is None:
        return None
    if tensor.dtype == torch.bfloat16:
        return tensor.view(torch.uint16).numpy().view(ml_dtypes.bfloat16)
    return tensor.detach().numpy()


def as_torch(case, **more):
    """The case's call on torch tensors."""
    tensors = {name: to_torch(value) for name, value in case.tensors.items()}
    return getattr(ng, case.name)(**tensors, **case.options, **more)


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("layout", ["contiguous", "channels_last"])
@pytest.mark.parametrize("kind", OPERATORS)
def test_torch_gives_the_bits_that_numpy_gives(kind, layout, dtype):
    case = make(kind, (3, 4, 5, 6), dtype=dtype, layout=layout, num_groups=2)
    ours, theirs = named(case.call()), named(as_torch(case))
    for name, expected in ours.items():
        got = theirs[name]
        assert isinstance(got, torch.Tensor)
        assert to_numpy(got).tobytes() == expected.tobytes()
        assert got.dtype == TORCH[str(expected.dtype)]
    if "grad_input" in theirs:
        assert (
            theirs["grad_input"].stride()
            == torch.empty_like(to_torch(case.tensors["input"])).stride()
        )


def test_torch_out():
    case = make("train", (3, 4, 5, 6))
    expected = case.call()
    out = (torch.full((3, 4, 5, 6), torch.nan), torch.full((4,), torch.nan), None)
    before = [tensor._version for tensor in out[:2]]
    result = as_torch(case, out=out)
    assert result.grad_input is out[0]
    assert result.grad_weight is out[1]
    assert isinstance(result.grad_bias, torch.Tensor)
    assert [to_numpy(value).tobytes() for value in result] == [v.tobytes() for v in expected]
    # Autograd must notice.
    assert [tensor._version for tensor in out[:2]] == [version + 1 for version in before]


def recorded_by(name):
    """The end of the message on a lost derivative: the function that autograd records, if any."""
    functional = pytest.importorskip("normgrad.torch").functional
    if not hasattr(functional, name):
        return ""
    return f"; or normgrad.torch.functional.{name}, which autograd records"


@pytest.mark.parametrize("again", [False, True])
@pytest.mark.parametrize("planned", [False, True])
@pytest.mark.parametrize("kind", [*OPERATORS, *FORWARD])
def test_a_gradient_that_would_be_lost(kind, planned, again):
    """Of each tensor, in a first and in a known call; nothing is written."""
    case = make(kind, (3, 4, 5, 6), num_groups=2)
    tensors = {name: to_torch(value) for name, value in case.tensors.items()}
    expected = named(as_torch(case))
    out = {name: value if value is None else value.clone() for name, value in expected.items()}
    if planned:
        function = ng.plan(case.name, **tensors, **case.options).run
    else:
        function = partial(getattr(ng, case.name), **case.options)

    def call():
        values = tuple(out.values())
        return function(**tensors, out=values if len(values) > 1 else values[0])

    if again:
        call()
    results = [value for value in out.values() if value is not None]
    for value in results:
        value.zero_()
    operator = PLANNED[case.name]
    titles = {
        operator.out_name(index, output): value
        for index, (output, value) in enumerate(
            zip(operator.all_outputs, out.values(), strict=True)
        )
    }
    floats = {
        name: value
        for name, value in {**tensors, **titles}.items()
        if value is not None and value.is_floating_point()
    }
    allowed = f"allowed: detach(), torch.no_grad(){recorded_by(case.name)}"
    for name, value in floats.items():
        value.requires_grad_()
        reason = f"{name}: requires a gradient, which would be lost; {allowed}"
        with pytest.raises(ValueError, match=f"^{re.escape(reason)}$"):
            call()
        value.requires_grad_(False)
    assert not any(value.any() for value in results)
    for value in floats.values():
        value.requires_grad_()
    for mode in (torch.no_grad, torch.inference_mode):
        with mode():
            result = named(call())
        assert all(result[name] is value for name, value in out.items())
        for name, value in out.items():
            assert value is None or torch.equal(value.detach(), expected[name])


def test_a_tangent_that_would_be_lost():
    forward_ad = torch.autograd.forward_ad
    x, weight = torch.randn(3, 4), torch.randn(4)
    expected = ng.layer_norm(x, 4, weight).output
    reason = "weight: has a tangent, which would be lost; allowed: detach()"
    with forward_ad.dual_level():
        dual = forward_ad.make_dual(weight, torch.ones(4))
        with pytest.raises(ValueError, match=f"^{re.escape(reason + recorded_by('layer_norm'))}$"):
            ng.layer_norm(x, 4, dual)
        assert torch.equal(ng.layer_norm(x, 4, dual.detach()).output, expected)
        with pytest.raises(ValueError, match=f"^array: {re.escape(reason[8:])}$"):
            aclnn.tensor(dual)


def test_a_gradient_of_a_subclass_and_of_a_negated_view():
    class Own(torch.Tensor):
        pass

    own = torch.randn(3, 4).as_subclass(Own).requires_grad_()
    negated = torch.view_as_complex(torch.randn(3, 4, 2)).conj().imag.requires_grad_()
    for x in (own, negated):
        with pytest.raises(ValueError, match=r"^input: requires a gradient, which would be lost"):
            ng.layer_norm(x, 4)
        assert ng.layer_norm(x.detach(), 4).output.shape == (3, 4)


def test_other_memory_whose_gradient_would_be_lost():
    """Workspaces, and the memory of aclnn's tensors."""
    x = torch.randn(3, 4, 5)
    plan = ng.plan("batch_norm_backward", grad_out=x, input=x, training=True)
    scratch = torch.zeros(plan.workspace_size, requires_grad=True)
    lost = "requires a gradient, which would be lost; allowed: detach\\(\\), torch.no_grad\\(\\)$"
    for memory in (scratch, scratch.as_subclass(type("Own", (torch.Tensor,), {}))):
        with pytest.raises(ValueError, match=f"^workspace: {lost}"):
            plan.run(x, x, workspace=memory)
    parameter = torch.nn.Parameter(x)
    with pytest.raises(ValueError, match=f"^array: {lost}"):
        aclnn.tensor(parameter)
    with pytest.raises(aclnn.AclnnError, match=f"tensorData: {lost}"):
        aclnn.aclCreateTensor([3, 4, 5], 0, [20, 5, 1], 0, 2, [3, 4, 5], parameter)
    with torch.no_grad():
        assert aclnn.tensor(parameter).dims == (3, 4, 5)


def test_results_that_are_masked_off_may_require_gradients():
    """They are ignored."""
    x = torch.randn(3, 4, 5)
    ignored = torch.full((4,), torch.nan, requires_grad=True)
    mask = (True, False, True)
    found = ng.batch_norm_backward(x, x, training=True, output_mask=mask, out=(None, ignored, None))
    assert found.grad_weight is None
    assert ignored.isnan().all()


def test_functions_of_a_user_s_autograd_function():
    """Where autograd records the whole, nothing is lost."""

    class Norm(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x, weight):
            output, mean, rstd = ng.layer_norm(x, 4, weight)
            ctx.save_for_backward(x, mean, rstd, weight)
            return output

        @staticmethod
        def backward(ctx, dy):
            return ng.layer_norm_backward(dy, *ctx.saved_tensors, normalized_shape=4)[:2]

    tensors = torch.randn(3, 4, requires_grad=True), torch.randn(4, requires_grad=True)
    dy = torch.randn(3, 4)
    ours = torch.autograd.grad(Norm.apply(*tensors), tensors, dy)
    output = torch.nn.functional.layer_norm(tensors[0], (4,), tensors[1])
    torch.testing.assert_close(ours, torch.autograd.grad(output, tensors, dy))


def test_torch_negative_views_are_read_and_not_written():
    z = torch.view_as_complex(torch.randn(3, 4, 5, 2)).conj()
    dy = z.imag
    assert dy.is_neg()
    x = torch.randn(3, 4, 5)
    result = ng.batch_norm_backward(dy, x, training=True)
    expected = ng.batch_norm_backward(dy.resolve_neg(), x, training=True)
    assert all(map(torch.equal, result, expected))
    with pytest.raises(ValueError, match=r"^out\[0\] \(grad_input\): a view that negates; allowed"):
        ng.batch_norm_backward(x, x, training=True, out=(dy, None, None))


def test_torch_errors():
    x = torch.randn(3, 4, 5)
    with pytest.raises(
        TypeError, match=r"^weight: a NumPy array among PyTorch tensors; allowed: one"
    ):
        ng.batch_norm_backward(x, x, np.ones(4, np.float32), training=True)
    with pytest.raises(TypeError, match=r"^out\[1\] \(grad_weight\): a NumPy array among PyTorch"):
        ng.batch_norm_backward(x, x, training=True, out=(None, np.ones(4, np.float32), None))
    with pytest.raises(ValueError, match=r"^input: on device meta; allowed: cpu, where grad_out"):
        ng.batch_norm_backward(x, x.to("meta"), training=True)
    with pytest.raises(TypeError, match=r"^input: a tensor with layout torch.sparse_coo; allowed"):
        ng.batch_norm_backward(x, x.to_sparse(), training=True)
    for dtype in (torch.int8, torch.complex64, torch.float8_e4m3fn, torch.bool):
        with pytest.raises(TypeError, match=f"^input: dtype {str(dtype)[6:]}; allowed: float32, "):
            ng.batch_norm_backward(x, torch.zeros(3, 4, 5, dtype=dtype), training=True)
    fake = torch._subclasses.FakeTensorMode().from_tensor(x)
    with pytest.raises(TypeError, match=r"^grad_out: a FakeTensor without memory"):
        ng.batch_norm_backward(fake, fake, training=True)
    with pytest.raises(TypeError, match=r"^grad_out: a Tensor without memory of its own"):
        torch.func.vmap(lambda t: ng.batch_norm_backward(t, x, training=True)[0])(
            torch.randn(2, 3, 4, 5)
        )
    whole = "allowed: memory of its own, or all of grad_out or input with the same strides"
    with pytest.raises(
        ValueError, match=rf"^out\[0\] \(grad_input\): shares memory with input; {whole}"
    ):
        ng.batch_norm_backward(
            x.clone(), x, training=True, out=(x.as_strided((3, 4, 5), (1, 15, 3)), None, None)
        )


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("train", [True, False])
def test_against_torch_batch_norm(train, dtype):
    """torch's own autograd, in float64 where it is exact."""
    torch.manual_seed(1)
    x = torch.randn(5, 6, 7, 8, dtype=torch.float64, requires_grad=True)
    layer = torch.nn.BatchNorm2d(6).double().train(train)
    torch.nn.init.normal_(layer.weight)
    with torch.no_grad():
        layer.running_mean.normal_()
        layer.running_var.uniform_(0.5, 2)
    running = layer.running_mean.clone(), layer.running_var.clone()
    y = layer(x)
    dy = torch.randn_like(y)
    expected = torch.autograd.grad(y, (x, layer.weight, layer.bias), dy)
    tensors = [t.detach().to(getattr(torch, dtype)) for t in (dy, x, layer.weight, *running)]
    got = ng.batch_norm_backward(*tensors, training=train)
    tolerance = 1e-12 if dtype == "float64" else 2e-5
    for ours, theirs in zip(got, expected, strict=True):
        torch.testing.assert_close(ours.double(), theirs, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("groups", [1, 2, 6])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_against_torch_group_norm(groups, dtype):
    torch.manual_seed(1)
    x = torch.randn(5, 6, 7, 8, dtype=torch.float64, requires_grad=True)
    layer = torch.nn.GroupNorm(groups, 6).double()
    torch.nn.init.normal_(layer.weight)
    y = layer(x)
    dy = torch.randn_like(y)
    expected = torch.autograd.grad(y, (x, layer.weight, layer.bias), dy)
    by_group = x.detach().reshape(5, groups, -1)
    mean, var = by_group.mean(2), by_group.var(2, unbiased=False)
    kind = getattr(torch, dtype)
    got = ng.group_norm_backward(
        dy.to(kind), x.detach().to(kind), mean.to(kind), ((var + layer.eps) ** -0.5).to(kind),
        layer.weight.detach().to(kind), num_groups=groups,
    )  # fmt: skip
    tolerance = 1e-12 if dtype == "float64" else 2e-5
    for ours, theirs in zip(got, expected, strict=True):
        torch.testing.assert_close(ours.double(), theirs, rtol=tolerance, atol=tolerance)


def test_reduce_and_elemt_make_batch_norm_together():
    """Two ranks of different sizes give the gradients of the whole batch."""
    whole = make("train", (7, 4, 30), dtype="float64")
    dy, x, w, mean, invstd = whole.tensors.values()
    expected = whole.call()
    parts = [slice(0, 2), slice(2, 7)]
    sums = [ng.batch_norm_backward_reduce(dy[part], x[part], mean, invstd, w) for part in parts]
    sum_dy, sum_dy_xmu, grad_weight, grad_bias = (sum(each) for each in zip(*sums, strict=True))
    count = np.array([30 * 2, 30 * 5], np.int32)
    rest = [
        ng.batch_norm_backward_elemt(dy[part], x[part], mean, invstd, w, sum_dy, sum_dy_xmu, count)
        for part in parts
    ]
    for ours, theirs in zip((np.concatenate(rest), grad_weight, grad_bias), expected, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-12, atol=1e-12)


class Speaker:
    """A DLPack producer of the old kind, without an array namespace, over a NumPy array."""

    def __init__(self, array):
        self.array = array

    def __dlpack_device__(self):
        return (1, 0)

    def __dlpack__(self, stream=None):
        if self.array.dtype == ml_dtypes.bfloat16:
            return dlpack._BFloat16(self.array).__dlpack__()
        return self.array.__dlpack__()


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("kind", OPERATORS)
def test_dlpack_without_a_namespace_gives_numpy(kind, dtype):
    case = make(kind, (3, 4, 5), dtype=dtype, num_groups=2, layout="channels_last")
    expected = bits(case.call())
    for name, value in case.tensors.items():
        case.tensors[name] = None if value is None else Speaker(value)
    result = case.call()
    assert all(type(value) is np.ndarray for value in named(result).values())
    assert bits(result) == expected


def test_dlpack_with_a_namespace_gives_its_arrays():
    case = make("train", (3, 4, 5))
    expected = case.call()
    tensors = {name: xp.asarray(value) for name, value in case.tensors.items()}
    result = ng.batch_norm_backward(**tensors, training=True)
    for ours, theirs in zip(result, expected, strict=True):
        assert type(ours) is type(tensors["input"])
        np.testing.assert_array_equal(np.asarray(ours), theirs)
    # In place, and into an array of its own.
    out = xp.asarray(np.full((3, 4, 5), np.nan, np.float32))
    given = ng.batch_norm_backward(**tensors, training=True, out=(out, None, None))
    assert given.grad_input is out
    np.testing.assert_array_equal(np.asarray(out), expected.grad_input)
    given = ng.batch_norm_backward(**tensors, training=True, out=(tensors["input"], None, None))
    np.testing.assert_array_equal(np.asarray(tensors["input"]), expected.grad_input)


def test_dlpack_read_only_output():
    case = make("train", (3, 4, 5))
    frozen = np.zeros((3, 4, 5), np.float32)
    frozen.flags.writeable = False

    class Frozen(Speaker):
        def __dlpack__(self, *, max_version=None, **_):
            return self.array.__dlpack__(max_version=max_version)

    tensors = {name: Speaker(value) for name, value in case.tensors.items()}
    with pytest.raises(ValueError, match=r"^out\[0\] \(grad_input\): read-only memory; allowed"):
        ng.batch_norm_backward(**tensors, training=True, out=(Frozen(frozen), None, None))
    # Read-only inputs are fine.
    tensors["input"] = Frozen(frozen)
    ng.batch_norm_backward(**tensors, training=True)


def test_dlpack_memory_lives_as_long_as_it_is_read():
    """The capsule is kept; nothing is leaked when it goes."""
    import gc
    import weakref

    class Owner(np.ndarray):
        pass

    array = np.ones((3, 4, 5), np.float32).view(Owner)
    watched = weakref.ref(array)
    ng.batch_norm_backward(Speaker(array), Speaker(array), training=True)
    del array
    gc.collect()
    assert watched() is None


def test_dlpack_refuses_what_it_does_not_know():
    class Integers(Speaker):
        pass

    x = Integers(np.zeros((3, 4, 5), np.int16))
    with pytest.raises(
        TypeError, match=r"^input: dtype int16; allowed: float32, float16, bfloat16"
    ):
        ng.batch_norm_backward(Speaker(np.zeros((3, 4, 5), np.float32)), x, training=True)


def test_no_copies():
    """The kernels get the caller's own memory."""
    for value in (np.zeros((3, 4), np.float32), torch.zeros(3, 4)):
        opened = frameworks.of("x", value).open("x", value, writing=False)
        where = value.ctypes.data if isinstance(value, np.ndarray) else value.data_ptr()
        assert opened.address == where
    array = np.zeros((3, 4), np.float32)
    speaker = Speaker(array)
    opened = frameworks.of("x", speaker).open("x", speaker, writing=False)
    assert opened.address == array.ctypes.data


def test_numpy_subclasses_are_arrays():
    case = make("train", (3, 4))
    expected = bits(case.call())
    case.tensors["input"] = case.tensors["input"].view(np.matrix)
    assert bits(case.call()) == expected


def test_mixtures_of_torch_dtypes():
    for dtype, x_dtype in itertools.product(TORCH, TORCH):
        case = make("train", (3, 4, 5), dtype=dtype, x_dtype=x_dtype)
        result = as_torch(case)
        assert result.grad_input.dtype == TORCH[x_dtype]
        check(case, type(result)(*map(to_numpy, result)))


def test_plans_take_torch_tensors():
    x = torch.zeros(2, 3, 4, dtype=torch.float16)
    expected = ng.TensorSpec((2, 3, 4), "float16")
    assert ng.TensorSpec(torch.Size([2, 3, 4]), torch.float16) == expected
    for spec in (x, x.to("meta")):
        plan = ng.plan("batch_norm_backward", grad_out=spec, input=spec, training=True)
        assert plan.output_specs[0] == expected
    result = plan.run(x, x, workspace=torch.empty(plan.workspace_size, dtype=torch.uint8))
    assert torch.equal(result.grad_input, torch.zeros_like(x))
    with pytest.raises(ValueError, match=r"^workspace: not a contiguous CPU tensor; allowed: "):
        plan.run(x, x, workspace=torch.zeros(plan.workspace_size, 2)[:, 0])


def test_new_results_are_on_the_cpu_whatever_the_default_device():
    x, dy = torch.randn(3, 4, 5), torch.randn(3, 4, 5)
    expected = ng.batch_norm_backward(dy, x, training=True)
    with torch.device("meta"):
        result = ng.batch_norm_backward(dy, x, training=True)
    assert all(map(torch.equal, result, expected))
    big = torch.randn(8, 64, 64, 64)
    with torch.device("meta"):
        assert ng.batch_norm_backward(big, big, training=True).grad_input.is_cpu


def test_new_results_under_a_mode_that_fakes_them():
    x = torch.randn(3, 4, 5)
    with (
        torch._subclasses.FakeTensorMode(allow_non_fake_inputs=True),
        pytest.raises(
            TypeError, match=r"^new tensors are FakeTensors under the mode that is active"
        ),
    ):
        ng.batch_norm_backward(x, x, training=True)


def test_torch_tensors_of_other_sorts():
    x = torch.randn(3, 4, 5)
    nested = torch.nested.nested_tensor([torch.ones(2), torch.ones(3)], layout=torch.jagged)
    with pytest.raises(TypeError, match=r"^input: a "):
        ng.batch_norm_backward(x, nested, training=True)
    with pytest.raises(TypeError, match=r"^weight: an uninitialized parameter; allowed: one with"):
        ng.batch_norm_backward(x, x, torch.nn.UninitializedParameter(), training=True)
    with pytest.raises(TypeError, match=r"^channel_axis: .+; allowed: an integer"):
        ng.batch_norm_backward(x, x, training=True, channel_axis=torch.tensor(1, device="meta"))


def shrunk(size, shape, offset=0):
    """A tensor under which the storage was resized."""
    tensor = torch.empty(1000)[offset:].as_strided(shape, contiguous_strides(shape))
    tensor.untyped_storage().resize_(4 * size)
    return tensor


#: 20 elements are too few for (3, 4, 5), and from element 40 on there are 10.
@pytest.mark.parametrize(
    ("size", "offset", "room"), [(0, 0, 0), (20, 0, 80), (59, 0, 236), (50, 40, 40), (0, 40, 0)]
)
def test_storages_that_are_too_small(size, offset, room):
    x, m = torch.randn(3, 4, 5), torch.ones(4)
    small = shrunk(size, (3, 4, 5), offset)
    vector = shrunk(offset + 3, (4,), offset)
    plan = ng.plan("batch_norm_backward", grad_out=x, input=x, weight=m, save_mean=m, training=True)
    right = plan.run(x, x, m, save_mean=m)
    out = tuple(torch.full_like(value, torch.nan) for value in right)
    allowed = "allowed: at least 240, for its shape and strides"
    reason = f"a storage of {room} bytes from the first element on; {allowed}"
    for call in (partial(ng.batch_norm_backward, training=True), plan.run):
        for arguments, name in (
            ({"grad_out": small}, "grad_out"),
            ({"input": small}, "input"),
            ({"out": (small, *out[1:])}, "out[0] (grad_input)"),
        ):
            wanted = {"grad_out": x, "input": x, "weight": m, "save_mean": m, "out": out}
            with pytest.raises(ValueError, match=f"^{re.escape(f'{name}: {reason}')}$"):
                call(**wanted | arguments)
        for name in ("weight", "save_mean"):
            message = f"^{name}: a storage of 12 bytes from the first element on; allowed: at least"
            with pytest.raises(ValueError, match=message):
                call(**wanted | {name: vector})
    assert all(value.isnan().all() for value in out)
    scratch = shrunk(plan.workspace_size // 4 - 1, (plan.workspace_size // 4 + 1,))
    with pytest.raises(ValueError, match=r"^workspace: a storage of "):
        plan.run(x, x, m, save_mean=m, workspace=scratch)
    with pytest.raises(ValueError, match=f"^array: a storage of {room} bytes"):
        aclnn.tensor(small)


def test_a_view_of_a_storage_that_was_freed():
    """As a layer's weight may be, in a flat parameter that was given back."""
    nt = pytest.importorskip("normgrad.torch")
    flat = torch.ones(20)
    layer = nt.nn.BatchNorm1d(8)
    layer.weight = torch.nn.Parameter(flat[8:16])
    layer.weight.data = flat[8:16]
    x = torch.randn(5, 8)
    y = layer(x)
    flat.untyped_storage().resize_(0)
    reason = "its data is not allocated yet"  # PyTorch's words
    with pytest.raises(RuntimeError, match=reason):
        layer(x)
    with pytest.raises(RuntimeError, match=reason):
        y.sum().backward()


def test_what_a_class_says_of_its_address_is_not_believed():
    class Liar(torch.Tensor):
        @classmethod
        def __torch_function__(cls, function, types, args=(), kwargs=None):
            if function is torch.Tensor.data_ptr:
                return 64
            return super().__torch_function__(function, types, args, kwargs or {})

        def as_subclass(self, cls):
            return self

    case = make("train", (3, 4, 5))
    expected = bits(case.call())
    tensors = {name: torch.from_numpy(value) for name, value in case.tensors.items()}
    liars = {name: value.as_subclass(Liar) for name, value in tensors.items()}
    assert liars["input"].data_ptr() == 64
    out = torch.empty(3, 4, 5).as_subclass(Liar)
    found = ng.batch_norm_backward(**liars, **case.options, out=(out, None, None))
    assert found.grad_input is out
    assert {name: value.numpy().tobytes() for name, value in named(found).items()} == expected


def test_fake_tensors_are_specs():
    fake = torch._subclasses.FakeTensorMode().from_tensor(torch.zeros(2, 3, 4))
    plan = ng.plan("batch_norm_backward", grad_out=fake, input=fake, training=True)
    assert plan.output_specs[0] == ng.TensorSpec((2, 3, 4), "float32")


def test_empty_results_keep_the_layout():
    x = torch.zeros(0, 3, 4, 4).to(memory_format=torch.channels_last)
    assert ng.batch_norm_backward(x, x, training=True).grad_input.stride() == x.stride()


def test_dlpack_namespaces_that_cannot_take_the_result():
    """What was computed is not lost: it comes back as NumPy."""

    class Modern(Speaker):
        def __array_namespace__(self):
            return np

    case = make("train", (3, 4, 5), dtype="bfloat16")
    expected = bits(case.call())
    result = ng.batch_norm_backward(
        **{name: Modern(value) for name, value in case.tensors.items()}, training=True
    )
    assert isinstance(result.grad_input, np.ndarray)
    assert bits(result) == expected
