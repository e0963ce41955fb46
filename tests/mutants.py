"""Wrong implementations, each by one change of normgrad's operators: the suite must see each."""

from __future__ import annotations

import ctypes
import functools
import inspect
import itertools
import random
import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import ml_dtypes
import numpy as np

from normgrad.operators.by_name import FUNCTIONS

BFLOAT16 = np.dtype(ml_dtypes.bfloat16)


#: What makes a wrong implementation's operators anew, by words for what is wrong with it.
MUTANTS: dict[str, Callable[[], Any]] = {}


class Seen:
    """A call of an operator as a mutant sees it: its arguments are attributes, None if absent."""

    def __init__(self, name, tensors, options):
        self.name, self.passed = name, {*options}
        bound = inspect.signature(FUNCTIONS[name]).bind(*tensors, **options)
        bound.apply_defaults()
        self.values = bound.arguments
        self.axis = self.values.get("channel_axis", 1)

    def __getattr__(self, name):
        return self.values.get(name)

    def right(self, **changes):
        """normgrad's result, with other arguments."""
        return FUNCTIONS[self.name](**{**self.values, **changes})

    def over(self):
        """The axes of a channel's elements."""
        axis = self.axis % self.input.ndim
        return tuple(index for index in range(self.input.ndim) if index != axis)

    def along(self, vector):
        """A vector along the channels."""
        shape = [1] * self.input.ndim
        shape[self.axis] = -1
        return np.asarray(vector).reshape(shape)


def mutant(words, *operators, **more):
    """Register a function that takes a :class:`Seen` and returns a wrong result of it."""

    def register(wrong):
        def make():
            state = {}

            def of(name):
                right = FUNCTIONS[name]

                @functools.wraps(right)
                def called(*tensors, **options):
                    seen = Seen(name, tensors, options)
                    return wrong(seen, state) if takes_state else wrong(seen)

                return called

            found = {name: of(name) for name in operators}
            return SimpleNamespace(**found, **{key: value(state) for key, value in more.items()})

        takes_state = len(inspect.signature(wrong).parameters) > 1
        MUTANTS[words] = make
        return wrong

    return register


def results(found):
    """The outputs that are there."""
    return [each for each in (found if isinstance(found, tuple) else (found,)) if each is not None]


def last_lost(found):
    """A result whose first output has lost its last value."""
    for first in results(found)[:1]:
        first[(-1,) * first.ndim] = 0
    return found


def wrong_where(words, operators, is_there):
    """Register a mutant that is wrong in some calls alone."""

    @mutant(words, *operators.split())
    def wrong(seen):
        found = seen.right()
        return last_lost(found) if seen.input.size and is_there(seen) else found


EVERY = "batch_norm_backward batch_norm_stats group_norm layer_norm"
GROUPS = "group_norm group_norm_backward"
ROWS = "layer_norm rms_norm_backward batch_norm_stats"


# Shapes


def channels(seen):
    return seen.input.shape[seen.axis]


for _most in (64, 128, 1024):
    wrong_where(
        f"wrong beyond {_most:,} channels", EVERY, lambda seen, most=_most: channels(seen) > most
    )
for _most in (8, 32):
    wrong_where(
        f"wrong beyond {_most} groups", GROUPS, lambda seen, most=_most: seen.num_groups > most
    )
for _most in (2048, 65536):
    wrong_where(
        f"wrong beyond rows of {_most:,} elements",
        ROWS,
        lambda seen, most=_most: seen.input.shape[-1] > most,
    )
for _axis in (0, 2, -2):
    wrong_where(
        f"wrong where channel_axis is {_axis}",
        "batch_norm batch_norm_backward",
        lambda seen, axis=_axis: seen.channel_axis == axis,
    )
wrong_where(
    "wrong beyond 65,536 samples",
    "batch_norm_backward",
    lambda seen: seen.input.shape[0] > 65536,
)
wrong_where(
    "wrong where N % 4 is 2, beyond 2",
    "batch_norm_backward layer_norm",
    lambda seen: seen.input.shape[0] % 4 == 2 < seen.input.shape[0],
)
wrong_where("wrong where there is one channel", "batch_norm", lambda seen: channels(seen) == 1)
wrong_where(
    "the tail of rows lost, if they are no multiple of 8",
    "batch_norm_elemt",
    lambda seen: seen.input.shape[-1] % 8,
)
wrong_where(
    "wrong without axes after the channels",
    "batch_norm",
    lambda seen: seen.input.ndim == 2 and seen.input.shape[0] < 40,
)
wrong_where(
    "wrong where rows have three axes",
    "layer_norm rms_norm_backward",
    lambda seen: np.size(seen.normalized_shape) == 3,
)
wrong_where(
    "wrong where normalized_shape is an integer",
    "layer_norm layer_norm_backward",
    lambda seen: isinstance(seen.normalized_shape, int),
)


# Precision


def narrow(values, dtype):
    """A sum over the last axis, term by term."""
    return np.add.accumulate(values.astype(dtype), axis=-1, dtype=dtype)[..., -1]


def channels_of(seen, values):
    """A matrix with a row for each channel."""
    return np.moveaxis(values, seen.axis, 0).reshape(values.shape[seen.axis], -1)


def sums_in(seen, dtype, only):
    found = seen.right()
    if seen.grad_out.dtype not in only or not seen.grad_out.size:
        return found
    total = narrow(channels_of(seen, seen.grad_out), dtype).astype(found.sum_dy.dtype)
    return found._replace(sum_dy=total, grad_bias=total.copy())


@mutant("sums in float32, term by term", "batch_norm_backward_reduce")
def sums_in_float32(seen):
    return sums_in(seen, np.float32, ("float32",))


@mutant("sums of float16 in float16", "batch_norm_backward_reduce")
def sums_in_float16(seen):
    return sums_in(seen, np.float16, ("float16",))


@mutant("sums of bfloat16 in bfloat16", "batch_norm_backward_reduce")
def sums_in_bfloat16(seen):
    return sums_in(seen, BFLOAT16, (BFLOAT16,))


@mutant("the bias's gradient of halves summed in halves, beyond 65,535 rows", "layer_norm_backward")
def rows_in_halves(seen):
    found = seen.right()
    dy, positions = seen.grad_out, np.prod(seen.normalized_shape, dtype=int)
    rows = dy.size // max(1, positions)
    if found.grad_bias is None or dy.dtype.itemsize > 2 or rows <= 65535:
        return found
    total = narrow(dy.reshape(rows, positions).T, dy.dtype)
    return found._replace(grad_bias=total.reshape(found.grad_bias.shape).astype(np.float32))


def from_squares(seen, wide):
    found = seen.right()
    if not seen.input.size or seen.input.dtype == np.float64:
        return found
    x = seen.input.astype(wide)
    mean = x.mean(seen.over())
    var = np.maximum((x * x).mean(seen.over()) - mean * mean, 0)
    with np.errstate(all="ignore"):
        return found._replace(invstd=(1 / np.sqrt(var + seen.eps)).astype(np.float32))


@mutant("the variance by E[x²] − E[x]² in float32", "batch_norm_stats")
def squares_in_float32(seen):
    return from_squares(seen, np.float32)


@mutant("the variance by E[x²] − E[x]² in float64", "batch_norm_stats")
def squares_in_float64(seen):
    return from_squares(seen, np.float64)


def truncated(array):
    """Towards zero: the bits that a narrower type has no place for are cut off."""
    bits = array.astype(np.float32).view(np.uint32) & np.uint32(0xFFFF0000)
    return bits.view(np.float32).astype(BFLOAT16)


@mutant("bfloat16 results truncated", "batch_norm_elemt")
def truncates(seen):
    if seen.input.dtype != BFLOAT16 or seen.out is not None:
        return seen.right()
    return truncated(seen.right(input=seen.input.astype(np.float32)))


@mutant("halves rounded before the weight", "batch_norm_elemt")
def rounds_twice(seen):
    if seen.input.dtype.itemsize > 2 or seen.out is not None:
        return seen.right()
    first = seen.right(weight=None, bias=None).astype(np.float32)
    w = 1 if seen.weight is None else seen.along(seen.weight.astype(np.float32))
    b = 0 if seen.bias is None else seen.along(seen.bias.astype(np.float32))
    return (first * w + b).astype(seen.input.dtype)


@mutant("float64 in float32", "batch_norm_elemt")
def float64_in_float32(seen):
    if seen.input.dtype != np.float64 or seen.out is not None:
        return seen.right()
    return seen.right(input=seen.input.astype(np.float32)).astype(np.float64)


# Formulas


def with_invstd(seen, formula):
    """The statistics with another 1/std, from the variance and eps."""
    found = seen.right()
    if not seen.input.size:
        return found
    x = seen.input.astype(np.float64)
    with np.errstate(all="ignore"):
        new = formula(x.var(seen.over()), seen.eps)
    return found._replace(invstd=np.asarray(new).astype(found.invstd.dtype))


@mutant("eps outside the root", "batch_norm_stats")
def eps_outside(seen):
    return with_invstd(seen, lambda var, eps: 1 / (np.sqrt(var) + eps))


@mutant("no eps", "batch_norm_stats")
def no_eps(seen):
    return with_invstd(seen, lambda var, eps: 1 / np.sqrt(var))


@mutant("eps added twice", "batch_norm_stats")
def eps_twice(seen):
    return with_invstd(seen, lambda var, eps: 1 / np.sqrt(var + 2 * eps))


@mutant("eps squared", "layer_norm")
def eps_squared(seen):
    return seen.right(eps=seen.eps**2)


@mutant("its own eps, whatever is given", "batch_norm_backward")
def own_eps(seen):
    return seen.right(eps=1e-5)


@mutant("eps of 0 taken for none", "layer_norm", "group_norm", "batch_norm", "batch_norm_stats")
def eps_zero(seen):
    return seen.right(eps=seen.eps or 1e-5)


@mutant("the default of eps is 0.001", "layer_norm", "rms_norm", "batch_norm", "batch_norm_stats")
def default_eps(seen):
    return seen.right() if "eps" in seen.passed else seen.right(eps=1e-3)


@mutant("the default of momentum is 0.9", "batch_norm", "batch_norm_gather_stats_with_counts")
def default_momentum(seen):
    return seen.right() if "momentum" in seen.passed else seen.right(momentum=0.9)


@mutant("momentum of 0 taken for none", "batch_norm", "batch_norm_gather_stats_with_counts")
def momentum_zero(seen):
    return seen.right(momentum=seen.momentum or 0.1)


@mutant("momentum of 1 taken for none", "batch_norm", "batch_norm_gather_stats_with_counts")
def momentum_one(seen):
    return seen.right(momentum=0.1 if seen.momentum == 1 else seen.momentum)


@mutant("the unbiased variance in 1/std", "batch_norm_stats")
def unbiased(seen):
    n = max(2, seen.input.size // max(1, seen.input.shape[seen.axis]))
    return with_invstd(seen, lambda var, eps: 1 / np.sqrt(var * n / (n - 1) + eps))


@mutant("the biased variance in running_var", "batch_norm")
def biased_running(seen):
    found = seen.right()
    n = seen.input.size // max(1, seen.input.shape[seen.axis])
    if found.running_var is None or n < 2:
        return found
    momentum = seen.momentum
    step = found.running_var - (1 - momentum) * seen.running_var.astype(np.float64)
    new = found.running_var - step / n
    return found._replace(running_var=new.astype(found.running_var.dtype))


@mutant("momentum turned round", "batch_norm", "batch_norm_gather_stats_with_counts")
def momentum_turned(seen):
    return seen.right(momentum=1 - seen.momentum)


@mutant("ranks' counts ignored", "batch_norm_gather_stats_with_counts")
def counts_ignored(seen):
    return seen.right(counts=np.ones_like(seen.counts))


@mutant("the first rank's count alone", "batch_norm_backward_elemt")
def first_count(seen):
    return seen.right(count=seen.count[:1])


@mutant("the weight applied twice", "batch_norm")
def weight_twice(seen):
    w = seen.weight
    return seen.right(weight=None if w is None else w * w)


@mutant("a bias ignored", "layer_norm")
def bias_ignored(seen):
    return seen.right(bias=None)


@mutant("the weight in place of no bias, in halves", "layer_norm", "group_norm", "batch_norm")
def weight_for_bias(seen):
    is_there = seen.input.dtype.itemsize > 2 or seen.bias is not None
    return seen.right() if is_there else seen.right(bias=seen.weight)


wrong_where(
    "wrong without a weight, where there are more than 2 groups",
    GROUPS,
    lambda seen: seen.weight is None and seen.num_groups > 2,
)


@mutant("no weight taken for a weight of 0", "batch_norm_backward")
def no_weight_is_zero(seen):
    found = seen.right()
    if seen.weight is None and found.grad_input is not None:
        found.grad_input[...] = 0
    return found


@mutant("the weight's gradient without 1/std", "batch_norm_backward")
def no_invstd(seen):
    found = seen.right()
    if found.grad_weight is None or seen.save_invstd is None:
        return found
    with np.errstate(all="ignore"):
        return found._replace(grad_weight=found.grad_weight / seen.save_invstd)


@mutant("the mean's term left out of the gradient", "layer_norm_backward")
def no_mean_term(seen):
    found = seen.right()
    if found.grad_input is None or not seen.input.size:
        return found
    axes = tuple(range(-len(seen.normalized_shape), 0))
    w = 1.0 if seen.weight is None else seen.weight.astype(np.float64)
    d = (w * seen.grad_out.astype(np.float64)).mean(axes, keepdims=True)
    new = found.grad_input + seen.rstd.astype(np.float64) * d
    return found._replace(grad_input=new.astype(found.grad_input.dtype))


@mutant("RMS norm of what is centred", "rms_norm")
def centred(seen):
    axes = tuple(range(-len(seen.normalized_shape), 0))
    x = seen.input.astype(np.float64)
    return seen.right(input=(x - x.mean(axes, keepdims=True)).astype(seen.input.dtype))


@mutant("groups of every n-th channel", "group_norm")
def interleaved(seen):
    groups, channels = seen.num_groups, seen.input.shape[seen.axis]
    order = np.arange(channels).reshape(-1, groups).T.ravel()
    vectors = {name: getattr(seen, name) for name in ("weight", "bias")}
    vectors = {name: None if v is None else v[order] for name, v in vectors.items()}
    found = seen.right(input=np.take(seen.input, order, seen.axis), **vectors)
    return found._replace(output=np.take(found.output, np.argsort(order), seen.axis))


@mutant("evaluation with the batch's statistics", "batch_norm")
def always_trains(seen):
    if seen.training:
        return seen.right()
    return seen.right(training=True)._replace(
        mean=None, invstd=None, running_mean=None, running_var=None
    )


# Masks, axes, outputs


@mutant("the mask read backwards", "batch_norm_backward")
def mask_backwards(seen):
    return seen.right(output_mask=tuple(seen.output_mask[::-1]))


@mutant("a term left out with the weight's gradient", "group_norm_backward")
def term_masked(seen):
    if seen.output_mask[1] or not seen.output_mask[0]:
        return seen.right()
    return seen.right(input=np.zeros_like(seen.input))


def is_channels_last(array):
    return not array.flags.c_contiguous and np.moveaxis(array, 1, -1).flags.c_contiguous


wrong_where(
    "wrong where the mask is 001, in channels-last tensors",
    "batch_norm_backward group_norm_backward",
    lambda seen: tuple(seen.output_mask) == (0, 0, 1) and is_channels_last(seen.input),
)


@mutant("channel_axis ignored", "batch_norm_elemt", "batch_norm_stats")
def axis_ignored(seen):
    return seen.right(channel_axis=1)


@mutant("a given output ignored", "batch_norm_elemt")
def out_ignored(seen):
    return seen.right(out=None)


@mutant("written beside an output with gaps", "batch_norm_elemt")
def written_beside(seen):
    found, out = seen.right(), seen.out
    if out is not None and out.base is not None and out.base.size > out.size:
        out.base.reshape(-1)[0] = 7
    return found


@mutant("cleared before it is read, in place", "batch_norm_elemt", "batch_norm_backward_elemt")
def in_place_broken(seen):
    out = seen.out
    if out is not None:
        out[...] = 0
    return seen.right()


def first_out(seen):
    """The caller's array for the data output."""
    return seen.out[0] if isinstance(seen.out, tuple) else seen.out


def shares_memory(array, other):
    return array is not None and other is not None and np.may_share_memory(array, other)


wrong_where(
    "wrong in place over grad_out",
    "batch_norm_backward batch_norm_backward_elemt",
    lambda seen: shares_memory(first_out(seen), seen.grad_out),
)


def spilt(seen, length):
    """Write so many bytes past the end of a contiguous given output."""
    found, out = seen.right(), first_out(seen)
    if out is not None and out.flags.c_contiguous:
        ctypes.memset(out.ctypes.data + out.nbytes, 7, length(out))
    return found


@mutant("written past the end of a contiguous output", "batch_norm_backward")
def past_output(seen):
    """Where that is harmless: the suite's outputs are parts of larger arrays."""
    return spilt(seen, lambda out: 4 * (out.base is not None))


@mutant("written past an output that owns its memory", "batch_norm_elemt")
def past_memory(seen):
    """Into the rest of the C library's block."""
    size_of = ctypes.CDLL(None).malloc_usable_size
    size_of.argtypes, size_of.restype = (ctypes.c_void_p,), ctypes.c_size_t
    return spilt(
        seen, lambda out: 0 if out.base is not None else size_of(out.ctypes.data) - out.nbytes
    )


@mutant("the result in an input's memory", "batch_norm_backward_elemt")
def in_input_memory(seen):
    found = seen.right()
    if found.dtype != seen.grad_out.dtype or not seen.grad_out.flags.writeable:
        return found
    seen.grad_out[...] = found
    return seen.grad_out


@mutant("two results in one memory", "batch_norm_backward_reduce")
def one_memory(seen):
    found = seen.right()
    return found._replace(grad_bias=found.sum_dy)


@mutant("an input written to", "batch_norm_stats")
def input_written(seen):
    found = seen.right()
    if seen.input.size and seen.input.flags.writeable:
        seen.input[(0,) * seen.input.ndim] += 1
    return found


# Layouts


def in_memory_order(array):
    """What a kernel reads that takes the first element's address and nothing else."""
    if array.flags.c_contiguous or min(array.strides) <= 0:
        return array
    steps = np.cumprod([array.itemsize, *array.shape[:0:-1]])[::-1]
    return np.lib.stride_tricks.as_strided(array, array.shape, steps).copy()


@mutant("strides of the input ignored", "batch_norm_stats")
def strides_ignored(seen):
    return seen.right(input=in_memory_order(seen.input)) if seen.input.size else seen.right()


@mutant("strides of grad_out taken for the input's", "batch_norm_backward_reduce")
def one_stride(seen):
    dy, steps = seen.grad_out, seen.input.strides
    is_dense = seen.input.transpose(np.argsort([-step for step in steps])).flags.c_contiguous
    if dy.dtype != seen.input.dtype or not (dy.flags.c_contiguous and is_dense):
        return seen.right()
    return seen.right(grad_out=np.lib.stride_tricks.as_strided(dy, dy.shape, steps))


wrong_where(
    "wrong where grad_out is one value of strides 0",
    "batch_norm_backward layer_norm_backward",
    lambda seen: not any(seen.grad_out.strides),
)
wrong_where(
    "wrong in channels-last tensors of five axes",
    "batch_norm_backward group_norm",
    lambda seen: seen.input.ndim == 5 and is_channels_last(seen.input),
)


@mutant("contiguous results, whatever the strides", "batch_norm", "group_norm", "batch_norm_elemt")
def strides_lost(seen):
    found = seen.right()
    if seen.out is not None:
        return found
    first, *rest = found if isinstance(found, tuple) else (found,)
    return (np.ascontiguousarray(first), *rest) if rest else np.ascontiguousarray(first)


@mutant("read past the end of a contiguous input, times 0", "batch_norm_elemt")
def past_input(seen):
    found = seen.right()
    if seen.out is None and seen.input.size and seen.input.flags.c_contiguous:
        beyond = np.lib.stride_tricks.as_strided(seen.input.reshape(-1), (seen.input.size + 1,))
        found[(-1,) * found.ndim] += 0 * beyond[-1]
    return found


@mutant("strides of the weight ignored", "batch_norm_elemt")
def vector_strides_ignored(seen):
    w = seen.weight
    return seen.right() if w is None else seen.right(weight=in_memory_order(w))


@mutant("unaligned data read from the line's start", "batch_norm_stats")
def unaligned(seen):
    return last_lost(seen.right()) if seen.input.ctypes.data % 16 else seen.right()


# Special values


def replaced(array, is_special, value):
    return None if array is None else np.where(is_special(array), array.dtype.type(value), array)


@mutant("NaN swallowed", "batch_norm_backward")
def nan_swallowed(seen):
    return seen.right(grad_out=replaced(seen.grad_out, np.isnan, 0))


@mutant("NaN in a row's last element swallowed", "batch_norm_backward", "layer_norm_backward")
def nan_in_tail(seen):
    dy = seen.grad_out.copy()
    row = dy[..., -2:]
    row[..., -1:][np.isnan(row[..., -1:]) & ~np.isnan(row[..., :1])] = 0
    return seen.right(grad_out=dy)


@mutant("infinities made finite", "batch_norm_elemt")
def infinities_finite(seen):
    with np.errstate(all="ignore"):
        most = np.finfo(np.float16).max
        return seen.right(input=replaced(seen.input, np.isinf, most))


@mutant("NaN of one channel spread to all", "batch_norm_backward", "batch_norm_stats", "batch_norm")
def nan_spread(seen):
    found = seen.right()
    if np.isnan(seen.input).any():
        for each in results(found):
            each[...] = np.nan
    return found


@mutant("a negative variance taken for 0", "batch_norm")
def variance_clamped(seen):
    if seen.training or seen.running_var is None:
        return seen.right()
    return seen.right(running_var=np.maximum(seen.running_var, 0))


@mutant("subnormal numbers flushed to 0", "batch_norm_elemt")
def flushed(seen):
    if seen.input.dtype != np.float32:
        return seen.right()
    least = np.finfo(np.float32).smallest_normal
    return seen.right(input=replaced(seen.input, lambda values: abs(values) < least, 0))


@mutant("NaN for the mean of nothing", "batch_norm_stats")
def nothing_is_nan(seen):
    found = seen.right()
    if not seen.input.size:
        for each in results(found):
            each[...] = np.nan
    return found


# From call to call


@mutant("the results of an earlier call of the same shape", "batch_norm_stats")
def remembers(seen, state):
    known = (seen.input.shape, seen.input.dtype.name)
    return tuple(map(np.array, state.setdefault(known, seen.right())))


@mutant("one buffer for the results of all calls", "batch_norm_stats")
def one_buffer(seen, state):
    found = seen.right()
    kept = state.setdefault((seen.input.shape, found.mean.dtype), tuple(map(np.array, found)))
    for old, new in zip(kept, found, strict=True):
        old[...] = new
    return kept


@mutant("sums that are not cleared", "batch_norm_backward_reduce")
def sums_kept(seen, state):
    found = seen.right()
    kept = state.setdefault(seen.input.shape, [])
    if kept and found.sum_dy is not None:
        found.sum_dy[...] += kept[0][: found.sum_dy.size]
    elif found.sum_dy is not None:
        kept.append(found.sum_dy.copy())
    return found


def neighbour(array):
    array[...] = np.nextafter(array, array.dtype.type(np.inf))


@mutant("other bits in every second call", "batch_norm_backward")
def unsteady(seen, state):
    found = seen.right()
    if next(state.setdefault("calls", itertools.count())) % 2:
        for each in results(found)[-1:]:
            neighbour(each)
    return found


@mutant("a race: in one call of five, by chance, a term is lost", "batch_norm_backward_reduce")
def race(seen, state):
    found = seen.right()
    chance = state.setdefault("chance", random.Random(7))
    if chance.random() < 0.2 and found.sum_dy is not None and seen.grad_out.size:
        found.sum_dy[0] -= seen.grad_out.reshape(-1)[0]
    return found


def by_threads(words, is_other):
    @mutant(
        f"other bits with {words} threads",
        "batch_norm_backward",
        set_num_threads=lambda state: lambda count: state.update(count=count),
    )
    def threads(seen, state):
        found = seen.right()
        if is_other(state.get("count") or 1):
            for each in results(found)[1:]:
                neighbour(each)
        return found


by_threads("three", lambda count: count == 3)
by_threads("five and more", lambda count: count >= 5)


@mutant(
    "one place for the results of all threads", "batch_norm_stats", "batch_norm_backward_reduce"
)
def one_place(seen, state):
    state["found"] = seen.right()
    time.sleep(0)
    return state["found"]


@mutant("an object kept of every call", "batch_norm_stats")
def leaks(seen, state):
    state.setdefault("kept", []).append(object())
    return seen.right()


@mutant("an object kept of every call in bfloat16", "batch_norm_stats")
def leaks_halves(seen, state):
    state.setdefault("kept", []).extend([object()] * (seen.input.dtype == BFLOAT16))
    return seen.right()


@mutant("NumPy's random numbers used up", "batch_norm")
def random_used(seen):
    np.random.random()
    return seen.right()


# Wrong calls


@mutant("a short weight read past its end", "batch_norm")
def short_weight(seen):
    w, channels = seen.weight, seen.input.shape[seen.axis]
    if w is not None and w.ndim == 1 and w.size < channels:
        return seen.right(weight=np.lib.stride_tricks.as_strided(w, (channels,)).copy())
    return seen.right()


@mutant("a short weight begun again", "batch_norm")
def short_repeated(seen):
    w, channels = seen.weight, seen.input.shape[seen.axis]
    if w is not None and w.ndim == 1 and w.size < channels:
        return seen.right(weight=np.resize(w, channels))
    return seen.right()


@mutant("channels that are no multiple of the groups", "group_norm")
def no_multiple(seen):
    groups = seen.num_groups
    is_multiple = groups > 0 and seen.input.shape[seen.axis] % groups == 0
    return seen.right() if is_multiple or groups <= 0 else seen.right(num_groups=1)


@mutant(
    "a swapped shape of grad_out taken for the input's",
    "batch_norm_backward",
    "layer_norm_backward",
)
def swapped(seen):
    dy, shape = seen.grad_out, seen.input.shape
    is_swapped = dy is not None and dy.shape == (*shape[1::-1], *shape[2:])
    return seen.right(grad_out=dy.reshape(shape)) if is_swapped else seen.right()
