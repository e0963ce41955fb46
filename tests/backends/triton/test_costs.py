"""What plans would move on a GPU: no more than the document says, which stays as plans are."""

from __future__ import annotations

import gpu_costs
import pytest
from common import INTERPRETED

pytestmark = pytest.mark.skipif(INTERPRETED, reason="plans are the same")

#: What may be read but for dy and x, over what has to pass through memory; and what may be read and
#: written in all, over the same.
MOST_AGAIN, MOST_MOVED = 0.065, 1.11
#: The same for lines, of which a program has few: more of them would leave processors idle. After
#: each chain of lines it stores their terms of the parameters' gradients, or adds them to what it
#: stored; an H200's L2 cache has these sums. Gradients of (8192, 768) took 34 µs with half as many
#: programs, and 29 with these.
MOST_OF_LINES = 0.26, 1.42
#: What every program reads, in bytes.
LEAST = 8 << 10


def costs():
    for name, shape in gpu_costs.CASES:
        for layout in gpu_costs.LAYOUTS:
            for dtype in gpu_costs.DTYPES:
                made = gpu_costs.planned(name, shape, dtype, layout)
                yield f"{name} {shape} {dtype} {layout}", made, gpu_costs.cost(made)


def test_little_is_moved_but_the_tensors():
    found = {name: cost for name, _, cost in costs()}
    assert len(found) == 132
    for name, cost in found.items():
        again, moved = MOST_AGAIN, MOST_MOVED
        if any(str(shape) in name for shape in gpu_costs.ROWS):
            again, moved = MOST_OF_LINES
        assert cost.again <= again, name
        assert cost.moved <= moved, name


def test_programs_and_launches_are_worth_starting():
    for name, made, cost in costs():
        assert cost.program >= LEAST, name
        parameters = "group_norm" in name
        most = {"one pass": 1 + parameters, "two passes": 3 + parameters, "": 2}[made.passes]
        assert cost.launches <= most, name
        # Each tensor passes through memory as often as the passes say.
        wanted = {"one pass": 3, "two passes": 5, "": 3 if "elemt" in name else 2}[made.passes]
        assert cost.passes == wanted, name


def test_costs_are_added_up():
    """Of one plan, by hand: (32, 64, 112, 112) channels-last, in parts of 384 positions."""
    made = gpu_costs.planned("batch_norm_backward", (32, 64, 112, 112), "bfloat16", "channels-last")
    parts = made.launches[0].arguments.sizes.parts
    assert made.launches[0].arguments.sizes.part == 384
    data = 5 * 2 * 32 * 64 * 112 * 112
    sums, totals, vectors = 64 * parts * 16, 64 * 16, 64 * 12
    read = parts * (2 * vectors + totals) + sums + vectors
    cost = gpu_costs.cost(made)
    assert (cost.passes, cost.program, cost.launches) == (5, 384 * 64 * 4, 3)
    assert cost.again == pytest.approx(read / data)
    assert cost.moved == pytest.approx(1 + (read + sums + totals) / data)


def test_the_document_has_the_table_of_today():
    text = gpu_costs.DOCUMENT.read_text()
    assert gpu_costs.BEGIN in text
    assert gpu_costs.written(text) == text


@pytest.mark.parametrize("layout", gpu_costs.LAYOUTS)
@pytest.mark.parametrize("dtype", gpu_costs.DTYPES)
def test_gradients_of_groups_and_rows_take_two_launches(dtype, layout):
    """Of groups that fit in a cache, and of rows up to the longest in the table."""
    for name, shape in gpu_costs.CASES:
        if name == "group_norm_backward":
            launches = gpu_costs.planned(name, shape, dtype, layout).launches
            assert len(launches) <= 2, (shape, [launch.word for launch in launches])
