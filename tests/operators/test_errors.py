"""Wrong arguments: an exception that says which, what it was, what is allowed; nothing written."""

from __future__ import annotations

import math
import re
from fractions import Fraction

import ml_dtypes
import numpy as np
import pytest
from common import bits, check, make, run

import normgrad as ng
from normgrad.operators.by_name import PLANNED
from normgrad.testing import FORWARD, GRADIENTS
from normgrad.testing.tensors import operator_of

F = np.float32


def expect(kind: str, exception: type[Exception], message: str, **changes):
    """A call with some arguments changed raises, and leaves every given output alone."""
    case = make(kind, (3, 4, 5), num_groups=2)
    positional = {name: changes.pop(name) for name in list(changes) if name in case.tensors}
    case.tensors |= positional
    case.options |= changes
    outputs = {"elemt": 1, "reduce": 4}.get(kind, 3)
    guards = [np.full(4, 7, F) for _ in range(outputs)]
    if kind != "reduce":
        guards[0] = np.full((3, 4, 5), 7, F)
    if "out" not in case.options:
        case.options["out"] = guards[0] if kind == "elemt" else tuple(guards)
    with pytest.raises(exception, match=f"^{re.escape(message)}$"):
        case.call()
    assert all((guard == 7).all() for guard in guards)


def takes_eps(kind: str) -> bool:
    return "eps" in PLANNED[operator_of(kind)].options


ALLOWED = "float32, float16, bfloat16, float64"
KINDS = "NumPy arrays, PyTorch tensors and objects that speak DLPack"


@pytest.mark.parametrize(
    "dtype",
    ["int32", "uint8", "bool", "complex64", ml_dtypes.float8_e4m3fn, "longdouble", ">f4", "S4"],
)
def test_dtypes(dtype):
    dtype = np.dtype(dtype)
    name = dtype.str if dtype.str == ">f4" else str(dtype)
    zeros = np.zeros((3, 4, 5), dtype)
    message = f"dtype {name}; allowed: {ALLOWED}"
    expect("train", TypeError, f"input: {message}", input=zeros)
    expect("elemt", TypeError, f"grad_out: {message}", grad_out=zeros)
    expect("reduce", TypeError, f"mean: {message}", mean=np.zeros(4, dtype))
    expect("group_norm", TypeError, f"weight: {message}", weight=np.zeros(4, dtype))
    expect("train", TypeError, f"out[0] (grad_input): {message}", out=(zeros, None, None))
    expect("elemt", TypeError, f"out (grad_input): {message}", out=zeros)


def test_count_dtype():
    for dtype in (np.float64, ml_dtypes.bfloat16, np.uint8):
        expect(
            "elemt",
            TypeError,
            f"count: dtype {np.dtype(dtype)}; allowed: int32, int64, float16, float32",
            count=np.ones(2, dtype),
        )


def test_shapes():
    channels = "allowed: (4,), the channels of input"
    expect(
        "train", ValueError, "grad_out: shape (3, 4, 6); allowed: (3, 4, 5), the shape of input",
        grad_out=np.zeros((3, 4, 6), F),
    )  # fmt: skip
    for name in ("weight", "running_mean", "running_var", "save_mean", "save_invstd"):
        for length in (0, 3, 5):
            expect(
                "train", ValueError, f"{name}: shape ({length},); {channels}",
                **{name: np.zeros(length, F)},
            )  # fmt: skip
    expect("train", ValueError, f"weight: shape (1, 4); {channels}", weight=np.zeros((1, 4), F))
    expect("eval", ValueError, f"save_mean: shape (3,); {channels}", save_mean=np.zeros(3, F))
    expect("eval", ValueError, f"running_var: shape (0,); {channels}", running_var=np.zeros(0, F))
    expect("reduce", ValueError, f"invstd: shape (); {channels}", invstd=np.zeros((), F))
    expect("elemt", ValueError, f"sum_dy: shape (5,); {channels}", sum_dy=np.zeros(5, F))
    expect(
        "group_norm", ValueError, "rstd: shape (6,); allowed: (3, 2), samples by groups",
        rstd=np.zeros(6, F),
    )  # fmt: skip
    expect("elemt", ValueError, "count: 9 axes; allowed: at most 8", count=np.zeros((1,) * 9, F))
    expect(
        "train", ValueError, f"out[1] (grad_weight): shape (3,); {channels}",
        out=(None, np.zeros(3, F), None),
    )  # fmt: skip


def far(shape, step):
    """A view whose first axis steps over so many bytes."""
    return np.lib.stride_tricks.as_strided(np.ones(1, F), shape, (step, *(4 for _ in shape[1:])))


REACH = f"reaches over {2**62} bytes or more; allowed: what an address can reach"


def test_strides_beyond_all_addresses():
    view, strides = far((3, 4, 5), 2**61), (2**59, 1, 1)
    message = f"shape (3, 4, 5) with strides {strides}: {REACH}"
    for kind in ("train", "eval", "reduce", "elemt", "group_norm"):
        for name in ("grad_out", "input"):
            expect(kind, ValueError, f"{name}: {message}", **{name: view})
    expect("train", ValueError, f"out[0] (grad_input): {message}", out=(view, None, None))
    expect("elemt", ValueError, f"out (grad_input): {message}", out=view)
    message = f"shape (4,) with strides ({2**60},): {REACH}"
    expect("train", ValueError, f"weight: {message}", weight=far((4,), 2**62))
    expect("group_norm", ValueError, f"weight: {message}", weight=far((4,), 2**62))


def test_ranks():
    for rank in (0, 1, 9):
        shape = (1,) * rank
        zeros = np.zeros(shape, F)
        expect(
            "train", ValueError, f"input: {rank} axes, shape {shape}; allowed: 2 to 8",
            grad_out=zeros, input=zeros,
        )  # fmt: skip


def test_axes_and_groups():
    for axis in (3, -4, 2**70):
        expect(
            "train", ValueError, f"channel_axis: {axis}; allowed: -3 to 2 for 3 axes",
            channel_axis=axis,
        )  # fmt: skip
    batch = "allowed: any axis but the first, which is the batch"
    for axis in (0, -3):
        expect("group_norm", ValueError, f"channel_axis: {axis}; {batch}", channel_axis=axis)
    for groups in (0, -1, 3, 8):
        expect(
            "group_norm", ValueError,
            f"num_groups: {groups}; allowed: a positive divisor of the 4 channels",
            num_groups=groups,
        )  # fmt: skip
    expect("group_norm", TypeError, "num_groups: 2.0; allowed: an integer", num_groups=2.0)
    expect("group_norm", TypeError, "num_groups: True; allowed: an integer", num_groups=True)
    expect("train", TypeError, "channel_axis: None; allowed: an integer", channel_axis=None)


def test_scalars():
    expect("train", TypeError, "training: 1; allowed: True or False", training=1)
    expect("train", TypeError, "training: None; allowed: True or False", training=None)
    expect("train", TypeError, "eps: '1e-5'; allowed: a real number", eps="1e-5")
    expect("train", TypeError, "eps: None; allowed: a real number", eps=None)
    expect("train", TypeError, "eps: 1j; allowed: a real number", eps=1j)
    expect(
        "train", ValueError, "eps: too large; allowed: a number that float64 can hold",
        eps=10**400,
    )  # fmt: skip
    expect("reduce", TypeError, "weight_g: 'no'; allowed: True or False", weight_g="no")
    expect("train", TypeError, "output_mask: True; allowed: 3 booleans", output_mask=True)
    expect("train", TypeError, "output_mask: 'yes'; allowed: 3 booleans", output_mask="yes")
    expect(
        "train", TypeError, "output_mask[1]: 1; allowed: True or False", output_mask=(True, 1, True)
    )
    expect(
        "group_norm", ValueError,
        "output_mask: 2 entries; allowed: 3, for grad_input, grad_weight, grad_bias",
        output_mask=[True, False],
    )  # fmt: skip


def test_long_values_are_shortened():
    """In the middle, so that what was wrong and what is allowed can still be read."""
    case = make("train", (3, 4, 5))
    for name, value in (("eps", "x" * 50_000), ("training", [0] * 50_000)):
        case.options = {"training": True, name: value}
        with pytest.raises(TypeError) as caught:
            case.call()
        text = str(caught.value)
        assert text.startswith(f"{name}: {value!r}"[:90])
        assert re.search("….*; allowed: (a real number|True or False)$", text)
        assert len(text) < 300


@pytest.mark.parametrize("value", [-1, -1e-5, -math.inf, math.nan, F(-1), Fraction(-1, 3)])
@pytest.mark.parametrize("kind", [kind for kind in (*GRADIENTS, *FORWARD) if takes_eps(kind)])
def test_eps_is_no_negative_number_and_no_nan(kind, value):
    """In functions and plans of all norms, also if training has no use for it."""
    case = make(kind, (3, 4, 5), num_groups=2)
    case.options["eps"] = value
    message = f"^{re.escape(f'eps: {value!r}; allowed: 0 or more')}$"
    with pytest.raises(ValueError, match=message):
        case.call()
    with pytest.raises(ValueError, match=message):
        ng.plan(case.name, **case.arrays, **case.options)


@pytest.mark.parametrize("kind", [kind for kind in (*GRADIENTS, *FORWARD) if takes_eps(kind)])
def test_eps_is_zero_or_infinite(kind):
    for value in (0, -0.0, math.inf, np.int64(1), F(1e-5), Fraction(1, 3)):
        case = make(kind, (3, 4, 5), num_groups=2)
        case.options["eps"] = value
        called, planned = case.call(), ng.plan(case.name, **case.arrays, **case.options)
        assert bits(called) == bits(planned.run(**case.arrays))
        if not math.isinf(value):
            check(case, called)


class Pretender:
    """Says it speaks DLPack."""

    def __init__(self, capsule=None, device=(1, 0)):
        self.capsule = capsule
        self.device = device

    def __dlpack_device__(self):
        return self.device

    def __dlpack__(self, **_):
        if isinstance(self.capsule, Exception):
            raise self.capsule
        return self.capsule


class LooksLikeAnArray:
    shape, dtype, strides = (3, 4, 5), np.dtype(F), (80, 20, 4)
    ctypes = None


def test_what_is_no_tensor():
    for thing in ([[1.0]], 3.0, np.float32(3), "x", object(), LooksLikeAnArray(), np.ndarray):
        name = "an object" if type(thing) is object else f"a {type(thing).__name__}"
        expect("train", TypeError, f"input: {name}; allowed: {KINDS}", input=thing)
        expect("train", TypeError, f"weight: {name}; allowed: {KINDS}", weight=thing)
        expect("train", TypeError, f"out[0] (grad_input): {name}; allowed: {KINDS}",
               out=(thing, None, None))  # fmt: skip
    expect("train", TypeError, "input: None; allowed: a tensor", input=None)
    expect("train", TypeError, "grad_out: None; allowed: a tensor", grad_out=None)
    expect("reduce", TypeError, "invstd: None; allowed: a tensor", invstd=None)
    expect(
        "train", TypeError, f"input: a masked array; allowed: {KINDS}, without a mask",
        input=np.ma.masked_array(np.zeros((3, 4, 5), F)),
    )  # fmt: skip


def test_pretenders():
    good = np.zeros((3, 4, 5), F)
    failures = [
        (Pretender(RuntimeError("no")), "no"),
        (Pretender(42), "__dlpack__() returned an int, not a capsule"),
        (Pretender(), "__dlpack__() returned a NoneType, not a capsule"),
    ]
    for pretender, reason in failures:
        with pytest.raises(TypeError) as caught:
            ng.batch_norm_backward(pretender, pretender, training=True)
        assert str(caught.value) == (
            f"grad_out: Pretender cannot be read through DLPack ({reason}); allowed: {KINDS}"
        )
    with pytest.raises(TypeError, match=r"^grad_out: Pretender\.__dlpack_device__\(\) failed"):
        ng.batch_norm_backward(Pretender(device="cpu"), good, training=True)
    for device, shown in (((8, 0), "metal:0"), ((7, 2), "vulkan:2")):
        with pytest.raises(
            ValueError, match=f"^grad_out: on device {shown}; allowed: cpu, or cuda where Triton is"
        ):
            ng.batch_norm_backward(Pretender(device=device), good, training=True)
    speaker = Pretender(good.__dlpack__())
    with pytest.raises(TypeError, match=r"^input: a NumPy array among DLPack producers; allowed: "):
        ng.batch_norm_backward(speaker, good, training=True)


def test_out():
    array = np.zeros((3, 4, 5), F)
    entries = "allowed: a tuple of 3 tensors or Nones"
    expect("train", TypeError, f"out: a ndarray; {entries}", out=array)
    expect("train", ValueError, f"out: 2 entries; {entries}", out=(array, None))
    expect("reduce", ValueError, "out: 3 entries; allowed: a tuple of 4 tensors or Nones",
           out=(None,) * 3)  # fmt: skip
    frozen = np.zeros((3, 4, 5), F)
    frozen.flags.writeable = False
    read_only = "a read-only array; allowed: one that can be written"
    expect("train", ValueError, f"out[0] (grad_input): {read_only}", out=(frozen, None, None))
    expect("elemt", ValueError, f"out (grad_input): {read_only}", out=frozen)
    bias = np.zeros(4, F)
    bias.flags.writeable = False
    expect("train", ValueError, f"out[2] (grad_bias): {read_only}", out=(None, None, bias))
    twice = np.broadcast_to(np.zeros((3, 4, 1), F), (3, 4, 5))
    expect(
        "train", ValueError,
        "out[0] (grad_input): shape (3, 4, 5) with strides (4, 1, 0) names some elements twice; "
        "allowed: one place in memory for each",
        out=(twice, None, None),
    )  # fmt: skip
    odd = np.zeros((3, 4, 5), [("a", "i1"), ("b", F)])["b"]
    expect(
        "train", ValueError,
        f"out[0] (grad_input): strides {odd.strides} bytes; allowed: multiples of the item size, 4",
        out=(odd, None, None),
    )  # fmt: skip


def test_overlapping_outputs():
    def refuse(message, **changes):
        kind = changes.pop("kind", "train")
        expect(kind, ValueError, message, **changes)

    own = "allowed: memory of its own"
    whole = f"{own}, or all of grad_out or input with the same strides and dtype"
    base = np.zeros(200, F)
    x = base[:60].reshape(3, 4, 5)
    refuse(f"out[0] (grad_input): shares memory with input; {whole}", input=x,
           out=(base[1:61].reshape(3, 4, 5), None, None))  # fmt: skip
    refuse(f"out (grad_input): shares memory with input; {whole}", kind="elemt", input=x,
           out=x[::-1])  # fmt: skip
    refuse(f"out[0] (grad_input): shares memory with input; {whole}", input=x,
           out=(x.view(np.float16)[..., :5], None, None))  # fmt: skip
    weight = base[100:104]
    refuse(f"out[1] (grad_weight): shares memory with weight; {own}", weight=weight,
           out=(None, weight, None))  # fmt: skip
    refuse(f"out[2] (grad_bias): shares memory with input; {own}", input=x,
           out=(None, None, x[0, :, 0]))  # fmt: skip
    refuse(f"out[2] (grad_bias): shares memory with out[1] (grad_weight); {own}",
           out=(None, base[120:124], base[121:125]))  # fmt: skip
    # An argument that takes no part in the arithmetic is an argument all the same.
    refuse(f"out[2] (grad_bias): shares memory with running_mean; {own}", running_mean=weight,
           out=(None, None, weight))  # fmt: skip


def test_interleaved_outputs_are_legal():
    case = make("train", (3, 4, 5))
    both = np.zeros((3, 4, 10), F)
    x, dx = both[..., ::2], both[..., 1::2]
    x[...] = case.tensors["input"]
    case.tensors["input"] = x
    expected = bits(run(case))
    assert bits(case.call(out=(dx, None, None))) == expected


def test_unaligned_inputs():
    """Memory at an odd address is read, and written, as it is."""
    case = make("train", (3, 4, 5))
    expected = bits(case.call())
    raw = np.zeros(3 * 4 * 5 * 4 + 1, np.uint8)
    x = raw[1:].view(F).reshape(3, 4, 5)
    assert not x.flags.aligned
    x[...] = case.tensors["input"]
    case.tensors["input"] = x
    assert bits(case.call()) == expected
    assert bits(case.call(out=(x, None, None))) == expected


def test_fields_of_records():
    """Strides that are no multiple of the item: read, but not written."""
    case = make("train", (3, 4, 5))
    expected = bits(case.call())
    record = np.zeros((3, 4, 5), [("a", F), ("b", "i2")])
    record["a"] = case.tensors["input"]
    case.tensors["input"] = record["a"]
    assert bits(run(case)) == expected
    # An axis of one element has no stride to speak of.
    one = np.lib.stride_tricks.as_strided(np.zeros((1, 4, 5), F), (1, 4, 5), (6, 20, 4))
    ng.batch_norm_backward(one, one, training=True, out=(one, None, None))


class Overriding(np.ndarray):
    """A subclass that says something else than its memory."""

    @property
    def shape(self):
        return (10**6, 4, 5)

    @property
    def strides(self):
        return (80, 20, 4)


def test_what_a_subclass_says_does_not_count():
    case = make("train", (3, 4, 5))
    expected = bits(case.call())
    case.tensors["input"] = case.tensors["input"].view(Overriding)
    assert case.tensors["input"].shape == (10**6, 4, 5)
    assert bits(case.call()) == expected


class Liar(Pretender):
    """A DLPack producer that edits what its capsule says."""

    def __init__(self, **lies):
        super().__init__()
        self.array = np.zeros((3, 4, 5), F)
        self.lies = lies

    def __dlpack__(self, **_):
        from normgrad.tensors import dlpack

        capsule = self.array.__dlpack__()
        tensor, _ = dlpack._tensor_in(capsule)
        for name, value in self.lies.items():
            if name == "size":
                tensor.shape[1] = value
            else:
                setattr(tensor, name, value)
        return capsule


@pytest.mark.parametrize(
    ("lies", "reason"),
    [
        ({"shape": None}, "it says it has 3 axes"),
        ({"ndim": 10**9}, "it says it has 1000000000 axes"),
        ({"ndim": 65}, "it says it has 65 axes"),
        ({"ndim": -1}, "it says it has -1 axes"),
        ({"size": -4}, "it says its shape is (3, -4, 5)"),
        ({"data": None}, "it says its data are at address 0"),
        ({"data": 0, "byte_offset": 2**64 - 8}, f"it says its data are at address {2**64 - 8}"),
    ],
)
def test_producers_that_lie(lies, reason):
    with pytest.raises(TypeError) as caught:
        ng.batch_norm_backward(Liar(**lies), Liar(), training=True)
    assert str(caught.value) == (
        f"grad_out: Liar cannot be read through DLPack ({reason}); allowed: {KINDS}"
    )


def test_scalars_out_of_range():
    huge = "eps: too large; allowed: a number that float64 can hold"
    expect("train", ValueError, huge, eps=10**400)
    for mask in (np.array(True), 3.0):
        expect("train", TypeError, f"output_mask: {mask!r}; allowed: 3 booleans", output_mask=mask)
    expect("train", TypeError, "input: None; allowed: a tensor", input=None)
    with pytest.raises(TypeError, match=r"^grad_out: None; allowed: a tensor$"):
        ng.batch_norm_backward(None, None, training=True)


def test_read_only_inputs_are_fine():
    case = make("train", (3, 4, 5))
    expected = case.call()
    for value in case.tensors.values():
        value.flags.writeable = False
    np.testing.assert_array_equal(case.call().grad_input, expected.grad_input)
    # ... but not as an output.
    with pytest.raises(ValueError, match=r"^out\[0\] \(grad_input\): a read-only array"):
        case.call(out=(case.tensors["input"], None, None))
