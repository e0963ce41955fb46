"""Implementations that do not what they seem to: each must fail."""

from __future__ import annotations

import ctypes
import functools
import inspect
import os
import sys

import numpy as np

import normgrad as ng
from normgrad.operators.by_name import FUNCTIONS


class _Odd(BaseException):
    """Not an Exception."""


class Raises:
    """Has every operator, and answers nothing: its errors for wrong calls mean nothing."""

    def __getattr__(self, name):
        if name not in FUNCTIONS:
            raise AttributeError(name)
        return self.refuse

    def refuse(self, *tensors, **options):
        raise ValueError("grad_out: not today")


class RaisesOddly(Raises):
    def refuse(self, *tensors, **options):
        raise _Odd("no Exception")


class ExitsInPython(Raises):
    def refuse(self, *tensors, **options):
        sys.exit(0)


class Exits(Raises):
    def refuse(self, *tensors, **options):
        os._exit(0)


class Unwritten(Raises):
    def refuse(self, *tensors, **options):
        raise NotImplementedError


class WrittenInPart:
    """One operator is right; the other, which has no parameter for options, is to come."""

    batch_norm_stats = staticmethod(ng.batch_norm_stats)

    def batch_norm_elemt(self, input, weight, bias, mean, invstd):
        raise NotImplementedError("to come")


class OtherSignatures:
    """The functions are there, their parameters are not."""

    def batch_norm_stats(self, input):
        return ng.batch_norm_stats(input)

    def batch_norm_elemt(self, input):
        return input


class ExitsWhenMade:
    def __init__(self):
        os._exit(0)

    batch_norm_stats = staticmethod(ng.batch_norm_stats)


class OneAnswers:
    """One operator is right, another answers nothing, a third only four axes."""

    batch_norm_stats = staticmethod(ng.batch_norm_stats)

    def batch_norm_elemt(self, *tensors):
        raise RuntimeError("not today")

    def group_norm(self, *tensors, num_groups, eps):
        if tensors[0].ndim != 4:
            raise ValueError("input: four axes alone")
        return ng.group_norm(*tensors, num_groups=num_groups, eps=eps)


class OnlyNothing:
    """Answers where there is nothing to compute, or nothing is wanted; and nowhere else."""

    def batch_norm_backward(self, *tensors, training, eps=1e-5, output_mask=(True,) * 3):
        if tensors[1].size and any(output_mask):
            raise RuntimeError("not today")
        chosen = {"training": training, "eps": eps, "output_mask": output_mask}
        return ng.batch_norm_backward(*tensors, **chosen)


class _Statistics:
    def batch_norm_stats(self, input, *, eps=1e-5):
        return self.change(input, ng.batch_norm_stats(input, eps=eps))


class ReturnsInputs(_Statistics):
    def change(self, input, result):
        return input, input


class OneBuffer(_Statistics):
    """What it returns is the memory that it returned before."""

    def __init__(self):
        self.kept = {}

    def change(self, input, result):
        kept = self.kept.setdefault(input.shape, tuple(map(np.array, result)))
        for each, new in zip(kept, result, strict=True):
            each[...] = new
        return kept


class Remembers(_Statistics):
    """What it computed for tensors of this shape, dtype and address."""

    def __init__(self):
        self.kept = {}

    def change(self, input, result):
        known = (input.shape, input.dtype.name, input.ctypes.data)
        return tuple(map(np.array, self.kept.setdefault(known, result)))


class Lists(_Statistics):
    def change(self, input, result):
        return tuple(each.tolist() for each in result)


class Objects(_Statistics):
    def change(self, input, result):
        return tuple(each.astype(object) for each in result)


class OneMemory:
    """Two of its results are one array."""

    def batch_norm_backward_reduce(self, *tensors):
        result = ng.batch_norm_backward_reduce(*tensors)
        return result.sum_dy, result.sum_dy_xmu, result.grad_weight, result.sum_dy


class OverGradOut:
    """Right; but the result is grad_out's memory."""

    def batch_norm_backward_elemt(self, grad_out, *rest):
        result = ng.batch_norm_backward_elemt(grad_out, *rest)
        if result.dtype == grad_out.dtype and grad_out.flags.writeable:
            grad_out[...] = result
            return grad_out
        return result


class _WrongBeyond:
    """Right, but for tensors beyond some size: there the last values of a result are lost."""

    def is_beyond(self, input, options):
        raise NotImplementedError

    def __getattr__(self, name):
        if name not in FUNCTIONS:
            raise AttributeError(name)
        right = FUNCTIONS[name]
        names = list(inspect.signature(right).parameters)

        @functools.wraps(right)
        def called(*tensors, **options):
            result = right(*tensors, **options)
            input = dict(zip(names, tensors, strict=False))["input"]
            if self.is_beyond(input, options):
                results = (result,) if isinstance(result, np.ndarray) else result
                first = next(each for each in results if each is not None)
                first[(-1,) * first.ndim] = 0
            return result

        return called


class WrongBeyond64Channels(_WrongBeyond):
    def is_beyond(self, input, options):
        return input.shape[options.get("channel_axis", 1)] > 64


class WrongBeyond8Groups(_WrongBeyond):
    def is_beyond(self, input, options):
        return options.get("num_groups", 1) > 8


class WrongBeyond65536Samples(_WrongBeyond):
    def is_beyond(self, input, options):
        return input.shape[0] > 65536


class _Keeps(_WrongBeyond):
    """Right, and keeps something of every call."""

    def __init__(self):
        self.kept = []

    def is_beyond(self, input, options):
        self.kept.append(self.of(input))
        return False


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
