"""What convert does with layers that are not PyTorch's own, and what says so afterwards."""

from __future__ import annotations

import copy
import pickle
import sys
import warnings
import weakref
from functools import partial
from typing import ClassVar

import pytest

torch = pytest.importorskip("torch")
nt = pytest.importorskip("normgrad.torch")
F = torch.nn.functional


class Plain(torch.nn.BatchNorm2d):
    """Nothing of its own."""


class Scaled(torch.nn.BatchNorm2d):
    """Around its class's forward."""

    def forward(self, x):
        return super().forward(x + 1) * 2


class ScaledTwice(Scaled):
    def forward(self, x):
        return super().forward(x).relu()


class Activated(torch.nn.BatchNorm2d):
    """Like timm's: PyTorch's function, and more."""

    def __init__(self, channels):
        super().__init__(channels)
        self.act = torch.nn.ReLU(inplace=True)

    def forward(self, x):
        mean, var = self.running_mean, self.running_var
        x = F.batch_norm(
            x, mean, var, self.weight, self.bias, self.training, self.momentum, self.eps
        )
        return self.act(x)


class ActivatedGroups(torch.nn.GroupNorm):
    def __init__(self, channels, groups=2):
        super().__init__(groups, channels)
        self.act = torch.nn.SiLU()

    def forward(self, x):
        x = torch.nn.functional.group_norm(x, self.num_groups, self.weight, self.bias, self.eps)
        return self.act(x)


class FrozenBatchNorm2d(torch.nn.Module):
    """Like torchvision's."""

    def __init__(self, channels):
        super().__init__()
        self.eps = 1e-5
        for name in ("weight", "bias", "running_mean", "running_var"):
            self.register_buffer(name, torch.rand(channels) + 0.5)

    def forward(self, x):
        w, b = self.weight.reshape(1, -1, 1, 1), self.bias.reshape(1, -1, 1, 1)
        rv, rm = self.running_var.reshape(1, -1, 1, 1), self.running_mean.reshape(1, -1, 1, 1)
        scale = w * (rv + self.eps).rsqrt()
        return x * scale + (b - rm * scale)

    def __repr__(self):
        return f"{type(self).__name__}({len(self.weight)})"


FrozenBatchNorm2d.__module__ = "torchvision.ops.misc"  # where the library has it
KINDS = [Plain, Scaled, ScaledTwice, Activated, ActivatedGroups, FrozenBatchNorm2d]


def pair(kind, dtype=torch.float64):
    """A layer and its converted copy, with parameters that matter."""
    torch.manual_seed(0)
    theirs = kind(4).to(dtype)
    for parameter in theirs.parameters():
        torch.nn.init.uniform_(parameter, 0.5, 2)
    return theirs, nt.convert(copy.deepcopy(theirs))


def data():
    torch.manual_seed(1)
    return torch.randn(3, 4, 5, 6, dtype=torch.float64, requires_grad=True)


def step(layer, x):
    y = layer(x)
    wanted = (x, *layer.parameters())
    return y, *torch.autograd.grad((y**3).sum(), wanted), *layer.buffers()


def names_of_events(layer):
    """The names of what the profiler sees of a call."""
    with torch.profiler.profile() as profile:
        layer(data())
    return {event.name for event in profile.events()}


@pytest.mark.parametrize("kind", KINDS)
def test_what_a_subclass_adds_stays(kind):
    theirs, ours = pair(kind)
    assert type(ours) is not kind
    assert isinstance(ours, kind)
    assert repr(ours) == f"normgrad.{theirs!r}"
    for training in (True, False):
        results = [step(layer.train(training), data()) for layer in (ours, theirs)]
        torch.testing.assert_close(*results)
    names = names_of_events(ours)
    assert any("normgrad::" in name for name in names)
    assert not any("aten::native" in name or "aten::batch_norm" in name for name in names)
    assert type(nt.revert(ours)) is kind
    assert nt.convert(ours) is ours
    assert nt.converted(ours) == nt.Conversion({f"{kind.__module__}.{kind.__qualname__}": 1}, {})


@pytest.mark.parametrize("kind", KINDS)
def test_subclasses_are_copied_and_traced(kind):
    theirs, ours = pair(kind)
    expected = theirs.eval()(data())
    ours.eval()
    for other in (
        copy.deepcopy(ours),
        torch.compile(ours, backend="aot_eager", fullgraph=True),
        torch.export.export(ours, (data().detach(),)).module(),
        torch.fx.symbolic_trace(torch.nn.Sequential(ours)),
    ):
        torch.testing.assert_close(other(data()), expected)


def test_pickles(monkeypatch):
    monkeypatch.setitem(sys.modules, __name__, sys.modules.get(__name__, type(sys)(__name__)))
    for kind in (Scaled, Activated):
        monkeypatch.setattr(sys.modules[__name__], kind.__name__, kind, raising=False)
        _, ours = pair(kind)
        other = pickle.loads(pickle.dumps(ours))
        assert type(other) is type(ours)
        torch.testing.assert_close(other(data()), ours(data()))


class Keeping(torch.nn.Module):
    """A model that keeps its norms outside its modules too, and calls them there."""

    def __init__(self, keep):
        super().__init__()
        self.plain, self.scaled = torch.nn.BatchNorm2d(4), Scaled(4)
        self.kept = keep([self.plain, self.scaled])

    def forward(self, x):
        return self.kept(x)


def in_order(x, layers):
    for layer in layers:
        x = layer(x)
    return x


class Holder:
    """An object of a class of the user's."""

    __slots__ = ("layers",)

    def __init__(self, layers):
        self.layers = layers


def in_object(layers):
    holder = Holder(layers)
    return lambda x: in_order(x, holder.layers)


def hooked(layers):
    """The second norm in a hook of an identity."""
    identity = torch.nn.Identity()
    identity.register_forward_hook(lambda _, args, y: layers[1](layers[0](y)))
    return identity


def in_dictionary(layers):
    nested = {"norms": ({"first": layers[0]}, [[layers[1]]])}
    return lambda x: nested["norms"][1][0][0](nested["norms"][0]["first"](x))


def in_weak_references(layers):
    references = [*map(weakref.ref, layers)]
    return lambda x: in_order(x, [reference() for reference in references])


KEEPERS = {
    "list": lambda layers: partial(in_order, layers=layers),
    "dictionary": in_dictionary,
    "closure": lambda layers: lambda x: layers[1](layers[0](x)),
    "partials": lambda layers: partial(in_order, layers=[partial(layer) for layer in layers]),
    "bound methods": lambda layers: partial(in_order, layers=[each.forward for each in layers]),
    "bound calls": lambda layers: partial(in_order, layers=[each.__call__ for each in layers]),
    "object": in_object,
    "hook": hooked,
    "weak references": in_weak_references,
}


@pytest.mark.parametrize("how", KEEPERS)
def test_references_stay_valid(how):
    """Wherever a model keeps its norms, their training mode and running statistics are theirs."""
    theirs, ours = (Keeping(KEEPERS[how]).double() for _ in range(2))
    layers = [ours.plain, ours.scaled]
    nt.convert(ours)
    assert [ours.plain, ours.scaled] == layers
    assert all(isinstance(layer, nt.nn.Ours) for layer in layers)
    for change in (lambda model: model, nt.revert, nt.convert, nt.revert):
        change(ours)
        for training in (True, False):
            results = [step(model.train(training), data()) for model in (ours, theirs)]
            torch.testing.assert_close(*results)
    assert [type(layer) for layer in layers] == [torch.nn.BatchNorm2d, Scaled]


def test_bound_methods_outlive_a_conversion_back():
    for kind in (*KINDS, torch.nn.GroupNorm):
        layer = kind(2, 4) if kind is torch.nn.GroupNorm else kind(4)
        model = nt.convert(torch.nn.Sequential(layer.double()))
        forward = layer.forward
        expected = model(data())
        nt.revert(model)
        torch.testing.assert_close(forward(data()), expected)


def test_layers_that_are_compiled_in_place_stay_compiled():
    # What earlier tests compiled of the same code, or Dynamo gave up to compile, it remembers.
    torch._dynamo.reset()
    graphs = []

    def backend(graph, _):
        graphs.append(graph.print_readable(print_output=False))
        return graph

    theirs, ours = (torch.nn.Sequential(Scaled(4)) for _ in range(2))
    ours[0].compile(backend=backend)
    x = data().detach().float()
    for model in (ours, theirs):
        model(x)
    assert len(graphs) == 1
    nt.convert(ours)
    for training in (False, True, False):
        torch.testing.assert_close(ours.train(training)(x), theirs.train(training)(x))
    assert ["normgrad" in graph for graph in graphs] == [False, True, True]


def test_a_layer_with_slots_and_a_setattr_of_its_own():
    class Frozen(torch.nn.LayerNorm):
        __slots__ = ("shift",)

        def __setattr__(self, name, value):
            if name == "__class__":
                raise AttributeError(name)
            super().__setattr__(name, value)

        def forward(self, x):
            return super().forward(x) + self.shift

    model = torch.nn.Sequential(Frozen(4))
    object.__setattr__(model[0], "shift", 3.0)
    x = torch.randn(2, 4)
    expected = model(x)
    assert isinstance(nt.convert(model)[0], nt.nn.Ours)
    torch.testing.assert_close(model(x), expected)
    assert type(nt.revert(model)[0]) is Frozen


def test_nothing_is_changed_after_an_error():
    class Unready(torch.nn.Module):
        def __getattr__(self, name):
            raise RuntimeError("not ready")

    def until_the_last(name, layer):
        if name == "2":
            raise RuntimeError("not ready")
        return True

    for layer, only in ((Unready(), None), (torch.nn.LayerNorm(4), until_the_last)):
        model = torch.nn.Sequential(torch.nn.BatchNorm2d(4), layer, torch.nn.BatchNorm2d(4))
        with pytest.raises(RuntimeError, match=r"^not ready$"):
            nt.convert(model, only)
        assert [type(each) for each in model] == [
            torch.nn.BatchNorm2d, type(layer), torch.nn.BatchNorm2d
        ]  # fmt: skip


def test_classes_do_not_see_their_subclass():
    class Registered(torch.nn.LayerNorm):
        known: ClassVar = {}

        def __init_subclass__(cls, key, **kwargs):
            super().__init_subclass__(**kwargs)
            Registered.known[key] = Registered.known[cls.__name__] = cls

    class Mine(Registered, key="mine"):
        def forward(self, x):
            return super().forward(x) + 1

    theirs = torch.nn.Sequential(Mine(4), torch.nn.BatchNorm1d(4))
    ours = nt.convert(copy.deepcopy(theirs))
    assert all(isinstance(layer, nt.nn.Ours) for layer in ours)
    assert Registered.known == {"mine": Mine, "Mine": Mine}
    x = torch.randn(3, 4)
    torch.testing.assert_close(ours(x), theirs(x))


def test_classes_that_take_no_subclass_are_left():
    class Keyed(type):
        def __new__(cls, name, bases, namespace, *, key):
            return super().__new__(cls, name, bases, namespace)

        def __init__(cls, name, bases, namespace, *, key):
            super().__init__(name, bases, namespace)

    class Mine(torch.nn.LayerNorm, metaclass=Keyed, key="mine"):
        pass

    model = torch.nn.Sequential(torch.nn.BatchNorm1d(4), Mine(4), torch.nn.BatchNorm1d(4))
    with pytest.warns(UserWarning, match="no subclass of its class can be made: .*'key'"):
        nt.convert(model)
    assert [isinstance(layer, nt.nn.Ours) for layer in model] == [True, False, True]


#: Names that a class might have for itself, and that normgrad's layers must not need.
NAMES = [
    "_affine", "_compute", "_cumulative_norm", "_key", "_norm", "_tensors", "compute", "join",
    "replaces",
]  # fmt: skip


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(
    "base", [torch.nn.BatchNorm2d, torch.nn.InstanceNorm2d, torch.nn.LayerNorm]
)
def test_names_of_a_subclass_are_its_own(base, name):
    """As a method, as a class's attribute, and as a child."""

    class Method(base):
        def forward(self, x):
            return super().forward(x) + getattr(self, name)(x)

    class Child(Method):
        def __init__(self, size):
            super().__init__(size)
            setattr(self, name, torch.nn.Softplus())

    class Attribute(base):
        def forward(self, x):
            return super().forward(x) + getattr(self, name)

    setattr(Method, name, lambda self, x: 2 * x)
    setattr(Attribute, name, 3)
    for kind in (Method, Child, Attribute):
        theirs = kind(6 if base is torch.nn.LayerNorm else 4).double().eval()
        ours = nt.convert(copy.deepcopy(theirs))
        assert isinstance(ours, nt.nn.Ours)
        torch.testing.assert_close(ours(data()), theirs(data()))
        assert type(nt.revert(ours)) is kind


class ByItself(torch.nn.BatchNorm2d):
    def forward(self, x):
        return (x - x.mean((0, 2, 3), keepdim=True)) * 3


def normalised(layer, x):
    return F.group_norm(x, layer.num_groups, layer.weight, layer.bias, layer.eps)


class Hidden(torch.nn.GroupNorm):
    def __init__(self, channels):
        super().__init__(2, channels)

    def forward(self, x):
        return normalised(self, x) + 1


def test_what_is_left_and_why():
    patched = torch.nn.BatchNorm2d(4)
    patched.forward = lambda x: x
    model = torch.nn.Sequential(
        torch.nn.BatchNorm2d(4), ByItself(4), torch.nn.LocalResponseNorm(2), patched,
        torch.nn.Sequential(torch.nn.CrossMapLRN2d(3), torch.nn.LazyBatchNorm2d()),
    )  # fmt: skip
    with pytest.warns(UserWarning, match="convert left norm layers") as caught:
        assert nt.convert(model) is model
    assert len(caught) == 1
    done = nt.converted(model)
    assert done.layers == {"torch.nn.BatchNorm2d": 1}
    own = "no formula of normgrad's computes it; see normgrad.torch.register"
    assert done.left == {
        "1": f"{__name__}.ByItself: {own}",
        "2": f"torch.nn.LocalResponseNorm: {own}",
        "3": "torch.nn.BatchNorm2d: it has a forward of its own, which is not its class's",
        "4.0": f"torch.nn.CrossMapLRN2d: {own}",
        "4.1": "torch.nn.LazyBatchNorm2d: it has no parameters before its first call",
    }
    assert str(caught[0].message).endswith(str(done))
    assert caught[0].filename == __file__
    untouched = nt.converted(torch.nn.Sequential(torch.nn.BatchNorm2d(4)))
    assert str(untouched) == "normgrad's: none; left: 1 torch.nn.BatchNorm2d: not converted yet"


def test_models_without_norms():
    model = torch.nn.Sequential(torch.nn.Linear(4, 4))
    with pytest.warns(UserWarning, match="convert converted nothing") as caught:
        nt.convert(model)
    assert str(caught[0].message) == (
        "normgrad.torch.convert converted nothing: normgrad's: none, as the model has no norm "
        "layers"
    )
    assert nt.converted(model) == nt.Conversion({}, {})


class NoLayerNormConvLayer(torch.nn.Module):
    """Like Wav2Vec2's: a convolution without a norm."""

    def __init__(self):
        super().__init__()
        self.conv, self.activation = torch.nn.Conv1d(4, 4, 1), torch.nn.GELU()


class LinearNorm(torch.nn.Module):
    """A layer with a norm, which is no norm."""

    def __init__(self):
        super().__init__()
        self.linear, self.bn = torch.nn.Linear(4, 4), torch.nn.BatchNorm1d(4)


def named(name, *parts):
    """A module of a class with a name, and a weight."""
    layer = type(name, (torch.nn.Module,), {"forward": lambda self, x: x / x.norm()})()
    layer.weight = torch.nn.Parameter(torch.ones(4))
    for index, part in enumerate(parts):
        layer.add_module(str(index), part)
    return layer


@pytest.mark.parametrize(
    ("layer", "is_one"),
    [
        (NoLayerNormConvLayer(), False),
        (LinearNorm().requires_grad_(False).linear, False),
        (named("NormalEstimation"), False),
        (named("NoNorm"), False),
        (named("Normalize"), False),
        (named("EvoNorm2dB0", torch.nn.SiLU()), True),
        (named("GlobalResponseNorm"), True),
        (named("GRN"), True),
        (named("ScaleRMS"), True),
        (named("RMSELoss"), False),
        (named("TERMScorer"), False),
        (named("NoRMSNorm"), False),
        (named("GraphNorm"), True),
        (named("PairNorm"), True),
        (named("WanRMS_norm"), True),
        (named("GlobalResponseNormMlp", torch.nn.Linear(4, 4)), False),
    ],
)
def test_what_is_a_norm(layer, is_one):
    assert bool(nt.converted(torch.nn.Sequential(layer)).left) == is_one


def test_sharded_layers_say_convert_before():
    """As fully_shard leaves a layer: of a class that it makes from the layer's and its own."""
    layer = torch.nn.BatchNorm2d(4)
    sharded = type("FSDPModule", (), {})
    layer.__class__ = type("FSDPBatchNorm2d", (sharded, torch.nn.BatchNorm2d), {})
    with pytest.warns(UserWarning, match="fully_shard has sharded it; convert before fully_shard"):
        nt.convert(torch.nn.Sequential(layer))


def parts():
    return torch.nn.ModuleDict(
        {
            "encoder": torch.nn.Sequential(torch.nn.BatchNorm2d(4), torch.nn.LayerNorm(4)),
            "decoder": torch.nn.Sequential(torch.nn.BatchNorm2d(4)),
        }
    )


@pytest.mark.parametrize(
    ("only", "names"),
    [
        (torch.nn.BatchNorm2d, {"encoder.0", "decoder.0"}),
        (torch.nn.modules.batchnorm._BatchNorm, {"encoder.0", "decoder.0"}),
        ("encoder", {"encoder.0", "encoder.1"}),
        ("encoder.1", {"encoder.1"}),
        (["decoder", torch.nn.LayerNorm], {"decoder.0", "encoder.1"}),
        (lambda name, layer: name.endswith("0"), {"encoder.0", "decoder.0"}),
        (None, {"encoder.0", "encoder.1", "decoder.0"}),
    ],
)
def test_only(only, names):
    model = parts()
    assert nt.convert(model, only) is model
    ours = {name for name, layer in model.named_modules() if isinstance(layer, nt.nn.Ours)}
    assert ours == names
    assert set(nt.converted(model).left) == {"encoder.0", "encoder.1", "decoder.0"} - names


@pytest.mark.parametrize(
    ("only", "error", "text"),
    [
        ("encodr.1", ValueError, "'encodr.1' matches no norm layer; allowed: such as encoder.1"),
        (["encoder", "mid"], ValueError, "'mid' matches no norm layer; allowed: such as encoder.0"),
        (torch.nn.GroupNorm, ValueError, "'torch.nn.GroupNorm' matches no .*torch.nn.LayerNorm"),
        (lambda name, layer: False, ValueError, "matches no norm layer; allowed: such as"),
        (3, TypeError, "3; allowed: classes of layers, names, functions of a name and a layer"),
        (int, TypeError, "<class 'int'>; allowed: classes"),
    ],
)
def test_only_that_matches_nothing(only, error, text):
    model = parts()
    with pytest.raises(error, match=f"^only: .*{text}"):
        nt.convert(model, only)
    assert nt.converted(model).layers == {}


def test_float64_in_float32_layers_is_refused_as_by_the_stock_layers():
    x = data().detach()
    for theirs in (torch.nn.BatchNorm2d(4), torch.nn.GroupNorm(2, 4), torch.nn.LayerNorm(6),
                   torch.nn.InstanceNorm2d(4, affine=True), Scaled(4), Activated(4)):  # fmt: skip
        texts = []
        for layer in (theirs, nt.convert(copy.deepcopy(theirs))):
            with pytest.raises(RuntimeError) as caught:
                layer(x)
            texts.append(str(caught.value))
        assert texts[0] == texts[1], theirs
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of PyTorch's
        theirs = torch.nn.RMSNorm(6)
        torch.testing.assert_close(nt.convert(copy.deepcopy(theirs))(x), theirs(x))


def test_register():
    class Local(ByItself):
        pass

    class LocalHidden(Hidden):
        pass

    for kind in (Local, LocalHidden):
        with pytest.warns(UserWarning, match=f"{kind.__name__}: no formula of normgrad's"):
            assert type(nt.convert(kind(4))) is kind

    nt.register(Local, lambda layer, x: nt.functional.batch_norm(x, None, None, training=True))
    nt.register(LocalHidden)
    torch.testing.assert_close(
        nt.convert(Local(4))(data()), F.batch_norm(data(), None, None, training=True)
    )
    theirs, ours = pair(LocalHidden)
    torch.testing.assert_close(ours(data()), theirs(data()))
    assert "normgrad::group_norm" in names_of_events(ours)
    with pytest.raises(TypeError, match=r"^cls: 3; allowed: a class of torch.nn.Module's$"):
        nt.register(3)
    with pytest.raises(TypeError, match=r"^forward: 3; allowed: a function, or None$"):
        nt.register(Local, 3)


def test_a_group_that_is_none():
    text = "process_group: 'world'; allowed: a group of torch.distributed, or None for all ranks"
    with pytest.raises(TypeError, match=f"^{text}$"):
        nt.convert_sync_batchnorm(torch.nn.BatchNorm2d(3), process_group="world")


def test_synchronising_warns_of_what_it_drops():
    layers = torch.nn.Sequential(Activated(4), Plain(4), nt.nn.BatchNorm2d(4))
    with pytest.warns(UserWarning, match="Activated: only batch norm remains") as caught:
        nt.convert_sync_batchnorm(layers)
    assert len(caught) == 1


def network():
    torch.manual_seed(0)
    return torch.nn.Sequential(
        torch.nn.Conv2d(4, 4, 1), torch.nn.BatchNorm2d(4), torch.nn.ReLU(), torch.nn.GroupNorm(2, 4)
    ).eval()


def test_torch_fx_has_layers_as_wholes():
    model = nt.convert(network())
    traced = torch.fx.symbolic_trace(model)
    assert [node.op for node in traced.graph.nodes][1:-1] == ["call_module"] * 4
    x = data().float()
    torch.testing.assert_close(traced(x), model(x))
    assert type(nt.revert(traced).get_submodule("1")) is torch.nn.BatchNorm2d


@pytest.mark.parametrize(
    "layer",
    [
        torch.nn.LayerNorm(5),
        torch.nn.RMSNorm(5),
        torch.nn.InstanceNorm1d(3),
        torch.nn.InstanceNorm1d(3, affine=True, track_running_stats=True),
    ],
)
def test_torch_fx_has_each_layer_as_a_whole(layer):
    model = nt.convert(torch.nn.Sequential(layer))
    traced = torch.fx.symbolic_trace(model)
    assert [node.op for node in traced.graph.nodes] == ["placeholder", "call_module", "output"]
    x = torch.linspace(-1, 1, 30).reshape(2, 3, 5)
    assert torch.equal(traced(x), model(x))


REVERT = r"normgrad\.torch\.revert\(model\) first$"


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_what_cannot_be_done_says_to_revert():
    model = nt.convert(network())
    with pytest.raises(TypeError, match=REVERT):
        torch.jit.script(model)
    quantisation = torch.ao.quantization
    with pytest.raises(TypeError, match=REVERT):
        quantisation.fuse_modules(model, [["0", "1", "2"]])
    nt.revert(model)
    torch.jit.script(model)
    quantisation.fuse_modules(model, [["0", "1", "2"]])


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_quantisation_of_graphs_leaves_norms_in_floating_point():
    from torch.ao.quantization.quantize_fx import convert_fx, prepare_fx

    model = nt.convert(network())
    x = data().detach().float()
    mapping = torch.ao.quantization.get_default_qconfig_mapping("x86")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of observers
        prepared = prepare_fx(model, mapping, (x,))
        prepared(x)
        quantised = convert_fx(prepared)
    torch.testing.assert_close(quantised(x), model(x), rtol=0, atol=0.2)


@pytest.mark.parametrize("dynamo", [False, True])
@pytest.mark.filterwarnings("ignore")
def test_onnx_has_pytorch_s_operators(dynamo, tmp_path):
    onnx = pytest.importorskip("onnx")
    if dynamo:
        pytest.importorskip("onnxscript")
    file = str(tmp_path / "model.onnx")
    kinds = []
    theirs = network().append(torch.nn.LayerNorm(6))
    for model in (theirs, nt.convert(copy.deepcopy(theirs))):
        torch.onnx.export(model, (data().detach().float(),), file, dynamo=dynamo)
        kinds.append([node.op_type for node in onnx.load(file).graph.node])
    assert kinds[0] == kinds[1]


def test_torch_fx_fuses_what_was_reverted():
    fuse = pytest.importorskip("torch.fx.experimental.optimization").fuse
    model = network()
    expected = model(data().float())
    ours = nt.convert(copy.deepcopy(model))
    assert isinstance(fuse(ours).get_submodule("1"), nt.nn.BatchNorm2d)  # it fuses none
    fused = fuse(nt.revert(ours))
    assert "1" not in dict(fused.named_children())
    torch.testing.assert_close(fused(data().float()), expected)


@pytest.mark.parametrize("dynamo", [False, True])
@pytest.mark.filterwarnings("ignore")
def test_onnx_has_a_family_s_operators(dynamo, tmp_path):
    onnx = pytest.importorskip("onnx")
    if dynamo:
        pytest.importorskip("onnxscript")

    class OwnRMSNorm(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.weight, self.eps = torch.nn.Parameter(torch.ones(6)), 1e-6

        def forward(self, x):
            return self.weight * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.eps))

    file, kinds = str(tmp_path / "model.onnx"), []
    for model in (OwnRMSNorm().eval(), nt.convert(OwnRMSNorm().eval())):
        torch.onnx.export(model, (torch.ones(2, 6),), file, dynamo=dynamo)
        kinds.append([node.op_type for node in onnx.load(file).graph.node])
    assert isinstance(model, nt.nn.Ours)
    assert kinds[0] == kinds[1]


def test_vmap_of_training_says_what_pytorch_says():
    texts = []
    for layer in (torch.nn.BatchNorm2d(4), nt.nn.BatchNorm2d(4)):
        with pytest.raises(RuntimeError, match="Batch norm got a batched tensor") as caught:
            torch.func.vmap(layer)(torch.randn(2, 3, 4, 5, 6))
        texts.append(str(caught.value))
    assert texts[0] == texts[1]
