"""Tensors on GPUs, as far as it goes without one: with a stand-in for what computes there."""

from __future__ import annotations

import re

import numpy as np
import pytest
import stand_in
from common import FLOATS, OPERATORS, bits, make, named
from stand_in import Array, Namespace

import normgrad as ng
from normgrad import TensorSpec
from normgrad.backends import choice
from normgrad.declarations.problem import WORKSPACE
from normgrad.plans import calls
from normgrad.plans.cache import Cache
from normgrad.tensors import dlpack, frameworks

torch = pytest.importorskip("torch")

F = np.float32


def refuse(exception, message, action):
    with pytest.raises(exception, match=f"^{re.escape(message)}$"):
        action()


@pytest.fixture
def seen(monkeypatch):
    found = stand_in.install(monkeypatch)
    stand_in.scratch_on_cpu(monkeypatch, found)
    return found


@pytest.fixture
def on_gpu(monkeypatch, seen):
    """A PyTorch tensor as if on a GPU."""
    return stand_in.torch_on_gpu(monkeypatch, seen).of


def arrays(case, index=0, namespace=None):
    return {
        name: None if value is None else Array(value, index, namespace)
        for name, value in case.tensors.items()
    }


def tensors_of(case, on_gpu, index=0):
    return {
        name: None if value is None else on_gpu(torch.from_numpy(value), index)
        for name, value in case.tensors.items()
    }


def as_numpy(result):
    return {
        name: None if value is None else value.array if isinstance(value, Array) else value.numpy()
        for name, value in named(result).items()
    }


# DLPack


@pytest.mark.parametrize("layout", ["contiguous", "channels_last", "sliced"])
@pytest.mark.parametrize("kind", OPERATORS)
def test_dlpack_on_a_gpu_gives_its_own_kind(seen, kind, layout):
    case = make(kind, (3, 4, 5, 6), layout=layout, num_groups=2)
    expected = bits(case.call())
    namespace = Namespace()
    tensors = arrays(case, 1, namespace)
    result = getattr(ng, case.name)(**tensors, **case.options)
    assert all(isinstance(value, Array) for value in named(result).values())
    got = as_numpy(result)
    assert {name: np.ascontiguousarray(value).tobytes() for name, value in got.items()} == expected
    (index, _), *more = seen.launches
    assert (index, more) == (1, [])
    # Its own memory, on its own device; the workspace is PyTorch's.
    sizes = [value.nbytes for value in got.values()]
    assert namespace.asked == [(size, np.uint8, "the producer's GPU 1") for size in sizes]
    assert [device for device, _ in seen.scratch] == ["cuda:1"]
    # On CUDA's default stream, which DLPack calls 1.
    assert {tuple(value.streams) for value in tensors.values() if value is not None} == {(1,)}


def test_dlpack_results_keep_the_layout(seen):
    case = make("train", (3, 4, 5, 6), layout="channels_last")
    result = ng.batch_norm_backward(**arrays(case, 0, Namespace()), training=True)
    assert result.grad_input.array.strides == case.tensors["input"].strides


def test_dlpack_without_a_namespace_gives_torch(seen, on_gpu):
    case = make("train", (3, 4, 5))
    expected = bits(case.call())
    result = ng.batch_norm_backward(**arrays(case), training=True)
    assert all(isinstance(value, torch.Tensor) for value in result)
    assert seen.made == ["cuda:0"] * 3
    assert bits(result._make(value.numpy() for value in result)) == expected


def test_a_namespace_that_can_do_little(seen, on_gpu):
    """bfloat16 is not NumPy's, nor every namespace's."""
    case = make("train", (3, 4, 5), dtype="bfloat16")
    result = ng.batch_norm_backward(**arrays(case, 0, Namespace()), training=True)
    assert isinstance(result.grad_input, torch.Tensor)
    assert result.grad_input.dtype == torch.bfloat16
    assert isinstance(result.grad_weight, Array)

    class NoDevice(Namespace):
        def empty(self, size, dtype):
            raise AssertionError

    result = ng.batch_norm_backward(**arrays(case, 0, NoDevice()), training=True)
    assert all(isinstance(value, torch.Tensor) for value in result)
    assert seen.made == ["cuda:0"] * 3


def test_dlpack_out(seen):
    case = make("train", (3, 4, 5))
    expected = case.call()
    out = Array(np.full((3, 4, 5), np.nan, F))
    result = ng.batch_norm_backward(
        **arrays(case, 0, Namespace()), training=True, out=(out, None, None)
    )
    assert result.grad_input is out
    assert out.array.tobytes() == expected.grad_input.tobytes()
    frozen = np.zeros((3, 4, 5), F)
    frozen.flags.writeable = False
    refuse(
        ValueError,
        "out[0] (grad_input): read-only memory; allowed: memory that can be written",
        lambda: ng.batch_norm_backward(
            **arrays(case, 0, Namespace()), training=True, out=(Array(frozen), None, None)
        ),
    )


def test_dlpack_that_says_two_things(seen):
    class Elsewhere(Array):
        def __dlpack_device__(self):
            return 2, 0

    x = Elsewhere(np.zeros((3, 4, 5), F), 1)
    with pytest.raises(TypeError, match=re.escape(
        "grad_out: Elsewhere cannot be read through DLPack (it says it is on device cuda:0, and "
        "its data on cuda:1); allowed: "
    )):  # fmt: skip
        ng.batch_norm_backward(x, x, training=True)
    assert seen.launches == []


@pytest.mark.parametrize("where", ["grad_out", "save_mean", "out[0]"])
def test_a_gpu_reads_no_element_across_its_alignment(seen, where):
    shown = "out[0] (grad_input)" if where == "out[0]" else where
    case = make("train", (2, 3, 4, 4))
    values = {**case.tensors, "out[0]": np.zeros((2, 3, 4, 4), F)}
    memory = np.zeros(values[where].nbytes + 2, np.uint8)
    values[where] = memory[2:].view(F).reshape(values[where].shape)
    namespace = Namespace()
    given = {
        name: None if value is None else Array(value, 0, namespace)
        for name, value in values.items()
    }
    out = (given.pop("out[0]"), None, None)
    refuse(
        ValueError,
        f"{shown}: float32 at an address that is no multiple of 4; "
        "allowed: elements at multiples of their size",
        lambda: ng.batch_norm_backward(**given, **case.options, out=out),
    )


def test_streams(monkeypatch):
    """PyTorch's current stream on that GPU is what reads."""

    class Stream:
        cuda_stream = 0

    asked = []
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda index: asked.append(index) or Stream())
    framework = frameworks._dlpack
    assert framework._stream("cpu") is None
    assert framework._stream("cuda:1") == dlpack.DEFAULT_STREAM == 1
    Stream.cuda_stream = 0x5F00
    assert framework._stream("cuda:0") == 0x5F00
    assert asked == [1, 0]
    # A spec's data are not waited for.
    x = Array(np.zeros((3, 4), F))
    framework.spec_of("x", x, ())
    assert x.streams == [dlpack.NO_STREAM] == [-1]


# PyTorch


@pytest.mark.parametrize("kind", OPERATORS)
def test_torch_on_a_gpu(seen, on_gpu, kind):
    case = make(kind, (3, 4, 5, 6), num_groups=2)
    expected = bits(case.call())
    tensors = tensors_of(case, on_gpu, 1)
    for _ in range(2):
        result = getattr(ng, case.name)(**tensors, **case.options)
        assert {name: v.numpy().tobytes() for name, v in named(result).items()} == expected
    assert [index for index, _ in seen.launches] == [1, 1]
    assert set(seen.made) == {"cuda:1"}
    assert len(calls._plans) == 2  # one for NumPy's
    getattr(ng, case.name)(**tensors_of(case, on_gpu, 0), **case.options)
    assert len(calls._plans) == 3
    assert seen.launches[-1][0] == 0


def test_torch_out(seen, on_gpu):
    case = make("train", (3, 4, 5))
    expected = case.call()
    out = on_gpu(torch.full((3, 4, 5), torch.nan))
    version = out._version
    result = ng.batch_norm_backward(
        **tensors_of(case, on_gpu), training=True, out=(out, None, None)
    )
    assert result.grad_input is out
    assert out.numpy().tobytes() == expected.grad_input.tobytes()
    assert out._version == version + 1
    tensors = tensors_of(case, on_gpu)
    result = ng.batch_norm_backward(**tensors, training=True, out=(tensors["input"], None, None))
    assert result.grad_input.numpy().tobytes() == expected.grad_input.tobytes()


def test_what_is_wrong_with_memory(seen, on_gpu):
    case = make("train", (3, 4, 5))
    memory = torch.zeros(100)
    x = on_gpu(memory[:60].view(3, 4, 5))
    shifted = on_gpu(memory[4:64].view(3, 4, 5))

    def call(**more):
        return lambda: ng.batch_norm_backward(
            **{**tensors_of(case, on_gpu), "input": x, "training": True, **more}
        )

    refuse(
        ValueError,
        "out[0] (grad_input): shares memory with input; allowed: memory of its own, or all of "
        "grad_out or input with the same strides and dtype",
        call(out=(shifted, None, None)),
    )
    interleaved = on_gpu(torch.zeros(120)[::2].view(3, 4, 5))
    between = on_gpu(interleaved.as_strided((3, 4, 5), (40, 10, 2), 1))
    call(input=interleaved, out=(between, None, None))()
    shrunk = torch.empty(3, 4, 5)
    shrunk.untyped_storage().resize_(0)
    launches = len(seen.launches)
    too_small = (
        "a storage of 0 bytes from the first element on; allowed: at least 240, for its shape and "
        "strides"
    )
    for name in ("grad_out", "input"):
        refuse(ValueError, f"{name}: {too_small}", call(**{name: on_gpu(shrunk)}))
    refuse(ValueError, f"out[0] (grad_input): {too_small}", call(out=(on_gpu(shrunk), None, None)))
    assert len(seen.launches) == launches
    empty = on_gpu(torch.zeros(0, 4, 5))
    result = ng.batch_norm_backward(empty, empty, training=True)
    assert result.grad_weight.numpy().tolist() == [0] * 4


# Which devices


def test_one_device_for_all(seen, on_gpu):
    x, there, here = on_gpu(torch.zeros(3, 4)), on_gpu(torch.zeros(4), 1), torch.zeros(4)
    call = ng.batch_norm_backward

    refuse(ValueError, "weight: on device cpu; allowed: cuda:0, where grad_out is",
           lambda: call(x, x, here, training=True))  # fmt: skip
    refuse(ValueError, "weight: on device cuda:1; allowed: cuda:0, where grad_out is",
           lambda: call(x, x, there, training=True))  # fmt: skip
    refuse(ValueError, "out[1] (grad_weight): on device cuda:1; allowed: cuda:0, where grad_out is",
           lambda: call(x, x, training=True, out=(None, there, None)))  # fmt: skip
    cpu = torch.zeros(3, 4)
    refuse(ValueError, "input: on device cuda:0; allowed: cpu, where grad_out is",
           lambda: call(cpu, x, training=True))  # fmt: skip
    refuse(ValueError, "input: on device cuda:1; allowed: cuda:0, where grad_out is",
           lambda: call(Array(cpu.numpy()), Array(cpu.numpy(), 1), training=True))  # fmt: skip
    kinds = "input: a NumPy array among PyTorch tensors; allowed: one kind for all arguments"
    refuse(TypeError, kinds, lambda: call(x, cpu.numpy(), training=True))
    assert seen.launches == []


def test_devices_that_are_not_supported(seen):
    x = torch.zeros(3, 4)
    anywhere = "allowed: cpu, or cuda where Triton is installed"
    refuse(ValueError, f"grad_out: on device meta; {anywhere}",
           lambda: ng.batch_norm_backward(x.to("meta"), x, training=True))  # fmt: skip
    refuse(ValueError, "input: on device meta; allowed: cpu, where grad_out is",
           lambda: ng.batch_norm_backward(x, x.to("meta"), training=True))  # fmt: skip
    for kind, shown in ((13, "cuda_managed:0"), (10, "rocm:0"), (8, "metal:0"),
                        (99, "DLPack device type 99:0")):  # fmt: skip
        there = Array(x.numpy(), kind=kind)
        refuse(ValueError, f"grad_out: on device {shown}; {anywhere}",
               lambda there=there: ng.batch_norm_backward(there, there, training=True))  # fmt: skip


def test_cuda_that_cannot_be_used(monkeypatch):
    stand_in.install(monkeypatch, "Triton is not installed")
    x = Array(np.zeros((3, 4), F), 2)
    refuse(
        ValueError,
        "grad_out: on device cuda:2, which cannot be used here: Triton is not installed; allowed: "
        "cpu",
        lambda: ng.batch_norm_backward(x, x, training=True),
    )
    spec = TensorSpec((3, 4), F)
    refuse(
        ValueError,
        "device: 'cuda:0', which cannot be used here: Triton is not installed; allowed: cpu",
        lambda: ng.plan(
            "batch_norm_backward", grad_out=spec, input=spec, training=True, device="cuda:0"
        ),
    )


# Plans


def plan(*tensors, **more):
    return ng.plan("batch_norm_backward", grad_out=tensors[0], input=tensors[-1], training=True,
                   **more)  # fmt: skip


def test_the_device_of_a_plan(seen, on_gpu, monkeypatch):
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 1)
    spec = TensorSpec((3, 4, 5), "float32")
    x = torch.zeros(3, 4, 5)
    for made, device in (
        (plan(spec), "cpu"),
        (plan(x), "cpu"),
        (plan(x.numpy()), "cpu"),
        (plan(x.to("meta")), "cpu"),
        (plan(on_gpu(x, 1)), "cuda:1"),
        (plan(spec, on_gpu(x)), "cuda:0"),
        (plan(x.to("meta"), on_gpu(x)), "cuda:0"),
        (plan(Array(x.numpy(), 3)), "cuda:3"),
        (plan(spec, out=(on_gpu(x, 1), None, None)), "cuda:1"),
        (plan(spec, device="cpu"), "cpu"),
        (plan(on_gpu(x), device="cpu"), "cpu"),
        (plan(spec, device="cuda"), "cuda:1"),
        (plan(x, device="cuda:0"), "cuda:0"),
        (plan(x, device=torch.device("cuda", 1)), "cuda:1"),
        (plan(x, device=torch.device("cuda")), "cuda:1"),
        (plan(x, device=torch.device("cpu", 0)), "cpu"),
    ):
        assert made.device == device
        there = device != "cpu"
        assert made.path.startswith("stand-in") == there
        assert made.workspace_size == plan(spec).workspace_size + there * (256 - 64)
    refuse(ValueError, "input: on device cpu; allowed: cuda:0, where grad_out is",
           lambda: plan(on_gpu(x), x))  # fmt: skip
    allowed = "allowed: cpu, or cuda where Triton is installed"
    for device in ("mps", "gpu", "cuda:x", "cuda:", "cpu:1", "", "cuda:-1", torch.device("meta")):
        refuse(ValueError, f"device: {str(device)!r}; {allowed}",
               lambda device=device: plan(spec, device=device))  # fmt: skip
    refuse(
        ValueError,
        "device: 'cuda:4', which cannot be used here: PyTorch sees cuda:0 to cuda:3; allowed: cpu, "
        "or another GPU",
        lambda: plan(spec, device="cuda:4"),
    )
    refuse(
        ValueError,
        "grad_out: on device cuda:9, which cannot be used here: PyTorch sees cuda:0 to cuda:3; "
        "allowed: cpu, or another GPU",
        lambda: plan(Array(x.numpy(), 9)),
    )
    for device, name in ((0, "an int"), (x, "a Tensor")):
        refuse(
            TypeError, f"device: {name}; allowed: None, a name such as cpu or cuda:0, or a "
            "torch.device", lambda device=device: plan(spec, device=device),
        )  # fmt: skip


def test_plans_run_on_their_device(seen, on_gpu):
    case = make("train", (3, 4, 5))
    expected = bits(case.call())
    made = ng.plan(case.name, **tensors_of(case, on_gpu), **case.options)
    for _ in range(2):
        result = made.run(**tensors_of(case, on_gpu))
        assert {name: v.numpy().tobytes() for name, v in named(result).items()} == expected
    result = made.run(**arrays(case, 0, Namespace()))
    assert {name: v.array.tobytes() for name, v in named(result).items()} == expected
    launches = len(seen.launches)
    refuse(ValueError, "grad_out: on device cpu; allowed: cuda:0, as in the plan",
           lambda: made.run(**case.tensors))  # fmt: skip
    refuse(ValueError, "grad_out: on device cuda:1; allowed: cuda:0, as in the plan",
           lambda: made.run(**tensors_of(case, on_gpu, 1)))  # fmt: skip
    refuse(
        ValueError, "input: on device cuda:1; allowed: cuda:0, where grad_out is",
        lambda: made.run(**{**tensors_of(case, on_gpu),
                            "input": on_gpu(torch.zeros(3, 4, 5), 1)}),
    )  # fmt: skip
    on_cpu = ng.plan(case.name, **case.tensors, **case.options)
    refuse(ValueError, "grad_out: on device cuda:0; allowed: cpu, as in the plan",
           lambda: on_cpu.run(**tensors_of(case, on_gpu)))  # fmt: skip
    assert len(seen.launches) == launches


def test_kernels_are_checked_where_a_runner_is_made(seen, on_gpu):
    """For each GPU until that is settled, and never in a call of a plan that has run."""

    def call(size, index):
        case = make("train", (size, 4, 5))
        made = ng.plan(case.name, **tensors_of(case, on_gpu, index), **case.options)
        for _ in range(2):
            made.run(**tensors_of(case, on_gpu, index))

    seen.settles = False
    call(2, 0)
    call(3, 0)
    seen.settles = True
    call(4, 0)
    call(5, 0)
    call(6, 1)
    assert seen.checked == [
        *[(0, stand_in.Device(0))] * 3, (1, stand_in.Device(1))
    ]  # fmt: skip
    assert len(seen.launches) == 10
    make("train", (2, 4, 5)).call()
    assert len(seen.checked) == 4


def test_workspaces_on_a_gpu(seen, on_gpu):
    case = make("train", (3, 4, 5))
    expected = bits(case.call())
    tensors = tensors_of(case, on_gpu)
    made = ng.plan(case.name, **tensors, **case.options)
    size = made.workspace_size

    def run(workspace, **more):
        return lambda: made.run(**tensors, workspace=workspace, **more)

    for offset in (0, 1, 33):
        memory = torch.full((size + 300,), 0xFF, dtype=torch.uint8)
        given = on_gpu(memory[offset : offset + size])
        result = run(given)()
        assert {name: v.numpy().tobytes() for name, v in named(result).items()} == expected
        assert (memory[:offset] == 0xFF).all()
        assert (memory[offset + size :] == 0xFF).all()
    run(on_gpu(torch.zeros(size, 2)))()
    run(Array(np.zeros(size, np.uint8)))()
    run(Array(np.zeros((1, size, 1), np.int8).transpose(1, 0, 2)))()
    assert seen.scratch == []
    run(None)()
    assert seen.scratch == [("cuda:0", size)]

    launches = len(seen.launches)
    allowed = "allowed: a writable, contiguous tensor on cuda:0"
    refuse(TypeError, f"workspace: a bytearray; {allowed}", run(bytearray(size)))
    refuse(TypeError, f"workspace: a ndarray; {allowed}", run(np.zeros(size, np.uint8)))
    refuse(ValueError, "workspace: on device cpu; allowed: cuda:0, as in the plan",
           run(torch.zeros(size)))  # fmt: skip
    refuse(ValueError, "workspace: on device cuda:1; allowed: cuda:0, as in the plan",
           run(Array(np.zeros(size, np.uint8), 1)))  # fmt: skip
    refuse(ValueError, f"workspace: {size - 1} bytes; allowed: at least {size}",
           run(on_gpu(torch.zeros(size - 1, dtype=torch.uint8))))  # fmt: skip
    refuse(ValueError, f"workspace: not contiguous; {allowed}",
           run(on_gpu(torch.zeros(size, 2)[:, 0])))  # fmt: skip
    refuse(ValueError, f"workspace: not contiguous; {allowed}",
           run(Array(np.zeros((size, 2), np.uint8)[:, 0])))  # fmt: skip
    frozen = np.zeros(size, np.uint8)
    frozen.flags.writeable = False
    refuse(ValueError, "workspace: read-only memory; allowed: memory that can be written",
           run(Array(frozen)))  # fmt: skip
    memory = torch.zeros(size // 4 + 200)
    out = on_gpu(memory[:60].view(3, 4, 5))
    refuse(
        ValueError, "workspace: shares memory with out[0] (grad_input); allowed: memory of its own",
        run(on_gpu(memory), out=(out, None, None)),
    )  # fmt: skip
    assert len(seen.launches) == launches
    # And the other way about.
    on_cpu = ng.plan(case.name, **case.tensors, **case.options)
    refuse(ValueError, "workspace: on device cuda:0; allowed: cpu",
           lambda: on_cpu.run(**case.tensors, workspace=on_gpu(torch.zeros(size))))  # fmt: skip


def test_dialects_are_the_cpu_s(seen, on_gpu):
    from normgrad.dialects import aclnn, infiniop

    x, v = on_gpu(torch.zeros(3, 4, 5)), np.zeros(4, F)
    refuse(ValueError, "array: on device cuda:0; allowed: cpu", lambda: aclnn.tensor(x))
    there = Array(np.zeros((3, 4), F), 1)
    refuse(ValueError, "array: on device cuda:1; allowed: cpu", lambda: aclnn.tensor(there))
    with pytest.raises(aclnn.AclnnError, match=r"tensorData: on device cuda:0; allowed: cpu"):
        aclnn.aclCreateTensor((3, 4, 5), 0, None, 0, 2, None, x)
    handle = infiniop.infiniopCreateHandle()
    whole, vector = (
        infiniop.infiniopCreateTensorDescriptor(len(dims), dims, None, 13)
        for dims in ((3, 4, 5), (4,))
    )
    operator = infiniop.infiniopCreateBatchNormBackwardDescriptor(
        handle, whole, vector, vector, whole, whole, vector, vector, vector
    )
    size = infiniop.infiniopGetBatchNormBackwardWorkspaceSize(operator)
    with pytest.raises(infiniop.InfiniError, match=r"grad_input: on device cuda:0; allowed: cpu"):
        infiniop.infiniopBatchNormBackward(operator, bytearray(size), size, x, v, v, x, x, v, v, v)


def test_nothing_to_compute(seen, on_gpu):
    x = on_gpu(torch.zeros(3, 4))
    nothing = plan(x, output_mask=(False,) * 3)
    assert nothing.run(x, x) == (None, None, None)
    assert not nothing.reads_input
    assert seen.launches == []


# The environment


@pytest.fixture
def interpreted(monkeypatch, seen):
    monkeypatch.setattr(choice, "find_spec", lambda name: object())
    monkeypatch.setenv("NORMGRAD_BACKEND", "triton")
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    return seen


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("kind", OPERATORS)
def test_the_cpu_s_tensors_by_triton_s_interpreter(interpreted, monkeypatch, kind, dtype):
    case = make(kind, (3, 4, 5, 6), dtype=dtype, num_groups=2)
    got = bits(case.call())
    assert [index for index, _ in interpreted.launches] == [None]
    assert interpreted.scratch == []
    monkeypatch.delenv("NORMGRAD_BACKEND")
    monkeypatch.setattr(calls, "_plans", Cache())
    assert bits(case.call()) == got
    assert len(interpreted.launches) == 1


def test_torch_and_dlpack_by_the_interpreter(interpreted):
    case = make("train", (3, 4, 5))
    expected = case.call()
    theirs = {
        name: value if value is None else torch.from_numpy(value)
        for name, value in case.tensors.items()
    }
    result = ng.batch_norm_backward(**theirs, training=True)
    assert bits(result._make(value.numpy() for value in result)) == bits(expected)
    xp = pytest.importorskip("array_api_strict")
    theirs = {
        name: value if value is None else xp.asarray(value) for name, value in case.tensors.items()
    }
    result = ng.batch_norm_backward(**theirs, training=True)
    assert bits(result._make(np.asarray(value) for value in result)) == bits(expected)
    assert [index for index, _ in interpreted.launches] == [None] * 3


def test_memory_is_checked_before_the_interpreter(interpreted):
    case = make("train", (3, 4, 5))
    made = ng.plan(case.name, **case.tensors, **case.options)
    assert made.device == "cpu"
    memory = np.zeros(made.workspace_size // 4 + 200, F)
    case.tensors["input"] = memory[64:124].reshape(3, 4, 5)
    refuse(
        ValueError,
        "out[0] (grad_input): shares memory with input; allowed: memory of its own, or all of "
        "grad_out or input with the same strides and dtype",
        lambda: case.call(out=(memory[68:128].reshape(3, 4, 5), None, None)),
    )
    refuse(
        ValueError, "workspace: shares memory with input; allowed: memory of its own",
        lambda: made.run(**case.tensors, workspace=memory),
    )  # fmt: skip
    assert interpreted.launches == []
    for offset in (0, 1, 33):
        scratch = np.full(made.workspace_size + 64, 0xFF, np.uint8)
        made.run(**case.tensors, workspace=scratch[offset : offset + made.workspace_size])
        (_, addresses) = interpreted.launches[-1]
        assert addresses[WORKSPACE] % stand_in.ALIGNMENT == 0
    made.run(**case.tensors, workspace=bytearray(made.workspace_size))


def test_errors_of_the_environment(monkeypatch, seen):
    case = make("train", (3, 4, 5))
    monkeypatch.setenv("NORMGRAD_BACKEND", "cuda")
    refuse(ValueError, "NORMGRAD_BACKEND: 'cuda'; allowed: cpu, triton", case.call)
    monkeypatch.setenv("NORMGRAD_BACKEND", "triton")
    for value in (None, "0"):
        monkeypatch.delenv("TRITON_INTERPRET", raising=False)
        if value is not None:
            monkeypatch.setenv("TRITON_INTERPRET", value)
        refuse(
            ValueError,
            "NORMGRAD_BACKEND: 'triton' for tensors on the CPU; allowed: with TRITON_INTERPRET=1, "
            "or cpu",
            case.call,
        )
    # GPUs' tensors have no other.
    ng.batch_norm_backward(**arrays(case, 0, Namespace()), training=True)
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    monkeypatch.setattr(choice, "find_spec", lambda name: None)
    refuse(ValueError, "NORMGRAD_BACKEND: 'triton', which is not installed; allowed: cpu",
           case.call)  # fmt: skip
    for value in ("cpu", ""):
        monkeypatch.setenv("NORMGRAD_BACKEND", value)
        case.call()
    assert [index for index, _ in seen.launches] == [0]
