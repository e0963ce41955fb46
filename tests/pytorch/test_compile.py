"""torch.compile, torch.export and torch.jit.trace."""

from __future__ import annotations

import copy
import io
import itertools
import re
import shutil

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


def data(samples=4, size=7, channels_last=False):
    torch.manual_seed(samples)
    x = torch.randn(samples, 3, size, 6)
    if channels_last:
        x = x.to(memory_format=torch.channels_last)
    return x.requires_grad_()


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


@pytest.mark.parametrize(
    ("dtype", "last"),
    [
        (torch.float32, False),
        (torch.bfloat16, True),
        *[
            pytest.param(*each, marks=pytest.mark.full)
            for each in (
                (torch.float32, True), (torch.float64, False), (torch.float64, True),
                (torch.bfloat16, False),
            )
        ],
    ],
)  # fmt: skip
def test_what_inductor_generates_is_what_the_operators_compute(dtype, last):
    from torch._inductor.decomposition import decompositions
    from torch.fx.experimental.proxy_tensor import make_fx

    from normgrad.torch import inductor

    generator = torch.Generator().manual_seed(0)
    x, dy = (torch.randn(4, 6, 5, 3, generator=generator).to(dtype) for _ in range(2))
    if last:
        x, dy = (value.to(memory_format=torch.channels_last) for value in (x, dy))
    w, b, mean = torch.randn(3, 6, generator=generator)
    var = torch.rand(6, generator=generator) + 0.5
    saved = nt.ops.batch_norm_stats(x, 1e-5)
    of_groups = nt.ops.native_group_norm(x, w, b, 4, 6, 15, 2, 1e-5)[1:]
    calls = [
        ("native_batch_norm", (x, w, b, mean, var, True, 0.2, 1e-5)),
        ("native_batch_norm", (x, None, None, None, None, True, 0.2, 1e-5)),
        ("native_batch_norm", (x, w, b, mean, var, False, 0.2, 1e-5)),
        ("native_group_norm", (x, w, b, 4, 6, 15, 2, 1e-5)),
        ("native_group_norm", (x, None, None, 4, 6, 15, 3, 1e-5)),
    ]
    for weight, mask in ((w, [True] * 3), (None, [True, False, True])):
        train = (dy, x, weight, None, None, *saved, True, 1e-5, mask)
        evaluate = (dy, x, weight, mean, var, None, None, False, 1e-5, mask)
        groups = (dy, x, *of_groups, weight, 4, 6, 15, 2, mask)
        calls += [("native_batch_norm_backward", call) for call in (train, evaluate)]
        calls.append(("native_group_norm_backward", groups))
        row = [6, 5, 3]
        wide = weight if weight is None else torch.rand(row, generator=generator)
        _, *of_rows = nt.ops.native_layer_norm(x, row, wide, wide, 1e-5)
        calls.append(("native_layer_norm", (x, row, wide, wide, 1e-5)))
        mask = [True, weight is not None, weight is not None]
        calls.append(("native_layer_norm_backward", (dy, x, row, *of_rows, wide, wide, mask)))
    for name, arguments in calls:
        formula = inductor.DECOMPOSITIONS[name]
        traced = make_fx(lambda: formula(*arguments), decomposition_table=decompositions)()  # noqa: B023
        found = traced()
        expected = getattr(nt.ops, name)(*arguments)
        torch.testing.assert_close(found, expected, check_stride=name.endswith("norm"))


def test_large_layer_norms_are_ours_under_inductor():
    from torch.fx.experimental.proxy_tensor import make_fx

    from normgrad.torch import inductor

    found = []
    for rows in (inductor.SMALL // 8 - 1, inductor.SMALL // 8):
        x = torch.zeros(rows, 8)
        traced = make_fx(inductor.DECOMPOSITIONS["native_layer_norm"])(x, [8], None, None, 1e-5)
        found.append({str(node.target) for node in traced.graph.nodes})
    assert "aten.native_layer_norm.default" in found[0]
    assert "normgrad.native_layer_norm_kernel.default" in found[1]


def test_the_average_of_all_batches():
    """Counting them does not cut the graph."""
    torch._dynamo.reset()
    eager = model(None)
    compiled = torch.compile(copy.deepcopy(eager), backend="aot_eager", fullgraph=True)
    for samples in (4, 4, 4):
        compare(eager, compiled, data(samples))


def test_dynamic_shapes_compile_once():
    from torch._dynamo.testing import CompileCounterWithBackend

    torch._dynamo.reset()
    eager = model()
    counter = CompileCounterWithBackend("aot_eager")
    compiled = torch.compile(copy.deepcopy(eager), backend=counter, fullgraph=True, dynamic=True)
    # Sizes unlike any number of channels, which would be taken for it.
    compare(eager, compiled, data(8, 9))
    compilations = counter.frame_count
    for samples, size in ((10, 11), (12, 14)):
        compare(eager, compiled, data(samples, size))
    assert counter.frame_count == compilations
    names = {str(node.target) for graph in counter.graphs for node in graph.graph.nodes}
    assert {"normgrad.native_batch_norm.default", "normgrad.native_group_norm.default"} <= names


@pytest.mark.parametrize("training", [True, False])
def test_export(training):
    layers = model().train(training)
    x = data().detach()
    dynamic = ({0: torch.export.Dim("samples", min=2, max=64), 2: torch.export.Dim.AUTO},)
    program = torch.export.export(layers, (x,), dynamic_shapes=dynamic)
    names = {str(node.target) for node in program.graph.nodes}
    assert {"normgrad.native_batch_norm.default", "normgrad.native_group_norm.default"} <= names
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
    """Also from a file, and with gradients; a normgrad operator computes them."""
    arguments, shapes = TRACED[name]
    layer = getattr(torch.nn, name)(*arguments, **options).double().train(training)
    generator = torch.Generator().manual_seed(0)
    inputs = [
        torch.randn(shape, generator=generator, dtype=torch.float64).requires_grad_()
        for shape in shapes
    ]
    ours = nt.convert(copy.deepcopy(layer))
    traced = torch.jit.trace(ours, inputs[0].detach())
    assert "normgrad::" in str(traced.inlined_graph)
    # Tracing calls the layer several times, each an update of the running statistics.
    layer.load_state_dict(traced.state_dict())
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
    names = {str(node.target) for node in traced.graph.nodes}
    assert {
        "normgrad.native_batch_norm_backward.default",
        "normgrad.native_group_norm_backward.default",
    } <= names
    x = torch.randn(5, 6, 7)
    torch.testing.assert_close(traced(x, w), gradient(x, w), rtol=1e-4, atol=1e-4)


def parts_of_calls():
    """Calls of every operator on every presence of weight and bias, and every mask.

    They are divided into parts, each a dictionary of calls by a shown name.
    """
    generator = torch.Generator().manual_seed(0)

    def drawn(*shape):
        return torch.randn(shape, generator=generator)

    def places(count):
        return itertools.product((True, False), repeat=count)

    x, dy, w, b, mean = drawn(4, 6, 5, 3), drawn(4, 6, 5, 3), *drawn(3, 6)
    var, row, sizes = drawn(6).square() + 0.5, [5, 3], (4, 6, 15, 2)
    of_batch = nt.ops.batch_norm_stats(x, 1e-5)
    of_groups = nt.ops.native_group_norm(x, w, b, *sizes, 1e-5)[1:]
    large, large_dy = drawn(1 << 17, 5, 3), drawn(1 << 17, 5, 3)  # ours under inductor
    wide, low = drawn(2, *row)
    batch, groups, rows, squares, parts = {}, {}, {}, {}, {}
    for with_w, with_b, tracked in places(3):
        affine = w if with_w else None, b if with_b else None
        running = (mean, var) if tracked else (None, None)
        for training in (True, False) if tracked else (True,):
            name = f"native_batch_norm {with_w} {with_b} {tracked} {training}"
            batch[name] = *(x, *affine), *running, training, 0.2, 1e-5
        groups[f"native_group_norm {with_w} {with_b}"] = x, *affine, *sizes, 1e-5
        affine = wide if with_w else None, low if with_b else None
        for size, data in (("", x), (" large", large)):
            rows[f"native_layer_norm {with_w} {with_b}{size}"] = data, row, *affine, 1e-5
            squares[f"_fused_rms_norm {with_w}{size}"] = data, row, affine[0], None
    for with_w, *mask in places(4):
        weight = w if with_w else None
        name = f"{with_w} {mask}"
        for saved, running in ((of_batch, (None, None)), ((None, None), (mean, var))):
            training = saved is of_batch
            batch[f"native_batch_norm_backward {name} {training}"] = (
                dy, x, weight, *running, *saved, training, 1e-5, mask,
            )  # fmt: skip
        groups[f"native_group_norm_backward {name}"] = dy, x, *of_groups, weight, *sizes, mask
        parts[f"batch_norm_backward_reduce {name}"] = dy, x, *of_batch, weight, *mask
        for size, data, grad_out in (("", x, dy), (" large", large, large_dy)):
            of_rows = nt.ops.native_layer_norm(data, row, None, None, 1e-5)[1:]
            weight = wide if with_w else None
            for bias in (low, None):
                rows[f"native_layer_norm_backward {name} {bias is None}{size}"] = (
                    grad_out, data, row, *of_rows, weight, bias, mask,
                )  # fmt: skip
            squares[f"_fused_rms_norm_backward {name}{size}"] = (
                grad_out, data, row, of_rows[1], weight, mask[:2],
            )  # fmt: skip
    # Without statistics, normgrad's operator computes them.
    batch["native_batch_norm_backward"] = (dy, x, w, *[None] * 4, True, 1e-5, [True] * 3)
    parts["batch_norm_stats"] = x, 1e-5
    parts["batch_norm_elemt"] = x, w, None, *of_batch, 1e-5
    return {"batch": batch, "group": groups, "layer": rows, "rms": squares, "parts": parts}


@pytest.mark.full
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")
@pytest.mark.parametrize("part", ["batch", "group", "layer", "rms", "parts"])
def test_every_operator_under_inductor(part):
    if COMPILER is None:
        pytest.skip("no C++ compiler")
    calls = parts_of_calls()[part]

    def program():
        return {
            name: getattr(torch.ops.normgrad, name.split()[0]).default(*arguments)
            for name, arguments in calls.items()
        }

    torch._dynamo.reset()
    expected, found = program(), torch.compile(program, fullgraph=True)()
    for name, values in expected.items():
        torch.testing.assert_close(
            found[name],
            values,
            rtol=1e-3,
            atol=1e-3,
            msg=lambda text: f"{name}: {text}",  # noqa: B023
        )


#: Of these layers' operators, those that inductor calls: large layer norms', and RMS norms'.
CALLED = {
    "native_layer_norm_kernel", "native_layer_norm_backward_kernel", "_fused_rms_norm",
    "_fused_rms_norm_backward",
}  # fmt: skip


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


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")
@pytest.mark.parametrize(
    ("make", "training"),
    [
        (Norms, True),
        *[
            pytest.param(*each, marks=pytest.mark.full)
            for each in (
                (Norms, False),
                (lambda: torch.nn.TransformerEncoderLayer(8, 2, 16, 0.0, batch_first=True), True),
                (lambda: torch.nn.TransformerEncoderLayer(8, 2, 16, 0.0, batch_first=True), False),
            )
        ],
    ],
)
def test_converted_models_under_inductor(make, training):
    """A training step, or an evaluation with gradients, as PyTorch's layers do in eager mode.

    Inductor generates the other norms' code, so that it fuses them.
    """
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
    # What is on disk may be of a version that generated nothing.
    with torch._functorch.config.patch(enable_autograd_cache=False):
        found, code = run_and_get_code(step, torch.compile(ours, fullgraph=True), x)
    torch.testing.assert_close(found, step(theirs, x))
    assert len(code) == 2
    called = {name for text in code for name in re.findall(r"torch\.ops\.normgrad\.(\w+)", text)}
    assert called == (CALLED if make is Norms else set())
