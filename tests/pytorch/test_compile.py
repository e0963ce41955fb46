"""torch.compile, torch.export and torch.jit.trace: programs hold PyTorch's operators alone."""

from __future__ import annotations

import copy
import io
import itertools
import shutil
import subprocess
import sys
from functools import partial

import pytest

torch = pytest.importorskip("torch")
nt = pytest.importorskip("normgrad.torch")

COMPILER = shutil.which("g++") or shutil.which("clang++")


def model(momentum=0.1):
    torch.manual_seed(0)
    layers = torch.nn.Sequential(
        torch.nn.Conv2d(3, 4, 3),
        torch.nn.BatchNorm2d(4, momentum=momentum),
        torch.nn.ReLU(inplace=True),
        torch.nn.GroupNorm(2, 4),
        torch.nn.BatchNorm2d(4, affine=False, track_running_stats=False),
    )
    return nt.convert(layers)


def data(samples=4, size=7, channels_last=False, dtype=None):
    torch.manual_seed(samples)
    x = torch.randn(samples, 3, size, 6, dtype=dtype)
    if channels_last:
        x = x.to(memory_format=torch.channels_last)
    return x.requires_grad_()


def names_of(graph):
    """The operators of a graph, none of which is normgrad's."""
    names = {str(node.target) for node in graph.nodes}
    assert not [name for name in names if "normgrad" in name]
    return names


def step(layers, x):
    """The output, its gradients, and the buffers."""
    y = layers(x)
    gradients = torch.autograd.grad((y**3).sum(), (x, *layers.parameters()))
    return y, *gradients, *layers.buffers()


def compare(eager, compiled, x):
    ours, theirs = step(compiled, x), step(eager, x)
    for got, wanted in zip(ours, theirs, strict=True):
        torch.testing.assert_close(got, wanted, rtol=1e-3, atol=2e-4)
    assert ours[0].stride() == theirs[0].stride()


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")
@pytest.mark.parametrize("backend", ["aot_eager", pytest.param("inductor", marks=pytest.mark.full)])
def test_whole_graphs(backend):
    """Training and evaluation, forwards and backwards, both layouts, the average of all batches."""
    if backend == "inductor" and COMPILER is None:
        pytest.skip("no C++ compiler")
    torch._dynamo.reset()
    eager = model()
    compiled = torch.compile(copy.deepcopy(eager), backend=backend, fullgraph=True)
    for channels_last in (False, True):
        compare(eager, compiled, data(channels_last=channels_last))
    eager.eval(), compiled.eval()
    compare(eager, compiled, data())


# PyTorch itself reads this attribute.
@pytest.mark.filterwarnings("ignore:The .grad attribute:UserWarning")
def test_the_average_of_all_batches():
    """The number of batches is read between two graphs, as in PyTorch's layer."""
    torch._dynamo.reset()
    eager = model(None)
    compiled = torch.compile(copy.deepcopy(eager), backend="aot_eager")
    for samples in (4, 4, 4):
        compare(eager, compiled, data(samples))


def test_dynamic_shapes_compile_once():
    from functorch.compile import make_boxed_func
    from torch._dynamo.backends.common import aot_autograd

    graphs = []

    def collect(module, inputs):
        graphs.append(names_of(module.graph))
        return make_boxed_func(module.forward)

    torch._dynamo.reset()
    eager = model().double()  # a convolution's bias has a gradient of rounding errors alone
    compiled = torch.compile(
        copy.deepcopy(eager), backend=aot_autograd(fw_compiler=collect), fullgraph=True,
        dynamic=True,
    )  # fmt: skip
    # Sizes unlike any number of channels, which would be taken for it.
    compare(eager, compiled, data(8, 9, dtype=torch.float64))
    assert {"aten.native_group_norm.default", "aten.native_group_norm_backward.default"} <= set(
        itertools.chain(*graphs)
    )
    for samples, size in ((10, 11), (12, 14)):
        compare(eager, compiled, data(samples, size, dtype=torch.float64))
    assert len(graphs) == 2


@pytest.mark.parametrize("training", [True, False])
def test_export(training):
    layers = model().train(training)
    x = data().detach()
    dynamic = ({0: torch.export.Dim("samples", min=2, max=64), 2: torch.export.Dim.AUTO},)
    program = torch.export.export(layers, (x,), dynamic_shapes=dynamic)
    assert {"aten.batch_norm.default", "aten.group_norm.default"} <= names_of(program.graph)
    exported = program.module()
    for samples, size in ((4, 7), (9, 8)):
        x = data(samples, size).detach()
        torch.testing.assert_close(exported(x), layers(x))
    torch.testing.assert_close(list(exported.buffers()), list(layers.buffers()))


@pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning", "ignore::DeprecationWarning")
def test_trace():
    layers = model().eval()
    traced = torch.jit.trace(layers, data().detach())
    x = data().detach() + 1
    torch.testing.assert_close(traced(x), layers(x))


@pytest.mark.every_case
@pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning", "ignore::DeprecationWarning")
@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("batch_norm", (None, None, None, None, 1)),
        ("batch_norm", (None, None, None, None, True, None)),
        ("batch_norm", (None, None, None, None, True, 0.1, "1")),
        ("instance_norm", (None, None, None, None, 1)),
        ("instance_norm", (None, None, None, None, True, None)),
        ("group_norm", ("2",)),
        ("layer_norm", (5,)),
        ("layer_norm", ((5,), None, None, None)),
        ("rms_norm", ("5",)),
    ],
)
def test_what_pytorch_refuses_is_refused_while_tracing(name, options):
    errors = []
    for module in (torch.nn.functional, nt.functional):
        call = getattr(module, name)
        with pytest.raises((TypeError, RuntimeError)) as raised:
            torch.jit.trace(lambda x, call=call: call(x, *options), torch.ones(2, 4, 5))
        errors.append((raised.type, str(raised.value)))
    assert errors[1] == errors[0]


@pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning", "ignore::DeprecationWarning")
@pytest.mark.parametrize("name", ["instance_norm", "layer_norm"])
def test_classes_with_rules_see_pytorch_s_functions_while_tracing(name):
    seen = []

    class Handled(torch.Tensor):
        @classmethod
        def __torch_function__(cls, function, types, args=(), kwargs=None):
            seen.append(function)
            return super().__torch_function__(function, types, args, kwargs or {})

    options = ((5,),) if name == "layer_norm" else ()
    torch.jit.trace(
        lambda x: getattr(nt.functional, name)(x.as_subclass(Handled), *options),
        torch.ones(2, 4, 5),
    )
    assert getattr(torch.nn.functional, name) in seen


#: Layers, and shapes of their inputs: the traced one first.
TRACED = {
    "BatchNorm1d": ((6,), [(4, 6, 5), (2, 6, 8), (3, 6, 1)]),
    "BatchNorm2d": ((6,), [(4, 6, 5, 5), (2, 6, 7, 3), (0, 6, 5, 5)]),
    "BatchNorm3d": ((6,), [(4, 6, 2, 5, 5), (2, 6, 3, 7, 3)]),
    "SyncBatchNorm": ((6,), [(4, 6, 5, 5), (2, 6, 7, 3)]),
    "InstanceNorm1d": ((6,), [(4, 6, 5), (2, 6, 8)]),
    "InstanceNorm2d": ((6,), [(4, 6, 5, 5), (2, 6, 7, 3)]),
    "InstanceNorm3d": ((6,), [(4, 6, 2, 5, 5), (2, 6, 3, 7, 3)]),
    "GroupNorm": ((2, 6), [(4, 6, 5, 5), (2, 6, 5, 5), (1, 6, 7, 3), (3, 6, 5)]),
    "LayerNorm": ((6,), [(4, 5, 6), (2, 8, 6), (3, 6), (0, 6)]),
    "RMSNorm": ((6,), [(4, 5, 6), (2, 8, 6), (3, 6), (0, 6)]),
}
OPTIONS = {
    "Batch": [{}, {"affine": False}, {"track_running_stats": False}, {"momentum": None}],
    "Sync": [{}, {"momentum": None}],
    "Instance": [{}, {"affine": True}, {"track_running_stats": True}],
    "Group": [{}, {"affine": False}],
    "Layer": [{}, {"bias": False}, {"elementwise_affine": False}],
    "RMS": [{}, {"elementwise_affine": False}],
}


@pytest.mark.every_case
@pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning", "ignore::DeprecationWarning")
@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize(
    ("name", "options"),
    [
        (name, options)
        for name in TRACED
        for prefix, several in OPTIONS.items()
        for options in several
        if name.startswith(prefix)
    ],
    ids=str,
)
def test_traced_layers_take_other_sizes(name, options, training):
    """Also from a file, and with gradients, as traced layers of PyTorch's."""
    arguments, shapes = TRACED[name]
    layer = getattr(torch.nn, name)(*arguments, **options).double().train(training)
    generator = torch.Generator().manual_seed(0)
    inputs = [
        torch.randn(shape, generator=generator, dtype=torch.float64).requires_grad_()
        for shape in shapes
    ]
    ours = nt.convert(copy.deepcopy(layer))
    # Two calls are two batches of an average, which fails PyTorch's check of the trace.
    trace = partial(torch.jit.trace, check_trace=False)
    traced = trace(ours, inputs[0].detach())
    assert "normgrad::" not in str(traced.inlined_graph)
    # Tracing updates running statistics, and fixes the average's momentum.
    layer = trace(layer, inputs[0].detach())
    file = io.BytesIO()
    torch.jit.save(traced, file)
    file.seek(0)
    programs = [layer, traced, torch.jit.load(file)]
    for x in inputs:
        expected, *found = [
            (y, torch.autograd.grad((y**3).sum(), x)[0], dict(program.named_buffers()))
            for program in programs
            for y in (program(x),)
        ]
        for values in found:
            torch.testing.assert_close(values, expected)


def test_make_fx():
    """Gradients by torch.func, traced with symbolic shapes down to the operators."""
    from torch.fx.experimental.proxy_tensor import make_fx

    def gradient(x, w):
        def loss(x, w):
            y = nt.functional.group_norm(x, 2, w)
            return nt.functional.batch_norm(y, None, None, w, training=True).pow(3).sum()

        return torch.func.grad(loss, (0, 1))(x, w)

    x, w = torch.randn(4, 6, 5), torch.randn(6)
    traced = make_fx(gradient, tracing_mode="symbolic")(x, w)
    assert "aten.native_batch_norm_backward.default" in names_of(traced.graph)
    x = torch.randn(5, 6, 7)
    torch.testing.assert_close(traced(x, w), gradient(x, w), rtol=1e-4, atol=1e-4)


class Norms(torch.nn.Module):
    """Layer norms with and without weight and bias, one of them large, and the other norms."""

    def __init__(self):
        super().__init__()
        nn = torch.nn
        self.layers = nn.ModuleList(
            [
                nn.LayerNorm(8), nn.LayerNorm(8, bias=False),
                nn.LayerNorm((6, 8), elementwise_affine=False), nn.RMSNorm(8),
                nn.RMSNorm(8, elementwise_affine=False), nn.GroupNorm(2, 6, affine=False),
                nn.InstanceNorm1d(6, affine=True), nn.BatchNorm1d(6),
                nn.BatchNorm1d(6, affine=False),
            ]
        )  # fmt: skip
        self.large = nn.LayerNorm(8)

    def forward(self, x):
        large = x.new_ones(1 << 17, 1) * x[0, 0]
        rest = sum((2 + index) * layer(x) for index, layer in enumerate(self.layers))
        return rest + self.large(large).pow(2).mean(0)


def test_eager_calls_beside_a_compiled_model_leave_it_alone():
    """A compiled model does not depend on which types of arguments eager calls have had."""
    model = nt.convert(Norms())
    x = torch.randn(3, 6, 8, requires_grad=True)
    step(model.layers[2], x)  # some of the model's types, not all
    step(model.layers[8], x)
    torch._dynamo.reset()
    compiled = torch.compile(model, fullgraph=True, backend="eager")
    expected = step(compiled, x)[0]
    for affine in (False, True):
        step(nt.nn.LayerNorm(8, elementwise_affine=affine), x)
        step(nt.nn.GroupNorm(3, 6, affine=affine), x)
    with torch._dynamo.config.patch(error_on_recompile=True):
        torch.testing.assert_close(step(compiled, x)[0], expected, rtol=0, atol=0)


@pytest.mark.full  # the graphs that Inductor gets are looked at above
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")
@pytest.mark.parametrize(
    ("make", "training"),
    [
        (Norms, True),
        (Norms, False),
        (lambda: torch.nn.TransformerEncoderLayer(8, 2, 16, 0.0, batch_first=True), True),
        (lambda: torch.nn.TransformerEncoderLayer(8, 2, 16, 0.0, batch_first=True), False),
    ],
)
def test_converted_models_under_inductor(make, training):
    """A training step, or an evaluation with gradients, as PyTorch's layers do in eager mode."""
    from torch._inductor.utils import run_and_get_code

    if COMPILER is None:
        pytest.skip("no C++ compiler")
    torch.manual_seed(0)
    theirs = make()
    if not isinstance(theirs, Norms):
        theirs = torch.nn.TransformerEncoder(theirs, 2, enable_nested_tensor=False)
    theirs.double().train(training)
    ours = nt.convert(copy.deepcopy(theirs))
    torch._dynamo.reset()
    x = torch.randn(3, 6, 8, dtype=torch.float64, requires_grad=True)
    # What is on disk may be of a version that had operators of its own.
    with torch._functorch.config.patch(enable_autograd_cache=False):
        found, code = run_and_get_code(step, torch.compile(ours, fullgraph=True), x)
    torch.testing.assert_close(found, step(theirs, x))
    assert len(code) == 2
    assert not [text for text in code if "normgrad" in text]


def save_traced(file):
    torch.jit.save(torch.jit.trace(model().eval(), data().detach()), file)


def save_exported(file):
    torch.export.save(torch.export.export(model().eval(), (data().detach(),)), file)


def save_compiled(file):
    program = torch.export.export(model().eval(), (data().detach(),))
    torch._inductor.aoti_compile_and_package(program, package_path=file)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("save", "load"),
    [
        (save_traced, "torch.jit.load(file)"),
        (save_exported, "torch.export.load(file).module()"),
        pytest.param(
            save_compiled, "torch._inductor.aoti_load_package(file)", marks=pytest.mark.full
        ),
    ],
)
def test_files_need_no_normgrad(save, load, tmp_path):
    """A process in which it cannot be imported computes what the model does."""
    if save is save_compiled and COMPILER is None:
        pytest.skip("no C++ compiler")
    file, values = str(tmp_path / "model.pt2"), str(tmp_path / "values.pt")
    save(file)
    x = data().detach()
    torch.save((x, model().eval()(x).detach()), values)
    program = f"""
import sys
sys.modules["normgrad"] = None
import torch
file = {file!r}
x, expected = torch.load({values!r})
torch.testing.assert_close({load}(x), expected, rtol=1e-4, atol=1e-4)
"""
    subprocess.run([sys.executable, "-W", "ignore", "-c", program], check=True)
