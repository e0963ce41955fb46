"""Implementations to be tried: a right one, and for each defect one that has it."""

from __future__ import annotations

import itertools
import os
import signal
import sys
import threading
import time
from pathlib import Path

import numpy as np

import normgrad as ng


class Right:
    """One operator of ours."""

    batch_norm_backward = staticmethod(ng.batch_norm_backward)
    set_num_threads = staticmethod(ng.set_num_threads)


class _Changed:
    """Ours, with something done to the result."""

    def batch_norm_backward(self, *tensors, training, eps=1e-5, output_mask=(True,) * 3):
        options = {"training": training, "eps": eps, "output_mask": output_mask}
        result = ng.batch_norm_backward(*tensors, **options)
        return self.change(tensors, list(result))


class Inexact(_Changed):
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


class Unsteady(_Changed):
    calls = itertools.count()

    def change(self, tensors, result):
        if result[2] is not None and next(self.calls) % 2:
            result[2] = np.nextafter(result[2], result[2].dtype.type(np.inf))
        return result


class Crashes(_Changed):
    def change(self, tensors, result):
        if not tensors[1].flags.c_contiguous:
            print("going down", file=sys.stderr, flush=True)
            os.kill(os.getpid(), signal.SIGSEGV)
        return result


class Leaves(_Changed):
    def change(self, tensors, result):
        os._exit(3)


class Hangs(_Changed):
    def change(self, tensors, result):
        if not tensors[1].flags.c_contiguous:
            time.sleep(600)
        return result


class HangsAlways(_Changed):
    def change(self, tensors, result):
        time.sleep(600)


class Talks(_Changed):
    """Whatever it prints is nobody's message."""

    def change(self, tensors, result):
        print("hello")
        os.write(1, b"\xff\x00" * 100)
        return result


class IgnoresOut:
    def batch_norm_elemt(self, input, weight, bias, mean, invstd, *, out=None):
        return ng.batch_norm_elemt(input, weight, bias, mean, invstd)


class NoTensors:
    framework = "torch"

    def batch_norm_stats(self, input, *, eps=1e-5):
        return 1, None


class Integers:
    def batch_norm_stats(self, input, *, eps=1e-5):
        return tuple(each.astype(np.int64) for each in ng.batch_norm_stats(input, eps=eps))


class CrashesLater:
    """Right; but some time after an answer the process ends."""

    calls = 0

    def batch_norm_stats(self, input, *, eps=1e-5):
        CrashesLater.calls += 1
        if CrashesLater.calls == 3:
            threading.Timer(0.01, os.abort).start()
        return ng.batch_norm_stats(input, eps=eps)


class CrashesOnceAndForAll:
    """After a first crash it cannot be loaded any more."""

    def __init__(self):
        if Path(os.environ["CRASHED"]).exists():
            raise RuntimeError("the device is gone")

    def batch_norm_stats(self, input, *, eps=1e-5):
        Path(os.environ["CRASHED"]).touch()
        os.abort()


class StartsPrograms:
    """And ends, while what it started lives and holds what it inherited."""

    def batch_norm_stats(self, input, *, eps=1e-5):
        if os.fork() == 0:
            time.sleep(60)
            os._exit(0)
        os.abort()


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


class Selective:
    """Float32 alone."""

    def batch_norm_stats(self, input, *, eps):
        if input.dtype != np.float32:
            raise NotImplementedError("float32 alone")
        if input.ndim != 4:
            raise RuntimeError("four axes alone")
        return ng.batch_norm_stats(input, eps=eps)


class WritesBeside:
    def batch_norm_elemt(self, input, weight, bias, mean, invstd, *, out=None):
        result = ng.batch_norm_elemt(input, weight, bias, mean, invstd, out=out)
        if out is not None and out.base is not None and out.base.size > out.size:
            out.base.reshape(-1)[0] = 7
        return result


class Nothing:
    """No operators."""


class OtherDevice:
    framework, device = "torch", "nowhere"

    def batch_norm_stats(self, input, *, eps=1e-5):
        raise AssertionError


class OtherFramework(Right):
    framework = "jax"


right = Right()
