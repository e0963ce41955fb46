"""What is compared computes the same, and what does not is not compared. On the CPU."""

import sys
from types import ModuleType

import pytest

from normgrad.bench import data
from normgrad.bench.gpu import compiled, contenders, installed
from normgrad.bench.gpu.suite import GRADIENTS
from normgrad.bench.suite import DENSE, Case, Layout, Operator, Part

OPERATORS = (
    *GRADIENTS,
    *(Operator.GROUP_NORM, Operator.FORWARD, Operator.FORWARD_GROUP_NORM),
    *(Operator.LAYER_BATCH_NORM, Operator.LAYER_GROUP_NORM),
)
SHAPE = (4, 8, 6, 5)


def case_of(operator, dtype="float32", layout=Layout.CONTIGUOUS):
    groups = 4 if operator.value.endswith("group-norm") else 0
    return Case(operator, SHAPE, dtype, "float32", layout, groups)


CASES = [
    case_of(operator, dtype, layout)
    for operator in OPERATORS
    for dtype in ("float32", "bfloat16", "float16")
    for layout in DENSE
]


@pytest.fixture
def torch():
    return pytest.importorskip("torch")


@pytest.fixture
def eager(torch, monkeypatch):
    """torch.compile leaves the arithmetic as it is."""
    asked = []
    monkeypatch.setattr(torch.compiler, "reset", lambda: asked.append("reset"))
    monkeypatch.setattr(torch, "compile", lambda plain, **how: asked.append(how) or plain)
    return asked


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.id)
def test_torch_computes_the_same(torch, eager, case):
    tensors = contenders.copies(data.make(case), 3)
    ready = contenders.gather(torch, case, tensors, lambda: None)
    layer = case.operator.part is Part.LAYERS
    assert set(ready.calls) >= ({"ours", "copy"} if layer else {"ours", "out", "plan", "copy"})
    if layer:
        assert "torch.nn." + case.operator.function in ready.calls
        assert ready.failed == {}
        assert ready.path == ""
    else:
        assert compiled.NAME in ready.calls
        # Compiled anew for each case, and for its shapes alone.
        assert eager == ["reset", {"dynamic": False, "fullgraph": True}]
        assert ready.path
        # cuDNN's is CUDA's alone, and so are the two halves of a synchronised backward pass.
        only = ("aten::cudnn", "aten::batch_norm_backward_")
        assert all(name.startswith(only) for name in ready.failed), ready.failed
    for name, calls in ready.calls.items():
        assert len(calls) == (1 if name == "copy" else 3)


def test_copies_are_the_same_and_lie_elsewhere(torch):
    first = data.make(case_of(Operator.TRAIN, layout=Layout.CHANNELS_LAST))
    copies = contenders.copies(first, 3)
    assert copies[0] is first
    for name in ("grad_out", "input"):
        same = [getattr(copy, name) for copy in copies]
        assert len({tensor.data_ptr() for tensor in same}) == 3
        assert all(tensor.equal(same[0]) and tensor.stride() == same[0].stride() for tensor in same)
    assert len({copy.weight.data_ptr() for copy in copies}) == 1


def test_who_is_asked(torch):
    def names(case, *without):
        return list(contenders.offers(torch, case, data.make(case), without))

    assert names(case_of(Operator.TRAIN)) == [
        *("aten::native_batch_norm_backward", "aten::cudnn_batch_norm_backward", "torch.compile")
    ]
    assert names(case_of(Operator.EVAL), "torch.compile") == ["aten::native_batch_norm_backward"]
    assert names(case_of(Operator.REDUCE))[0] == "aten::batch_norm_backward_reduce"
    assert names(case_of(Operator.ELEMT))[0] == "aten::batch_norm_backward_elemt"
    assert names(case_of(Operator.FORWARD))[:2] == [
        *("aten::native_batch_norm", "aten::cudnn_batch_norm")
    ]
    assert names(case_of(Operator.LAYER_BATCH_NORM)) == [
        *("torch.nn.BatchNorm2d", "torch.nn.BatchNorm2d, cuDNN off")
    ]
    assert names(case_of(Operator.LAYER_GROUP_NORM)) == ["torch.nn.GroupNorm"]


def test_without_cudnn_is_without_cudnn(torch):
    case = case_of(Operator.LAYER_BATCH_NORM)
    offer = contenders.offers(torch, case, data.make(case))["torch.nn.BatchNorm2d, cuDNN off"]
    seen = []
    step = torch.nn.BatchNorm2d.forward

    class Layer(torch.nn.BatchNorm2d):
        def forward(self, x):
            seen.append(torch.backends.cudnn.enabled)
            return step(self, x)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch.nn, "BatchNorm2d", Layer)
        offer()(data.make(case))()
    assert seen == [False]
    assert torch.backends.cudnn.enabled


def test_group_norm_on_a_gpu_gets_contiguous_tensors(torch):
    from normgrad.bench import compositions

    case = case_of(Operator.GROUP_NORM, layout=Layout.CHANNELS_LAST)
    name = "aten::native_group_norm_backward"
    cuda = torch.device("cuda")
    assert compositions._laid_out(torch, case, cuda, name) == (
        *(torch.contiguous_format, f"aten::contiguous, {name}"),
    )
    cpu = torch.device("cpu")
    assert compositions._laid_out(torch, case, cpu, name) == (torch.channels_last, name)


def test_one_that_fails_or_disagrees_is_left_out(torch, monkeypatch):
    case = case_of(Operator.ELEMT)
    first = data.make(case)
    right = contenders.ours(torch, case, [first])[0]["ours"][0]

    def missing():
        raise ImportError("no such\nextension")

    offered = {
        "right": lambda: lambda tensors: right,
        "missing": missing,
        "wrong": lambda: lambda tensors: lambda: right() + 1,
        "nan": lambda: lambda tensors: lambda: right() * float("nan"),
        "none": lambda: None,
        "shape": lambda: lambda tensors: lambda: right()[:2],
    }
    monkeypatch.setattr(contenders, "offers", lambda *arguments: offered)
    ready = contenders.gather(torch, case, [first], lambda: None)
    assert set(ready.calls) == {"ours", "out", "plan", "right", "copy"}
    assert set(ready.failed) == {"missing", "wrong", "nan", "shape"}
    assert ready.failed["missing"] == "ImportError: no such"
    assert ready.failed["wrong"].startswith("disagrees: output 0 is off by ")
    assert ready.failed["nan"] == "disagrees: output 0 is off by nan of the largest"
    assert ready.failed["shape"] == (
        "disagrees: output 0 has shape (2, 8, 6, 5) instead of (4, 8, 6, 5)"
    )


def test_ours_fails(torch):
    case = case_of(Operator.ELEMT)
    first = data.make(case)
    first.grad_out.resize_(1)
    with pytest.raises(contenders.OursFailedError, match="ValueError: "):
        contenders.gather(torch, case, [first], lambda: None)


@pytest.mark.parametrize(("dtype", "units"), [("float32", 2**12), ("bfloat16", 4), ("float16", 4)])
def test_disagreement_is_more_than_roundings(torch, dtype, units):
    kind = getattr(torch, dtype)
    mine = torch.ones(8, dtype=kind)
    eps = torch.finfo(kind).eps
    assert contenders.disagreement([mine + units * eps / 2], [mine]) is None
    assert contenders.disagreement([mine + units * eps * 4], [mine]) is not None
    assert contenders.disagreement([None, torch.empty(0)], [mine, mine]) is None
    zeros = torch.zeros(8, dtype=kind)
    assert contenders.disagreement([zeros], [zeros]) is None
    assert "inf" in contenders.disagreement([mine], [zeros])


# Libraries that are not here: what is called is what their layers call.


@pytest.fixture
def library(monkeypatch):
    def install(name, **contents):
        module = ModuleType(name)
        module.__spec__ = object()
        for key, value in contents.items():
            setattr(module, key, value)
        monkeypatch.setitem(sys.modules, name, module)
        return module

    return install


def test_what_is_installed(library):
    assert installed.found() == frozenset()
    library("liger_kernel")
    assert installed.found() == {"liger_kernel"}
    library("apex")
    assert installed.found() == {"liger_kernel"}
    library("syncbn")
    assert installed.found() == {"liger_kernel", "apex.parallel (syncbn)"}


@pytest.mark.parametrize("layout", DENSE, ids=lambda layout: layout.value)
@pytest.mark.parametrize("operator", [Operator.TRAIN, Operator.REDUCE, Operator.ELEMT])
def test_syncbn(torch, eager, library, operator, layout):
    """Kernels with its signatures, made of torch's arithmetic: of NCHW, or of NHWC at the end."""
    case = case_of(operator, layout=layout)
    first = data.make(case)

    def at(kind, tensors):
        return compiled.function(torch, case_of(kind))(*tensors)

    def back(tensor):
        assert tensor.is_contiguous()
        return tensor.permute(0, 3, 1, 2)

    def reduce(dy, x, mean, invstd, weight):
        return at(Operator.REDUCE, (dy, x, mean, invstd))

    def elemt(dy, x, mean, invstd, weight, sum_dy, sum_dy_xmu, count):
        given = (dy, x, mean, invstd, weight, sum_dy, sum_dy_xmu, count)
        return at(Operator.ELEMT, given)

    library("apex")
    library(
        "syncbn",
        reduce_bn=reduce,
        batchnorm_backward=elemt,
        reduce_bn_c_last=lambda dy, x, *rest: reduce(back(dy), back(x), *rest),
        batchnorm_backward_c_last=lambda dy, x, *rest: (
            elemt(back(dy), back(x), *rest).permute(0, 2, 3, 1).contiguous()
        ),
    )
    ready = contenders.gather(torch, case, [first], lambda: None)
    assert "apex.parallel (syncbn)" in ready.calls, ready.failed


@pytest.mark.parametrize("operator", [Operator.GROUP_NORM, Operator.FORWARD_GROUP_NORM])
@pytest.mark.parametrize("layout", DENSE, ids=lambda layout: layout.value)
def test_liger(torch, eager, library, operator, layout):
    case = case_of(operator, layout=layout)

    def whole(tensor):
        assert tensor.is_contiguous()
        assert tensor.shape == (4, 8, 30)
        return tensor.view(SHAPE)

    def forward(x, channels, groups, weight, bias, eps):
        assert (channels, groups, eps) == (8, 4, 1e-5)
        function = compiled.function(torch, case_of(Operator.FORWARD_GROUP_NORM))
        y, mean, rstd = function(whole(x), weight, bias)
        return y.view(x.shape), x, mean, rstd, 1024

    def backward(dy, x, weight, bias, mean, rstd, channels, groups):
        assert (channels, groups) == (8, 4)
        function = compiled.function(torch, case_of(Operator.GROUP_NORM))
        dx, *rest = function(whole(dy), whole(x), weight, mean, rstd)
        return dx.view(x.shape), *rest

    library("liger_kernel")
    ops = {"group_norm_forward": forward, "group_norm_backward": backward}
    library("liger_kernel.ops.group_norm", **ops)
    ready = contenders.gather(torch, case, [data.make(case)], lambda: None)
    assert "liger_kernel" in ready.calls, ready.failed


def test_one_that_cannot_be_imported_is_reported(torch, library, eager):
    for name in ("apex", "syncbn", "group_norm_cuda", "bnp", "liger_kernel"):
        library(name)
    failed = set()
    for operator in OPERATORS:
        case = case_of(operator, "float16", Layout.CHANNELS_LAST)
        ready = contenders.gather(torch, case, [data.make(case)], lambda: None)
        failed |= {name for name in ready.failed if name in installed.MODULES}
    assert failed == set(installed.MODULES)
