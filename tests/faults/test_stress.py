"""Sixteen threads at once, with every kind of call; NORMGRAD_STRESS=1 makes a minute of it."""

from __future__ import annotations

import threading
import time

import numpy as np
import pytest
from common import HALVES, OPERATORS, bits, make

import normgrad as ng

from .conftest import STRESSED

pytestmark = pytest.mark.cpu

THREADS = 16
SECONDS = 60.0 if STRESSED else 5.0

#: Rows, columns and tiles; results that are kept, and small ones.
SHAPES = ((4, 8, 80, 80), (16, 32, 33, 31), (64, 12), (2, 4, 5))
LAYOUTS = ("contiguous", "channels_last", "sliced")
DTYPES = ("float32", *HALVES)


def cases():
    """Each with what its call gives alone."""
    for index, kind in enumerate(OPERATORS):
        for number, shape in enumerate(SHAPES):
            dtype = DTYPES[(index + number) % len(DTYPES)]
            layout = LAYOUTS[number % len(LAYOUTS)] if len(shape) == 4 else "contiguous"
            case = make(kind, shape, dtype=dtype, layout=layout, num_groups=2, seed=index)
            yield case, bits(case.call())


def call(case, way, random):
    """A case's result: new, into tensors of the caller's, or in place."""
    if way == "new" or not hasattr(case.call(), "grad_input"):
        return case.call()
    if way == "out":
        out = tuple(np.full_like(value, np.nan) for value in case.call())
        return case.call(out=out)
    tensors = dict(case.tensors)
    name = random.choice(["grad_out", "input"])
    copy = np.empty_like(tensors[name])  # of the same strides
    copy[...] = tensors[name]
    if copy.strides != case.call().grad_input.strides:
        return case.call()
    tensors[name] = copy
    rest = (None,) * (len(case.call()) - 1)
    return getattr(ng, case.name)(**tensors, **case.options, out=(copy, *rest))


@pytest.mark.full
def test_sixteen_threads():
    known = list(cases())
    end = time.monotonic() + SECONDS
    wrong, errors, calls = [], [], [0] * THREADS

    def work(number):
        random = np.random.default_rng(number)
        try:
            while time.monotonic() < end and not wrong:
                case, expected = known[random.integers(len(known))]
                way = ("new", "out", "in place")[random.integers(3)]
                if bits(call(case, way, random)) != expected:
                    wrong.append((way, case))
                calls[number] += 1
        except Exception as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(THREADS)]
    for thread in threads:
        thread.start()
    try:
        for count in iter(lambda: np.random.default_rng().integers(1, 5), None):
            ng.set_num_threads(int(count))
            if not any(thread.is_alive() for thread in threads):
                break
            time.sleep(0.01)
    finally:
        for thread in threads:
            thread.join()
        ng.set_num_threads(None)
    assert not errors
    assert not wrong
    assert min(calls) > 0
