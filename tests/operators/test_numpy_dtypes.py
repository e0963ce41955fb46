"""NumPy's dtypes that are objects of their own: unpickled ones, and those with another form."""

from __future__ import annotations

import pickle

import numpy as np
import pytest
from common import BFLOAT16, FLOATS, bits

import normgrad as ng


def unpickled(dtype):
    """An equal dtype that is another object, as every array that came through pickle has it."""
    return pickle.loads(pickle.dumps(np.dtype(dtype)))


def with_dtype(array, dtype):
    """An array with these values whose dtype is this very object."""
    result = np.ndarray(array.shape, dtype)
    result[...] = array
    assert result.dtype is dtype
    return result


def at_address(address, dtype):
    """An unpickled dtype that has the memory of one that was freed; None if there is none."""
    others = []
    for _ in range(1000):
        others.append(unpickled(dtype))
        if id(others[-1]) == address:
            return others[-1]
    return None


def replaced(first, second, call):
    """Call with an unpickled dtype until a plan knows it, free it, and call with its successor."""
    for _ in range(5):
        kind = unpickled(first)
        for _ in range(3):
            call(kind)
        address = id(kind)
        del kind
        kind = at_address(address, second)
        if kind is not None:
            return call(kind)
    pytest.fail("no dtype got the memory of one that was freed")


@pytest.mark.parametrize(("first", "second"), [("int32", "float32"), ("float32", "int32")])
def test_counts_whose_dtype_has_the_memory_of_another(first, second):
    mean, invstd = np.float32([[0.25], [0.5]]), np.ones((2, 1), np.float32)

    def call(dtype):
        counts = with_dtype(np.array([3, 1]), dtype)
        return ng.batch_norm_gather_stats_with_counts(mean, mean, invstd, None, None, counts)

    assert replaced(first, second, call).mean == np.float32([0.3125])


@pytest.mark.parametrize(("first", "second"), [("float16", "int16"), ("float64", "int64")])
def test_an_input_whose_dtype_has_the_memory_of_another_is_refused(first, second):
    def call(dtype):
        x, out = (with_dtype(np.arange(24).reshape(2, 3, 4), dtype) for _ in range(2))
        mask = (True, False, False)
        ng.batch_norm_backward(x, x, training=True, output_mask=mask, out=(out, None, None))

    with pytest.raises(TypeError, match=f"^grad_out: dtype {second}; allowed: "):
        replaced(first, second, call)


def forms(dtype):
    """Dtypes of the same elements that are objects of their own."""
    dtype = np.dtype(dtype)
    return {
        "unpickled": unpickled(dtype),
        "a copy": dtype.newbyteorder("="),
        "of a named byte order": dtype.newbyteorder("<" if np.little_endian else ">"),
        **(
            {}
            if dtype == BFLOAT16  # NumPy makes no such forms of it
            else {
                "with metadata": np.dtype(dtype, metadata={"unit": "m"}),
                "aligned": np.dtype(dtype.str, align=True),
            }
        ),
    }


# A backend sees no dtypes of NumPy's; these make many calls.
@pytest.mark.cpu
@pytest.mark.parametrize("name", FLOATS)
def test_every_form_of_a_dtype_gives_the_same_bits(name):
    values = np.arange(24).reshape(2, 3, 4)
    x = values.astype(FLOATS[name])
    plan = ng.plan("batch_norm_backward", grad_out=x, input=x, training=True)
    expected = bits(plan.run(x, x))
    kinds = forms(x.dtype)
    for form, dtype in [*kinds.items(), *reversed(kinds.items())] * 2:
        for each in (with_dtype(values, dtype), x):
            out = (with_dtype(values, dtype), None, None)
            assert bits(ng.batch_norm_backward(each, each, training=True)) == expected, form
            assert bits(ng.batch_norm_backward(each, x, training=True)) == expected, form
            assert bits(ng.batch_norm_backward(x, each, training=True, out=out)) == expected, form
            assert bits(plan.run(each, each)) == expected, form
            assert bits(plan.run(x, each, out=out)) == expected, form


@pytest.mark.parametrize("name", FLOATS)
@pytest.mark.parametrize("has_metadata", [False, True])
def test_the_other_byte_order_is_refused_in_every_call(name, has_metadata):
    values = np.arange(24).reshape(2, 3, 4)
    x = values.astype(FLOATS[name])
    dtype = x.dtype.newbyteorder()
    if has_metadata and x.dtype != BFLOAT16:
        dtype = np.dtype(dtype, metadata={"unit": "m"})
    swapped = np.ndarray(x.shape, dtype, x.tobytes())
    plan = ng.plan("batch_norm_backward", grad_out=x, input=x, training=True)
    message = f"^input: dtype {dtype.str}; allowed: float32, float16, bfloat16, float64$"
    for _ in range(3):
        ng.batch_norm_backward(x, x, training=True)
        plan.run(x, x)
        for call in (plan.run, lambda *both: ng.batch_norm_backward(*both, training=True)):
            with pytest.raises(TypeError, match=message):
                call(x, swapped)


@pytest.mark.cpu
def test_a_workspace_whose_dtype_is_unpickled():
    x = np.random.default_rng(0).random((8, 4, 300), np.float32)
    plan = ng.plan("batch_norm_backward", grad_out=x, input=x, training=True)
    expected = bits(plan.run(x, x))
    for dtype in (unpickled(np.uint8), np.dtype(np.uint8), unpickled(np.int8)) * 2:
        scratch = with_dtype(np.zeros(plan.workspace_size), dtype)
        assert bits(plan.run(x, x, workspace=scratch)) == expected
