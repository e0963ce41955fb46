"""The kernels: vectorised, deterministic, and right in the last bit where a bit is defined."""

from __future__ import annotations

import itertools
import multiprocessing
import os
import re
import subprocess
import sys
import threading
from functools import cache
from pathlib import Path

import common
import ml_dtypes
import numpy as np
import pytest
from common import OPERATORS, bits, cut_finely, make, run, shared_by_threads
from llvmlite import binding as llvm

import normgrad as ng
from normgrad.backends.cpu.objects import compiler, units
from normgrad.backends.cpu.schedule import schedules as schedule
from normgrad.plans import calls
from normgrad.support.machine import Machine
from normgrad.support.memory import LINE
from normgrad.tensors import dtypes
from normgrad.testing import FORWARD, GRADIENTS
from normgrad.testing.tensors import HALVES

X86 = llvm.get_process_triple().startswith("x86_64")
CODES = {dtype.name: dtype.code for dtype in dtypes.FLOATS}


@cache
def compiled(pattern: str, operation: str, dtype: str) -> tuple[str, str]:
    """LLVM's code of a kernel that is compiled anew, and its machine code, as texts."""
    module = compiler.module_of(units.kernel(pattern, operation, CODES[dtype]))
    return str(module), str(compiler.machine().emit_assembly(module))


#: Whose machine code is read where not all tests run: each dtype's, of one pattern.
HOT = {("rows", "float32"), ("rows", "float64"), ("columns", "float16"), ("columns", "bfloat16")}


@pytest.mark.skipif(not X86, reason="reads x86-64 assembly")
@pytest.mark.parametrize(
    ("pattern", "dtype"),
    [
        pytest.param(*each, marks=() if each in HOT else pytest.mark.full)
        for each in itertools.product(["rows", "columns"], CODES)
    ],
)
def test_hot_loops_are_vectorised(pattern, dtype):
    """Vectorisation is lost silently: look for the packed instructions of sums and of dx."""
    (_, sums), (_, dx) = (compiled(pattern, each, dtype) for each in ("sums", "apply"))
    kind = "pd" if dtype == "float64" else "ps"
    for code in (sums, dx):
        packed = re.findall(rf"\bv?(?:fn?m(?:add|sub)\d*|mul|sub|add){kind}\s.*[xyz]mm", code)
        assert len(packed) >= 10, f"only {len(packed)} packed instructions"
        if dtype == "float16":
            assert re.search(r"vcvtph2psx?\s.*[yz]mm", code)
        if dtype == "bfloat16":
            assert re.search(r"v?pslld\s.*[xyz]mm", code)
    if dtype == "float16":
        assert re.search(r"vcvtps2phx?\s.*[yz]mm", dx)
    if dtype == "bfloat16":
        assert re.search(r"v?psrld\s.*[xyz]mm", dx)
    # Sums are folded into float64, whole vectors at a time.
    assert re.search(r"v?addpd\s.*[xyz]mm", sums)
    # Vectors that registers cannot hold are kept at whole lines: none spans two pages. Narrower
    # vectors than the widest hold no sums, but several arguments of a call.
    widest = "zmm" if "zmm" in sums else "ymm"
    aligned, not_aligned = (
        len(re.findall(rf"\bv?mov{letter}p[sd]\s.*{widest}.*\(%rsp\)", sums)) for letter in "au"
    )
    assert not_aligned <= aligned / 20


@pytest.mark.parametrize("operation", ["sums", "apply"])
@pytest.mark.parametrize(("pattern", "dtype"), sorted(HOT))
def test_llvm_does_not_choose_what_is_fused(pattern, dtype, operation):
    """It would choose by a processor's costs, and dx would be rounded more often on some."""
    code, _ = compiled(pattern, operation, dtype)
    assert "llvm.fmuladd" in code
    assert not re.search(r"\b(contract|fast)\b", code)


@pytest.mark.parametrize("shape", [(3, 4, 100), (40, 100, 1)])
def test_subnormal_numbers_are_rounded_to_bfloat16(shape):
    """In rows and columns, though a processor's instruction takes them for zero."""
    random = np.random.default_rng(5)
    x = random.integers(1, 1 << 9, shape, np.uint16).view(ml_dtypes.bfloat16)
    weight = random.uniform(0.5, 2, shape[1]).astype(np.float32)
    vectors = {"running_mean": np.zeros_like(weight), "running_var": np.ones_like(weight)}
    output = ng.batch_norm(x, weight, **vectors, training=False, eps=0.0).output
    exact = x.astype(np.float32) * weight[:, None]
    assert (np.abs(exact) < np.finfo(np.float32).tiny).any()
    np.testing.assert_array_equal(output, exact.astype(ml_dtypes.bfloat16))


def multiplied_by_one(dy: np.ndarray, dtype: np.dtype) -> np.ndarray:
    """The tensor through a kernel, into another dtype."""
    out = np.empty(dy.shape, dtype)
    one, zero = np.ones(1, np.float32), np.zeros(1, np.float32)
    ng.batch_norm_backward(
        dy, dy, None, zero, one, training=False, eps=0.0, output_mask=(True, False, False),
        out=(out, None, None),
    )  # fmt: skip
    return out


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("source", ["float32", "float64"])
def test_every_half_is_read_and_rounded_exactly(dtype, source):
    """All 65,536 values; and where rounding to them changes, and just beside."""
    half = dtypes.parse(dtype).numpy
    every = np.arange(65536, dtype=np.uint16).view(half).reshape(1, 1, -1)
    with np.errstate(invalid="ignore"):  # half of the NaNs are signalling ones
        expected = every.astype(source)
        finite = np.sort(every[np.isfinite(expected)].astype(source))
    wide = multiplied_by_one(every, np.dtype(source))
    np.testing.assert_array_equal(wide, expected)
    back = multiplied_by_one(wide, half)
    number = ~np.isnan(wide)
    np.testing.assert_array_equal(back.view(np.uint16)[number], every.view(np.uint16)[number])
    assert np.isnan(back[~number]).all()

    # Of two neighbours in the half type the middle goes to the even one, what is beyond it to the
    # nearer.
    bits_ = np.arange({"float16": 0x7BFF, "bfloat16": 0x7F7F}[dtype], dtype=np.uint16)
    below, above = bits_.view(half), (bits_ + 1).view(half)
    middle = ((below.astype(np.float64) + above.astype(np.float64)) / 2).astype(source)
    even = np.where(bits_ % 2 == 0, below, above)
    for sign in (1, -1):
        for values, nearest in (
            (middle, even),
            (np.nextafter(middle, np.dtype(source).type(0)), below),
            (np.nextafter(middle, np.dtype(source).type(np.inf)), above),
        ):
            got = multiplied_by_one((sign * values).astype(source).reshape(1, 1, -1), half)[0, 0]
            np.testing.assert_array_equal(got.astype(np.float64), sign * nearest.astype(np.float64))
    assert finite.size > 60000


@pytest.mark.parametrize("layout", ["contiguous", "channels_last", "sliced"])
@pytest.mark.parametrize("kind", OPERATORS)
def test_any_number_of_threads_gives_the_same_bits(kind, layout):
    case = make(kind, (6, 8, 40, 41), layout=layout, num_groups=4)
    results = []
    try:
        with shared_by_threads():
            for threads in (1, 2, 3):
                ng.set_num_threads(threads)
                results += [bits(case.call()) for _ in range(3)]
    finally:
        ng.set_num_threads(None)
    assert len(results) >= 6
    assert all(result == results[0] for result in results)


@pytest.mark.full
def test_many_threads_in_other_processes_give_the_same_bits():
    """More threads than cores, and one."""
    code = (
        "import sys, hashlib; sys.path[:0] = sys.argv[1:]\n"
        "from common import *\n"
        "digest = hashlib.sha256()\n"
        "shared = shared_by_threads()\n"
        "shared.__enter__()\n"
        "for kind in OPERATORS:\n"
        "    for layout in ('contiguous', 'channels_last', 'sliced'):\n"
        "        case = make(kind, (6, 8, 40, 41), layout=layout, num_groups=4)\n"
        "        for value in named(case.call()).values():\n"
        "            digest.update(np.ascontiguousarray(value).tobytes())\n"
        "print(digest.hexdigest())"
    )
    tests = str(Path(common.__file__).resolve().parent)
    digests = {
        subprocess.run(
            [sys.executable, "-c", code, tests],
            env={**os.environ, "NORMGRAD_NUM_THREADS": str(threads)},
            capture_output=True, text=True, check=True,
        ).stdout
        for threads in (1, 2, 7)
    }  # fmt: skip
    assert len(digests) == 1
    assert len(digests.pop()) == 65


def test_sixteen_threads_at_once():
    cases = [
        make(kind, (4, 8, 80, 80), num_groups=4, seed=s)
        for kind, s in itertools.product(OPERATORS, (1, 2))
    ]
    expected = [bits(case.call()) for case in cases]
    wrong = []

    def work():
        for case, bytes_ in zip(cases, expected, strict=True):
            if bits(case.call()) != bytes_:
                wrong.append(case)

    threads = [threading.Thread(target=work) for _ in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def _in_child(connection):
    case = make("train", (4, 8, 64, 64))
    connection.send(bits(case.call()))
    connection.close()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="has no fork")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_calls_after_fork():
    """Other threads are gone in the child; it computes with one, and the same bits."""
    expected = bits(make("train", (4, 8, 64, 64)).call())
    context = multiprocessing.get_context("fork")
    ours, theirs = context.Pipe()
    child = context.Process(target=_in_child, args=(theirs,))
    child.start()
    assert ours.poll(60)
    assert ours.recv() == expected
    child.join(60)
    assert child.exitcode == 0


@pytest.mark.skipif(not hasattr(os, "fork"), reason="has no fork")
def test_calls_after_fork_where_others_started_the_threads():
    """Worker threads run for a call of another thread's, and are gone in the child."""
    code = (
        "import os, sys, threading, numpy as np, normgrad as ng\n"
        "x = np.ones((16, 8, 64, 64), np.float32)\n"
        "ng.set_num_threads(3)\n"
        "thread = threading.Thread(target=ng.batch_norm_stats, args=(x,))\n"
        "thread.start(); thread.join()\n"
        "child = os.fork()\n"
        "if child == 0:\n"
        "    ng.batch_norm_backward(x, x, training=True); os._exit(7)\n"
        "print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "7\n"


def test_the_gil_is_released():
    """Python goes on while a kernel runs."""
    case = make("train", (16, 32, 128, 128))
    out = case.call()
    ticks = []
    done = threading.Event()

    def count():
        while not done.is_set():
            ticks.append(None)
            done.wait(1e-4)

    thread = threading.Thread(target=count)
    thread.start()
    case.call(out=out)
    before = len(ticks)
    for _ in range(5):
        case.call(out=out)
    during = len(ticks) - before
    done.set()
    thread.join()
    assert during > 5


def test_offsets_beyond_2_to_the_31():
    """Elements far apart in a tensor larger than 2³¹ elements; the memory between is never used."""
    base = np.empty(3 * 2**30 + 2**17, np.float16)
    for layout in ("rows", "columns", "tiles"):
        strides = {
            "rows": (2**31, 2**30, 2),
            "columns": (2**32, 2, 2**12),
            "tiles": (2**32, 2**31, 2**12),
        }
        x = np.lib.stride_tricks.as_strided(
            base, (2, 3, 20) if layout == "columns" else (2, 2, 20), strides[layout]
        )
        if layout == "rows":
            x = np.lib.stride_tricks.as_strided(base, (3, 2, 20), strides[layout])
        assert max((n - 1) * s for n, s in zip(x.shape, x.strides, strict=True)) >= 2**32
        case = make("train", x.shape, dtype="float16")
        x[...] = case.tensors["input"]
        case.tensors["input"] = x
        expected = bits(run(case))
        assert bits(case.call(out=(x, None, None))) == expected


@pytest.mark.full
def test_more_than_2_to_the_31_elements():
    """An expanded tensor: as many elements, little memory."""
    m = 2**30 + 9
    x = np.broadcast_to(np.array([1.0, 3.0], np.float32)[None, :, None], (2, 2, m))
    dy = np.broadcast_to(np.float32(0.5), (2, 2, m))
    mean, invstd = np.array([0.5, 1.0], np.float32), np.array([2.0, 1.0], np.float32)
    result = ng.batch_norm_backward_reduce(
        dy, x, mean, invstd,
        out=tuple(np.empty(2, np.float64) for _ in range(4)),
    )  # fmt: skip
    np.testing.assert_array_equal(result.sum_dy, [m, m])
    np.testing.assert_array_equal(result.sum_dy_xmu, [m * 0.5, m * 2.0])
    np.testing.assert_array_equal(result.grad_weight, [m, m * 2.0])


def test_plans_are_pure(monkeypatch):
    """Making a plan compiles nothing and imports no compiler."""
    code = (
        "import sys, normgrad as ng\n"
        "x = ng.TensorSpec((8, 16, 32, 32), 'bfloat16')\n"
        "plan = ng.plan('batch_norm_backward', grad_out=x, input=x, training=True)\n"
        "print(plan.workspace_size > 0, 'numba' in sys.modules)"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout.split() == ["True", "False"]


def test_cutting_into_parts_follows_the_shape_alone():
    for machine_threads in (1, 2):
        ng.set_num_threads(machine_threads)
        try:
            plan = ng.plan(
                "batch_norm_backward", training=True,
                **dict.fromkeys(("grad_out", "input"), ng.TensorSpec((8, 3, 224, 224), "float32")),
            )  # fmt: skip
            parts = max(step.cut.parts for step in plan._schedule.steps)
            assert parts == 19  # of three rows each
        finally:
            ng.set_num_threads(None)
    with cut_finely():
        assert not calls._plans


#: A server with a large L3, of which two cores have little, and a machine with an L3 of its own.
SERVER, OWN_L3 = Machine(2, 2 << 20, 480 << 20), Machine(2, 1 << 20, 32 << 20)


def plan_of(shape: tuple[int, ...], kind: str, **options: object) -> ng.Plan:
    """A plan for float32 tensors, channels-last."""
    x = np.moveaxis(np.zeros((shape[0], *shape[2:], shape[1]), np.float32), -1, 1)
    tensors = {"input": x} | ({"grad_out": x} if kind.endswith("backward") else {})
    return ng.plan(kind, **tensors, **options)


@pytest.mark.parametrize(
    ("shape", "dtype", "level"),
    [
        ((2, 64, 56, 56), "float32", 0),  # 4.8 MB of dy, x and dx
        ((8, 64, 56, 56), "float32", 1),  # 19 MB
        ((32, 64, 112, 112), "bfloat16", 2),  # 103 MB of dy and x
    ],
)
def test_large_rows_are_prefetched(shape, dtype, level):
    x = ng.TensorSpec(shape, dtype)
    plan = ng.plan("batch_norm_backward", grad_out=x, input=x, training=True)
    assert schedule.fetches_ahead(plan._schedule.layout) == level


@pytest.mark.parametrize("bits_", [0x7FC00000, 0x7FFFFFFF, 0xFFFFFFFF, 0x7F800001, 0xFF80FFFF])
@pytest.mark.parametrize("name", ["weight", "mean", "invstd"])
def test_any_nan_of_a_statistic_stays_one_in_bfloat16(name, bits_):
    """Whatever its payload: rounding it as a number would make it an infinity or a zero."""
    ml_dtypes = pytest.importorskip("ml_dtypes")
    data = np.ones((2, 40, 3), ml_dtypes.bfloat16)
    vectors = {key: np.ones(40, np.float32) for key in ("weight", "mean", "invstd")}
    vectors[name].view(np.uint32)[::2] = bits_
    grad_input, _, _ = ng.batch_norm_backward(
        data, data, vectors["weight"], None, None, vectors["mean"], vectors["invstd"],
        training=True,
    )  # fmt: skip
    is_nan = np.isnan(grad_input.astype(np.float32))
    assert is_nan[:, ::2].all()
    assert not is_nan[:, 1::2].any()


@pytest.mark.parametrize("kind", ["group_norm", "forward_group_norm"])
@pytest.mark.parametrize("dtype", ["float32", "float64", "bfloat16"])
@pytest.mark.parametrize(
    ("shape", "groups", "together"),
    [
        ((8, 6, 5, 7), 2, 8),
        ((9, 32, 8, 8), 4, 3),
        ((7, 4, 33), 1, 7),
        ((6, 260, 2), 2, 1),  # more channels than are taken together
        ((3, 4, 4096), 2, 1),  # more elements
    ],
)
def test_samples_together(monkeypatch, kind, dtype, shape, groups, together):
    """As one by one, to the bit: nothing is added in another order."""
    case = make(kind, shape, dtype=dtype, num_groups=groups)

    def results():
        calls._plans.clear()
        return bits(case.call())

    found = results()
    assert {plan._schedule.layout.together for plan in calls._plans.values()} == {together}
    monkeypatch.setattr(
        "normgrad.backends.cpu.schedule.layout._samples_together", lambda problem, policy: 1
    )
    assert results() == found
    assert {plan._schedule.layout.together for plan in calls._plans.values()} == {1}


@pytest.mark.parametrize(
    ("dtype", "shape", "pattern"),
    [
        ("bfloat16", (32, 1024, 16, 16), "rows"),
        ("float32", (64, 512, 20, 20), "rows"),
        ("float32", (32, 1024, 14, 14), "columns"),  # whose rows end in partial lines
        ("bfloat16", (256, 512, 7, 7), "columns"),  # whose rows are short
    ],
)
def test_tasks_of_large_gradients_write_whole_cache_lines(dtype, shape, pattern):
    tensor, vector = ng.TensorSpec(shape, dtype), ng.TensorSpec((shape[1],), "float32")
    plan = ng.plan(
        "batch_norm_backward", grad_out=tensor, input=tensor, weight=vector,
        save_mean=vector, save_invstd=vector, training=True,
    )  # fmt: skip
    assert plan.path.startswith(pattern)
    row = shape[2] * shape[3] * dtypes.parse(dtype).itemsize
    assert pattern == "columns" or plan._schedule.cut.at_once * row % LINE == 0


def _within_nan(value, before: int):
    """An array like another, so many bytes after the start of memory that is full of NaN."""
    memory = np.full(value.nbytes + 2 * before, 0xFF, np.uint8)
    return memory, np.ndarray(value.shape, value.dtype, memory, before)


@pytest.mark.parametrize("length", [32, 33, 49, 64, 81, 196])
@pytest.mark.parametrize("dtype", ["float32", "float64", *HALVES])
@pytest.mark.parametrize("kind", [*GRADIENTS, *FORWARD])
def test_adjacent_channels_as_one_run(monkeypatch, kind, dtype, length):
    """As row by row, to the bit, though cache lines have elements of two channels."""
    case = make(kind, (3, 12, length), dtype=dtype, num_groups=4)
    found = case.call()
    found = found if isinstance(found, tuple) else (found,)

    def results(threads: int, before: int):
        monkeypatch.setattr(schedule, "streams", lambda layout, channels: threads)
        calls._plans.clear()
        outs = [None if value is None else _within_nan(value, before) for value in found]
        given = tuple(None if out is None else out[1] for out in outs)
        case.call(out=given if len(given) > 1 else given[0])
        for memory, _ in filter(None, outs):
            assert (memory[:before] == 0xFF).all()
            assert (memory[memory.size - before :] == 0xFF).all()
        return [None if out is None else out[1].tobytes() for out in outs]

    # Elements that are not aligned are written row by row.
    by_row = results(0, 63)
    for threads, before in itertools.product((0, schedule.EVERY_THREAD), (0, 8, 64, 63)):
        assert results(threads, before) == by_row


@pytest.mark.parametrize("which", ["input", "mean"])
def test_samples_that_do_not_follow_each_other(which):
    """Cut out of more channels; or statistics that all samples share."""
    case = make("group_norm", (8, 6, 3, 7), num_groups=2)
    tensors = case.tensors
    if which == "input":
        tensors["input"] = np.concatenate([tensors["input"]] * 2, 1)[:, :6]
    else:
        tensors["mean"] = np.broadcast_to(tensors["mean"][:1], (8, 2))
    calls._plans.clear()
    run(case)
    assert {plan._schedule.layout.together for plan in calls._plans.values()} == {1}
