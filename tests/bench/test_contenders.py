"""The contenders compute the same thing: what is compared is comparable."""

import inspect
from types import SimpleNamespace

import ml_dtypes
import numpy as np
import pytest
from common import sampled
from measuring.suite import CALL, DENSE, IMAGES, MIXED, Case, Layout, Operator, Part

from normgrad.operators import precision, reference
from normgrad.operators.by_name import PLANNED
from normgrad.tensors import dtypes

torch_ = pytest.importorskip("torch")

from measuring import compositions, contenders, data, device, steps  # noqa: E402

from normgrad.bench import timing  # noqa: E402

SHAPE = (4, 8, 6, 5)
DTYPES = [
    *(("float32", "float32"), ("bfloat16", "float32"), ("float16", "float32")),
    *(("bfloat16", "bfloat16"), ("float16", "float16")),
]

#: In units of roundoff of the output's scale. torch sums and forms coefficients in float32 (120
#: terms; compositions without centring x), where ours is in float64; and rounds halves up to three
#: times on the way, where ours is rounded once.
TORCH = {dtypes.float32: 64.0, dtypes.bfloat16: 4.0, dtypes.float16: 4.0}


def case_of(operator, dtype="float32", parameters="float32", layout=Layout.CONTIGUOUS, shape=SHAPE):
    groups = 4 if operator.value.endswith("group-norm") else 0
    return Case(operator, shape, dtype, parameters, layout, groups)


def cases():
    for operator in Operator:
        if operator.part is Part.ROWS:
            yield from (
                case_of(operator, dtype, shape=(16, 24)) for dtype in ("float32", "bfloat16")
            )
        if operator.part not in (Part.GRADIENTS, Part.FORWARD):
            continue
        for dtype, parameters in DTYPES:
            yield case_of(operator, dtype, parameters)
        for layout in Layout:
            if layout is Layout.CONTIGUOUS or (operator.part is Part.FORWARD and layout in MIXED):
                continue
            yield case_of(operator, layout=layout)
        if not operator.value.endswith("group-norm"):
            yield case_of(operator, shape=(16, 24))


CASES = list(cases())
OF_ROWS = (Operator.LAYER_LAYER_NORM, Operator.LAYER_RMS_NORM)
LAYERS = [
    case_of(operator, dtype, layout=layout)
    for operator in Operator
    if operator.part is Part.LAYERS and operator not in OF_ROWS
    for dtype in ("float32", "bfloat16", "float16")
    for layout in DENSE
]
LAYERS += [Case(operator, (24, 8)) for operator in OF_ROWS]


STEPS = [
    Case(operator, (2, *IMAGES[1:]), dtype, layout=layout)
    for operator in Operator
    if operator.part is Part.STEPS
    for dtype, layout in (("float32", DENSE[0]), ("bfloat16", DENSE[1]))
]


@pytest.fixture
def torch():
    return torch_


def gather(case, tensors):
    return contenders.gather(case, [tensors], device.Cpu())


def as_numpy(torch, tensor):
    if tensor.dtype == torch.bfloat16:
        return tensor.contiguous().view(torch.int16).numpy().view(ml_dtypes.bfloat16)
    return tensor.numpy()


def exact(torch, case, tensors):
    """Each output's value and scale, None where it is masked off."""
    named, options = contenders.arguments(case, tensors)
    oracle = getattr(reference, case.operator.function)
    wanted = inspect.signature(oracle).parameters
    arrays = {name: as_numpy(torch, value) for name, value in named.items()}
    values = oracle(**arrays, **{k: v for k, v in options.items() if k in wanted})
    if case.operator is Operator.FORWARD:
        # They change with every call; they have a test of their own.
        values = {**values, "running_mean": None, "running_var": None}
    if case.operator is Operator.FORWARD_EVAL:
        values = {**values, **dict.fromkeys(("mean", "invstd", "running_mean", "running_var"))}
    mask = options.get("output_mask", (True,) * len(values))
    return [value if on else None for value, on in zip(values.values(), mask, strict=True)]


def as_list(outputs):
    return [outputs] if hasattr(outputs, "shape") else list(outputs)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.id)
def test_all_compute_the_same(torch, case):
    tensors = data.make(case)
    wanted = exact(torch, case, tensors)
    found = gather(case, tensors)
    ours = as_list(found.calls["ours"]())
    assert len(ours) == len(wanted)
    running = 2 if case.operator is Operator.FORWARD else 0
    assert [value is None for value in wanted] == [
        *(output is None for output in ours[: len(ours) - running]),
        *[True] * running,
    ]
    for output, value in zip(ours, wanted, strict=True):
        if value is not None:
            units = precision.error(as_numpy(torch, output), value, dtypes.float32)
            assert units.max() <= 1
    for output, same in zip(as_list(found.calls["plan"]()), ours, strict=True):
        assert (output is None) == (same is None)
        assert output is None or (output.stride() == same.stride() and output.equal(same))
    agreed = 0
    candidates = {
        **compositions.kernels(case, tensors, False),
        **compositions.composed(case, tensors),
    }
    for call in candidates.values():
        theirs = as_list(call())
        theirs += [None] * (len(ours) - len(theirs))  # torch returns no running statistics
        agreed += 1
        for output, same, value in zip(theirs, ours, wanted, strict=True):
            if value is None:
                continue
            assert output.shape == same.shape
            # torch's forward pass gives the statistics in the parameters' dtype.
            forward = case.operator.part is Part.FORWARD
            assert output.dtype in {same.dtype, tensors.weight.dtype if forward else same.dtype}
            dtype = dtypes.parse(output.dtype)
            if case.operator.part is Part.ROWS:  # torch rounds a sum's terms to x's dtype
                dtype = dtypes.BY_NAME[case.dtype]
            error = abs(as_numpy(torch, output).astype(np.float64) - value.value)
            assert (error <= TORCH[dtype] * dtype.unit_roundoff * value.scale).all()
    assert agreed >= 2
    assert found.contender in candidates


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.id)
def test_layouts_and_bounds(torch, case):
    tensors = data.make(case)
    named, _ = contenders.arguments(case, tensors)
    assert set(named) <= {p.name for p in PLANNED[case.operator.function].inputs}
    dy, x = tensors.grad_out, tensors.input
    assert (dy.shape, x.shape) == (case.shape, case.shape)
    assert {str(dy.dtype), str(x.dtype)} == {f"torch.{case.dtype}"}
    assert str(tensors.weight.dtype) == str(tensors.mean.dtype) == f"torch.{case.parameters}"
    last = {
        Layout.CHANNELS_LAST: (True, True),
        Layout.X_CHANNELS_LAST: (False, True),
        Layout.DY_CHANNELS_LAST: (True, False),
    }.get(case.layout, (False, False))
    for tensor, channels_last in zip((dy, x), last, strict=True):
        if case.layout is Layout.CROPPED:
            assert tensor.stride() == (8 * 7 * 6, 7 * 6, 6, 1)
        elif len(case.shape) == 4:
            assert tensor.is_contiguous(memory_format=torch.channels_last) == channels_last
            assert tensor.is_contiguous() != channels_last
    bound, call = contenders.memory_bound(case, tensors)
    result = call()
    if case.operator in (Operator.REDUCE, Operator.STATS):
        assert bound.startswith("read")
        elements = contenders._flat(x)
        assert elements.numel() * elements.element_size() >= case.tensor_bytes
    else:
        start, value = "triad", x + dy
        if case.operator is Operator.EVAL_INPUT:
            start, value = "scale: torch.mul(dy", dy * 3
        elif case.operator.streams == 2:
            start, value = "scale: torch.mul(x", x * 3
        assert bound.startswith(start)
        assert result.equal(value)
        if case.layout is not Layout.CROPPED:
            assert result.stride() == x.stride()


@pytest.mark.parametrize("operator", [Operator.REDUCE, Operator.STATS])
def test_the_read_reads_everything(torch, operator):
    case = case_of(operator)
    tensors = data.make(case)
    _, call = contenders.memory_bound(case, tensors)
    other = tensors.grad_out if operator is Operator.REDUCE else tensors.input
    assert call().item() == pytest.approx((tensors.input * other).sum().item(), rel=1e-4)


def test_running_statistics_are_updated_in_place(torch):
    """By ours, in all three ways, and by torch; each its own, and never the data's."""
    case = case_of(Operator.FORWARD)
    tensors = data.make(case)
    before = tensors.mean.clone(), tensors.var.clone()
    calls = contenders.ours(case, tensors, contenders.planned(case, tensors))
    kernel = compositions.kernels(case, tensors, False)["aten::native_batch_norm"]
    theirs = kernel.args[3:5]
    for call in calls.values():
        kernel()
        ours = call()[3:]
        assert [value.data_ptr() for value in call()[3:]] == [value.data_ptr() for value in ours]
        kernel()
        for mine, other, old in zip(ours, theirs, before, strict=True):
            assert torch.allclose(mine, other, rtol=1e-5)
            assert not mine.equal(old)
    assert tensors.mean.equal(before[0])
    assert tensors.var.equal(before[1])


@pytest.mark.parametrize("case", LAYERS, ids=lambda case: case.id)
def test_layers_compute_the_same(torch, case):
    tensors = data.make(case)
    found = gather(case, tensors)
    assert list(found.calls) == ["ours", "torch"]
    assert found.contender == f"torch.nn.{case.operator.function}"
    assert (found.bound, found.path) == ("", "")
    x, dy, weight, bias = (
        as_numpy(torch, tensor)
        for tensor in (tensors.input, tensors.grad_out, tensors.weight, tensors.bias)
    )
    if case.groups:
        options = {"num_groups": case.groups}
        forward = reference.group_norm(x, weight, bias, **options)
        mean, rstd = (forward[name].value.astype(np.float32) for name in ("mean", "rstd"))
        gradients = reference.group_norm_backward(dy, x, mean, rstd, weight, **options)
    elif case.operator is Operator.LAYER_LAYER_NORM:
        forward = reference.layer_norm(x, 8, weight, bias)
        mean, rstd = (forward[name].value for name in ("mean", "rstd"))
        gradients = reference.layer_norm_backward(dy, x, mean, rstd, weight, normalized_shape=8)
    elif case.operator is Operator.LAYER_RMS_NORM:
        forward = reference.rms_norm(x, 8, weight)
        rstd = forward["rstd"].value
        gradients = reference.rms_norm_backward(dy, x, rstd, weight, normalized_shape=8)
    else:
        training = case.operator is Operator.LAYER_BATCH_NORM
        running = [as_numpy(torch, value) for value in (tensors.mean, tensors.var)]
        forward = reference.batch_norm(x, weight, bias, *running, training=training)
        gradients = reference.batch_norm_backward(dy, x, weight, *running, training=training)
    wanted = [forward["output"], *gradients.values()]
    for contender in found.calls.values():
        first, second = contender(), contender()
        for output, again, value in zip(first, second, wanted, strict=True):
            assert output.equal(again)  # gradients are new each time, not added up
            dtype = dtypes.parse(output.dtype)
            assert output.shape == value.value.shape
            error = abs(as_numpy(torch, output.detach()).astype(np.float64) - value.value)
            assert (error <= TORCH[dtype] * dtype.unit_roundoff * value.scale).all()
    assert tensors.input.requires_grad is False


@pytest.mark.parametrize("case", sampled(STEPS, 2), ids=lambda case: case.id)
def test_models_compute_the_same(torch, case):
    """The loss before any step, which changes the parameters."""
    tensors = data.make(case)
    ours, theirs = (steps.model_step(own, case, tensors) for own in (True, False))
    first = ours()
    assert contenders.disagreement([theirs()], [first]) is None
    assert not ours().equal(first)


@pytest.mark.parametrize("model", ["ResNet18", "MobileNetV2", "UNet"])
def test_a_converted_model_has_our_layers(torch, model):
    import normgrad.torch

    made = steps._models()[model]()
    kinds = torch.nn.BatchNorm2d if model != "UNet" else torch.nn.GroupNorm
    count = sum(isinstance(layer, kinds) for layer in made.modules())
    assert count == {"ResNet18": 20, "MobileNetV2": 52, "UNet": 15}[model]
    normgrad.torch.convert(made)
    ours = (normgrad.torch.nn.BatchNorm2d, normgrad.torch.nn.GroupNorm)
    assert sum(isinstance(layer, ours) for layer in made.modules()) == count


@pytest.mark.parametrize("groups", [0, 4])
def test_signatures_that_are_new_or_known(torch, monkeypatch, groups):
    name = f"aclnn{'Group' if groups else 'Batch'}NormBackwardGetWorkspaceSize"
    function, seen = getattr(steps.aclnn, name), []

    def look(*arguments):
        seen.append(arguments[1].dims)
        return function(*arguments)

    monkeypatch.setattr(steps.aclnn, name, look)
    monkeypatch.setattr(steps, "_READY", 50)
    for operator, shapes in ((Operator.ACLNN_KNOWN, 1), (Operator.ACLNN_NEW, 50)):
        seen.clear()
        call = steps.phase_1(Case(operator, (4, 8, 4), groups=groups), None)
        for _ in range(50):
            assert call()[0] >= 0
        assert len(set(seen)) == shapes


def test_numpys_calls_compute_the_same(torch):
    case = Case(Operator.TRAIN, CALL)
    found = gather(case, data.make(case))
    assert list(found.calls) == ["ours", "plan", "numpy", "torch", "bound"]
    for ours, same in zip(found.calls["ours"](), found.calls["numpy"](), strict=True):
        assert isinstance(same, np.ndarray)
        assert np.array_equal(ours.numpy(), same)


def test_a_layer_is_of_the_class_that_is_said(torch, monkeypatch):
    seen = []

    class Layer(torch.nn.BatchNorm2d):
        def __init__(self, *sizes, **options):
            seen.append((sizes, options))
            super().__init__(*sizes, **options)

    case = case_of(Operator.LAYER_BATCH_NORM)
    tensors = data.make(case)
    module = SimpleNamespace(BatchNorm2d=Layer)
    monkeypatch.setattr(steps.normgrad.torch, "nn", module)
    y, dx, dw, db = steps.layer_step(True, case, tensors)()
    options = {"dtype": torch.float32, "device": torch.device("cpu")}
    assert seen == [((8,), options)]
    assert [value.shape for value in (y, dx, dw, db)] == [SHAPE, SHAPE, (8,), (8,)]


def refuse():
    raise NotImplementedError("no such kernel")


@pytest.fixture
def offered(torch, monkeypatch):
    """What is timed where torch has these kernels and compositions."""
    case = case_of(Operator.ELEMT)
    tensors = data.make(case)
    right = compositions.composed(case, tensors)["composition: addcmul, addcmul_"]

    def offer(kernels, others):
        take = {"right": right, "refuses": refuse}
        groups = [{name: take.get(name, right) for name in names} for names in (kernels, others)]
        monkeypatch.setattr(contenders, "theirs", lambda *arguments: groups)
        return gather(case, tensors)

    return offer


def test_a_kernel_goes_before_a_composition(offered):
    found = offered(["refuses", "kernel"], ["composition"])
    assert found.contender == "kernel"
    assert found.failed == {"refuses": "NotImplementedError: no such kernel"}


def test_the_fastest_composition_where_there_is_no_kernel(offered, monkeypatch):
    medians = {"slow": 2.0, "fast": 1.0}
    times = timing.Times(medians, 3, 0.0)
    monkeypatch.setattr(timing, "measure", lambda calls, **how: times)
    assert offered(["refuses"], ["slow", "fast", "refuses"]).contender == "fast"


def test_neither(offered):
    found = offered(["refuses"], ["refuses"])
    assert found.contender == ""
    assert "torch" not in found.calls


def test_results_rounded_to_a_narrower_dtype_agree_where_that_is_known(torch):
    exact = torch.tensor([1.0, 0.7001953, -0.3])
    narrow = exact.bfloat16().float()
    assert contenders.disagreement([narrow], [exact]) == (
        "disagrees: output 0 is off by more than 0.00049 of the largest"
    )
    assert contenders.disagreement([narrow], [exact], torch.bfloat16) is None
    assert contenders.disagreement([exact + 0.04], [exact], torch.bfloat16) == (
        "disagrees: output 0 is off by more than 0.031 of the largest"
    )
