"""What CUDA is asked to launch, by Python and by C++.

The driver is a library that only keeps what it is asked; everything on this side of it is real.
"""

from __future__ import annotations

import multiprocessing
import re
from concurrent.futures import ProcessPoolExecutor
from types import SimpleNamespace
from typing import Any

import fake_cuda
import pytest
from triton_programs import arguments, calls_of_ranks, schedule_of

from normgrad import testing
from normgrad.testing import FORWARD, GRADIENTS

triton = pytest.importorskip("triton")
pytest.importorskip("torch")

if triton.knobs.runtime.interpret:
    pytest.skip("kernels are interpreted", allow_module_level=True)
if fake_cuda.compiler() is None:
    pytest.skip("no C compiler", allow_module_level=True)

from normgrad import TensorSpec  # noqa: E402
from normgrad.backends.triton import cuda_driver  # noqa: E402
from normgrad.declarations.problem import PLACES, WORKSPACE, Role  # noqa: E402
from normgrad.support.forks import KernelError  # noqa: E402

LARGE, SMALL = (256, 64, 56, 56), (8, 64, 14, 14)
#: Operators with their shapes and layouts, of as many launches as there are.
PROGRAMS = {
    "one": ("batch_norm_backward", SMALL, "contiguous", None),
    "three": ("batch_norm_backward", LARGE, "channels_last", None),
    "two": ("batch_norm_backward", LARGE, "contiguous", None),
    "views": ("batch_norm_backward", (32, 64, 28, 28), "sliced", "sliced"),
    "missing statistics": ("missing", LARGE, "contiguous", None),
    "counts": ("batch_norm_backward_elemt", SMALL, "contiguous", None),
    "groups": ("group_norm_backward", SMALL, "contiguous", None),
    "lines": ("group_norm_backward", (512, 96), "contiguous", None),
    "long lines": ("group_norm", (16, 65536), "contiguous", None),
    "forward": ("batch_norm", LARGE, "contiguous", None),
    "gather": ("batch_norm_gather_stats_with_counts", SMALL, "contiguous", None),
}


def program(kind: str) -> Any:
    name, shape, layout, x_layout = PROGRAMS[kind]
    return schedule_of(name, **arguments(name, shape, "bfloat16", layout, x_layout))


def addresses(call: int = 0, offset: int = 0) -> list[int]:
    """Of a call, all unlike each other and unlike any other call's."""
    return [0x7F00_0000_0000 + (call * PLACES + place) * 4096 + offset for place in range(PLACES)]


def flat(value: Any) -> list[int]:
    return [word for part in value for word in flat(part)] if isinstance(value, tuple) else [value]


def expected(made: Any, calls: list[list[int]], device: int = 0) -> list[dict[str, Any]]:
    """What CUDA should be asked for, but for what only the compiler knows."""
    return [
        {
            "grid": (launch.programs, 1, 1),
            "block": (32 * launch.warps, 1, 1),
            "device": device,
            "attributes": 0,
            "stream": fake_cuda.STREAM + device,
            # The last two are Triton's scratch memory.
            "values": [*flat(launch.at(call)), 0, 0],
        }
        for call in calls
        for launch in made.launches
    ]


def planned(launches: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Launches without what only the compiler knows, and without their threads."""
    hidden = ("shared", "kernel", "thread")
    return [{key: launch[key] for key in launch if key not in hidden} for launch in launches]


@pytest.fixture(scope="module")
def in_process():
    """Calls a function of ``fake_cuda`` in a process that has the library in place of CUDA."""
    spawn = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, spawn, fake_cuda.install, (fake_cuda.build(),)) as pool:
        yield lambda function, *values: pool.submit(function, *values).result(timeout=300)


@pytest.mark.parametrize("kind", PROGRAMS)
def test_every_launch_has_its_size_its_stream_and_all_arguments(in_process, kind):
    made, calls = program(kind), [addresses(0), addresses(1), addresses(0)]
    found = in_process(fake_cuda.run, made, calls)
    assert planned(found["launches"]) == expected(made, calls)


#: Kinds that have every kernel between them.
EVERY_KERNEL = {"train_without_statistics", "elemt", "group_norm", "gather"}


@pytest.mark.every_case
@pytest.mark.parametrize(
    "kind",
    [
        pytest.param(kind, marks=() if kind in EVERY_KERNEL else pytest.mark.full)
        for kind in (*GRADIENTS, *FORWARD)
    ],
)
def test_programs_of_other_ranks_have_kernels_of_their_own(in_process, kind):
    """A kernel reads its arguments by their places, which depend on all ranks."""
    programs = [
        schedule_of(call.name, **call.tensors, **call.options) for call in calls_of_ranks(kind)
    ]
    found = [in_process(fake_cuda.run, made, [addresses()])["launches"] for made in programs]
    assert list(map(planned, found)) == [expected(made, [addresses()]) for made in programs]


@pytest.mark.parametrize("kind", PROGRAMS)
def test_triton_s_launcher_asks_for_the_same(in_process, kind):
    made, call = program(kind), addresses(0)
    ours = in_process(fake_cuda.run, made, [call])["launches"]
    theirs = in_process(fake_cuda.run_by_triton, made, call)
    for launch in (*ours, *theirs):
        del launch["kernel"]  # each has loaded its own
    assert ours == theirs


def test_kernels_are_looked_up_once_for_an_alignment(in_process):
    made = program("one")
    calls = [addresses(0), addresses(1, offset=2), addresses(2), addresses(3, offset=2)]
    found = in_process(fake_cuda.run, made, calls)
    assert planned(found["launches"]) == expected(made, calls)
    kernels = [launch["kernel"] for launch in found["launches"]]
    assert kernels[:2] == kernels[2:]
    assert kernels[0] != kernels[1]
    assert found["compiled"] == 2 * len(made.launches)


def test_kernels_run_on_the_tensors_device(in_process):
    made, calls = program("three"), [addresses(0), addresses(1)]
    for device in (1, 0):
        found = in_process(fake_cuda.run, made, calls, device)
        assert planned(found["launches"]) == expected(made, calls, device)
        assert found["device"] == 0


def test_a_first_call_in_a_capture_is_refused(in_process):
    """Nothing may be compiled or loaded there; calls like one that was made before may run."""
    made = program("one")
    error, launches = in_process(fake_cuda.run_captured, made, [addresses(0), addresses(1)])
    assert error == (
        "cuda:0: a first call while a CUDA graph is captured; allowed: after the same call once "
        "before the capture, which compiles and loads the kernels"
    )
    assert planned(launches) == expected(made, [addresses(0), addresses(1)])


@pytest.mark.parametrize("after", [0, 1, 2])
def test_a_launch_that_is_refused_is_an_error(in_process, after):
    made = program("three")
    error, accepted, afterwards = in_process(fake_cuda.run_refused, 701, made, addresses(), after)
    assert error == "cuda:0: CUDA refused a launch: too many resources requested"
    assert (accepted, afterwards) == (after, len(made.launches))


def test_threads_have_arguments_and_streams_of_their_own(in_process):
    """None has a context at first, as new threads have none; and memory is aligned differently."""
    made, threads, rounds = program("three"), 8, 100
    calls = [addresses(thread, offset=thread % 2 * 2) for thread in range(threads)]
    found = in_process(fake_cuda.run_in_threads, made, calls, rounds)
    kernels = []
    for thread, call in enumerate(calls):
        stream = fake_cuda.STREAM * (thread + 1)
        own = [launch for launch in found if launch["stream"] == stream]
        planned_for = [{**launch, "stream": stream} for launch in expected(made, [call] * rounds)]
        assert planned(own) == planned_for
        kernels.append([launch["kernel"] for launch in own])
    assert len(found) == threads * rounds * len(made.launches)
    for thread in range(2, threads):
        assert kernels[thread] == kernels[thread % 2]
    # The sums and dx are read and written as their alignment allows.
    assert not {*kernels[0][::3], *kernels[0][2::3]} & {*kernels[1]}


def of_layer_norm() -> Any:
    """A program of C++'s call, without a workspace."""
    vector = TensorSpec((64,), "float32")
    given = {"input": TensorSpec((4, 64), "float32"), "weight": vector, "bias": vector}
    return schedule_of("layer_norm", normalized_shape=(64,), **given)


@pytest.mark.parametrize("index", [0, 1])
@pytest.mark.parametrize("in_thread", [False, True])
@pytest.mark.parametrize("way", ["Python", "C++"])
def test_any_thread_launches_on_any_device(in_process, way, in_thread, index):
    """The main thread has the first device's context, and the other thread has none."""
    made = of_layer_norm()
    found, thread, tensors, current = in_process(fake_cuda.run_by_each, made, way, index, in_thread)
    assert current == (-1 if in_thread else 0)
    assert {launch["thread"] for launch in found} == {thread}
    call = [0] * PLACES
    if way == "C++":
        roles = (Role.INPUT, Role.WEIGHT, Role.BIAS, Role.RESULT, Role.OUT_MEAN, Role.OUT_INVSTD)
        for role, address in zip(roles, tensors, strict=True):
            call[role] = address
        call[Role.GRAD_OUT] = call[Role.INPUT]
        call[WORKSPACE] = found[0]["values"][WORKSPACE]
    assert planned(found) == expected(made, [call], index)


def test_errors_are_the_same_by_python_and_by_c(in_process):
    made = of_layer_norm()
    by_python, by_cpp = in_process(fake_cuda.refusals, made)
    assert by_python == [
        (
            "cuda:0: a first call while a CUDA graph is captured; allowed: after the same call "
            "once before the capture, which compiles and loads the kernels",
            0,
        ),
        ("cuda:0: CUDA refused a launch: too many resources requested", 0),
        ("", len(made.launches)),
    ]
    assert by_cpp == by_python


def kernel(made: Any, **changes: Any) -> Any:
    """A loaded kernel, as far as Triton tells of it, for a launch."""
    count = len(flat(made.arguments)) + 2
    lines = [f"\t.param .u64 sums_param_{index}" for index in range(count)]
    lines[-1] = lines[-1].replace(".u64", ".u64 .ptr .global .align 1")
    values = {
        "global_scratch_size": 0, "profile_scratch_size": 0, "launch_cooperative_grid": False,
        "launch_pdl": False, "num_ctas": 1, "num_warps": 4, "shared": 0,
    }  # fmt: skip
    ptx = ".visible .entry sums(\n" + ",\n".join(lines) + "\n)\n.reqntid 128\n{ .param .b32 x; }"
    ptx = changes.pop("replace", lambda text: text)(ptx)
    metadata = SimpleNamespace(**{**values, **changes})
    return SimpleNamespace(metadata=metadata, asm={"ptx": ptx})


def test_kernels_that_need_more_than_a_launch_provides():
    """As those of another version of Triton may, which also may describe them in another way."""
    made = program("one").launches[0]
    words = cuda_driver.row(made, kernel(made), 7)
    assert words[cuda_driver.KERNEL] == 7
    for changes in (
        {"global_scratch_size": 16},
        {"profile_scratch_size": 16},
        {"launch_cooperative_grid": True},
        {"launch_pdl": True},
        {"num_ctas": 2},
        {"num_ctas": None},
    ):
        ((name, value),) = changes.items()
        with pytest.raises(KernelError, match=f"^{made.kernel}: .*'{name}': {value}.*; allowed: "):
            cuda_driver.row(made, kernel(made, **changes), 7)
    count = len(flat(made.arguments)) + 2
    for replace, declared in (
        (lambda ptx: ptx.replace("(\n", "(\n\t.param .u64 another,\n"), {"64": count + 1}),
        (lambda ptx: ptx.replace(".param .u64", ".param .u32", 1), {"32": 1, "64": count - 1}),
        (lambda ptx: "", {}),
    ):
        text = f"{re.escape(str(declared))}}}; allowed: .*{{'64': {count}}}}}$"
        with pytest.raises(KernelError, match=text):
            cuda_driver.row(made, kernel(made, replace=replace), 7)


@pytest.mark.every_case
@pytest.mark.parametrize("kind", [*GRADIENTS, *FORWARD])
def test_a_launch_has_room_for_the_arguments_of_most_axes(kind):
    """No two axes of the tensors make one, nor of the vectors of rows with one to all axes."""
    shape = (2,) * 8
    for row_axes in range(1, len(shape) + 1):
        case = testing.Case(
            testing.Topic.VALUES, kind, shape, layout="sliced", vectors="sliced", row_axes=row_axes
        )
        call = case.call()
        for launch in schedule_of(call.name, **call.tensors, **call.options).launches:
            words = cuda_driver.row(launch, kernel(launch), 7)
            values = [*flat(launch.arguments), 0, 0]
            assert words[cuda_driver.COUNT] == len(values)
            assert words[cuda_driver.PARAMETERS :][: len(values)].tolist() == values


def test_a_device_has_one_launcher(in_process):
    """C++ has its address."""
    assert in_process(fake_cuda.launchers_made, program("one"), 8) == 1


def test_c_cannot_launch_where_the_stream_cannot_be_asked(in_process):
    assert in_process(fake_cuda.has_native, program("one"), True)
    assert not in_process(fake_cuda.has_native, program("one"), False)
