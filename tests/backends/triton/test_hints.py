"""What kernels promise the compiler, and the offsets they count in, worked out in numbers.

A promise that does not hold is wrong bytes on a GPU, and nothing at all to an interpreter. So the
kernels' arithmetic is done again here, on many tensors that need not be there: every tile starts
where it is said to, what is read at once is contiguous, aligned and masked as one, every element
belongs to one tile, and nothing is beyond the bits it is counted in.
"""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from common import INTERPRETED
from triton_programs import H200, OVER_TENSORS, PASSES, schedule_of

from normgrad import TensorSpec
from normgrad.backends.triton import config as words
from normgrad.backends.triton.device import Device
from normgrad.backends.triton.runtime import aligned

pytestmark = pytest.mark.skipif(INTERPRETED, reason="plans are the same")

TENSORS = ("dy", "x", "dx")
SIZES = {0: 4, 1: 8, 2: 2, 3: 2}
DTYPES = ("float32", "float16", "bfloat16", "float64")
#: Tasks of a launch, and tiles of a task, that are looked at: the first, the last and some between.
TASKS = 24
TILES = 6


def some(numbers: random.Random, count: int, most: int) -> list[int]:
    if count <= most:
        return list(range(count))
    return sorted({0, count - 1, *(numbers.randrange(count) for _ in range(most - 2))})


class Task:
    """A task of a launch: what ``task_of`` and ``pointers`` make of its number."""

    def __init__(self, launch: Any, config: Any, number: int) -> None:
        self.config, self.arguments = config, launch.arguments
        self.axes = self.arguments.axes
        sizes = self.sizes = launch.arguments.sizes
        i = np.arange(config.channels)
        if config.resident:
            blocks = -(-sizes.channels // sizes.step)
            unit, self.part = divmod(number, sizes.parts)
            self.set, block = divmod(unit, blocks)
            self.first = block * sizes.step
            self.channel = self.first + i
            self.channels_there = (i < sizes.step) & (self.channel < sizes.channels)
        else:  # what ``channels_in_group`` makes of a group and the first of some of its channels
            unit, block = divmod(number, -(-sizes.per_group // config.channels))
            (self.set, group), self.part = divmod(unit, sizes.groups), 0
            k = block * config.channels
            self.first = group * sizes.per_group + k
            self.channel = self.first + i
            self.channels_there = k + i < sizes.per_group
        self.start = self.part * sizes.part
        self.end = min(self.start + sizes.part, sizes.positions)

    def elements(self, p: Any) -> tuple[Any, Any]:
        """Positions as tiles count them as those of the tensor, and which there are."""
        inside = p < self.end
        if self.config.sharing > 1:
            p, index = np.divmod(p, self.config.sharing)
            p, inside = p * self.sizes.sharing + index, inside & (index < self.sizes.sharing)
        return p, inside

    def base(self, name: str) -> int:
        tensor = getattr(self.config, name)
        steps = getattr(self.arguments, name)
        along = 1 if tensor.along == words.ALONG_CHANNELS else steps.channels
        return int(self.of_set(steps) + self.first * along)

    def of_set(self, steps: Any) -> int:
        """The offset of the task's set, as ``offset_of`` counts it."""
        offset, rest = 0, self.set
        sizes = (0, *steps.sets.sizes)
        for size, stride in zip(reversed(sizes), reversed(steps.sets.strides), strict=True):
            rest, index = divmod(rest, size) if size else (0, rest)
            offset += index * stride
        return int(offset)

    def offsets(self, name: str, p: Any) -> Any:
        """Of positions, as ``pointers`` counts them."""
        tensor = getattr(self.config, name)
        strides = getattr(self.arguments, name).axes
        total, rest = np.zeros_like(p), p
        for k in reversed(range(len(self.axes))):
            index = rest
            if k > 0:
                rest, index = np.divmod(rest, self.axes[k].size)
            contiguous = k == len(self.axes) - 1 and tensor.along == words.ALONG_POSITIONS
            total = total + index * (1 if contiguous else strides[k])
        return total

    def channel_offsets(self, name: str) -> Any:
        """Of channels, likewise."""
        tensor = getattr(self.config, name)
        local = self.channel - self.first
        if tensor.along == words.ALONG_CHANNELS:
            return local
        return local * getattr(self.arguments, name).channels

    def true_offsets(self, name: str, p: Any) -> Any:
        """Of positions by channels, from strides alone."""
        total = np.zeros_like(p)
        rest = p
        steps = getattr(self.arguments, name)
        for axis, stride in zip(reversed(self.axes), reversed(steps.axes), strict=True):
            rest, index = np.divmod(rest, axis.size)
            total = total + index * stride
        return self.of_set(steps) + total[:, None] + self.channel * steps.channels


def runs(values: Any, width: int) -> Any:
    return values.reshape(-1, width)


def row_of(config: Any) -> Any:
    """Where a line's tiles begin, and their configurations."""
    start = 0
    while config is not None:
        yield start, config
        start, config = start + config.positions, config.next


def check(launch: Any, addresses: tuple[int, ...], numbers: random.Random, writes: bool) -> None:
    first = config = aligned(launch.config, addresses)
    sizes = launch.arguments.sizes
    names = TENSORS if writes else TENSORS[:2]
    for name in names:
        width = config.positions
        if getattr(config, name).along == words.ALONG_CHANNELS:
            width = sizes.step
        assert width % getattr(config, name).vector == 0
    assert config.positions % (config.leading * config.adjacent) == 0
    blocks = -(-sizes.channels // sizes.step)
    tasks = sizes.sets * blocks * sizes.parts
    assert sizes.part * sizes.parts >= sizes.positions
    if launch.kernel == "groups":
        programs_each = -(-(blocks if config.resident else sizes.groups) // sizes.each)
        assert launch.programs == sizes.sets * sizes.parts * programs_each
        assert config.positions % max(1, config.sharing) == 0
        if config.resident:
            assert sizes.part == sum(each.positions for _, each in row_of(config))
            assert sizes.per_group == 1
        else:
            tasks = sizes.sets * sizes.groups * -(-sizes.per_group // config.channels)
    else:
        assert launch.programs == tasks
    for number in some(numbers, tasks, TASKS):
        config = first
        task = Task(launch, config, number)
        there = task.channels_there
        assert there.any()
        if config.x.along == words.ALONG_CHANNELS:
            together = runs(there, config.x.vector)
            assert (together == together[:, :1]).all()
        tiles = -(-(task.end - task.start) // config.positions)
        assert tiles > 0
        places = [(tile * config.positions, config) for tile in some(numbers, tiles, TILES)]
        for place, config in [*row_of(first)] if first.next else places:
            task.config = config
            p = task.start + place + np.arange(config.positions)
            assert p[0] % config.positions == 0
            p, inside = task.elements(p)
            if config.x.along == words.ALONG_POSITIONS:
                together = runs(inside, config.x.vector)
                assert (together == together[:, :1]).all()
            mask = inside[:, None] & there
            for name, address in zip(names, addresses, strict=False):
                tensor = getattr(config, name)
                vector, base = tensor.vector, task.base(name)
                offsets, channels = task.offsets(name, p), task.channel_offsets(name)
                reach = offsets[:, None] + channels
                true = task.true_offsets(name, p)
                assert ((base + reach) == true)[mask].all()
                if not config.long_offsets:
                    assert (abs(reach[mask]) < 1 << 31).all()
                    assert (abs(offsets[inside]) < 1 << 31).all()
                    assert (abs(channels[there]) < 1 << 31).all()
                if not config.long_positions:
                    assert p[-1] < 1 << 31
                if vector == 1:
                    continue
                assert (address + base * SIZES[tensor.code]) % (vector * SIZES[tensor.code]) == 0
                if tensor.along == words.ALONG_POSITIONS:
                    together = runs(offsets, vector)[runs(inside, vector)[:, 0]]
                    assert (together[:, 0] % vector == 0).all()
                    assert (together - together[:, :1] == np.arange(vector)).all()
                    assert (channels % vector == 0).all()
                else:
                    assert tensor.along == words.ALONG_CHANNELS
                    assert (offsets[inside] % vector == 0).all()
    if tasks <= TASKS:
        every = sum(
            (task.end - task.start) * int(task.channels_there.sum())
            for task in (Task(launch, first, number) for number in range(tasks))
        )
        assert every == sizes.sets * sizes.channels * sizes.positions


def tensor(numbers: random.Random, shape: tuple[int, ...], dtype: str) -> TensorSpec:
    """Its axes in some order in memory, perhaps with gaps."""
    axes = list(range(len(shape)))
    order = numbers.choice([axes, [0, *axes[2:], 1], numbers.sample(axes, len(axes))])
    gaps = numbers.random() < 0.3
    strides, step = [0] * len(shape), 1
    for axis in reversed(order):
        strides[axis] = step
        step *= shape[axis]
        if gaps:
            step = numbers.choice([step, step + 1, step + 8, -(-step // 8) * 8, 2 * step])
    return TensorSpec(shape, dtype, strides)


def device(numbers: random.Random) -> Device:
    made_up = numbers.choice([H200, H200, *PASSES.values()])
    if numbers.random() < 0.5:
        made_up = replace(
            made_up,
            persistent=1 << numbers.randrange(14),
            processors=numbers.choice([4, 132, 1 << 10]),
            threads=numbers.choice([32, 256]),
        )
    return made_up


def problem(numbers: random.Random) -> tuple[str, dict[str, Any]]:
    """An operator and what it is planned with."""
    channels = numbers.choice([1, 2, 3, 4, 6, 8, 12, 24, 30, 32, 64, 96, 256])
    tail = [numbers.choice([1, 2, 3, 4, 5, 7, 8, 14, 16, 24, 56]) for _ in range(2)]
    shape = (numbers.choice([1, 2, 3, 8, 17]), channels, *tail[: numbers.randrange(3)])
    half = numbers.choice(DTYPES)
    dtypes = [numbers.choice([half, half, *DTYPES]) for _ in range(3)]
    dy, x, dx = (tensor(numbers, shape, dtype) for dtype in dtypes)
    if numbers.random() < 0.5:
        dy = TensorSpec(shape, dtypes[0], x.strides)
    if numbers.random() < 0.5:
        dx = TensorSpec(shape, dtypes[2], x.strides)
    vector = TensorSpec((channels,), "float32")
    groups = numbers.choice([g for g in range(1, channels + 1) if channels % g == 0])
    of_group = TensorSpec((shape[0], groups), "float32")
    row = numbers.randrange(1, len(shape))
    of_row = TensorSpec((*shape[:-row], *[1] * row), "float32")
    statistics = {"save_mean": vector, "save_invstd": vector}
    if numbers.random() < 0.3:
        statistics = {}
    name, given = numbers.choice([
        ("batch_norm_backward", {"grad_out": dy, "training": True, **statistics}),
        ("batch_norm_backward", {"grad_out": dy, "training": False}),
        ("group_norm_backward",
         {"grad_out": dy, "mean": of_group, "rstd": of_group, "num_groups": groups}),
        ("batch_norm_backward_reduce", {"grad_out": dy, "mean": vector, "invstd": vector}),
        ("batch_norm", {"training": True}),
        ("group_norm", {"num_groups": groups}),
        ("layer_norm", {"normalized_shape": shape[-row:]}),
        ("layer_norm_backward",
         {"grad_out": dy, "mean": of_row, "rstd": of_row, "normalized_shape": shape[-row:]}),
    ])  # fmt: skip
    if name == "batch_norm_backward_reduce":
        return name, {**given, "input": x}
    outputs = 4 if name == "batch_norm" else 2
    return name, {**given, "input": x, "out": (dx, *[None] * outputs)}


@pytest.mark.parametrize("seed", range(4))
def test_what_kernels_promise_is_so(seed):
    numbers = random.Random(seed)
    seen, kernels = {}, set()
    for _ in range(400):
        name, planned = problem(numbers)
        program = schedule_of(name, device(numbers), **planned)
        seen[program.passes] = seen.get(program.passes, 0) + 1
        for launch in program.launches:
            if launch.kernel not in OVER_TENSORS:
                continue
            kernels.add(launch.kernel)
            sizes = [SIZES[getattr(launch.config, which).code] for which in TENSORS]
            addresses = tuple(size * numbers.choice([0, 0, 1, 2, 4, 6, 8]) for size in sizes)
            # Sums write nothing, but in evaluation.
            writes = launch.kernel != "sums" or bool(launch.config.stores & words.RESULT)
            try:
                check(launch, addresses, numbers, writes)
            except AssertionError as error:
                raise AssertionError(f"{name} {planned} {program.path} {launch}") from error
    assert min(seen[passes] for passes in ("", *PASSES)) > 5, seen
    assert kernels == {*OVER_TENSORS}


@pytest.mark.parametrize(
    ("shape", "strides", "groups"),
    [
        # A group whose channels are far apart.
        ((1, 4096, 2), (1, 1_000_000, 2), 1),
        ((2, 4096, 3), (1, 1_000_000, 2), 2),
        ((1, 64, 4), (1, 30_000_000, 1 << 29), 4),
        ((1 << 15, 64, 1 << 10), (1 << 16, 1 << 10, 1), 8),
        ((1 << 17, 64, 1 << 10), (1 << 16, 1 << 10, 1), 8),
        ((3, 2, (1 << 31) - (1 << 20) - 3), (1 << 33, 1 << 32, 1), 1),
    ],
)
@pytest.mark.parametrize("kind", ["batch_norm", "group_norm"])
def test_what_is_counted_in_32_bits_needs_no_more(kind, shape, strides, groups):
    x = TensorSpec(shape, "bfloat16", strides)
    planned = {"training": True} if kind == "batch_norm" else {"num_groups": groups}
    for made_up in (H200, replace(H200, processors=1 << 14)):
        program = schedule_of(kind, made_up, input=x, **planned)
        for launch in program.launches:
            if launch.kernel in OVER_TENSORS:
                check(launch, (0, 0, 0), random.Random(0), writes=False)
