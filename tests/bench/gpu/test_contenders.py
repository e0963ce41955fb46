"""What is compared computes the same, and what does not is not compared. On the CPU."""

import pytest

torch_ = pytest.importorskip("torch")

from measuring import contenders, data, device  # noqa: E402
from measuring.suite import DENSE, Case, Layout, Operator, Part  # noqa: E402

SHAPE = (4, 8, 6, 5)


def case_of(operator, dtype="float32", layout=Layout.CONTIGUOUS):
    groups = 4 if operator.value.endswith("group-norm") else 0
    return Case(operator, SHAPE, dtype, "float32", layout, groups)


CASES = [
    case_of(operator, dtype, layout)
    for operator in Operator
    if operator.part in (Part.GRADIENTS, Part.FORWARD, Part.LAYERS)
    and not operator.value.startswith("layer-of-rows")
    for dtype in ("float32", "bfloat16", "float16")
    for layout in DENSE
]


@pytest.fixture
def torch():
    return torch_


@pytest.fixture
def eager(torch, monkeypatch):
    """torch.compile leaves the arithmetic as it is."""
    asked = []
    monkeypatch.setattr(torch.compiler, "reset", lambda: asked.append("reset"))
    monkeypatch.setattr(torch, "compile", lambda plain, **how: asked.append(how) or plain)
    return asked


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.id)
def test_torch_computes_the_same(torch, eager, fake, monkeypatch, case):
    tried = []
    measure = contenders.timing.measure

    def trial(calls, **how):
        tried.extend(calls)
        return measure(calls, **how)

    monkeypatch.setattr(contenders.timing, "measure", trial)
    ready = contenders.gather(case, [data.make(case, seed) for seed in range(3)], fake(), True)
    if case.operator.part is Part.LAYERS:
        assert list(ready.calls) == ["ours", "torch"]
        assert ready.contender == "torch.nn." + case.operator.function
        assert (ready.failed, ready.bound, ready.path) == ({}, "", "")
    else:
        assert list(ready.calls) == ["ours", "plan", "torch", "bound"]
        assert [*(tried or [ready.contender])][-1] == contenders.COMPILED
        # Compiled anew for each case, and for its shapes alone.
        assert eager == ["reset", *[{"dynamic": False, "fullgraph": True}] * 3]
        assert ready.bound
        assert ready.path
        # cuDNN's is CUDA's alone, and so are the parts of a synchronised batch norm.
        only = ("aten::cudnn", "aten::batch_norm_")
        assert all(name.startswith(only) for name in ready.failed), ready.failed


@pytest.mark.parametrize("operator", [Operator.TRAIN, Operator.REDUCE, Operator.FORWARD])
def test_one_graph_serves_all_copies(torch, fake, monkeypatch, operator):
    """Or each copy would be compiled anew, until the compiler gives up."""
    graphs = []
    compile_ = torch.compile

    def count(graph, example_inputs):
        graphs.append(graph)
        return graph.forward

    monkeypatch.setattr(
        torch, "compile", lambda plain, **how: compile_(plain, backend=count, **how)
    )
    case = case_of(operator)
    ready = contenders.gather(case, [data.make(case, seed) for seed in range(12)], fake(), True)
    assert contenders.COMPILED not in ready.failed
    assert len(graphs) == 1


MIB = 1 << 20


@pytest.mark.parametrize(
    ("tensor", "copies"), [(800 * MIB, 2), (100 * MIB, 2), (99 * MIB, 3), (10 * MIB, 11), (1, 256)]
)
def test_between_two_uses_of_a_copy_goes_twice_l2(tensor, copies):
    assert device.copies(tensor, 50 * MIB, 100 << 30) == copies
    if copies < device.MOST_COPIES:
        assert (copies - 1) * tensor >= 2 * 50 * MIB


def test_no_more_copies_than_fit():
    # Of half of the memory, four tensors each; and at least one, which may be too much.
    assert device.copies(10 * MIB, 50 * MIB, 250 * MIB) == 3
    assert device.copies(10 * MIB, 50 * MIB, 10 * MIB) == 1


@pytest.mark.parametrize("layout", list(Layout), ids=lambda layout: layout.value)
def test_copies_look_the_same_and_lie_elsewhere(torch, fake, layout):
    case = case_of(Operator.TRAIN, layout=layout)
    made = fake()
    made.l2 = case.tensor_bytes
    found = contenders.tensors(case, made)
    assert len(found) == 3
    for name in ("grad_out", "input"):
        tensors = [getattr(copy, name) for copy in found]
        assert len({tensor.data_ptr() for tensor in tensors}) == 3
        assert len({tensor.stride() for tensor in tensors}) == 1


def test_each_call_takes_the_next_copy():
    seen = []
    each = [{"ours": lambda copy=copy: seen.append(copy)} for copy in range(3)]
    contender = contenders.in_turn(each, "ours")
    assert seen == [0, 1, 2]
    for _ in range(4):
        contender()
    assert seen == [0, 1, 2, 0, 1, 2, 0]


def test_a_model_has_no_copies(torch, fake, monkeypatch):
    case = Case(Operator.UNET, (2, 3, 64, 64))
    made = []
    step = contenders.steps.model_step
    monkeypatch.setattr(
        contenders.steps, "model_step", lambda *arguments: made.append(1) or step(*arguments)
    )
    ready = contenders.gather(case, [data.make(case, seed) for seed in range(3)], fake())
    assert (list(ready.calls), len(made)) == (["ours", "torch"], 1)


def test_who_is_asked(torch, eager):
    def names(case, compile_=True):
        (group,) = contenders.theirs(case, data.make(case), True, compile_)
        return list(group)

    assert names(case_of(Operator.TRAIN)) == [
        *("aten::native_batch_norm_backward", "aten::cudnn_batch_norm_backward", "torch.compile")
    ]
    assert names(case_of(Operator.EVAL), False) == ["aten::native_batch_norm_backward"]
    assert names(case_of(Operator.REDUCE))[0] == "aten::batch_norm_backward_reduce"
    assert names(case_of(Operator.ELEMT))[0] == "aten::batch_norm_backward_elemt"
    assert names(case_of(Operator.FORWARD))[:2] == [
        *("aten::native_batch_norm", "aten::cudnn_batch_norm")
    ]
    assert names(case_of(Operator.LAYER_BATCH_NORM)) == ["torch.nn.BatchNorm2d"]
    assert names(case_of(Operator.LAYER_GROUP_NORM)) == ["torch.nn.GroupNorm"]


def test_group_norm_on_a_gpu_gets_contiguous_tensors(torch):
    from measuring import compositions

    case = case_of(Operator.GROUP_NORM, layout=Layout.CHANNELS_LAST)
    assert compositions._form_needed(case, False) is torch.contiguous_format
    assert compositions._form_needed(case, True) is None
    mixed = case_of(Operator.GROUP_NORM, layout=Layout.X_CHANNELS_LAST)
    assert compositions._form_needed(mixed, True) is torch.channels_last
    (name,) = compositions.kernels(mixed, data.make(mixed), False)
    assert name == "aten::contiguous, aten::native_group_norm_backward"


def test_one_that_fails_or_disagrees_is_left_out(torch, fake, monkeypatch):
    case = case_of(Operator.ELEMT)
    first = data.make(case)
    right = contenders.gather(case, [first], fake()).calls["ours"]

    def missing():
        raise ImportError("no such\nextension")

    offered = {
        "right": right,
        "missing": missing,
        "wrong": lambda: right() + 1,
        "nan": lambda: right() * float("nan"),
        "shape": lambda: right()[:2],
    }
    monkeypatch.setattr(contenders, "theirs", lambda *arguments: [offered])
    ready = contenders.gather(case, [first], fake(), True)
    assert ready.contender == "right"
    assert set(ready.failed) == {"missing", "wrong", "nan", "shape"}
    assert ready.failed["missing"] == "ImportError: no such"
    off = "disagrees: output 0 is off by more than 0.00049 of the largest"
    assert ready.failed["wrong"] == ready.failed["nan"] == off
    assert ready.failed["shape"] == (
        "disagrees: output 0 has shape (2, 8, 6, 5) instead of (4, 8, 6, 5)"
    )


def test_ours_fails(fake):
    case = case_of(Operator.ELEMT)
    first = data.make(case)
    first.grad_out.resize_(1)
    with pytest.raises(ValueError, match="grad_out"):
        contenders.gather(case, [first], fake())


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
    assert contenders.disagreement([mine], [zeros]) is not None
