"""The norms of public model families, in look-alikes: convert finds them by what they compute."""

from __future__ import annotations

import abc
import copy
import io
import itertools
import pickle
import sys

import pytest

torch = pytest.importorskip("torch")
nt = pytest.importorskip("normgrad.torch")
from layer_pairs import InFloat64  # noqa: E402 - it imports torch
from torch._subclasses.fake_tensor import FakeTensorMode  # noqa: E402 - torch may be absent

from normgrad.torch.conversion import families  # noqa: E402 - it imports torch

F = torch.nn.functional
SIZE = 6


class Norm(torch.nn.Module):
    """A weight and an eps, as most have them."""

    def __init__(self, size=SIZE, eps=1e-6):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(size))
        self.variance_epsilon = eps

    def _norm(self, x):
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.variance_epsilon)


class LlamaRMSNorm(Norm):
    def forward(self, x):
        return self.weight * self._norm(x.to(torch.float32)).to(x.dtype)


class OlmoRMSNorm(Norm):
    def forward(self, x):
        return (self.weight * self._norm(x.to(torch.float32))).to(x.dtype)


class GemmaRMSNorm(torch.nn.Module):
    def __init__(self, size=SIZE):
        super().__init__()
        self.eps, self.weight = 1e-6, torch.nn.Parameter(torch.zeros(size))

    def forward(self, x):
        y = x.float() * torch.rsqrt(x.float().pow(2).mean(-1, keepdim=True) + self.eps)
        return (y * (1.0 + self.weight.float())).type_as(x)


class T5LayerNorm(Norm):
    def forward(self, x):
        variance = x.to(torch.float32).pow(2).mean(-1, keepdim=True)
        x = x * torch.rsqrt(variance + self.variance_epsilon)
        if self.weight.dtype in (torch.float16, torch.bfloat16):
            x = x.to(self.weight.dtype)
        return self.weight * x


class UnweightedRMSNorm(torch.nn.Module):
    """Like diffusers' RMSNorm without a weight."""

    def __init__(self):
        super().__init__()
        self.eps, self.weight, self.bias = 1e-5, None, None

    def forward(self, hidden):
        variance = hidden.to(torch.float32).pow(2).mean(-1, keepdim=True)
        return (hidden * torch.rsqrt(variance + self.eps)).to(hidden.dtype)


class BiasedRMSNorm(Norm):
    """Like diffusers' RMSNorm with a bias."""

    def __init__(self):
        super().__init__()
        self.bias = torch.nn.Parameter(torch.zeros(SIZE))

    def forward(self, x):
        return self.weight * self._norm(x) + self.bias


class CohereLayerNorm(Norm):
    def forward(self, x):
        y = x.to(torch.float32)
        mean = y.mean(-1, keepdim=True)
        variance = (y - mean).pow(2).mean(-1, keepdim=True)
        y = (y - mean) * torch.rsqrt(variance + self.variance_epsilon)
        return (self.weight.to(torch.float32) * y).to(x.dtype)


class VitDetLayerNorm(torch.nn.Module):
    """Over the channels of an image."""

    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(SIZE))
        self.bias = torch.nn.Parameter(torch.zeros(SIZE))
        self.eps = 1e-6

    def forward(self, x):
        u = x.mean(1, keepdim=True)
        s = (x - u).pow(2).mean(1, keepdim=True)
        x = (x - u) / torch.sqrt(s + self.eps)
        return self.weight[:, None, None] * x + self.bias[:, None, None]


class DetrFrozenBatchNorm2d(torch.nn.Module):
    """The number that it adds stands in its code."""

    def __init__(self):
        super().__init__()
        for name in ("weight", "bias", "running_mean", "running_var"):
            self.register_buffer(name, torch.ones(SIZE))

    def forward(self, x):
        weight, bias, var, mean = (
            each.reshape(1, -1, 1, 1)
            for each in (self.weight, self.bias, self.running_var, self.running_mean)
        )
        scale = weight * (var + 1e-5).rsqrt()
        return x * scale + (bias - mean * scale)


class FrozenBatchNormAct2d(DetrFrozenBatchNorm2d):
    """Like timm's, with a dropout and an activation after it."""

    def __init__(self):
        super().__init__()
        self.drop, self.act = torch.nn.Identity(), torch.nn.SiLU()

    def forward(self, x):
        return self.act(self.drop(super().forward(x)))


class OwnLayerNorm(torch.nn.LayerNorm):
    """A subclass of PyTorch's that computes by itself."""

    def __init__(self):
        super().__init__(SIZE)

    def forward(self, x):
        mean, var = x.mean(-1, keepdim=True), x.var(-1, unbiased=False, keepdim=True)
        return (x - mean) * torch.rsqrt(var + self.eps) * self.weight + self.bias


ROWS = [
    LlamaRMSNorm, OlmoRMSNorm, GemmaRMSNorm, T5LayerNorm, UnweightedRMSNorm, BiasedRMSNorm,
    CohereLayerNorm, OwnLayerNorm,
]  # fmt: skip
IMAGES = [VitDetLayerNorm, DetrFrozenBatchNorm2d, FrozenBatchNormAct2d]
KINDS = [*ROWS, *IMAGES]


def pair(kind, dtype=torch.float64):
    """A layer with vectors that matter, and its converted copy."""
    torch.manual_seed(0)
    theirs = kind().to(dtype)
    with torch.no_grad():
        for vector in (*theirs.parameters(), *theirs.buffers()):
            vector.uniform_(0.5, 2)
    return theirs, nt.convert(copy.deepcopy(theirs))


def data(kind, dtype=torch.float64):
    torch.manual_seed(1)
    shape = (3, SIZE, 4, 5) if kind in IMAGES else (3, 4, SIZE)
    return torch.randn(shape, dtype=torch.float64).to(dtype).requires_grad_()


def step(layer, x):
    y = layer(x)
    wanted = (x, *layer.parameters())
    return y, *torch.autograd.grad((y**3).sum(), wanted)


def computes_with_normgrad(layer, x):
    with torch.profiler.profile() as profile:
        layer(x)
    return any(event.name.startswith("normgrad::") for event in profile.events())


@pytest.mark.parametrize("kind", KINDS)
def test_families_are_found(kind):
    theirs, ours = pair(kind)
    assert isinstance(ours, kind)
    assert isinstance(ours, nt.nn.Ours)
    assert repr(ours) == f"normgrad.{theirs!r}"
    assert nt.converted(ours) == nt.Conversion({f"{__name__}.{kind.__qualname__}": 1}, {})
    x = data(kind)
    assert computes_with_normgrad(ours, x)
    with InFloat64():
        expected = step(theirs, x)
    for one, other in zip(step(ours, x), expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-12, atol=1e-12)
    assert type(nt.revert(ours)) is kind
    assert list(ours.state_dict()) == list(theirs.state_dict())


@pytest.mark.parametrize("kind", KINDS)
def test_dtypes_are_the_class_s(kind):
    for of_weight in (torch.float32, torch.bfloat16, torch.float64):
        theirs, ours = pair(kind, of_weight)
        for of_input in (torch.float32, torch.bfloat16, torch.float64):
            x = data(kind, of_input).detach()
            try:
                expected = theirs(x)
            except RuntimeError:  # some take no mixtures
                continue
            found = ours(x)
            assert found.dtype is expected.dtype, (of_weight, of_input)
            coarse = torch.bfloat16 in (of_weight, of_input)
            bound = 0.05 if coarse else 1e-5
            torch.testing.assert_close(found, expected, rtol=bound, atol=bound)


@pytest.mark.parametrize("kind", KINDS)
def test_families_are_copied_pickled_and_compiled(kind, monkeypatch):
    monkeypatch.setitem(sys.modules, __name__, sys.modules.get(__name__, type(sys)(__name__)))
    monkeypatch.setattr(sys.modules[__name__], kind.__name__, kind, raising=False)
    theirs, ours = pair(kind)
    x = data(kind).detach()
    expected = ours(x)
    file = io.BytesIO()
    torch.compiler.reset()  # one function's code is compiled for all of these
    torch.save(ours, file)
    file.seek(0)
    loaded = torch.load(file, weights_only=False)
    assert type(loaded) is type(ours)
    traced = torch.fx.symbolic_trace(torch.nn.Sequential(ours))
    for other in (loaded, copy.deepcopy(ours), traced):
        torch.testing.assert_close(other(x), expected)
    # A compiled layer computes as its class does, which may narrow float64.
    compiled = torch.compile(ours, backend="aot_eager", fullgraph=True)
    torch.testing.assert_close(compiled(x), theirs(x))


@pytest.mark.parametrize("kind", IMAGES)
@pytest.mark.parametrize("form", [torch.contiguous_format, torch.channels_last])
def test_images_keep_their_layout(kind, form):
    theirs, ours = pair(kind, torch.float32)
    x = data(kind, torch.float32).detach().to(memory_format=form)
    assert ours(x).stride() == theirs(x).stride()
    one = x[0]
    if kind is VitDetLayerNorm:  # which computes something else for other ranks
        assert torch.equal(ours(one), theirs(one))


class EpsOutsideNorm(Norm):
    def forward(self, x):
        return self.weight * x / (x.pow(2).mean(-1, keepdim=True).sqrt() + self.variance_epsilon)


class UnbiasedLayerNorm(CohereLayerNorm):
    def forward(self, x):
        mean, var = x.mean(-1, keepdim=True), x.var(-1, keepdim=True)
        return self.weight * (x - mean) * torch.rsqrt(var + self.variance_epsilon)


class L2Norm(Norm):
    def forward(self, x):
        return self.weight * x * torch.rsqrt(x.pow(2).sum(-1, True) + self.variance_epsilon)


class ConstantRMSNorm(Norm):
    """Whose gradient is another one."""

    def forward(self, x):
        return self.weight * x * (self._norm(x) / x).detach().nan_to_num()


class GatedRMSNorm(Norm):
    def forward(self, x, gate=None):
        return self.weight * self._norm(x if gate is None else x * gate)


class DroppedRMSNorm(Norm):
    """Which computes something else in training."""

    def forward(self, x):
        return self.weight * self._norm(F.dropout(x, 0.5, self.training))


class FailingRMSNorm(Norm):
    def forward(self, x):
        raise RuntimeError("not today")


class ClampedRMSNorm(Norm):
    def forward(self, x):
        return self.weight * self._norm(x.clamp(-1e6, 1e6))


class PeakClampedRMSNorm(Norm):
    """Whose guard changes an input only in single elements."""

    def forward(self, x):
        return self.weight * self._norm(x).clamp(-2.2, 2.2)


class CleanedRMSNorm(Norm):
    def forward(self, x):
        return self.weight * self._norm(torch.nan_to_num(x, posinf=torch.inf, neginf=-torch.inf))


class FiniteRMSNorm(Norm):
    def forward(self, x):
        return self.weight * self._norm(torch.where(x.isinf(), 0, x))


class HalfClampedRMSNorm(Norm):
    """Which guards inputs of float16 only."""

    def forward(self, x):
        narrow = x.clamp(-200, 200) if x.dtype is torch.float16 else x
        return self.weight * self._norm(narrow.float()).to(x.dtype)


class FoldedLayerNorm(VitDetLayerNorm):
    """Which is folded into the next layer for evaluation."""

    def forward(self, x):
        return super().forward(x) if self.training else x


class FoldedForTrainingRMSNorm(Norm):
    def forward(self, x):
        return x if self.training and x.dim() == 3 else self.weight * self._norm(x)


class InPlaceLayerNorm(Norm):
    """Which changes its caller's tensor."""

    def forward(self, x):
        return self.weight * self._norm(x.sub_(x.mean(-1, keepdim=True)))


class AutocastRMSNorm(Norm):
    """Like timm's fast norms."""

    def forward(self, x):
        y = self.weight * self._norm(x)
        return y.bfloat16() if torch.is_autocast_enabled("cpu") else y


class NoGradRMSNorm(Norm):
    def forward(self, x):
        return self.weight * self._norm(x) * (1 if torch.is_grad_enabled() else 2)


class HookingRMSNorm(Norm):
    def forward(self, x):
        self.register_forward_hook(lambda *_: None)
        return self.weight * self._norm(x)


@pytest.mark.every_case
@pytest.mark.parametrize(
    "kind",
    [
        EpsOutsideNorm, UnbiasedLayerNorm, L2Norm, ConstantRMSNorm, GatedRMSNorm, DroppedRMSNorm,
        FailingRMSNorm, ClampedRMSNorm, PeakClampedRMSNorm, CleanedRMSNorm, FiniteRMSNorm,
        HalfClampedRMSNorm, FoldedLayerNorm, FoldedForTrainingRMSNorm, InPlaceLayerNorm,
        AutocastRMSNorm, NoGradRMSNorm, HookingRMSNorm,
    ],
)  # fmt: skip
def test_other_formulas_are_left(kind):
    with pytest.warns(UserWarning, match=f"{kind.__name__}: no formula of normgrad's computes it"):
        assert type(nt.convert(kind())) is kind


FLAG, SEEN = False, []


def doubled_if_flagged(x):
    return x * 2 if FLAG else x


class GlobalRMSNorm(Norm):
    def forward(self, x):
        return self.weight * self._norm(x) * (2 if FLAG else 1)


class HelpedRMSNorm(Norm):
    def forward(self, x):
        return self.weight * doubled_if_flagged(self._norm(x))


class ClassAttributeRMSNorm(Norm):
    flag = False

    def forward(self, x):
        return self.weight * self._norm(x) * (2 if self.flag else 1)


class MethodRMSNorm(ClassAttributeRMSNorm):
    """Which reads the attribute in a property, in a function inside it."""

    @property
    def factor(self):
        return sum(2 if self.flag else 1 for _ in range(1))

    def forward(self, x):
        return self.weight * self._norm(x) * self.factor


def closing():
    flag = False

    class ClosureRMSNorm(Norm):
        def forward(self, x):
            return self.weight * self._norm(x) * (2 if flag else 1)

        def flip(self):
            nonlocal flag
            flag = not flag

    return ClosureRMSNorm


class SettingRMSNorm(Norm):
    last = None

    def forward(self, x):
        self.last = self._norm(x)
        return self.weight * self.last


class PrintingRMSNorm(Norm):
    def forward(self, x):
        print("called")
        return self.weight * self._norm(x)


class RecordingRMSNorm(Norm):
    def __init__(self):
        super().__init__()
        self.seen = SEEN

    def forward(self, x):
        self.seen.append(x)
        return self.weight * self._norm(x)


class GlobalRecordingRMSNorm(Norm):
    def forward(self, x):
        SEEN.append(x)
        return self.weight * self._norm(x)


class NameRMSNorm(Norm):
    def forward(self, x):
        return getattr(self, "wei" + "ght") * self._norm(x)


@pytest.mark.every_case
@pytest.mark.parametrize(
    ("kind", "reason"),
    [
        (GlobalRMSNorm, "reads the global FLAG, which may change"),
        (HelpedRMSNorm, "reads the global FLAG, which may change"),
        (ClassAttributeRMSNorm, "reads the class attribute flag, which may change"),
        (MethodRMSNorm, "reads the class attribute flag, which may change"),
        (closing(), "reads the variable flag, which may change"),
        (SettingRMSNorm, "sets the attribute last"),
        (PrintingRMSNorm, "calls print"),
        (RecordingRMSNorm, "reads the attribute seen, a list, which may change"),
        (GlobalRecordingRMSNorm, "reads the global SEEN, which may change"),
        (NameRMSNorm, "calls getattr"),
    ],
)
def test_code_that_trials_cannot_judge_is_left_and_never_called(kind, reason, capsys):
    with pytest.warns(UserWarning, match=f"{kind.__name__}: its forward {reason}; see normgrad"):
        assert type(nt.convert(kind())) is kind
    assert not SEEN
    assert not capsys.readouterr().out


def test_attributes_hide_those_of_the_class():
    class Hiding(ClassAttributeRMSNorm):
        def __init__(self):
            super().__init__()
            self.flag = False

    theirs, ours = pair(Hiding)
    x = data(Hiding)
    assert computes_with_normgrad(ours, x)
    for layer in (theirs, ours):
        layer.flag = True
    torch.testing.assert_close(ours(x), theirs(x))  # as it is now
    del ours.flag, theirs.flag
    torch.testing.assert_close(ours(x), theirs(x))


def test_modules_that_are_no_norms_are_never_called():
    called = []

    class Record(torch.nn.Module):
        def forward(self, x):
            called.append(x)
            return x

    class CallingNorm(torch.nn.Module):
        """Which PyTorch's function computes."""

        def forward(self, x):
            called.append(x)
            return F.layer_norm(x, x.shape[-1:])

    class Plain(torch.nn.Module):
        def forward(self, x):
            raise AssertionError

    model = nt.convert(torch.nn.Sequential(torch.nn.LayerNorm(4), Record(), CallingNorm(), Plain()))
    assert not called
    assert [isinstance(layer, nt.nn.Ours) for layer in model] == [True, False, True, False]


class SqueezeBertLayerNorm(torch.nn.LayerNorm):
    def forward(self, x):
        return torch.nn.LayerNorm.forward(self, x.permute(0, 2, 1)).permute(0, 2, 1)


class AbstractBatchNorm(torch.nn.BatchNorm1d, metaclass=abc.ABCMeta):
    def forward(self, x):
        return super().forward(x) + 1


@pytest.mark.parametrize(
    "make", [LlamaRMSNorm, lambda: SqueezeBertLayerNorm(6), lambda: AbstractBatchNorm(4)]
)
def test_classes_of_converted_layers_are_pickled(make, monkeypatch):
    theirs = make()
    ours = nt.convert(copy.deepcopy(theirs))
    kind, stock = type(ours), type(theirs)
    monkeypatch.setitem(sys.modules, __name__, sys.modules.get(__name__, type(sys)(__name__)))
    monkeypatch.setattr(sys.modules[__name__], stock.__name__, stock, raising=False)
    for protocol in range(pickle.HIGHEST_PROTOCOL + 1):
        assert pickle.loads(pickle.dumps(kind, protocol)) is kind
        assert type(pickle.loads(pickle.dumps(ours, protocol))) is kind
    x = torch.randn(2, 4, 6) if stock is LlamaRMSNorm else torch.randn(2, 6, 4).movedim(1, -1)
    x = x.movedim(-1, 1) if stock is SqueezeBertLayerNorm else x
    torch.testing.assert_close(ours(x), theirs(x))
    inherited = type("Inherited", (kind,), {"__module__": __name__})
    monkeypatch.setattr(sys.modules[__name__], "Inherited", inherited, raising=False)
    assert pickle.loads(pickle.dumps(inherited)) is inherited


def test_layers_of_a_class_may_differ():
    class Choosing(torch.nn.Module):
        def __init__(self, unbiased):
            super().__init__()
            self.weight, self.eps = torch.nn.Parameter(torch.ones(SIZE)), 1e-6
            self.unbiased = unbiased

        def forward(self, x):
            var = x.var(-1, unbiased=self.unbiased, keepdim=True)
            return (x - x.mean(-1, keepdim=True)) * torch.rsqrt(var + self.eps) * self.weight

    layers = nt.convert(torch.nn.ModuleList(map(Choosing, (False, True))))
    assert [isinstance(layer, nt.nn.Ours) for layer in layers] == [True, False]


def test_nothing_changes_by_trying():
    layer, called = LlamaRMSNorm(), []
    dropped = DroppedRMSNorm()
    layer.register_forward_hook(lambda *_: called.append(1))
    torch.manual_seed(3)
    state, seed = copy.deepcopy(layer.state_dict()), torch.get_rng_state()
    with torch.no_grad(), torch.autocast("cpu"):
        ours = nt.convert(layer)
        with pytest.warns(UserWarning, match="DroppedRMSNorm"):
            nt.convert(dropped)
    assert isinstance(ours, nt.nn.Ours)
    assert not called
    assert torch.equal(torch.get_rng_state(), seed)
    assert torch.equal(layer.weight, state["weight"])
    assert layer.weight.grad is None


def test_a_class_for_images_is_tried_with_images_alone(monkeypatch):
    """Its vectors, of (C, 1, 1), would broadcast an input of (N, C) to (C, N, C)."""

    class Untried(VitDetLayerNorm):
        """A class of which no layer is known."""

    tried, agrees = [], families._agrees_once
    record = lambda copy, x, *more: tried.append(x) or agrees(copy, x, *more)  # noqa: E731
    monkeypatch.setattr(families, "_agrees_once", record)
    assert isinstance(nt.convert(Untried()), nt.nn.Ours)
    assert {x.dim() for x in tried} == {4}
    assert max(x.numel() for x in tried) == 8 * SIZE


class Refusing(torch.overrides.TorchFunctionMode):
    def __torch_function__(self, function, types, args=(), kwargs=None):
        if function.__name__ != "__get__":
            raise RuntimeError("not in this mode")
        return function(*args, **(kwargs or {}))


@pytest.mark.parametrize("mode", [FakeTensorMode, Refusing])
def test_modes_do_not_change_what_is_found(mode):
    class Untried(GemmaRMSNorm):
        """A class of which no layer is known."""

    class Calling(torch.nn.Module):
        """Of which the trials show that it calls PyTorch's function."""

        def forward(self, x):
            return F.layer_norm(x, x.shape[-1:])

    Calling.__name__ = "CallingNorm"
    layers = Untried(), Calling()
    with mode():
        for layer in layers:
            assert isinstance(nt.convert(layer), nt.nn.Ours)
    if mode is FakeTensorMode:
        with mode():
            assert isinstance(nt.convert(Untried()), nt.nn.Ours)
    assert isinstance(nt.convert(Untried()), nt.nn.Ours)


def gradients_after_change(layer, x, change):
    """The gradients of a layer whose input changes in place before the backward pass."""
    leaves = [each for each in (x, *layer.parameters()) if each.requires_grad]
    given = x * 1
    y = layer(given)
    with torch.no_grad():
        given.add_(change)
    weights = torch.linspace(-1, 2, y.numel(), dtype=y.dtype).reshape(y.shape)
    return torch.autograd.grad((y * weights).sum(), leaves)


@pytest.mark.parametrize("of_input", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("kind", KINDS)
def test_inputs_may_change_where_the_class_saves_none(kind, of_input):
    """As in a residual connection in place; the gradients are those of the old input."""
    of_weights = {of_input, torch.float32, torch.bfloat16}
    for of_weight, for_input in itertools.product(of_weights, (True, False)):
        theirs, ours = pair(kind, of_weight)
        x = data(kind, of_input).detach().requires_grad_(for_input)
        if not (for_input or [*theirs.parameters()]):
            continue
        try:
            gradients_after_change(theirs, x, 1)
        except RuntimeError:  # it has saved its input, or takes no mixtures
            continue
        found = gradients_after_change(ours, x, 1)
        for one, other in zip(found, gradients_after_change(ours, x, 0), strict=True):
            assert torch.equal(one, other), (of_weight, for_input)


def test_layers_on_the_meta_device_are_found():
    class Untried(GemmaRMSNorm):
        """A class of which no layer is known."""

    with torch.device("meta"):
        layer = Untried()
        assert isinstance(nt.convert(layer), nt.nn.Ours)


class AdaLayerNorm(torch.nn.Module):
    """Like diffusers': more than a norm, around PyTorch's function."""

    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(SIZE, 2 * SIZE)

    def forward(self, x, embedding):
        scale, shift = self.linear(embedding).chunk(2, -1)
        return F.layer_norm(x, (SIZE,)) * (1 + scale) + shift


class GeometricInstanceNorm(torch.nn.modules.instancenorm._InstanceNorm):
    """Like torch_geometric's: of a base class that PyTorch's layers share."""

    def __init__(self):
        super().__init__(SIZE, affine=True)

    def forward(self, x, batch=None):
        if batch is not None:
            return x - x.mean(0)
        y = F.instance_norm(x.t().unsqueeze(0), None, None, self.weight, self.bias, True)
        return y.squeeze(0).t()


@pytest.mark.parametrize(("kind", "more"), [(AdaLayerNorm, True), (GeometricInstanceNorm, False)])
def test_what_calls_pytorch_s_functions(kind, more):
    theirs, ours = pair(kind)
    x = torch.randn(7, SIZE, dtype=torch.float64)
    arguments = (x, x) if more else (x,)
    torch.testing.assert_close(ours(*arguments), theirs(*arguments))
    assert isinstance(ours, nt.nn.Ours)
    assert isinstance(ours, kind)
    torch.testing.assert_close(ours(x, x), theirs(x, x))


class SyncBatchNormAct(torch.nn.SyncBatchNorm):
    def forward(self, x):
        x = super().forward(x)
        x = self.drop(x)
        return self.act(x)


SyncBatchNormAct.__module__ = "timm.layers.norm_act"  # where the library has it


def test_synchronised_with_activation():
    theirs = SyncBatchNormAct(SIZE)
    theirs.drop, theirs.act = torch.nn.Identity(), torch.nn.ReLU()
    theirs.eval()
    ours = nt.convert(copy.deepcopy(theirs))
    assert isinstance(ours, nt.nn.SyncBatchNorm)
    assert isinstance(ours, SyncBatchNormAct)
    x = torch.randn(3, SIZE, 4)
    torch.testing.assert_close(ours(x), theirs(x))
    assert float(ours.train()(x).detach().min()) == 0
    assert type(nt.revert(ours)) is SyncBatchNormAct


def activated(base):
    """A class like timm's, which calls PyTorch's function, and then the layer's children."""

    class Activated(base):
        def __init__(self, *arguments):
            super().__init__(*arguments)
            self.drop, self.act = torch.nn.Identity(), torch.nn.ReLU()

        def forward(self, x):
            if isinstance(self, torch.nn.BatchNorm2d):
                running = self.running_mean, self.running_var, self.weight, self.bias
                x = F.batch_norm(x, *running, self.training, self.momentum, self.eps)
                self.num_batches_tracked += self.training
            elif isinstance(self, torch.nn.GroupNorm):
                x = F.group_norm(x, self.num_groups, self.weight, self.bias, self.eps)
            else:
                x = F.layer_norm(x, self.normalized_shape, self.weight, self.bias, self.eps)
            return self.act(self.drop(x))

    return Activated


def over_channels(base):
    """A class like torchvision's and timm's LayerNorm2d."""

    class OverChannels(base):
        def forward(self, x):
            x = x.permute(0, 2, 3, 1)
            x = F.layer_norm(x, self.normalized_shape, self.weight, self.bias, self.eps)
            return x.permute(0, 3, 1, 2)

    return OverChannels


#: Classes by where their libraries have them: the base, and the constructor's arguments.
KNOWN = {
    "timm.layers.norm_act.BatchNormAct2d": (activated(torch.nn.BatchNorm2d), 8),
    "timm.layers.norm_act.GroupNormAct": (activated(torch.nn.GroupNorm), 2, 8),
    "timm.layers.norm_act.LayerNormAct": (activated(torch.nn.LayerNorm), 8),
    "timm.layers.norm.LayerNorm2d": (over_channels(torch.nn.LayerNorm), 8),
    "torchvision.models.convnext.LayerNorm2d": (over_channels(torch.nn.LayerNorm), 8),
}


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("name", KNOWN)
def test_known_classes_need_no_redirected_call(name, training, monkeypatch):
    cls, *arguments = KNOWN[name]
    module, _, known = name.rpartition(".")
    cls.__module__, cls.__qualname__ = module, known
    theirs = cls(*arguments)
    torch.nn.init.normal_(theirs.bias)
    theirs.train(training)
    ours = nt.convert(copy.deepcopy(theirs))
    called = []
    monkeypatch.setattr(cls, "forward", lambda layer, x: called.append(layer))
    x = torch.randn(4, 8, 6, 8)
    y = ours(x)
    monkeypatch.undo()
    torch.testing.assert_close(y, theirs(x))
    torch.testing.assert_close([*ours.buffers()], [*theirs.buffers()])
    assert not called
    assert type(nt.revert(ours)) is cls


@pytest.mark.parametrize("name", [n for n in KNOWN if n.startswith("timm") and "Batch" not in n])
def test_timm_s_fast_norms_compute_in_autocast_s_dtype(name):
    """As ``timm.layers.set_fast_norm`` has it, which layers read when they are made."""
    cls, *arguments = KNOWN[name]

    class Fast(cls):
        def forward(self, x):
            y = super().forward(x)
            return y.bfloat16() if self._fast_norm and torch.is_autocast_enabled("cpu") else y

    module, _, known = name.rpartition(".")
    Fast.__module__, Fast.__qualname__ = module, known
    theirs = Fast(*arguments)
    theirs._fast_norm = True
    ours = nt.convert(copy.deepcopy(theirs))
    assert isinstance(ours, nt.nn.Ours)
    with torch.autocast("cpu"):
        x = torch.randn(4, 8, 6, 8)
        assert ours(x).dtype is theirs(x).dtype is torch.bfloat16
        torch.testing.assert_close(ours(x), theirs(x))


def test_norms_inside_converted_layers_are_converted():
    class AroundNorm(torch.nn.BatchNorm2d):
        def __init__(self):
            super().__init__(4)
            self.inner = torch.nn.BatchNorm2d(4)

        def forward(self, x):
            return self.inner(super().forward(x))

    model = nt.convert(torch.nn.Sequential(AroundNorm()))
    assert isinstance(model[0], nt.nn.Ours)
    assert isinstance(model[0].inner, nt.nn.Ours)
    assert type(nt.revert(model)[0].inner) is torch.nn.BatchNorm2d


class GraphLayerNorm(torch.nn.Module):
    """Like torch_geometric's, which calls PyTorch's function in one of its modes."""

    def __init__(self, mode):
        super().__init__()
        self.weight, self.eps, self.mode = torch.nn.Parameter(torch.ones(SIZE)), 1e-5, mode

    def forward(self, x, batch=None):
        if self.mode == "graph":
            x = x - x.mean()
            return x / (x.std(unbiased=False) + self.eps) * self.weight
        return F.layer_norm(x, (SIZE,), self.weight, None, self.eps)


def test_options_that_call_no_function_of_pytorch_s_are_told_apart():
    with pytest.warns(UserWarning, match="GraphLayerNorm: no formula of normgrad's"):
        layers = nt.convert(torch.nn.ModuleList(map(GraphLayerNorm, ("node", "graph"))))
    assert [isinstance(layer, nt.nn.Ours) for layer in layers] == [True, False]
