"""Operators as one writes them in NumPy, in two passes; and some with a known inaccuracy."""

from __future__ import annotations

import math

import ml_dtypes
import numpy as np


class Plain:
    """Computes in float64 (longdouble for float64 tensors) and rounds each result once."""

    #: The types to compute in, for float64 tensors and for others.
    wide = (np.longdouble, np.float64)

    def total(self, terms, axes):
        return terms.sum(axes, keepdims=True)

    def total_of_parameter(self, terms, axes, dtype):
        """The gradient of a parameter, for data of a dtype."""
        return self.total(terms, axes)

    def variance(self, x, mean, axes, count):
        return self.total((x - mean) ** 2, axes) / count

    def rounded(self, xhat, dtype):
        """What is multiplied by the weight, for data of a dtype."""
        return xhat

    def _open(self, *data):
        is_double = any(each.dtype == np.float64 for each in data)
        self._real = np.float64 if is_double else np.float32
        self._wide = self.wide[not is_double]
        return [each.astype(self._wide) for each in data]

    def _vector(self, values, shape, default=0):
        """A vector rounded to the arithmetic's type, in the shape in which it broadcasts."""
        if values is None:
            return self._wide(default)
        return values.astype(self._real).astype(self._wide).reshape(shape)

    def _close(self, *vectors):
        return [each.astype(self._real) for each in vectors]

    # Of data in a shape whose axes `over` have one mean, and whose parameters have a `shape`

    def _forward(self, data, over, shape, weight, bias, eps, is_centred=True):
        (x,) = self._open(data)
        count = max(1, math.prod(x.shape[axis] for axis in over))
        mean = self.total(x, over) / count if is_centred else self._wide(0)
        var = self.variance(x, mean, over, count)
        r = 1 / np.sqrt(var + self._wide(eps))
        output = self._affine(data, (x - mean) * r, shape, weight, bias)
        return output, mean, (r if x.size else 0 * var), var

    def _affine(self, data, xhat, shape, weight, bias):
        scaled = self.rounded(xhat, data.dtype) * self._vector(weight, shape, 1)
        return (scaled + self._vector(bias, shape)).astype(data.dtype)

    def _backward(self, data, xhat, dy, r, over, across, shape, weight, uses_mean=True):
        count = max(1, math.prod(dy.shape[axis] for axis in over))
        d = dy * self._vector(weight, shape, 1)
        inner = xhat * self.total(d * xhat, over)
        if uses_mean:
            inner = inner + self.total(d, over)
        sums = (self.total_of_parameter(each, across, data.dtype) for each in (dy * xhat, dy))
        return (r * (d - inner / count)).astype(data.dtype), *self._close(*sums)

    # The operators

    def batch_norm_stats(self, input, *, eps=1e-5, channel_axis=1):
        over, shape = _channels(input, channel_axis)
        _, mean, r, _ = self._forward(input, over, shape, None, None, eps)
        return self._close(mean.ravel(), r.ravel())

    def batch_norm_elemt(self, input, weight, bias, mean, invstd, *, channel_axis=1):
        _, shape = _channels(input, channel_axis)
        (x,) = self._open(input)
        xhat = (x - self._vector(mean, shape)) * self._vector(invstd, shape)
        return self._affine(input, xhat, shape, weight, bias)

    def batch_norm(
        self, input, weight=None, bias=None, running_mean=None, running_var=None, *,
        training, momentum=0.1, eps=1e-5, channel_axis=1,
    ):  # fmt: skip
        over, shape = _channels(input, channel_axis)
        if not training:
            self._open(input)
            r = 1 / np.sqrt(self._vector(running_var, shape, 1) + self._wide(eps))
            mean = self._vector(running_mean, shape)
            xhat = (input.astype(self._wide) - mean) * r
            return (self._affine(input, xhat, shape, weight, bias),)
        output, mean, r, var = self._forward(input, over, shape, weight, bias, eps)
        count, share = input.size // max(1, input.shape[channel_axis]), self._wide(momentum)
        updated = []
        for old, new in (running_mean, mean), (running_var, var * (count / max(1, count - 1))):
            before = self._vector(old, shape)
            after = (1 - share) * before + share * new if count else before
            updated.append(None if old is None else after.ravel().astype(self._real))
        return (output, *self._close(mean.ravel(), r.ravel()), *updated)

    def group_norm(self, input, weight=None, bias=None, *, num_groups, eps=1e-5, channel_axis=1):
        x, back = _groups(input, num_groups, channel_axis)
        output, mean, r, _ = self._forward(x, (2, 3), (*x.shape[1:3], 1), weight, bias, eps)
        return back(output), *self._close(mean[..., 0, 0], r[..., 0, 0])

    def layer_norm(self, input, normalized_shape, weight=None, bias=None, *, eps=1e-5):
        over, shape, _ = _rows(input, normalized_shape)
        output, mean, r, _ = self._forward(input, over, shape, weight, bias, eps)
        return output, *self._close(mean, r)

    def rms_norm(self, input, normalized_shape, weight=None, *, eps=None):
        over, shape, _ = _rows(input, normalized_shape)
        if eps is None:
            eps = np.finfo(np.float64 if input.dtype == np.float64 else np.float32).eps
        output, _, r, _ = self._forward(input, over, shape, weight, None, eps, False)
        return output, *self._close(r)

    def batch_norm_backward(
        self, grad_out, input, weight=None, running_mean=None, running_var=None,
        save_mean=None, save_invstd=None, *, training, eps=1e-5, channel_axis=1,
    ):  # fmt: skip
        over, shape = _channels(input, channel_axis)
        dy, x = self._open(grad_out, input)
        if training:
            mean, r = self._vector(save_mean, shape), self._vector(save_invstd, shape, 1)
            if save_mean is None or save_invstd is None:
                _, own_mean, own_r, _ = self._forward(input, over, shape, None, None, eps)
                mean = own_mean if save_mean is None else mean
                r = own_r if save_invstd is None else r
                dy, x = self._open(grad_out, input)
        else:
            mean = self._vector(running_mean, shape)
            r = 1 / np.sqrt(self._vector(running_var, shape, 1) + self._wide(eps))
        found = self._backward(input, (x - mean) * r, dy, r, over, over, shape, weight)
        data = found[0] if training else (dy * r * self._vector(weight, shape, 1)).astype(x.dtype)
        return data.astype(input.dtype), *(each.ravel() for each in found[1:])

    def group_norm_backward(
        self, grad_out, input, mean, rstd, weight=None, *, num_groups, channel_axis=1
    ):
        (data, back), dy = _groups(input, num_groups, channel_axis), grad_out
        dy, x = self._open(_groups(dy, num_groups, channel_axis)[0], data)
        mean, r = (self._vector(each, (*x.shape[:2], 1, 1)) for each in (mean, rstd))
        shape = (*x.shape[1:3], 1)
        found = self._backward(data, (x - mean) * r, dy, r, (2, 3), (0, 3), shape, weight)
        return back(found[0]), *(each.ravel() for each in found[1:])

    def layer_norm_backward(
        self, grad_out, input, mean, rstd, weight=None, *, normalized_shape, uses_mean=True
    ):
        over, shape, across = _rows(input, normalized_shape)
        dy, x = self._open(grad_out, input)
        r = self._vector(rstd, rstd.shape)
        xhat = (x - self._vector(mean, rstd.shape)) * r
        found = self._backward(input, xhat, dy, r, over, across, shape, weight, uses_mean)
        return found[0], *(each.reshape(shape) for each in found[1:])

    def rms_norm_backward(self, grad_out, input, rstd, weight=None, *, normalized_shape):
        return self.layer_norm_backward(
            grad_out, input, None, rstd, weight, normalized_shape=normalized_shape, uses_mean=False
        )[:2]


def _channels(data, axis):
    """The axes of a channel's elements, and the shape in which vectors broadcast."""
    axis %= data.ndim
    over = tuple(each for each in range(data.ndim) if each != axis)
    return over, tuple(size if each == axis else 1 for each, size in enumerate(data.shape))


def _rows(data, normalized_shape):
    """The axes of a row, the parameters' shape, and the other axes."""
    first = data.ndim - np.size(normalized_shape)
    return tuple(range(first, data.ndim)), data.shape[first:], tuple(range(first))


def _groups(data, groups, axis):
    """The data as samples, groups, channels of a group and positions; and the inverse."""
    moved = np.moveaxis(data, axis, 1)
    n, c, *positions = moved.shape
    split = moved.reshape(n, groups, c // groups, math.prod(positions))
    return split, lambda values: np.moveaxis(values.reshape(moved.shape), 1, axis)


class Narrow(Plain):
    """Computes in the arithmetic's type, and adds up term by term."""

    wide = (np.float64, np.float32)

    def total(self, terms, axes):
        if not terms.size:
            return super().total(terms, axes)
        moved = np.moveaxis(terms, axes, range(-len(axes), 0))
        flat = moved.reshape(*moved.shape[: -len(axes)], -1)
        return np.expand_dims(np.add.accumulate(flat, axis=-1)[..., -1], axes)


class SumsInHalves(Narrow):
    """The parameters' gradients of halves are summed in bfloat16."""

    def total_of_parameter(self, terms, axes, dtype):
        if dtype.itemsize > 2:
            return self.total(terms, axes)
        return self.total(terms.astype(ml_dtypes.bfloat16), axes).astype(terms.dtype)


class Squares(Narrow):
    """The variance is E[x²] − E[x]²."""

    def variance(self, x, mean, axes, count):
        return np.maximum(self.total(x * x, axes) / count - mean * mean, 0)


class RoundsTwice(Plain):
    """Halves are rounded before the weight too."""

    def rounded(self, xhat, dtype):
        return xhat.astype(dtype).astype(xhat.dtype) if dtype.itemsize == 2 else xhat
