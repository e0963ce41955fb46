"""Plans for GPUs, on devices that are made up: how many passes over memory, and why."""

from __future__ import annotations

import math
import random
import subprocess
import sys
from dataclasses import replace

import pytest
from common import FLOATS, INTERPRETED
from triton_programs import CASES, H200, OVER_TENSORS, arguments, plan_of, schedule_of

from normgrad import TensorSpec
from normgrad.backends.triton import config, layouts
from normgrad.backends.triton.device import Device
from normgrad.backends.triton.policy import POLICY

pytestmark = pytest.mark.skipif(INTERPRETED, reason="plans are the same")


def train(shape, dtype="bfloat16", layout="contiguous", device=H200, **rest):
    planned = arguments("batch_norm_backward", shape, dtype, layout, **rest)
    return schedule_of("batch_norm_backward", device, **planned)


def group(shape, groups, dtype="bfloat16", layout="contiguous", device=H200, name=None):
    name = name or "group_norm_backward"
    return schedule_of(name, device, **arguments(name, shape, dtype, layout, groups=groups))


# Passes over memory


@pytest.mark.parametrize("layout", ["contiguous", "channels_last"])
def test_small_tensors_are_one_launch(layout):
    program = train((8, 64, 14, 14), layout=layout)
    assert [launch.kernel for launch in program.launches] == ["groups"]
    assert (program.passes, program.workspace_size) == ("one pass", 0)
    kind = {"contiguous": "rows", "channels_last": "columns"}[layout]
    assert program.path == f"triton one pass {kind} groups"


def test_a_channel_that_a_program_can_hold_is_read_once():
    assert train((160, 512, 7, 7)).passes == "one pass"  # 7840 elements
    assert train((170, 512, 7, 7)).passes == "two passes"  # 8330
    assert train((40, 512, 7, 7), "float64").passes == "one pass"  # 1960
    assert train((42, 512, 7, 7), "float64").passes == "two passes"  # 2058


@pytest.mark.parametrize("layout", ["contiguous", "channels_last"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_programs_of_short_rows_are_worth_starting(dtype, layout):
    """Halves are no reason for tiny programs: there are more threads instead."""
    for shape in ((64, 2048, 1, 1), (1, 512, 7, 7), (16, 4096, 3), (128, 10000, 1)):
        program = train(shape, dtype, layout)
        (launch,) = program.launches
        item = 4 if dtype == "float32" else 2
        read = 2 * item * math.prod(shape) // launch.programs
        assert read >= POLICY.least // 2, (shape, program.path)
        if program.pattern == "columns":
            assert item * launch.arguments.sizes.step >= POLICY.sector, shape


@pytest.mark.parametrize(("shape", "groups"), [((256, 512, 1), 512), ((8, 32, 3), 32)])
def test_groups_of_one_channel_are_held(shape, groups):
    """Those of several channels are read twice."""
    for name in ("group_norm", "group_norm_backward"):
        (launch, *_) = group(shape, groups, name=name).launches
        assert (launch.kernel, launch.config.resident) == ("groups", True)
    assert not group((8, 64, 24), 32).launches[0].config.resident


def test_what_no_program_can_hold_is_read_twice():
    program = train((20, 6, 65536), "float16")
    # Few channels: positions are cut so that all processors have something to do. Each channel has
    # so many sums that they are added up by themselves.
    assert program.path == "triton two passes rows sums combine+parts write+sums"
    assert program.launches[0].programs >= 4 * H200.processors
    # The second pass begins where the first has left the cache filled.
    assert program.launches[-1].config.from_sums
    assert program.launches[-1].arguments.sizes.summed == 1


def test_programs_that_write_add_up_a_few_sums_themselves():
    for shape in ((32, 64, 112, 112), (32, 256, 56, 56), (256, 64, 56, 56)):
        program = train(shape)
        assert program.path == "triton two passes rows sums write+sums"
        assert (
            program.launches[-1].arguments.sizes.summed == program.launches[0].arguments.sizes.parts
        )
        # Channels-last, a tile has so many channels that these sums would be a part of the data.
        last = train(shape, layout="channels_last")
        assert last.path == "triton two passes columns sums combine+parts write+sums"


def test_parameters_of_group_norm_are_summed_over_samples_in_the_end():
    assert group((8, 64, 14, 14), 4).path == "triton one pass rows groups+twice combine+parameters"
    masked = arguments("group_norm_backward", (8, 64, 14, 14), "bfloat16")
    program = schedule_of("group_norm_backward", **masked, output_mask=(True, False, False))
    assert program.path == "triton one pass rows groups+twice"


def test_what_needs_one_pass_takes_one():
    shape = (256, 64, 56, 56)
    paths = {
        name: schedule_of(name, **arguments(name, shape, "bfloat16")).path
        for name in CASES
        if name not in ("batch_norm_backward", "missing", "batch_norm", "group_norm")
        and name != "group_norm_backward"
    }
    assert paths == {
        "evaluation": "triton rows sums+scale combine+parts",
        "batch_norm_backward_reduce": "triton rows sums combine+parts",
        "batch_norm_backward_elemt": "triton rows write",
        "batch_norm_stats": "triton rows sums combine+parts",
        "batch_norm_elemt": "triton rows write",
        "batch_norm_gather_stats_with_counts": "triton combine+ranks",
    }


def test_masked_off_work_is_not_done():
    planned = arguments("batch_norm_backward", (256, 64, 56, 56), "bfloat16")

    def masked(*mask):
        return plan_of("batch_norm_backward", **planned, output_mask=mask)

    assert masked(False, True, True).path == "triton rows sums combine+parts"
    assert masked(False, False, False)._schedule.launches == ()
    assert masked(False, False, False).workspace_size == 0
    assert not masked(False, False, True).reads_input
    assert masked(False, True, False).reads_input


def test_missing_statistics_are_found_first():
    planned = arguments("missing", (256, 64, 56, 56), "bfloat16")
    assert schedule_of("missing", **planned).path == (
        "triton two passes rows sums combine+parts sums write+sums"
    )
    # In float64 the mean takes a round of its own.
    planned = arguments("missing", (256, 64, 56, 56), "float64")
    words = schedule_of("missing", **planned).path.split()
    assert words.count("combine+parts") == 2


def test_without_elements_sums_are_written_and_nothing_else():
    def path(name, shape):
        return schedule_of(name, **arguments(name, shape, "float32", groups=1)).path

    assert path("batch_norm_backward", (0, 4, 3, 3)) == "triton combine+parts"
    assert path("batch_norm", (0, 4, 3, 3)) == "triton combine+parts"
    assert path("group_norm_backward", (0, 4, 3, 3)) == "triton combine+parameters"
    assert path("batch_norm_backward_elemt", (0, 4, 3, 3)) == "triton"
    assert path("batch_norm_backward", (4, 0, 3, 3)) == "triton"


# Workspace


def test_the_workspace_holds_what_launches_say():
    program = train((256, 64, 56, 56), layout="channels_last")
    first, combined, last = (launch.arguments for launch in program.launches)
    sums = first.sizes.parts * 64 * 2 * 8
    assert combined.work.totals >= combined.work.sums + sums
    assert last.work.sums == combined.work.totals
    assert program.workspace_size >= combined.work.totals + 2 * 64 * 8
    assert all(offset % 256 == 0 for offset in combined.work)


def test_sums_are_kept_in_float64_without_errors():
    for dtype in ("float32", "float64"):
        planned = arguments("batch_norm_backward_reduce", (256, 64, 56, 56), dtype)
        program = schedule_of("batch_norm_backward_reduce", **planned)
        sums = program.launches[0].arguments.sizes.parts * 64 * 2 * 8
        assert sums <= program.workspace_size < sums + 512


# Line by line


@pytest.mark.parametrize("name", ["group_norm_backward", "group_norm"])
@pytest.mark.parametrize("dtype", FLOATS)
def test_memory_for_short_rows_is_of_lines_and_of_parameters(name, dtype):
    """16 MB at most where tensors of float32 are of 134 MB each, and a row is a line."""
    assert group((8192, 4096), 1, dtype, name=name).workspace_size <= 16e6
    for samples, channels in ((8192, 4096), (4096, 768), (100, 48)):
        for groups in (1, 4, 12, channels // 2):
            if channels % groups == 0:
                program = group((samples, channels), groups, dtype, name=name)
                assert "lines" in program.path
                # 16 numbers for each line; and two for each parameter and program, which has two
                # lines or more, and four warps or more if lines have 768 elements.
                programs = min(-(-samples // 2), 132 * 4)
                most = 128 * samples * groups + 16 * programs * channels + 2048
                assert program.workspace_size <= most


@pytest.mark.parametrize("groups", [1, 2, 8])
@pytest.mark.parametrize(
    "shape", [(8192, 4096), (4096, 768), (512, 64, 3, 3), (64, 50264), (9, 32)]
)
def test_sums_of_lines_are_cut_by_the_shape_alone(shape, groups):
    """Whatever GPU it is: the results are the same to the bit."""
    for name in ("group_norm_backward", "group_norm"):
        here = group(shape, groups, name=name)
        there = group(shape, groups, name=name, device=replace(H200, processors=7, programs_each=3))
        assert here.launches == there.launches


def test_paths_of_lines():
    path = "triton one pass rows groups+lines combine+parameters"
    assert group((4096, 768), 12).path == path
    # A line that registers cannot hold is read again at once.
    assert group((4096, 16384), 1).path == path
    assert group((4096, 16384), 1).launches[0].config.again
    path = "triton two passes rows groups+lines write+sums combine+parameters"
    assert group((64, 50264), 1).path == path
    assert group((4096, 768), 1, name="group_norm").path == "triton one pass rows groups+lines"
    for mask, path in {
        (True, False, False): "triton one pass rows groups+lines",
        (False, True, False): "triton rows groups+lines combine+parameters",
        (False, False, False): "triton",
    }.items():
        planned = arguments("group_norm_backward", (4096, 768), "bfloat16", groups=12)
        program = schedule_of("group_norm_backward", **planned, output_mask=mask)
        assert program.path == path
    # On the same tiles: sums are the same to the bit.
    alone = schedule_of("group_norm_backward", **planned, output_mask=(False, True, True))
    (lines, _), (both, _) = alone.launches, group((4096, 768), 12).launches
    assert lines.config._replace(stores=config.RESULT | config.COLUMNS) == both.config
    assert lines.arguments == both.arguments


def line_of(columns, dtype="bfloat16", name="group_norm_backward"):
    """The sizes of the tiles of a line alone, and their threads."""
    (launch, *_) = group((4096, columns), 1, dtype, name=name).launches
    found, words = [], launch.config
    while words:
        # All tiles have the same threads, each of which adds up its positions of each tile.
        assert words.positions // (words.leading * words.adjacent) == 32 * launch.warps
        found.append(words.positions)
        words = words.next
    return found, 32 * launch.warps


def test_lines_are_tiles_with_little_padding():
    assert line_of(768) == ([512, 256], 64)
    assert line_of(2560) == ([2048, 512], 128)
    assert line_of(3584) == ([2048, 1024, 512], 256)
    assert line_of(4096) == ([4096], 256)
    assert line_of(5120) == ([4096, 1024], 256)
    assert line_of(5120, "float32") == ([4096, 1024], 256)
    assert line_of(5120, name="group_norm") == ([4096, 1024], 128)
    assert line_of(12288) == ([8192, 4096], 512)
    for columns in range(600, 16384, 104):
        sizes, threads = line_of(columns)
        assert columns <= sum(sizes) <= max(1.15 * columns, columns + threads), columns


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_few_roundings_of_lines_terms(dtype):
    """A slot of the workspace has at most so many lines' terms as the bound has roundings for."""
    for rows in (1000, 8192, 16384, 100_000):
        (launch, *_) = group((rows, 4096), 1, dtype).launches
        words, sizes = launch.config, launch.arguments.sizes
        # Those of x − μ, its product with dy and 1/std; of tiles and chains; and of the result.
        assert 3 + words.chain + words.chains + 1 <= 16
        assert sizes.slots * words.chain * words.chains >= rows


def test_few_roundings_of_sums_in_float64():
    for shape in ((1, 1, 10**8), (8, 1, 10**7), (5000, 4, 64), (2, 64, 10**5)):
        for name in ("batch_norm_backward", "batch_norm", "group_norm_backward", "group_norm"):
            program = schedule_of(name, **arguments(name, shape, "float64", groups=1))
            for launch in program.launches:
                words, sizes = launch.config, launch.arguments.sizes
                at_once = words.positions * words.channels
                tile = math.log2(at_once)
                if launch.kernel == "groups" and not words.resident:
                    tiles = sizes.positions * sizes.per_group / at_once
                elif launch.kernel == "sums":
                    tiles = -(-sizes.part // words.positions)
                elif launch.kernel.startswith("combine"):
                    count = sizes.slots * sizes.sets if words.parameters else sizes.summed
                    tile, tiles = math.log2(words.rows), count / words.rows
                else:
                    continue
                assert tile + tiles <= 30, (shape, program.path, launch)


@pytest.mark.parametrize(("positions", "lines"), [((), True), ((4, 4), True), ((17,), False)])
def test_few_positions_are_read_line_by_line(positions, lines):
    for name in ("group_norm_backward", "group_norm"):
        program = group((32, 64, *positions), 8, name=name)
        assert ("lines" in program.path) == lines
        # What belongs to a channel alone is as much as its sums.
        assert "lines" not in group((32, 64, *positions), 64, name=name).path


# How tensors lie


def test_divisions_by_multiplication_are_right():
    """As the kernels divide: the high half of a product of 32 bits, shifted."""
    numbers = random.Random(0)
    sizes = [2, 3, 5, 7, 49, 196, 784, 3136, 12544, 50176, 65535, 65536, 65537, (1 << 31) - 1]
    for size in (*sizes, *(numbers.randrange(2, 1 << 31) for _ in range(200))):
        axis = layouts.axis_words(size)
        assert 0 < axis.magic < 1 << 32
        edges = [0, 1, size - 1, size, size + 1, 2 * size - 1, (1 << 31) - 1]
        for n in (*edges, *(numbers.randrange(1 << 31) for _ in range(200))):
            if n < 1 << 31:
                assert ((n * axis.magic) >> 32) >> axis.shift == n // size


@pytest.mark.parametrize(
    ("layout", "x_layout", "pattern"),
    [
        ("contiguous", "contiguous", "rows"),
        ("channels_last", "channels_last", "columns"),
        ("contiguous", "channels_last", "tiles"),
        ("sliced", "contiguous", "rows"),
        ("sliced", "channels_last", "tiles"),
        ("sliced", "sliced", "rows"),
    ],
)
def test_patterns(layout, x_layout, pattern):
    assert train((8, 64, 40, 40), layout=layout, x_layout=x_layout).pattern == pattern


@pytest.mark.parametrize(
    ("shape", "dtype", "vector"),
    [
        ((8, 64, 56, 56), "bfloat16", 8),
        ((8, 64, 14, 14), "bfloat16", 4),
        ((8, 64, 7, 7), "bfloat16", 1),
        ((8, 64, 56, 56), "float32", 4),
        ((8, 64, 14, 15), "float32", 2),
        ((8, 64, 56, 56), "float64", 2),
    ],
)
def test_as_much_is_read_at_once_as_divides_rows(shape, dtype, vector):
    dy = train(shape, dtype).launches[-1].config.dy
    assert (dy.along, dy.vector) == (config.ALONG_POSITIONS, vector)


@pytest.mark.parametrize(("channels", "vector"), [(64, 8), (12, 4), (3, 1)])
def test_as_much_is_read_at_once_as_divides_channels(channels, vector):
    dy = train((64, channels, 56, 56), layout="channels_last").launches[-1].config.dy
    assert (dy.along, dy.vector) == (config.ALONG_CHANNELS, vector)


def test_large_tensors_have_long_offsets():
    for shape, offsets, positions in (
        ((1024, 64, 128, 128), False, False),
        ((4096, 64, 128, 128), True, False),
        ((3 << 30, 1), True, True),
        ((1 << 16, 2, 1 << 16), True, True),
    ):
        program = train(shape)
        found = program.launches[-1].config
        assert (found.long_offsets, found.long_positions) == (offsets, positions), shape


def test_more_channels_than_kernels_count():
    message = (
        r"input: 2147483648 channels of all samples .*; allowed on a GPU: fewer than 2146435072"
    )
    with pytest.raises(ValueError, match=message):
        train((1, 1 << 31))
    with pytest.raises(ValueError, match=message):
        group((1 << 20, 1 << 11, 20), 2)
    # Line by line it is groups that are counted.
    assert group((1 << 20, 1 << 11, 1), 2).pattern == "rows"


def test_every_task_has_a_program():
    """Tiles and parts cover all channels and positions, and none is empty."""
    for shape in ((3, 5, 7, 11), (256, 64, 56, 56), (20, 6, 65536), (4096, 1000), (1, 1, 1)):
        for layout in ("contiguous", "channels_last"):
            for name in ("batch_norm_backward", "group_norm_backward", "batch_norm_stats"):
                program = schedule_of(name, **arguments(name, shape, "float32", layout, groups=1))
                for launch in program.launches:
                    if launch.kernel not in OVER_TENSORS:
                        continue
                    sizes, words = launch.arguments.sizes, launch.config
                    assert sizes.parts * sizes.part >= sizes.positions
                    assert (sizes.parts - 1) * sizes.part < sizes.positions
                    tiles = -(-sizes.channels // sizes.step)
                    assert sizes.step <= words.channels
                    if not words.resident:
                        tiles = sizes.groups
                    tasks = sizes.sets * tiles * sizes.parts
                    assert launch.programs == -(-tasks // sizes.each)
                    assert launch.warps in (1, 2, 4, 8, 16)


def test_plans_need_neither_a_gpu_nor_triton():
    script = (
        "import sys; sys.modules['triton'] = None\n"
        "from normgrad.backends.triton import device, schedule\n"
        "import normgrad\n"
        "assert 'torch' not in sys.modules\n"
        "print(device.unusable())"
    )
    run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert run.stdout == "PyTorch is not imported, which Triton needs to find the GPU\n"


def test_the_same_program_whatever_else_was_planned():
    first, again = (train((64, 64, 28, 28)) for _ in range(2))
    assert first.launches == again.launches


def test_a_made_up_device():
    tiny = Device("tiny", 1, 32, 1, 16)
    assert train((4, 4, 8, 8), "float32", device=tiny).passes == "two passes"
    assert TensorSpec((1,), "float32").nbytes == 4
