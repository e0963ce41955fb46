"""Strides: dense layouts, overlap, merging of axes; each against brute force."""

from __future__ import annotations

import itertools
import math

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from normgrad.tensors.strides import Axis, Region, dense_like, merge_axes, overlap, overlaps_itself

VIEWS = st.lists(st.tuples(st.integers(0, 4), st.integers(-7, 7)), min_size=0, max_size=4)


def offsets(shape, strides):
    return [
        sum(i * s for i, s in zip(index, strides, strict=True))
        for index in itertools.product(*map(range, shape))
    ]


@given(VIEWS)
def test_overlaps_itself(axes):
    shape, strides = tuple(n for n, _ in axes), tuple(s for _, s in axes)
    touched = offsets(shape, strides)
    assert overlaps_itself(shape, strides) == (len(set(touched)) < len(touched))


@given(VIEWS, VIEWS, st.integers(-10, 10), st.sampled_from([1, 2, 4]), st.sampled_from([1, 2, 4]))
def test_overlap(first, second, distance, size, other_size):
    def touched(region):
        return {
            region.address + at * region.itemsize + byte
            for at in offsets(region.shape, region.strides)
            for byte in range(region.itemsize)
        }

    a = Region(1000, tuple(n for n, _ in first), tuple(s for _, s in first), size)
    b = Region(
        1000 + distance, tuple(n for n, _ in second), tuple(s for _, s in second), other_size
    )
    assert overlap(a, b) == bool(touched(a) & touched(b))
    low, high = a.bounds()
    assert touched(a) == set() or (low, high) == (min(touched(a)), max(touched(a)) + 1)


def test_overlap_gives_up_on_the_side_of_caution():
    """A system of strides that no test could decide in time counts as overlapping."""
    rng = np.random.default_rng(3)
    strides = tuple(int(s) for s in rng.integers(10**8, 10**9, 8))
    a = Region(2**50, (50,) * 8, strides, 4)
    b = Region(2**50 + 6, (50,) * 8, tuple(s + 1 for s in strides), 4)
    assert overlap(a, b)


@given(VIEWS)
def test_dense_like(axes):
    shape, strides = tuple(n for n, _ in axes), tuple(s for _, s in axes)
    dense = dense_like(shape, strides)
    if 0 in shape:
        assert dense == strides
        return
    assert sorted(offsets(shape, dense)) == list(range(math.prod(shape)))
    order = [i for i in range(len(shape)) if shape[i] > 1 and strides[i]]
    for i, j in itertools.combinations(order, 2):
        if abs(strides[i]) > abs(strides[j]):
            assert dense[i] > dense[j]


def test_dense_like_keeps_what_is_dense():
    for shape, strides in (
        ((2, 3, 4), (12, 4, 1)),
        ((2, 3, 4), (12, 1, 3)),
        ((2, 1, 4), (4, 77, 1)),
        ((3, 1), (1, 1)),
    ):
        assert dense_like(shape, strides) == strides
    assert dense_like((2, 3, 4), (0, 4, 1)) == (12, 4, 1)
    assert dense_like((2, 3, 4), (24, 8, 2)) == (12, 4, 1)
    assert dense_like((2, 3, 4), (-12, 4, -1)) == (12, 4, 1)
    assert dense_like((2, 3, 4), (12, 4, 0)) == (12, 4, 1)


@given(st.lists(st.tuples(st.integers(1, 4), st.integers(-7, 7), st.integers(-7, 7)), max_size=4))
def test_merge_axes(axes):
    whole = [Axis(n, (a, b)) for n, a, b in axes]
    merged = merge_axes(whole)

    def visited(axes):
        sizes = [axis.size for axis in axes]
        return sorted(
            zip(
                offsets(sizes, [axis.strides[0] for axis in axes]),
                offsets(sizes, [axis.strides[1] for axis in axes]),
                strict=True,
            )
        )

    assert visited(merged) == visited(whole)
    assert len(merged) <= len(whole)


def test_merge_axes_of_dense_tensors_is_one_axis():
    dense = [Axis(2, (60, 60)), Axis(4, (15, 15)), Axis(5, (3, 3)), Axis(3, (1, 1))]
    for order in itertools.permutations(dense):
        assert merge_axes(order) == [Axis(120, (1, 1))]
