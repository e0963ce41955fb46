"""One pass and two on a real GPU: within the bound, and the same bits whoever comes first.

Devices that are made up have small tensors take both; large ones take what the GPU itself is
planned for. Races show, if at all, in many runs beside other work.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from unittest import mock

import pytest
from common import FLOATS, make
from gpu_tensors import GPU, compute, only_on_a_gpu, same, tensors_of
from triton_programs import PASSES, forward_case

import normgrad as ng
from normgrad.backends import choice
from normgrad.backends.triton import device, selfcheck
from normgrad.backends.triton.device import Device
from normgrad.plans import calls

torch = pytest.importorskip("torch")

pytestmark = only_on_a_gpu

#: Of a program on a GPU; those made up for an interpreter have one warp.
THREADS = 256
SHAPE = (3, 6, 5, 4)


@contextlib.contextmanager
def planned_for(made_up: Device) -> Iterator[None]:
    """Plans are for this device, and run on the real one."""
    with (
        mock.patch.object(device, "of", return_value=made_up),
        mock.patch.object(selfcheck, "settled", return_value=True),
        mock.patch.object(choice, "_triton", cache(choice._Triton)),
        mock.patch.dict(calls._plans, clear=True),
    ):
        yield


def on_gpu(passes: str) -> Device:
    return replace(PASSES[passes], threads=THREADS)


def path_of(case, tensors):
    return ng.plan(case.name, **tensors, **case.options).path


#: Shapes of which group norm is read line by line.
LINES = [(70, 12), (9, 6, 3), (5, 4000)]
CASES = [
    ("train", "contiguous"),
    ("train", "channels_last"),
    ("group_norm", "contiguous"),
    ("group_norm", "channels_last"),
]


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize(("kind", "layout"), CASES)
@pytest.mark.parametrize("passes", PASSES)
def test_gradients_sanitizer(passes, kind, layout, dtype):
    case = make(kind, SHAPE, dtype=dtype, layout=layout, num_groups=2)
    with planned_for(on_gpu(passes)):
        assert passes in path_of(case, tensors_of(case))
        compute(case)


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("kind", ["batch_norm", "group_norm"])
@pytest.mark.parametrize("passes", PASSES)
def test_forward_passes_sanitizer(passes, kind, dtype):
    case = forward_case(kind, SHAPE, dtype, "contiguous")
    with planned_for(on_gpu(passes)):
        compute(case)


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("shape", LINES)
@pytest.mark.parametrize("passes", PASSES)
def test_lines_sanitizer(passes, shape, dtype):
    for kind in ("group_norm", "forward_group_norm"):
        case = make(kind, shape, dtype=dtype, num_groups=2)
        with planned_for(on_gpu(passes)):
            assert "lines" in path_of(case, tensors_of(case))
            compute(case)


@pytest.mark.parametrize(("kind", "layout"), CASES)
def test_the_same_bits_beside_other_work(kind, layout):
    """Many times, while other kernels take the programs' places."""
    case = make(kind, (16, 24, 30, 30), dtype="bfloat16", layout=layout, num_groups=4)
    tensors = tensors_of(case)
    beside, noise = torch.cuda.Stream(), torch.randn(2048, 2048, device=GPU)
    with planned_for(on_gpu("two passes")):
        assert "two passes" in path_of(case, tensors)
        first = compute(case)
        for _ in range(200):
            with torch.cuda.stream(beside):
                noise = noise @ noise * 0.01
            same(getattr(ng, case.name)(**tensors, **case.options), first)


@pytest.mark.parametrize("kind", ["batch_norm", "group_norm"])
@pytest.mark.parametrize("passes", PASSES)
def test_forward_passes_in_place(passes, kind):
    """What moments are about is an element of x, and gone when others still need it."""
    shape = SHAPE if passes == "one pass" else (16, 24, 30, 30)
    case = forward_case(kind, shape, "float32", "contiguous")
    with planned_for(on_gpu(passes)):
        tensors = tensors_of(case)
        assert passes in path_of(case, tensors)
        first = compute(case)
        for _ in range(50):
            tensors["input"] = tensors_of(case)["input"]
            out = (tensors["input"], *[None] * (len(first) - 1))
            same(getattr(ng, case.name)(**tensors, **case.options, out=out), first)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("count", [64, 768, 4096, 8192, 16384])
def test_rows_in_place(count, dtype):
    """While a program writes a row in its place, it has begun to read the next ones."""
    rows = (2 << 22) // count
    x, dy = (torch.randn(rows, count, device=GPU).to(dtype) for _ in range(2))
    weight, bias = (torch.randn(count, device=GPU) for _ in range(2))
    y, mean, rstd = ng.layer_norm(x, count, weight, bias)
    dx, *_ = ng.layer_norm_backward(dy, x, mean, rstd, weight, normalized_shape=count)
    error = y.double() - torch.nn.functional.layer_norm(
        x.double(), (count,), weight.double(), bias.double()
    )
    assert error.abs().max() < (1e-4 if dtype is torch.float32 else 0.1)
    for _ in range(20):
        own = x.clone()
        ng.layer_norm(own, count, weight, bias, out=(own, None, None))
        assert torch.equal(own, y)
        own = dy.clone()
        ng.layer_norm_backward(
            own, x, mean, rstd, weight, normalized_shape=count, out=(own, None, None)
        )
        assert torch.equal(own, dx)


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")
def test_a_second_gpu():
    """Kernels are loaded on each."""
    case = make("train", (8, 16, 14, 14))
    first = compute(case)
    same(getattr(ng, case.name)(**tensors_of(case, "cuda:1"), **case.options), first)
    same(compute(case), first)


def test_two_streams_at_once():
    """Each call has a workspace of its own."""
    case = make("train", (16, 24, 40, 40), dtype="bfloat16")
    with planned_for(on_gpu("two passes")):
        tensors = tensors_of(case)
        expected = compute(case)
        streams = [torch.cuda.Stream() for _ in range(2)]
        torch.cuda.synchronize()
        results = []
        for _ in range(100):
            for stream in streams:
                with torch.cuda.stream(stream):
                    results.append(getattr(ng, case.name)(**tensors, **case.options))
        torch.cuda.synchronize()
        for result in results:
            same(result, expected)


@pytest.mark.parametrize("layout", ["contiguous", "channels_last"])
@pytest.mark.parametrize("kind", ["train", "group_norm"])
def test_larger_than_the_cache(kind, layout):
    """Held to the bound against float64 on the GPU, where the oracle would take minutes."""
    shape = (64, 64, 112, 112)
    generator = torch.Generator(GPU).manual_seed(0)
    memory = torch.channels_last if layout == "channels_last" else torch.contiguous_format
    dy, x = (
        torch.randn(shape, generator=generator, device=GPU, dtype=torch.bfloat16).to(
            memory_format=memory
        )
        for _ in range(2)
    )
    wide_dy, wide_x = dy.double(), x.double()
    if kind == "train":
        mean = wide_x.mean((0, 2, 3)).float()
        r = (wide_x.var((0, 2, 3), correction=0) + 1e-5).rsqrt().float()
        got = ng.batch_norm_backward(dy, x, None, None, None, mean, r, training=True)
        m, s, over = mean.view(1, -1, 1, 1).double(), r.view(1, -1, 1, 1).double(), (0, 2, 3)
    else:
        groups = wide_x.reshape(64, 8, -1)
        mean, r = groups.mean(2).float(), (groups.var(2, correction=0) + 1e-5).rsqrt().float()
        got = ng.group_norm_backward(dy, x, mean, r, num_groups=8)
        wide_dy, wide_x = (value.reshape(64, 8, 8, 112, 112) for value in (wide_dy, wide_x))
        m, s, over = mean.view(64, 8, 1, 1, 1).double(), r.view(64, 8, 1, 1, 1).double(), (2, 3, 4)
    xmu = wide_x - m
    total, projection = wide_dy.mean(over, True), (wide_dy * xmu).mean(over, True)
    exact = (s * (wide_dy - total - xmu * s * s * projection)).reshape(shape)
    scale = s * (
        wide_dy.abs()
        + wide_dy.abs().mean(over, True)
        + xmu.abs() * s * s * (wide_dy * xmu).abs().mean(over, True)
    )
    error = (got[0].double() - exact).abs() / (1.05 * 2.0**-8 * scale.reshape(shape))
    assert error.max().item() <= 1
    beta = wide_dy.reshape(shape).sum((0, 2, 3))
    bound = 4 * 2.0**-24 * wide_dy.abs().reshape(shape).sum((0, 2, 3))
    assert ((got[2].double() - beta).abs() <= bound.clamp(min=1e-30) * (2.0**16)).all()


@pytest.mark.skipif(
    not torch.cuda.is_available() or torch.cuda.get_device_properties(0).total_memory < 40 << 30,
    reason="needs 40 GiB of a GPU's memory",
)
def test_more_than_2_to_the_31_elements():
    for shape in ((2, 1 << 16, 1 << 14, 2), ((1 << 31) + 64, 1)):
        x = torch.ones(shape, device=GPU, dtype=torch.bfloat16)
        dy = x.clone()
        mean, r = (torch.full((shape[1],), value, device=GPU) for value in (0.5, 2.0))
        count = torch.tensor([2.0], device=GPU)
        sums = torch.ones(shape[1], device=GPU)
        got = ng.batch_norm_backward_elemt(dy, x, mean, r, None, sums, sums, count)
        # 2·(1 − 1/2 − 1/2·4·1/2)
        assert torch.equal(got.flatten()[-10:], torch.full_like(got.flatten()[-10:], -1.0))
        assert bool((got == -1.0).all())
        reduced = ng.batch_norm_backward_reduce(dy, x, mean, r)
        each = x.numel() / shape[1]
        assert torch.equal(reduced.sum_dy.cpu(), torch.full((shape[1],), each))
        del got, x, dy, reduced
