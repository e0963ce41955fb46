"""Calls that a known signature does not make safe for C++: PyTorch computes or refuses them."""

from __future__ import annotations

import struct

import pytest

torch = pytest.importorskip("torch")

import normgrad.torch as nt  # noqa: E402 - torch may be absent

F, theirs = nt.functional, torch.nn.functional

CHANNELS = 6


@pytest.fixture(autouse=True)
def known_signature():
    """Calls with the signature of those below have run, so that C++ has their plans."""
    for training in (True, False):
        for _ in range(2):
            F.batch_norm(data(), *statistics(), *parameters(), training)
            F.batch_norm(data(), *statistics(), training=training)


def data():
    generator = torch.Generator().manual_seed(3)
    return torch.randn(4, CHANNELS, 5, generator=generator)


def statistics():
    return torch.zeros(CHANNELS), torch.ones(CHANNELS)


def parameters():
    return torch.ones(CHANNELS), torch.zeros(CHANNELS)


@pytest.fixture
def left(monkeypatch):
    """The calls of PyTorch's batch norm, which computes nothing here."""
    calls = []
    monkeypatch.setattr(theirs, "batch_norm", lambda *arguments: calls.append(arguments))
    return calls


def of_one(call, module):
    try:
        return call(module)
    except Exception as error:
        return type(error), str(error).partition("\n")[0]  # without the stack of C++


def outcome(call):
    """A call's result, or its error, of PyTorch's module and ours."""
    return of_one(call, theirs), of_one(call, F)


@pytest.mark.cpu
@pytest.mark.parametrize("index", range(5))
def test_storages_that_are_too_small(index, left):
    for missing in (0, 1):  # bytes
        tensors = [data(), *statistics(), *parameters()]
        storage = tensors[index].untyped_storage()
        storage.resize_(storage.nbytes() - missing)
        result = F.batch_norm(*tensors, training=True)
        assert isinstance(result, torch.Tensor) == (not left)
        assert len(left) == missing


@pytest.mark.cpu
@pytest.mark.parametrize("index", range(5))
def test_storages_that_are_freed(index):
    def call(module):
        tensors = [data(), *statistics(), *parameters()]
        tensors[index].untyped_storage().resize_(0)
        return module.batch_norm(*tensors, training=True)

    expected, found = outcome(call)
    assert expected[0] is RuntimeError
    assert found == expected


@pytest.mark.cpu
@pytest.mark.parametrize("first", range(4))
@pytest.mark.parametrize("second", [2, 3])
def test_statistics_that_share_memory(first, second, left):
    """With another vector, in whole or in part."""
    if first == second:
        first = 2 if second == 3 else 1
    both = torch.ones(2 * CHANNELS)
    for shift in (0, CHANNELS - 1, CHANNELS):
        vectors = [*parameters(), *statistics()]
        vectors[first], vectors[second] = both[:CHANNELS], both[shift : shift + CHANNELS]
        weight, bias, mean, var = vectors
        before = both.clone()
        result = F.batch_norm(data(), mean, var, weight, bias, True)
        assert (result is None) == torch.equal(both, before) == (shift < CHANNELS)
    assert len(left) == 2


@pytest.mark.cpu
def test_statistics_in_the_inputs_memory(left):
    x = data()
    assert F.batch_norm(x, x.view(-1)[:CHANNELS], torch.ones(CHANNELS), training=True) is None
    assert len(left) == 1
    assert torch.equal(x, data())


def test_negated_views():
    """Their memory holds the values with the other sign."""

    def call(module):
        y = module.batch_norm(torch._neg_view(data()), *statistics(), training=True)
        negated, var = torch._neg_view(torch.zeros(CHANNELS)), torch.ones(CHANNELS)
        return y, module.batch_norm(data(), negated, var, training=True), negated, var

    expected, found = outcome(call)
    assert all(map(torch.equal, found, expected))


def test_strides_dtypes_and_options_are_told_apart():
    x = data()
    wide = torch.zeros(4, CHANNELS, 10)
    wide[..., ::2] = x
    expected = F.layer_norm(x, (5,))
    assert torch.equal(F.layer_norm(wide[..., ::2], (5,)), expected)
    for dtype in (torch.float64, torch.bfloat16, torch.float16):
        assert F.layer_norm(x.to(dtype), (5,)).dtype is dtype
        found = F.layer_norm(x.to(dtype), (5,)).float()
        torch.testing.assert_close(found, expected, atol=0.05, rtol=0.05)
    for eps in (1e-5, 0.5, 1, 1e-5):
        torch.testing.assert_close(
            F.layer_norm(x, (5,), eps=eps), theirs.layer_norm(x, (5,), eps=eps)
        )
    for groups in (1, 2, 3, 6):
        torch.testing.assert_close(F.group_norm(x, groups), theirs.group_norm(x, groups))


def test_tangents_and_modes_are_seen():
    x, moved = data().double(), data().double() ** 2
    F.layer_norm(x, (5,))
    F.layer_norm(x, (5,))
    expected = torch.func.jvp(lambda x: theirs.layer_norm(x, (5,)), (x,), (moved,))[1]
    with torch.autograd.forward_ad.dual_level():
        dual = torch.autograd.forward_ad.make_dual(x, moved)
        found = torch.autograd.forward_ad.unpack_dual(F.layer_norm(dual, (5,))).tangent
    torch.testing.assert_close(found, expected)
    seen = []

    class Mode(torch.utils._python_dispatch.TorchDispatchMode):
        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            seen.append(str(function))
            return function(*args, **kwargs or {})

    with Mode():
        F.layer_norm(x, (5,))
    assert "aten.native_layer_norm.default" in seen


@pytest.mark.parametrize("training", [True, False])
def test_running_statistics_with_gradients(training):
    """They have no derivatives, as PyTorch says."""

    def call(module):
        mean, var = (value.requires_grad_() for value in statistics())
        return module.batch_norm(data(), mean, var, training=training)

    expected, found = outcome(call)
    assert "not differentiable with respect to argument" in expected[1]
    assert found == expected


#: The number that is not a number whose bits are all set, as are those of the word for None.
ALL_BITS = struct.unpack("d", b"\xff" * 8)[0]


def test_epsilon_that_is_no_number():
    for _ in range(2):
        F.rms_norm(data(), (5,))
    assert F.rms_norm(data(), (5,), eps=ALL_BITS).isnan().all()


@pytest.mark.parametrize(
    "call",
    [
        lambda module: module.group_norm(data(), 2**70),
        lambda module: module.layer_norm(data(), (2**70,)),
        lambda module: module.layer_norm(data(), (5,), eps=10**400),
    ],
)
def test_integers_that_are_too_large(call):
    expected, found = outcome(call)
    assert isinstance(expected[1], str)
    assert found == expected
