"""Layers and the conversion of models."""

from __future__ import annotations

import copy
import io
import warnings

import pytest

torch = pytest.importorskip("torch")
prune = pytest.importorskip("torch.nn.utils.prune")
nt = pytest.importorskip("normgrad.torch")

PAIRS = [
    (nt.nn.BatchNorm1d, torch.nn.BatchNorm1d, (6, 4, 5), (4,)),
    (nt.nn.BatchNorm1d, torch.nn.BatchNorm1d, (6, 4), (4,)),
    (nt.nn.BatchNorm2d, torch.nn.BatchNorm2d, (6, 4, 5, 3), (4,)),
    (nt.nn.BatchNorm3d, torch.nn.BatchNorm3d, (6, 4, 5, 3, 2), (4,)),
    (nt.nn.GroupNorm, torch.nn.GroupNorm, (6, 4, 5, 3), (2, 4)),
]
OPTIONS = [{}, {"affine": False}, {"eps": 1e-2}, {"dtype": torch.float64}]
BATCH_OPTIONS = [*OPTIONS, {"momentum": None}, {"momentum": 0.3}, {"track_running_stats": False}]


def both(ours, theirs, arguments, options):
    """The same layer twice, with parameters that matter."""
    mine, other = ours(*arguments, **options), theirs(*arguments, **options)
    for parameter in other.parameters():
        torch.nn.init.normal_(parameter)
    mine.load_state_dict(other.state_dict())
    return mine, other


@pytest.mark.parametrize(("ours", "theirs", "shape", "arguments"), PAIRS)
def test_layers_do_what_pytorch_s_do(ours, theirs, shape, arguments):
    for options in OPTIONS if ours is nt.nn.GroupNorm else BATCH_OPTIONS:
        mine, other = both(ours, theirs, arguments, options)
        assert repr(mine) == f"normgrad.{other!r}"
        assert isinstance(mine, theirs)
        for step in range(4):
            torch.manual_seed(step)
            x = torch.randn(shape, dtype=options.get("dtype")).requires_grad_()
            if step == 3:
                mine.eval(), other.eval()
            results = []
            for layer in (mine, other):
                y = layer(x)
                gradients = torch.autograd.grad((y**3).sum(), (x, *layer.parameters()))
                results.append((y, *gradients, *layer.buffers()))
            torch.testing.assert_close(*results, rtol=1e-4, atol=1e-4)
        other.load_state_dict(mine.state_dict())
        assert list(mine.state_dict()) == list(other.state_dict())


def outcome(layer, x):
    try:
        layer(x)
    except Exception as error:
        return type(error), str(error)
    return None


@pytest.mark.parametrize(("ours", "theirs", "shape", "arguments"), PAIRS)
def test_wrong_inputs_are_refused_alike(ours, theirs, shape, arguments):
    mine, other = both(ours, theirs, arguments, {})
    for x in (torch.randn(3), torch.randn(6, 4, 1, 1, 1, 1, 1), torch.randn(6, 5, 2),
              torch.randn(1, 4), torch.ones(shape, dtype=torch.int32)):  # fmt: skip
        found = [outcome(layer, x) for layer in (mine, other)]
        assert found[0] == found[1]
    with pytest.raises(ValueError, match=r"num_channels \(4\) must be divisible by num_groups"):
        nt.nn.GroupNorm(3, 4)


def test_channels_last_is_kept():
    x = torch.randn(2, 4, 5, 6).to(memory_format=torch.channels_last)
    for layer in (nt.nn.BatchNorm2d(4), nt.nn.GroupNorm(2, 4)):
        assert layer(x).is_contiguous(memory_format=torch.channels_last)


def model():
    norm = torch.nn.BatchNorm2d(4)
    return torch.nn.Sequential(
        torch.nn.Conv2d(3, 4, 3),
        norm,
        torch.nn.Sequential(torch.nn.ReLU(inplace=True), torch.nn.GroupNorm(2, 4), norm),
        torch.nn.Flatten(),
        torch.nn.LazyBatchNorm1d(),
    )


def test_convert_and_revert():
    torch.manual_seed(0)
    original = model()
    x = torch.randn(5, 3, 6, 6)
    original(x)
    parameters, buffers = list(original.parameters()), list(original.buffers())
    names = list(original.state_dict())
    reference = copy.deepcopy(original)
    original[1].eval()
    original[1].mark = "kept"
    calls = []
    handle = original[1].register_forward_hook(lambda layer, *_: calls.append(type(layer)))
    loaded = []
    original[1].register_load_state_dict_pre_hook(lambda layer, *_: loaded.append(type(layer)))

    assert nt.convert(original) is original
    assert [type(original[i]) for i in (1, 4)] == [nt.nn.BatchNorm2d, nt.nn.BatchNorm1d]
    assert type(original[2][1]) is nt.nn.GroupNorm
    assert original[1] is original[2][2]
    assert not original[1].training
    assert original[1].mark == "kept"
    assert all(a is b for a, b in zip(original.parameters(), parameters, strict=True))
    assert all(a is b for a, b in zip(original.buffers(), buffers, strict=True))
    assert list(original.state_dict()) == names
    original(x)
    assert calls == [nt.nn.BatchNorm2d] * 2
    handle.remove()
    original(x)
    assert len(calls) == 2
    original.load_state_dict(reference.state_dict())
    assert set(loaded) == {nt.nn.BatchNorm2d}

    original.train()
    torch.testing.assert_close(original(x), reference(x), rtol=1e-4, atol=1e-4)
    assert nt.convert(original) is original

    assert nt.revert(original) is original
    assert type(original[1]) is torch.nn.BatchNorm2d
    assert original[1] is original[2][2]
    assert type(original[2][1]) is torch.nn.GroupNorm
    assert all(a is b for a, b in zip(original.parameters(), parameters, strict=True))
    assert not any("normgrad" in type(layer).__module__ for layer in original.modules())


def test_a_layer_alone_is_returned_anew():
    layer = torch.nn.GroupNorm(2, 4)
    made = nt.convert(layer)
    assert type(layer) is torch.nn.GroupNorm
    assert type(made) is nt.nn.GroupNorm
    assert made.weight is layer.weight
    assert type(nt.revert(made)) is torch.nn.GroupNorm
    made.weight = None
    assert layer.weight is not None
    with pytest.raises(TypeError, match=r"^module: an int; allowed: a torch.nn.Module$"):
        nt.convert(3)


def scripted(kind):
    """A model of TorchScript, with a batch norm in it."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # all of torch.jit
        model = torch.nn.Sequential(torch.nn.Conv2d(3, 4, 1), torch.nn.BatchNorm2d(4)).eval()
        if kind == "trace":
            return torch.jit.trace(model, torch.ones(2, 3, 4, 5))
        made = torch.jit.script(model)
        if kind == "load":
            buffer = io.BytesIO()
            torch.jit.save(made, buffer)
            buffer.seek(0)
            return torch.jit.load(buffer)
        return torch.jit.freeze(made) if kind == "freeze" else made


KINDS_OF_SCRIPTS = ["script", "trace", "load", "freeze"]


@pytest.mark.parametrize("kind", KINDS_OF_SCRIPTS)
@pytest.mark.parametrize("change", [nt.convert, nt.revert, nt.convert_sync_batchnorm])
def test_torchscript_is_refused(change, kind):
    """Its layers cannot be converted."""
    name = "TopLevelTracedModule" if kind == "trace" else "RecursiveScriptModule"
    with pytest.raises(TypeError) as caught:
        change(scripted(kind))
    assert str(caught.value) == (
        f"module: it is a {name}, code of TorchScript's; allowed: modules in Python, before "
        "torch.jit scripts or traces them"
    )


@pytest.mark.parametrize("kind", KINDS_OF_SCRIPTS)
def test_children_of_torchscript_stay(kind):
    """The rest of the model is converted; a norm inside is named, unless it is folded away."""
    child = scripted(kind)
    whole = torch.nn.Sequential(torch.nn.BatchNorm2d(3), torch.nn.Sequential(child)).eval()
    x = torch.randn(2, 3, 4, 5)
    expected = whole(x)
    reason = "TorchScript has compiled it; convert before torch.jit scripts or traces it"
    if kind == "freeze":
        nt.convert(whole)
    else:
        with pytest.warns(UserWarning, match=reason):
            nt.convert(whole)
    assert type(whole[0]) is nt.nn.BatchNorm2d
    assert whole[1][0] is child
    done = nt.converted(whole)
    assert done.layers == {"torch.nn.BatchNorm2d": 1}
    assert [*done.left] == ([] if kind == "freeze" else ["1.0.1"])
    torch.testing.assert_close(whole(x), expected)
    assert type(nt.convert_sync_batchnorm(whole)[0]) is nt.nn.SyncBatchNorm
    assert type(nt.revert(whole)[0]) is torch.nn.SyncBatchNorm


def test_a_scripted_norm_is_left_though_it_is_asked_for():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # all of torch.jit
        whole = torch.nn.Sequential(torch.nn.BatchNorm1d(3), torch.jit.script(torch.nn.ReLU()))
        whole.append(torch.jit.script(torch.nn.LayerNorm(3)))
    nt.convert(whole, only="0")
    assert type(whole[0]) is nt.nn.BatchNorm1d
    x = torch.randn(2, 3)
    nt.warmup(whole, x)
    assert nt.estimate(whole, x).conversion == nt.converted(whole)
    assert all(each.grad is None for each in whole.parameters())
    with pytest.warns(UserWarning, match="TorchScript has compiled it"):
        nt.convert(whole, only="2")
    with pytest.raises(ValueError, match="'1' matches no norm layer"):
        nt.convert(whole, only="1")


def test_lazy_layers_stay():
    layers = torch.nn.ModuleList([torch.nn.LazyBatchNorm2d()])
    with pytest.warns(UserWarning, match="1 torch.nn.LazyBatchNorm2d: it has no parameters before"):
        nt.convert(layers)
    assert type(layers[0]) is torch.nn.LazyBatchNorm2d
    layers[0](torch.randn(2, 4, 3, 3))
    assert type(nt.convert(layers)[0]) is nt.nn.BatchNorm2d


def test_shared_parameters_stay_shared():
    one, two = torch.nn.BatchNorm2d(4), torch.nn.BatchNorm2d(4)
    two.weight = one.weight
    both = nt.convert(torch.nn.Sequential(one, two))
    assert both[0].weight is both[1].weight
    assert both[0] is not both[1]


LAYERS = [
    name
    for name, layer in vars(nt.nn).items()
    if isinstance(layer, type) and issubclass(layer, nt.nn.Ours) and hasattr(torch.nn, name)
]


@pytest.mark.parametrize("name", LAYERS)
def test_names_are_pytorch_s_or_have_a_prefix(name):
    """A subclass may have any other name for itself."""
    arguments = (2, 4) if name == "GroupNorm" else (4,)
    theirs, ours = (getattr(module, name)(*arguments) for module in (torch.nn, nt.nn))
    own = {each for each in {*dir(ours)} - {*dir(theirs)} if not each.startswith("__")}
    assert own
    assert all(each.startswith("_normgrad_") for each in own), own


def test_copies_and_pickles():
    x = torch.randn(5, 3, 6, 6)
    layers = model()
    layers(x)
    layers = nt.convert(layers).eval()
    file = io.BytesIO()
    torch.save(layers, file)
    file.seek(0)
    for other in (copy.deepcopy(layers), torch.load(file, weights_only=False)):
        assert type(other[1]) is nt.nn.BatchNorm2d
        assert other[1] is other[2][2]
        assert torch.equal(other(x), layers(x))
        assert other[1].weight is not layers[1].weight


def test_training_goes_as_with_pytorch():
    torch.manual_seed(0)
    losses = []
    first = model().double()
    data = torch.randn(20, 3, 6, 6, dtype=torch.float64)
    target = torch.randn(20, 64, dtype=torch.float64)
    first(data)
    for layers in (copy.deepcopy(first), nt.convert(copy.deepcopy(first))):
        optimizer = torch.optim.SGD(layers.parameters(), lr=0.1)
        for _ in range(10):
            optimizer.zero_grad()
            loss = (layers(data) - target).square().mean()
            loss.backward()
            optimizer.step()
        losses.append(loss.detach())
    torch.testing.assert_close(*losses, rtol=1e-10, atol=0)


def test_functional_calls():
    """torch.func over a whole model."""
    layers = model().double()
    x = torch.randn(4, 3, 6, 6, dtype=torch.float64)
    layers(x)
    layers = nt.convert(layers)
    layers.eval()
    parameters = dict(layers.named_parameters())

    def loss(parameters, sample):
        return torch.func.functional_call(layers, parameters, (sample[None],)).pow(2).sum()

    each = torch.func.vmap(torch.func.grad(loss), (None, 0))(parameters, x)
    reverted = nt.revert(layers)

    for index in range(4):
        expected = torch.autograd.grad(
            reverted(x[index : index + 1]).pow(2).sum(), list(parameters.values())
        )
        for got, wanted in zip(each.values(), expected, strict=True):
            torch.testing.assert_close(got[index], wanted)


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize(
    "input",
    [
        torch.randn(2, 5, 4).transpose(1, 2),
        torch.randn(4, 100).t()[:8].t(),
        torch.randn(2, 4, 6, 10)[..., ::2],
        torch.randn(2, 6, 10, 4).permute(0, 3, 1, 2)[..., 1:],
        torch.randn(3, 2, 4, 5).permute(1, 2, 3, 0),
        torch.randn(2, 1, 1, 5).expand(2, 4, 3, 5),
    ],
    ids=lambda value: f"{tuple(value.shape)} {value.stride()}" if hasattr(value, "shape") else None,
)
def test_outputs_are_laid_out_as_pytorch_s(input, training):
    channels = input.shape[1]
    norms = {2: "BatchNorm1d", 3: "BatchNorm1d", 4: "BatchNorm2d"}
    pairs = [(name, (channels,)) for name in [norms[input.dim()]]] + [("GroupNorm", (2, channels))]
    for name, arguments in pairs:
        theirs = getattr(torch.nn, name)(*arguments).train(training)
        ours = getattr(nt.nn, name)(*arguments).train(training)
        expected, found = theirs(input), ours(input)
        assert found.stride() == expected.stride()
        torch.testing.assert_close(found, expected)
        torch._dynamo.reset()
        compiled = torch.compile(ours, backend="aot_eager", fullgraph=True)(input)
        assert compiled.stride() == expected.stride()


def test_an_evaluation_keeps_its_statistics_though_training_goes_on():
    x = torch.randn(6, 3, 4, 4, dtype=torch.float64, requires_grad=True)
    layer = nt.nn.BatchNorm2d(3).double()
    rank = 1 / torch.sqrt(layer.running_var + layer.eps)
    layer.eval()
    y = layer(x)
    layer.train()
    layer(x)
    (gradient,) = torch.autograd.grad(y.sum(), x, create_graph=True)
    torch.testing.assert_close(gradient, rank.view(1, 3, 1, 1).expand_as(x))


@pytest.mark.parametrize("training", [True, False])
def test_parameters_and_buffers_that_are_plain_attributes(training):
    layers = [module.BatchNorm2d(3).train(training) for module in (torch.nn, nt.nn)]
    x = torch.linspace(-1, 2, 2 * 3 * 16).reshape(2, 3, 4, 4)
    for layer in layers:
        prune.custom_from_mask(layer, "weight", torch.tensor([1.0, 0.0, 1.0]))
        for name in ("running_mean", "running_var"):
            value = getattr(layer, name) + 0.5
            delattr(layer, name)
            setattr(layer, name, value)
    for _ in range(2):
        expected, found = (layer(x) for layer in layers)
        torch.testing.assert_close(found, expected)
        torch.testing.assert_close(layers[1].running_mean, layers[0].running_mean)


@pytest.mark.parametrize("momentum", [0.1, None])
def test_an_empty_batch_changes_no_running_statistics(momentum):
    layers = [module.BatchNorm2d(3, momentum=momentum) for module in (torch.nn, nt.nn)]
    layers.append(nt.nn.SyncBatchNorm(3, momentum=momentum))
    x = torch.randn(4, 3, 5, 5, generator=torch.Generator().manual_seed(0)) + 7
    for layer in layers:
        for batch in (x, x[:0], 2 * x):
            layer(batch)
    for layer in layers[1:]:
        torch.testing.assert_close(layer.running_mean, layers[0].running_mean)
        torch.testing.assert_close(layer.running_var, layers[0].running_var)


def test_the_average_of_all_batches_is_as_exact_as_its_dtype():
    layer = nt.nn.BatchNorm1d(2, momentum=None).double()
    batches = torch.randn(3, 50, 2, dtype=torch.float64) + 1000
    for batch in batches:
        layer(batch)
    torch.testing.assert_close(layer.running_mean, batches.mean((0, 1)), rtol=1e-14, atol=0)


def test_synchronised_layers_are_converted_too():
    theirs = torch.nn.SyncBatchNorm(4)
    model = nt.convert(torch.nn.Sequential(theirs))
    assert type(model[0]) is nt.nn.SyncBatchNorm
    x = torch.randn(3, 4)
    torch.testing.assert_close(model(x), theirs(x))
    again = nt.convert(nt.revert(model))
    torch.testing.assert_close(again.eval()(x), theirs.eval()(x))


def test_a_momentum_that_is_none():
    """PyTorch's layer has the first error here, though there is another."""
    for module in (nt.nn, torch.nn):
        with pytest.raises(TypeError, match=r"argument 'momentum' .* not tuple"):
            module.BatchNorm1d(0, momentum=())(torch.ones(2, 6))
