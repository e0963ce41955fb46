"""Implementations to be tried: a right one, and for each defect one that has it."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import time
from pathlib import Path

import numpy as np

import normgrad as ng
from normgrad.operators.by_name import FUNCTIONS


class Right:
    """One operator of ours."""

    batch_norm_backward = staticmethod(ng.batch_norm_backward)
    set_num_threads = staticmethod(ng.set_num_threads)


right = Right()


class _Changed:
    """Ours, with something done to the result."""

    def batch_norm_backward(self, *tensors, training, eps=1e-5, output_mask=(True,) * 3):
        options = {"training": training, "eps": eps, "output_mask": output_mask}
        result = ng.batch_norm_backward(*tensors, **options)
        return self.change(tensors, list(result))


class Inexact(_Changed):
    """The weight's gradient is off by 2⁻¹⁶, the gradients of evaluation by 4 roundoffs of it."""

    def change(self, tensors, result):
        if result[1] is not None:
            result[1] = result[1] * np.float32(1 + 2**-16)
        return result


class OtherDtype(_Changed):
    def change(self, tensors, result):
        return [None if each is None else each.astype(np.float64) for each in result]


class TooFew(_Changed):
    def change(self, tensors, result):
        return result[:2]


class OtherShape(_Changed):
    def change(self, tensors, result):
        return [None if each is None else each[None] for each in result]


class WritesToInputs(_Changed):
    def change(self, tensors, result):
        if tensors[1].size and tensors[1].flags.writeable:
            tensors[1].reshape(-1)[:1] += 1
        return result


class Crashes(_Changed):
    """Where the mask has not all outputs."""

    def change(self, tensors, result):
        if any(each is None for each in result):
            print("going down", file=sys.stderr, flush=True)
            os.kill(os.getpid(), signal.SIGSEGV)
        return result


class Hangs(_Changed):
    """Where the mask has no output; the first time, a file says so."""

    def change(self, tensors, result):
        if all(each is None for each in result):
            Path("hangs").touch()
            time.sleep(600)
        return result


class _Statistics:
    def batch_norm_stats(self, input, *, eps=1e-5):
        return self.change(input, ng.batch_norm_stats(input, eps=eps))


class NoTensors(_Statistics):
    def change(self, input, result):
        return 1, None


class Lists(_Statistics):
    def change(self, input, result):
        return tuple(each.tolist() for each in result)


class Objects(_Statistics):
    def change(self, input, result):
        return tuple(each.astype(object) for each in result)


class Integers(_Statistics):
    def change(self, input, result):
        return tuple(each.astype(np.int64) for each in result)


class ReturnsInputs(_Statistics):
    def change(self, input, result):
        return input, input


class Doubles(_Statistics):
    """1/std twice what it is in float16, and where the elements of a row do not lie together."""

    def change(self, input, result):
        mean, invstd = result
        is_apart = input.strides[-1] != input.itemsize
        return mean, invstd * (2 if is_apart or input.dtype == np.float16 else 1)


class Selective:
    """Float32 and four axes alone."""

    def batch_norm_stats(self, input, *, eps):
        if input.dtype != np.float32:
            raise NotImplementedError("float32 alone")
        if input.ndim != 4:
            raise RuntimeError(f"four axes alone, not {input.ndim}")
        return ng.batch_norm_stats(input, eps=eps)


class Refuses:
    """Has every operator, and answers nothing: its errors for wrong calls mean nothing."""

    def __getattr__(self, name):
        if name not in FUNCTIONS:
            raise AttributeError(name)
        return self.refuse

    def refuse(self, *tensors, **options):
        raise ValueError("grad_out: not today")


class Unwritten(Refuses):
    def refuse(self, *tensors, **options):
        raise NotImplementedError


class OtherSignatures:
    """The functions are there, their parameters are not."""

    def batch_norm_stats(self, input):
        return ng.batch_norm_stats(input)

    def batch_norm_elemt(self, input):
        return input


class Careless:
    """The formula, without a look at the arguments."""

    def batch_norm_backward_elemt(
        self, grad_out, input, mean, invstd, weight, sum_dy, sum_dy_xmu, count
    ):
        def along(vector):
            values = np.resize(np.asarray(vector, np.float64), input.shape[1])
            return values.reshape(-1, *[1] * (input.ndim - 2))

        n = np.asarray(count).astype(np.float64).sum()
        w = 1.0 if weight is None else along(weight)
        r, xmu = along(invstd), input.astype(np.float64) - along(mean)
        inner = along(sum_dy) / n + xmu * r * r * along(sum_dy_xmu) / n
        dy = np.resize(grad_out, input.shape).astype(np.float64)
        return (w * r * (dy - inner)).astype(input.dtype)


class _Keeps:
    """Right, and keeps something of every call."""

    def __init__(self):
        self.kept = []

    def batch_norm_stats(self, input, *, eps):
        self.kept.append(self.of(input))
        return ng.batch_norm_stats(input, eps=eps)


class KeepsAnObject(_Keeps):
    def of(self, input):
        return object()


class KeepsMemoryOfC(_Keeps):
    """The C library's memory, which Python knows nothing of."""

    library = ctypes.CDLL(None)

    def of(self, input):
        self.library.malloc(64)


class KeepsCycles(_Keeps):
    """Objects in a cycle, which are freed in the end: no leak."""

    def of(self, input):
        cycle = []
        cycle.append(cycle)


class FillsACache(_Keeps):
    """Of the first calls alone: no leak."""

    def of(self, input):
        if len(self.kept) > 20:
            self.kept.pop()
        return np.zeros(1000)


class Nothing:
    """No operators."""


class CannotBeMade(Right):
    def __init__(self):
        sys.exit("no device")


class OtherDevice(Right):
    framework, device = "torch", "nowhere"


class OtherFramework(Right):
    framework = "jax"
