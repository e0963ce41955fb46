"""Derivatives of every order, by every way that PyTorch has to take them."""

from __future__ import annotations

import pytest
from support import sampled

torch = pytest.importorskip("torch")
nt = pytest.importorskip("normgrad.torch")
ops = nt.ops
func = torch.func
gradcheck, gradgradcheck = torch.autograd.gradcheck, torch.autograd.gradgradcheck

EPS = 0.1
GENERATOR = torch.Generator().manual_seed(0)


def normal(*shape, dtype=torch.float64):
    return torch.randn(*shape, generator=GENERATOR, dtype=dtype)


RUNNING_MEAN, RUNNING_VAR = normal(4), normal(4).square() + 0.5
X, W, B = normal(3, 4, 2, 3), normal(4), normal(4)


def train(x, w, b):
    return ops.native_batch_norm(x, w, b, RUNNING_MEAN, RUNNING_VAR, True, 0.1, EPS)[0]


def evaluate(x, w, b):
    return ops.native_batch_norm(x, w, b, RUNNING_MEAN, RUNNING_VAR, False, 0.1, EPS)[0]


def without_running(x, w, b):
    return ops.native_batch_norm(x, w, b, None, None, False, 0.1, EPS)[0]


def group(x, w, b):
    return ops.native_group_norm(x, w, b, 3, 4, 6, 2, EPS)[0]


def plain_train(x, w, b):
    centred = x - x.mean((0, 2, 3), keepdim=True)
    r = (centred.square().mean((0, 2, 3), keepdim=True) + EPS).rsqrt()
    return centred * r * w.view(4, 1, 1) + b.view(4, 1, 1)


def plain_evaluate(x, w, b):
    r = (RUNNING_VAR + EPS).rsqrt().view(4, 1, 1)
    return (x - RUNNING_MEAN.view(4, 1, 1)) * r * w.view(4, 1, 1) + b.view(4, 1, 1)


def plain_group(x, w, b):
    centred = (groups := x.reshape(3, 2, -1)) - groups.mean(-1, keepdim=True)
    r = (centred.square().mean(-1, keepdim=True) + EPS).rsqrt()
    return (centred * r).reshape(x.shape) * w.view(4, 1, 1) + b.view(4, 1, 1)


NORMS = {"train": train, "evaluate": evaluate, "group": group}
PLAIN = {"train": plain_train, "evaluate": plain_evaluate, "group": plain_group}


def leaves(*tensors):
    return tuple(None if t is None else t.clone().requires_grad_() for t in tensors)


AFFINE = ("weight and bias", "weight", "bias", "neither")


@pytest.mark.parametrize(
    ("norm", "affine"),
    [
        (norm, affine)
        for norm in (*NORMS.values(), without_running)
        for affine in sampled(AFFINE, 2, norm.__name__)
    ],
)
def test_gradcheck(norm, affine):
    """First and second derivatives, backwards, forwards over backwards, and batched."""
    tensors = leaves(X, W if "weight" in affine else None, B if "bias" in affine else None)
    assert gradcheck(norm, tensors, check_forward_ad=True, check_batched_grad=True)
    assert gradgradcheck(norm, tensors, check_fwd_over_rev=True, check_batched_grad=True)


@pytest.mark.parametrize("norm", NORMS.values())
def test_third_derivatives(norm):
    def gradients(*tensors):
        return torch.autograd.grad(norm(*tensors).pow(3).sum(), tensors, create_graph=True)

    assert gradgradcheck(gradients, leaves(X, W, B))


def mean_without_statistics(dy, x, w):
    """Gradients whose statistics are left to be found."""
    return ops.native_batch_norm_backward(dy, x, w, *[None] * 4, True, EPS, [True] * 3)


def test_gradients_without_statistics():
    assert gradcheck(mean_without_statistics, leaves(normal(3, 4, 2, 3), X, W))


MEAN, INVSTD = normal(4), normal(4).square() + 0.5
COUNT = torch.tensor([18, 36], dtype=torch.int32)
PARTS = {
    "stats": (lambda x: ops.batch_norm_stats(x, EPS), (X,)),
    "elemt": (lambda *t: ops.batch_norm_elemt(*t, EPS), (X, W, B, MEAN, INVSTD)),
    "elemt without weight": (
        lambda x, m, r: ops.batch_norm_elemt(x, None, None, m, r, EPS),
        (X, MEAN, INVSTD),
    ),
    "gather": (
        lambda m, r: ops.batch_norm_gather_stats_with_counts(
            X, m, r, RUNNING_MEAN, RUNNING_VAR, 0.1, EPS, COUNT
        )[:2],
        # No rank's variance, 1/r² - eps, is negative.
        (normal(2, 4), normal(2, 4).square().add(1).rsqrt()),
    ),
    "reduce": (
        lambda *t: ops.batch_norm_backward_reduce(*t, W, True, True, True),
        (normal(3, 4, 2, 3), X, MEAN, INVSTD),
    ),
    "backward elemt": (
        lambda *t: ops.batch_norm_backward_elemt(*t, COUNT),
        (normal(3, 4, 2, 3), X, MEAN, INVSTD, W, normal(4), normal(4)),
    ),
    "backward elemt without weight": (
        lambda dy, x, m, r, s, t: ops.batch_norm_backward_elemt(dy, x, m, r, None, s, t, COUNT),
        (normal(3, 4, 2, 3), X, MEAN, INVSTD, normal(4), normal(4)),
    ),
}


@pytest.mark.parametrize("part", PARTS)
def test_parts_of_synchronised_batch_norm(part):
    function, tensors = PARTS[part]
    assert gradcheck(function, leaves(*tensors), check_batched_grad=True)
    assert gradgradcheck(function, leaves(*tensors), check_batched_grad=True)


def test_parts_make_a_batch_norm():
    """Put together they have batch norm's derivatives, though two ranks see half each."""

    def synchronised(x, w, b):
        halves = (x[:1], x[1:])
        each = [ops.batch_norm_stats(half, EPS) for half in halves]
        mean, invstd, *_ = ops.batch_norm_gather_stats_with_counts(
            x, torch.stack([m for m, _ in each]), torch.stack([r for _, r in each]),
            None, None, 0.1, EPS, torch.tensor([6.0, 12.0]),
        )  # fmt: skip
        return torch.cat([ops.batch_norm_elemt(half, w, b, mean, invstd, EPS) for half in halves])

    for derivative in (func.jacrev, lambda f: func.jacrev(func.jacrev(f))):
        torch.testing.assert_close(
            derivative(lambda x: synchronised(x, W, B).pow(3).sum())(X),
            derivative(lambda x: plain_train(x, W, B).pow(3).sum())(X),
        )


def loss(norm):
    return lambda *tensors: norm(*tensors).pow(3).sum()


TRANSFORMS = {
    "grad": lambda f: func.grad(loss(f), (0, 1, 2))(X, W, B),
    "vjp": lambda f: func.vjp(f, X, W, B)[1](X),
    "jvp": lambda f: func.jvp(f, (X, W, B), (X, W + 1, B)),
    "jacrev": lambda f: func.jacrev(f, (0, 1, 2))(X, W, B),
    "jacfwd": lambda f: func.jacfwd(f, (0, 1, 2))(X, W, B),
    "hessian": lambda f: func.hessian(loss(f), (0, 1, 2))(X, W, B),
    "jacrev of jacrev": lambda f: func.jacrev(func.jacrev(loss(f), (0, 1)), (0, 1))(X, W, B),
    "jacfwd of jacfwd": lambda f: func.jacfwd(func.jacfwd(loss(f)))(X, W, B),
    "third grad": lambda f: func.grad(
        lambda x: func.grad(lambda y: func.grad(loss(f))(y, W, B).pow(2).sum())(x).pow(2).sum()
    )(X),
    "grad of jvp of grad": lambda f: func.grad(
        lambda x: func.jvp(lambda y: func.grad(loss(f))(y, W, B), (x,), (X,))[1].pow(2).sum()
    )(X),
}


@pytest.mark.every_case
@pytest.mark.parametrize("transform", TRANSFORMS)
@pytest.mark.parametrize("norm", NORMS)
def test_transforms(norm, transform):
    """As of the same formulas in plain torch; PyTorch's own batch norm has some of these wrong."""
    ours, theirs = (TRANSFORMS[transform](functions[norm]) for functions in (NORMS, PLAIN))
    torch.testing.assert_close(ours, theirs, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("norm", NORMS)
def test_vmap_of_grad(norm):
    batch, weights = normal(5, 3, 4, 2, 3), normal(4, 5)
    for w, axis in ((W, None), (weights, 1)):
        ours, theirs = (
            func.vmap(func.grad(loss(f), (0, 1, 2)), (0, axis, None))(batch, w, B)
            for f in (NORMS[norm], PLAIN[norm])
        )
        torch.testing.assert_close(ours, theirs)
        # A batch of Hessians' products.
        ours, theirs = (
            func.vmap(func.grad(lambda x, v, g=f: func.grad(loss(g))(x, v, B).pow(2).sum()),
                      (0, axis))(batch, w)
            for f in (NORMS[norm], PLAIN[norm])
        )  # fmt: skip
        torch.testing.assert_close(ours, theirs)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("norm", NORMS)
def test_halves_are_computed_in_float32(norm, dtype):
    """The second derivatives of a half tensor are the float32 ones of its values, rounded once."""
    x, dy, u = (normal(3, 4, 8, 8).to(dtype) for _ in range(3))
    w, b = W.float(), B.float()

    def second(x, dy, u):
        x, dy = x.clone().requires_grad_(), dy.clone().requires_grad_()
        (weight,) = leaves(w)
        if norm == "group":
            output = nt.functional.group_norm(x, 2, weight, b)
        else:
            running = (RUNNING_MEAN.float(), RUNNING_VAR.float())
            output = nt.functional.batch_norm(x, *running, weight, b, norm == "train")
        gx, gw = torch.autograd.grad(output, (x, weight), dy, create_graph=True)
        # Cotangents of both gradients, without rounding in between.
        return torch.autograd.grad((gx, gw), (x, dy, weight), (u, w))

    half = second(x, dy, u)
    full = second(x.float(), dy.float(), u.float())
    unit = {torch.bfloat16: 2**-8, torch.float16: 2**-11}[dtype]
    for got, wanted in zip(half, full, strict=True):
        # One rounding, and what float32 sums in another order differ by.
        allowed = 1.01 * unit * wanted.abs() + 2**-20 * wanted.abs().max()
        if got.dtype == torch.float32:
            allowed = 2**-18 * wanted.abs().max()
        assert ((got.float() - wanted).abs() <= allowed).all()
        assert got.isfinite().all()


def test_modes_of_forward_derivatives():
    """Tangents are differentiable only where gradients are enabled."""
    from torch.autograd import forward_ad

    (x,) = leaves(X)
    with forward_ad.dual_level():
        dual = forward_ad.make_dual(x, X)
        assert forward_ad.unpack_dual(train(dual, W, B)).tangent.requires_grad
        with torch.no_grad():
            output = train(dual, W, B)
            assert not output.requires_grad
            assert not forward_ad.unpack_dual(output).tangent.requires_grad


def test_statistics_are_constants():
    (x,) = leaves(X)
    _, mean, invstd, *new = ops.native_batch_norm(
        x, None, None, RUNNING_MEAN, RUNNING_VAR, True, 0.1, EPS
    )
    assert not any(value.requires_grad for value in (mean, invstd, *new))
    assert not any(value.requires_grad for value in ops.native_group_norm(
        x, None, None, 3, 4, 6, 2, EPS)[1:])  # fmt: skip
