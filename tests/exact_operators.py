"""Operators to test the suite with: exact, with one inaccurate sum, or with NaN that spreads."""

from __future__ import annotations

import inspect

import numpy as np

import normgrad as ng
from normgrad.operators.by_name import FUNCTIONS, PLANNED

ALL = (True, True, True)


class Exact:
    """The operators in NumPy, in float64 (longdouble for float64); each result is rounded once."""

    def total(self, name, terms):
        """The sum over the last axis; the name says which of the formulas' sums it is."""
        return terms.sum(-1)

    def batch_norm_backward(
        self,
        grad_out,
        input,
        weight=None,
        running_mean=None,
        running_var=None,
        save_mean=None,
        save_invstd=None,
        *,
        training,
        eps=1e-5,
        output_mask=ALL,
        channel_axis=1,
    ):
        tensors = (grad_out, input, weight, running_mean, running_var, save_mean, save_invstd)
        chosen = {"training": training, "eps": eps, "output_mask": output_mask}
        call = _Call("batch_norm_backward", tensors, channel_axis, **chosen)
        dy, x, w = call.rows(grad_out), call.rows(input), call.read(weight, 1)
        count = x.shape[1]
        if training:
            mean, r = self._statistics(call, x, save_mean, save_invstd, eps)
        else:
            mean, r = call.read(running_mean, 0), 1 / np.sqrt(call.read(running_var, 1) + eps)
        sum_dy, product = self._sums(dy, x - mean)
        grad_input = dy * r * w
        if training:
            grad_input = (w * r) * (dy - sum_dy / count - (x - mean) * r**2 * product / count)
        grad_weight = r * product if count else product
        return call.results(call.back(grad_input), grad_weight, sum_dy)

    def _statistics(self, call, x, mean, invstd, eps):
        count = x.shape[1]
        given = mean is not None
        mean = call.read(mean, 0) if given else self._column("mean", x) / count
        if invstd is not None:
            return mean, call.read(invstd, 1)
        return mean, 1 / np.sqrt(self._column("squares", (x - mean) ** 2) / count + eps)

    def _column(self, name, terms):
        return self.total(name, terms)[:, None]

    def _sums(self, dy, xmu):
        return self._column("dy", dy), self._column("dy_xmu", dy * xmu)

    def batch_norm_backward_reduce(
        self, grad_out, input, mean, invstd, weight=None, *,
        input_g=True, weight_g=True, bias_g=True, channel_axis=1,
    ):  # fmt: skip
        tensors = (grad_out, input, mean, invstd, weight)
        masks = {"input_g": input_g, "weight_g": weight_g, "bias_g": bias_g}
        call = _Call("batch_norm_backward_reduce", tensors, channel_axis, **masks)
        xmu = call.rows(input) - call.read(mean, 0)
        sum_dy, product = self._sums(call.rows(grad_out), xmu)
        grad_weight = product * call.read(invstd, 1) if input.size else product
        return call.results(sum_dy, product, grad_weight, sum_dy)

    def batch_norm_backward_elemt(
        self, grad_out, input, mean, invstd, weight, sum_dy, sum_dy_xmu, count, *, channel_axis=1
    ):
        tensors = (grad_out, input, mean, invstd, weight, sum_dy, sum_dy_xmu, count)
        call = _Call("batch_norm_backward_elemt", tensors, channel_axis)
        n = np.asarray(count).astype(np.float64).sum()
        r, w = call.read(invstd, 1), call.read(weight, 1)
        slope = (call.rows(input) - call.read(mean, 0)) * r**2 * (call.read(sum_dy_xmu, 0) / n)
        grad_input = w * r * (call.rows(grad_out) - call.read(sum_dy, 0) / n - slope)
        return call.results(call.back(grad_input))[0]

    def group_norm_backward(
        self, grad_out, input, mean, rstd, weight=None, *,
        num_groups, output_mask=ALL, channel_axis=1,
    ):  # fmt: skip
        tensors = (grad_out, input, mean, rstd, weight)
        chosen = {"num_groups": num_groups, "output_mask": output_mask}
        call = _Call("group_norm_backward", tensors, channel_axis, **chosen)
        dy, x = (call.grouped(each, num_groups) for each in (grad_out, input))
        samples, _, each, positions = dy.shape
        mu, r = (call.read(value, 0).reshape(samples, num_groups, 1, 1) for value in (mean, rstd))
        g = call.read(weight, 1).reshape(1, num_groups, each, 1)
        xhat = (x - mu) * r

        def over(name, terms, axes):
            moved = np.moveaxis(terms, axes, range(-len(axes), 0))
            first, rest = moved.shape[: -len(axes)], moved.shape[-len(axes) :]
            return self.total(name, moved.reshape(*first, int(np.prod(rest))))

        sums = over("group", g * dy, (2, 3))[..., None, None]
        slopes = over("group_xhat", g * dy * xhat, (2, 3))[..., None, None]
        grad_input = r * (g * dy - (sums + xhat * slopes) / max(1, each * positions))
        grad_weight = over("weight", dy * xhat, (0, 3)) if input.size else over("", dy, (0, 3))
        grad_bias = over("bias", dy, (0, 3))
        return call.results(call.ungrouped(grad_input), grad_weight, grad_bias)

    def batch_norm_stats(self, input, *, eps=1e-5, channel_axis=1):
        call = _Call("batch_norm_stats", (input,), channel_axis, eps=eps)
        x = call.rows(input)
        mean, invstd = self._statistics(call, x, None, None, eps)
        return call.results(*((mean, invstd) if x.shape[1] else np.zeros((2, call.channels))))

    def batch_norm(
        self, input, weight=None, bias=None, running_mean=None, running_var=None, *,
        training, momentum=0.1, eps=1e-5, channel_axis=1,
    ):  # fmt: skip
        tensors = (input, weight, bias, running_mean, running_var)
        chosen = {"training": training, "momentum": momentum, "eps": eps}
        call = _Call("batch_norm", tensors, channel_axis, **chosen)
        x, w, b = call.rows(input), call.read(weight, 1), call.read(bias, 0)
        if not training:
            mean, r = call.read(running_mean, 0), 1 / np.sqrt(call.read(running_var, 1) + eps)
            return call.results(call.back(w * r * (x - mean) + b), *[None] * 4)
        mean, r = self._statistics(call, x, None, None, eps)
        output = w * r * (x - mean) + b
        count = x.shape[1]
        if not count:
            old = (call.read(each, 0) for each in (running_mean, running_var))
            return call.results(call.back(output), np.zeros_like(mean), np.zeros_like(mean), *old)
        var = self._column("squares", (x - mean) ** 2) / max(1, count - 1)
        old, new = (running_mean, running_var), (mean, var)
        share = x.dtype.type(momentum)
        updated = ((1 - share) * call.read(a, 0) + share * b for a, b in zip(old, new, strict=True))
        return call.results(call.back(output), mean, r, *updated)

    def group_norm(self, input, weight=None, bias=None, *, num_groups, eps=1e-5, channel_axis=1):
        chosen = {"num_groups": num_groups, "eps": eps}
        call = _Call("group_norm", (input, weight, bias), channel_axis, **chosen)
        x = call.grouped(input, num_groups)
        samples, _, each, positions = x.shape
        rows = x.reshape(samples * num_groups, each * positions)
        mean, r = self._statistics(call, rows, None, None, eps)
        if not each * positions:
            mean = r = np.zeros_like(mean)
        per_set = (samples, num_groups, 1, 1)
        mu, rstd = (value.reshape(per_set) for value in (mean, r))
        g, b = (
            call.read(value, default).reshape(1, num_groups, each, 1)
            for value, default in ((weight, 1), (bias, 0))
        )
        return call.results(call.ungrouped(g * rstd * (x - mu) + b), mean, r)

    def batch_norm_elemt(self, input, weight, bias, mean, invstd, *, channel_axis=1):
        call = _Call("batch_norm_elemt", (input, weight, bias, mean, invstd), channel_axis)
        gain, xmu = call.read(weight, 1) * call.read(invstd, 1), call.rows(input)
        return call.results(call.back(gain * (xmu - call.read(mean, 0)) + call.read(bias, 0)))[0]


class _Call:
    """A call's tensors in wide arithmetic, after normgrad has checked the arguments."""

    def __init__(self, name, tensors, channel_axis, **options):
        names = [p.name for p in PLANNED[name].inputs]
        given = dict(zip(names, tensors, strict=False))
        plan = ng.plan(name, **given, channel_axis=channel_axis, **options)
        self._specs = plan.output_specs
        data = [given.get("grad_out", given["input"]), given["input"]]
        self._shape, self._axis = given["input"].shape, channel_axis
        self.channels = self._shape[channel_axis]
        double = np.dtype(np.float64) in [each.dtype for each in data]
        self._real, self._wide = (np.float64, np.longdouble) if double else (np.float32, np.float64)

    def read(self, vector, default):
        """A vector in wide arithmetic as a column, one value for each row."""
        if vector is None:
            return np.full((self.channels, 1), default, self._wide)
        return np.asarray(vector).astype(self._real).astype(self._wide).reshape(-1, 1)

    def rows(self, tensor):
        """The tensor with one row for each channel."""
        wide = np.moveaxis(tensor.astype(self._wide), self._axis, 0)
        return wide.reshape(self.channels, tensor.size // max(1, self.channels))

    def _moved(self, to):
        return np.moveaxis(np.empty(self._shape, bool), self._axis, to).shape

    def back(self, rows):
        return np.moveaxis(rows.reshape(self._moved(0)), 0, self._axis)

    def grouped(self, tensor, groups):
        """The tensor with axes for samples, groups, channels of a group, and positions."""
        n, c, *rest = self._moved(1)
        wide = np.moveaxis(tensor.astype(self._wide), self._axis, 1)
        return wide.reshape(n, groups, c // groups, int(np.prod(rest)))

    def ungrouped(self, values):
        return np.moveaxis(values.reshape(self._moved(1)), 1, self._axis)

    def results(self, *values):
        """The wanted values, each rounded to its output's dtype."""
        pairs = zip(values, self._specs, strict=True)
        return tuple(
            None
            if spec is None
            else _laid_out(value.reshape(spec.shape).astype(spec.dtype.numpy), spec.strides)
            for value, spec in pairs
        )


def _laid_out(values, strides):
    """The values with their axes in memory in the order of these strides."""
    order = sorted(range(values.ndim), key=lambda axis: -abs(strides[axis]))
    return np.ascontiguousarray(values.transpose(order)).transpose(np.argsort(order))


class Sequential(Exact):
    """Takes one of the sums in a narrow dtype, term by term, except for float64 tensors.

    Args:
        name: the sum's name.
        lanes: the number of partial sums that run side by side, as in vectorised loops.
        dtype: the dtype of the partial sums.
    """

    def __init__(self, name, lanes=1, dtype=np.float32):
        self._name, self._lanes, self._dtype = name, lanes, dtype

    def total(self, name, terms):
        count = terms.shape[-1] // self._lanes * self._lanes
        # Sums in longdouble, of float64 tensors, stay exact.
        if name != self._name or not count or terms.dtype != np.float64:
            return super().total(name, terms)
        narrow = terms[..., :count].astype(self._dtype)
        lanes = narrow.reshape(*terms.shape[:-1], -1, self._lanes)
        sums = np.add.accumulate(lanes, axis=-2, dtype=self._dtype)[..., -1, :]
        return sums.astype(terms.dtype).sum(-1) + terms[..., count:].sum(-1)


class Spreads:
    """normgrad's operators, but a special value in one channel spreads to other channels' results.

    Args:
        name: the input's name.
        is_special: whether an element is special.
        everywhere: whether it spreads to all channels or groups, or only to the next one.
    """

    def __init__(self, name, is_special, everywhere):
        self._name, self._is_special, self._everywhere = name, is_special, everywhere

    def __getattr__(self, function):
        if function not in FUNCTIONS:
            raise AttributeError(function)

        def spreading(*tensors, **options):
            result = getattr(ng, function)(*tensors, **options)
            names = inspect.signature(FUNCTIONS[function]).parameters
            given = dict(zip(names, tensors, strict=False)).get(self._name)
            if given is not None and self._is_special(given).any():
                where = np.argwhere(self._is_special(given))[0]
                channel = int(where[1] if given.ndim > 1 else where[0])
                for each in result if isinstance(result, tuple) else (result,):
                    if each is not None:
                        self._spread(each, channel)
            return result

        return spreading

    def _spread(self, result, channel):
        channels = np.moveaxis(result, -1 if result.ndim == 1 else 1, 0)
        if self._everywhere:
            channels[...] = np.nan
        else:
            channels[(channel + 1) % len(channels)] = np.nan
