"""The contenders compute the same thing: what is compared is comparable."""

import inspect

import ml_dtypes
import numpy as np
import pytest

from normgrad import dtypes, precision, reference
from normgrad.bench import compositions, contenders, data
from normgrad.bench.compositions import Candidates
from normgrad.bench.suite import Case, Layout, Operator
from normgrad.operators import OPERATORS

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
    groups = 4 if operator is Operator.GROUP_NORM else 0
    return Case(operator, shape, dtype, parameters, layout, groups)


def cases():
    for operator in Operator:
        for dtype, parameters in DTYPES:
            yield case_of(operator, dtype, parameters)
        for layout in Layout:
            if layout is not Layout.CONTIGUOUS:
                yield case_of(operator, layout=layout)
        if operator is not Operator.GROUP_NORM:
            yield case_of(operator, shape=(16, 24))


CASES = list(cases())


@pytest.fixture
def torch():
    return pytest.importorskip("torch")


def as_numpy(torch, tensor):
    if tensor.dtype == torch.bfloat16:
        return tensor.contiguous().view(torch.int16).numpy().view(ml_dtypes.bfloat16)
    return tensor.numpy()


def exact(torch, case, tensors):
    """Each output's value and scale, None where it is masked off."""
    named, options = contenders._arguments(case, tensors)
    oracle = getattr(reference, case.operator.function)
    wanted = inspect.signature(oracle).parameters
    arrays = {name: as_numpy(torch, value) for name, value in named.items()}
    values = oracle(**arrays, **{k: v for k, v in options.items() if k in wanted})
    mask = options.get("output_mask", (True,) * len(values))
    return [value if on else None for value, on in zip(values.values(), mask, strict=True)]


def as_list(outputs):
    return [outputs] if hasattr(outputs, "shape") else list(outputs)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.id)
def test_all_compute_the_same(torch, case):
    tensors = data.make(case)
    wanted = exact(torch, case, tensors)
    found = contenders.gather(case, tensors)
    ours = as_list(found.calls["ours"].call())
    assert len(ours) == len(wanted)
    for output, value in zip(ours, wanted, strict=True):
        assert (output is None) == (value is None)
        if output is not None:
            units = precision.error(as_numpy(torch, output), value, dtypes.float32)
            assert units.max() <= 1
    for name in ("out", "plan"):
        for output, same in zip(as_list(found.calls[name].call()), ours, strict=True):
            assert (output is None) == (same is None)
            assert output is None or (output.stride() == same.stride() and output.equal(same))
    agreed = 0
    candidates = compositions.candidates(torch, case, tensors)
    for call in (*candidates.kernels.values(), *candidates.compositions.values()):
        try:
            theirs = as_list(call())
        except RuntimeError:
            continue
        agreed += 1
        for output, same, value in zip(theirs, ours, wanted, strict=True):
            if value is None:
                continue
            assert (output.dtype, output.shape) == (same.dtype, same.shape)
            dtype = dtypes.parse(output.dtype)
            error = abs(as_numpy(torch, output).astype(np.float64) - value.value)
            assert (error <= TORCH[dtype] * dtype.unit_roundoff * value.scale).all()
    assert agreed >= 2
    assert found.torch in {**candidates.kernels, **candidates.compositions}


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.id)
def test_layouts_and_bounds(torch, case):
    tensors = data.make(case)
    named, _ = contenders._arguments(case, tensors)
    assert set(named) <= {p.name for p in OPERATORS[case.operator.function].parameters}
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
    bound, call = contenders._bound(torch, case, tensors)
    result = call()
    if case.operator is Operator.REDUCE:
        assert bound.startswith("read")
        elements = contenders._flat(torch, x)
        assert elements.numel() * elements.element_size() >= case.tensor_bytes
    else:
        start = "scale" if case.operator is Operator.EVAL_INPUT else "triad"
        assert bound.startswith(start)
        assert result.equal(dy * 3 if start == "scale" else x + dy)
        if case.layout is not Layout.CROPPED:
            assert result.stride() == x.stride()


def test_the_read_reads_everything(torch):
    case = case_of(Operator.REDUCE)
    tensors = data.make(case)
    _, call = contenders._bound(torch, case, tensors)
    assert call().item() == pytest.approx((tensors.input * tensors.grad_out).sum().item(), rel=1e-4)


def refuse():
    raise NotImplementedError("no such kernel")


def test_a_kernel_goes_before_a_composition():
    found = contenders.fastest(
        Candidates({"missing": refuse, "kernel": lambda: None}, {"composition": lambda: None})
    )
    assert found[0] == "kernel"


def test_the_fastest_composition_where_there_is_no_kernel(monkeypatch):
    now = [0.0]
    monkeypatch.setattr(contenders.time, "perf_counter", lambda: now[0])

    def taking(seconds):
        def call():
            now[0] += seconds

        return call

    compositions = {"slow": taking(2.0), "refuses": refuse, "fast": taking(1.0)}
    assert contenders.fastest(Candidates({"kernel": refuse}, compositions))[0] == "fast"


def test_neither():
    with pytest.raises(RuntimeError, match="neither a kernel nor a composition"):
        contenders.fastest(Candidates({"kernel": refuse}, {"composition": refuse}))


def test_without_torch(monkeypatch):
    import sys

    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(data.TorchMissingError):
        data.load_torch()
