"""normgrad's functions on PyTorch's tensors, which C++ computes: values, strides, refusals."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from common import FLOATS, make

import normgrad as ng
from normgrad.plans import calls

torch = pytest.importorskip("torch")
nt = pytest.importorskip("normgrad.torch")

MASKS = tuple(itertools.product((True, False), repeat=3))


def tensor(*shape, dtype=torch.float32, seed=0, grad=True):
    made = torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(dtype)
    return made.requires_grad_(grad)


def to_torch(array):
    """The same values and strides."""
    if array is None:
        return None
    if array.dtype.name == "bfloat16":
        return to_torch(array.view(np.uint16)).view(torch.bfloat16)
    return torch.from_numpy(array)


def strides(value):
    """The strides in elements, of any framework's tensor."""
    if isinstance(value, torch.Tensor):
        return value.stride()
    return tuple(step // value.itemsize for step in value.strides)


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("layout", ["contiguous", "channels_last", "sliced"])
def test_gradients_are_those_of_numpy_s_arrays(dtype, layout):
    """The same bits and strides, whatever the mask, the first time and again."""
    for kind, mask in itertools.product(("train", "eval", "group_norm"), MASKS):
        case = make(kind, (3, 4, 5, 6), dtype=dtype, layout=layout, num_groups=2)
        tensors = {name: to_torch(value) for name, value in case.tensors.items()}
        options = {"num_groups": 2} if kind == "group_norm" else {"training": kind == "train"}
        function = ng.group_norm_backward if kind == "group_norm" else ng.batch_norm_backward
        expected = function(**case.tensors, **options, output_mask=mask)
        for _ in range(2):
            result = function(**tensors, **options, output_mask=mask)
            assert type(result) is type(expected)
            for got, wanted in zip(result, expected, strict=True):
                if wanted is None:
                    assert got is None
                else:
                    assert torch.equal(got, to_torch(wanted))
                    assert strides(got) == strides(wanted)


def test_running_statistics_are_new():
    x, mean, var = tensor(3, 4, 5, grad=False), torch.zeros(4), torch.ones(4)
    for _ in range(2):
        result = ng.batch_norm(x, None, None, mean, var, training=True)
        assert torch.equal(mean, torch.zeros(4))
        assert torch.equal(var, torch.ones(4))
    torch.nn.functional.batch_norm(x, mean, var, training=True)
    torch.testing.assert_close(result[3], mean)
    torch.testing.assert_close(result[4], var)
    # In evaluation there is nothing but the output.
    result = ng.batch_norm(x, None, None, mean, var, training=False)
    assert result[1:] == (None,) * 4


@pytest.fixture
def by_python(monkeypatch):
    """The operators that C++ did not compute."""
    said, inner = [], calls.Arguments
    monkeypatch.setattr(calls, "Arguments", lambda *call: said.append(call) or inner(*call))
    return said


def counts(*tensors):
    return [tensor._version for tensor in tensors]


def in_place(x, ranks, count, mean, var):
    """What two operators make of running statistics that they update, one after the other."""
    both = mean, var
    trained = ng.batch_norm(x, None, None, *both, training=True, out=(None, None, None, *both))
    gathered = ng.batch_norm_gather_stats_with_counts(
        x, *ranks, *both, count, out=(None, None, *both)
    )
    results = [*trained, *gathered]
    assert all(result is each for result, each in zip(results[3:5], both, strict=True))
    return [np.asarray(each).tobytes() for each in results if each is not None]


@pytest.mark.parametrize("absent", [None, "mean", "var"])
def test_running_statistics_are_updated_in_place(by_python, absent):
    """In C++, with the bits of NumPy's arrays; autograd learns of the writes."""
    x = np.random.default_rng(0).standard_normal((3, 4, 5), np.float32)
    old = [None if absent == name else np.full(4, 2, np.float32) for name in ("mean", "var")]
    ranks = [np.stack([each, each]) for each in ng.batch_norm_stats(x)]
    count = np.array([15, 15], np.int32)
    expected = in_place(x, ranks, count, *(each if each is None else each.copy() for each in old))
    tensors = to_torch(x), [*map(to_torch, ranks)], to_torch(count)
    del by_python[:]
    for _ in range(2):
        new = [each if each is None else to_torch(each.copy()) for each in old]
        present = [each for each in new if each is not None]
        before = counts(*present)
        assert in_place(*tensors, *new) == expected
        assert counts(*present) == [count + 2 for count in before]
    assert not by_python


def test_running_statistics_that_are_not_updated_in_place(by_python):
    x, mean, var = tensor(3, 4, 5, grad=False), torch.zeros(4), torch.ones(4)
    # Evaluation writes nothing, so that nothing is counted.
    before = counts(mean, var)
    everything = {"out": (None, None, None, mean, var)}
    ng.batch_norm(x, None, None, mean, var, training=False, **everything)
    assert counts(mean, var) == before
    assert not by_python
    # One of them alone, and others than the old ones.
    other = torch.empty(4)
    for out in ((None, None, None, mean, None), (None, None, None, other, var)):
        result = ng.batch_norm(x, None, None, mean, var, training=True, out=out)
        assert result[3] is out[3]
        assert by_python.pop()
    # Memory that is shared is refused as it is in Python, every time.
    shared = torch.zeros(5)
    for _ in range(2):
        with pytest.raises(ValueError, match=r"^out\[3\] \(new_running_mean\): .*running_var"):
            ng.batch_norm(
                x, None, None, shared[:4], shared[1:], training=True,
                out=(None, None, None, shared[:4], None),
            )  # fmt: skip
        mean, var = shared[:4], shared[1:]
        with pytest.raises(ValueError, match=r"^out\[3\] \(new_running_mean\): "):
            ng.batch_norm(
                x, None, None, mean, var, training=True, out=(None, None, None, mean, var)
            )
    assert torch.equal(shared, torch.zeros(5))


def test_statistics_gathered_are_those_of_the_whole():
    x = tensor(7, 4, 5, dtype=torch.float64, grad=False)
    parts = (x[:2], x[2:], x[:0])
    each = [ng.batch_norm_stats(part, eps=1e-5) for part in parts]
    mean, invstd, new_mean, new_var = ng.batch_norm_gather_stats_with_counts(
        x, torch.stack([m for m, _ in each]), torch.stack([r for _, r in each]),
        torch.zeros(4).double(), None, momentum=0.1, eps=1e-5,
        counts=torch.tensor([10.0, 25.0, 0.0]),
    )  # fmt: skip
    torch.testing.assert_close(mean, x.mean((0, 2)))
    torch.testing.assert_close(invstd, (x.var((0, 2), correction=0) + 1e-5).rsqrt())
    torch.testing.assert_close(new_mean, 0.1 * x.mean((0, 2)))
    assert new_var is None


def test_refusals():
    x = torch.randn(3, 4, 5)
    for _ in range(2):
        with pytest.raises(ValueError, match=r"^weight: shape \(3,\); allowed: \(4,\)"):
            ng.batch_norm_backward(x, x, torch.ones(3), training=True)
        with pytest.raises(TypeError, match=r"^input: dtype int32; allowed: float32"):
            ng.batch_norm_stats(x.int(), eps=1e-5)
        with pytest.raises((TypeError, ValueError), match=r"^input: "):
            ng.batch_norm_stats(x.to_sparse(), eps=1e-5)


def test_large_results_are_no_views():
    """They may lie in memory that is kept; autograd lets them be changed in place."""
    x = torch.randn(8, 32, 64, 64, requires_grad=True)
    output = nt.functional.batch_norm(x, *[None] * 4, True, 0.1, 1e-5)
    output.relu_().sum().backward()
    for result in (ng.batch_norm(x.detach(), training=True)[0], output, x.grad):
        assert not result._is_view()


def test_pytorch_has_no_operators_of_normgrad_s():
    assert not [s for s in torch._C._jit_get_all_schemas() if s.name.startswith("normgrad")]


def test_the_module_shows_public_names_alone():
    assert dir(nt) == sorted(nt.__all__)
