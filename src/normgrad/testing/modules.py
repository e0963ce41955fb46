"""Layers of PyTorch under test: a module's output, and its gradients through autograd.

The output and the gradients are compared with the formula of the input alone: the statistics that
a module keeps for its backward pass are its own affair. The mean is a sum, so the scale of x − mean
is |x − mean| + Σ|x − mean|/m; and u·Σ|x|/m, since even where all elements are equal a mean that is
added up in twice the arithmetic's digits, as in float64 for float32, is not quite that element.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from ..operators.reference import OWN_STATISTICS, Exact, centred, mean_of, of_formula
from . import operator_suite
from .cases import Case, Topic
from .changes import TWISTS
from .framework_tensors import NotOfferedError, first_line, to_array, to_torch
from .memory_checks import Watched
from .outcomes import Outcome, wrong
from .subjects import Implementation, SubjectError
from .tensors import Array, Call

#: The kinds of forward pass and of gradients, by what a module's class has in its name.
KINDS = {
    "batchnorm": ("forward", "train"),
    "groupnorm": ("forward_group_norm", "group_norm"),
    "layernorm": ("forward_layer_norm", "layer_norm"),
    "rmsnorm": ("forward_rms_norm", "rms_norm"),
}
_GRADIENTS = dict(KINDS.values())

#: The topics of which a module can be asked, since it takes nothing but the input.
_TOPICS = (
    *(Topic.PLAIN, Topic.VALUES, Topic.MEAN, Topic.SHAPES, Topic.SIZES, Topic.SPECIAL),
    Topic.DETERMINISM,
)
#: Fields of cases that describe what a module does not take, and that must have the default value.
_FIXED_FIELDS = (
    *("x_dtype", "parameters", "x_layout", "vectors"),
    *("channel_axis", "absent", "mask", "out", "row_axes"),
)


class Passes(NamedTuple):
    """A module's forward and backward pass.

    Attributes:
        call: the forward pass, as a call of the operator.
        vectors: the parameters by the operator's names, the weight first.
        grad_out: the gradient of the output.
    """

    call: Call
    vectors: dict[str, Array]
    grad_out: Array

    @property
    def inputs(self) -> list[Array]:
        """The tensors that the passes read."""
        return [self.call.arrays["input"], *self.vectors.values(), self.grad_out]


class ModuleCase(Case):
    """A module's forward and backward pass, with parameters of the input's dtype."""

    def output_specs(self, call: Call) -> tuple[()]:
        return ()

    def call(self) -> Call:
        return Case.call(replace(self, parameters=self.dtype))

    def request(self) -> Passes:
        call = self.call()
        vectors = {name: call.arrays[name] for name in _vectors(call) if name in call.arrays}
        backward = Case(**vars(self) | {"kind": _GRADIENTS[self.kind], "absent": ()}).call()
        return Passes(call, vectors, backward.arrays["grad_out"])

    @np.errstate(all="ignore")
    def exact(self, call: Call) -> dict[str, Exact]:
        """The output and the gradients, each with its scale."""
        step = self.request()
        wide = np.longdouble if step.grad_out.dtype == np.float64 else np.float64
        x, dy = (each.astype(wide) for each in (call.arrays["input"], step.grad_out))
        shape, rank = x.shape, x.ndim
        if "normalized_shape" in call.options:
            first = rank - len(call.options["normalized_shape"])
            over, across = tuple(range(first, rank)), tuple(range(first))
        elif "num_groups" in call.options:
            groups = call.options["num_groups"]
            split = (shape[0], groups, shape[1] // groups, math.prod(shape[2:]))
            x, dy = x.reshape(split), dy.reshape(split)
            over, across = (2, 3), (0, 3)
        else:
            over = across = (0, *range(2, rank))
        of_parameters = tuple(1 if axis in across else size for axis, size in enumerate(x.shape))
        vectors = [each.astype(wide).reshape(of_parameters) for each in step.vectors.values()]
        w = vectors[0] if vectors else np.ones(1, wide)
        b = vectors[1] if len(vectors) > 1 else np.zeros(1, wide)
        is_centred = call.operator.is_centred
        xmu = centred(x, over) if is_centred else x
        r = 1 / np.sqrt(mean_of(xmu**2, over) + wide(call.options["eps"]))

        def formula(dy: Array, xmu: Array, w: Array, b: Array, minus: int) -> Iterator[Array]:
            xhat, d = xmu * r, w * dy
            inner = xhat * mean_of(d * xhat, over) + (mean_of(d, over) if is_centred else 0)
            yield (w * xhat + b).reshape(shape)
            yield (r * (d + minus * inner)).reshape(shape)
            for terms, vector in zip((dy * xhat, dy), step.vectors.values(), strict=False):
                yield terms.sum(across).reshape(vector.shape)

        widened = abs(xmu)
        if is_centred:
            roundoff = call.arithmetic.unit_roundoff
            widened = widened + mean_of(abs(xmu), over) + roundoff * mean_of(abs(x), over)
        names = ("output", "grad_input", *(f"grad_{name}" for name in step.vectors))
        apart: Array = is_centred * (abs(x) + mean_of(abs(x), over))
        sizes = [abs(dy), widened, abs(w), abs(b)]
        found = of_formula(names, formula, dy, xmu, w, b, apart=apart, sizes=sizes)
        factor = OWN_STATISTICS if wide is np.longdouble else 1
        return {
            name: exact if name == "output" else exact._replace(scale=factor * exact.scale)
            for name, exact in found.items()
        }


def _vectors(call: Call) -> list[str]:
    """The names of the operator's weight and bias, which RMS norm has not."""
    return [name for name in ("weight", "bias") if name in call.tensors]


def cases(quick: bool, facts: Mapping[str, str]) -> tuple[ModuleCase, ...]:
    """The cases of the operators' suite that a module with these facts can be asked for."""
    kind, parameters = facts["kind"], int(facts["parameters"])
    by_name: dict[str, ModuleCase] = {}
    for case in operator_suite.cases(quick, (kind,)):
        fits = all(getattr(case, name) == getattr(Case, name) for name in _FIXED_FIELDS)
        is_of_input = not case.change or (
            case.topic is Topic.SPECIAL and TWISTS[case.change].argument == "input"
        )
        if case.topic in _TOPICS and fits and is_of_input:
            call, shape = case.call(), case.shape
            if len(shape) > 3 and "normalized_shape" in call.options:
                # Many modules normalise the last axis, whatever shape they are made with.
                shape = (*shape[:2], math.prod(shape[2:]))
            # How errors cancel in normal data depends on the order of a module's sums.
            changes = {"absent": tuple(_vectors(call)[parameters:]), "normal": False}
            module_case = ModuleCase(**vars(case) | changes | {"shape": shape})
            by_name.setdefault(module_case.name, module_case)
    return tuple(by_name.values())


class Module(Implementation):
    """A class of PyTorch's modules under test.

    Args:
        name: its name in a report.
        cls: the class, which has BatchNorm, GroupNorm, LayerNorm or RMSNorm in its name. It takes
            the number of channels, of groups and channels, or of a row's elements, and ``eps``; a
            row is the last axis. Its parameters are the weight and, if there is one, the bias.
            ``device`` may be an attribute: "cpu" by default.

    Raises:
        SubjectError: the class has another name, or cannot be used.
    """

    suite, strict = "modules", False

    def __init__(self, name: str, cls: Any) -> None:
        self.name, self._cls = name, cls
        self.device = str(getattr(cls, "device", "cpu"))
        spelled = cls.__name__.lower().replace("_", "")
        forward = next((kinds[0] for word, kinds in KINDS.items() if word in spelled), None)
        if forward is None:
            raise SubjectError(
                f"{name}: a module named {cls.__name__}; allowed: a name with BatchNorm, "
                "GroupNorm, LayerNorm or RMSNorm in it"
            )
        case = ModuleCase(Topic.PLAIN, forward, (3, 4, 5))
        try:
            parameters = list(self._module(case.request()).parameters())
        except Exception as error:
            reason = f"{type(error).__name__}: {first_line(error)}"
            raise SubjectError(f"{name}: cannot be made: {reason}") from error
        self.facts = {
            "operators": case.operator,
            "kind": forward,
            "parameters": str(len(parameters)),
            "tensors": f"torch, {self.device}",
        }

    def _module(self, step: Passes) -> Any:
        options = step.call.options
        channels = step.call.arrays["input"].shape[1]
        if "normalized_shape" in options:
            return self._cls(*options["normalized_shape"], eps=options["eps"])
        groups = [options["num_groups"]] if "num_groups" in options else []
        return self._cls(*groups, channels, eps=options["eps"])

    def once(self, call: Passes) -> Outcome:
        import torch

        x, dy = call.call.arrays["input"], call.grad_out
        watched = {"input": Watched(x), "grad_out": Watched(dy)}
        data, gradient = (to_torch(each, self.device) for each in (x, dy))
        vectors = {name: to_torch(each).tensor for name, each in call.vectors.items()}
        try:
            module = self._module(call).to(self.device, data.tensor.dtype)
            parameters = dict(zip(vectors, module.parameters(), strict=True))
            with torch.no_grad():
                for name, parameter in parameters.items():
                    parameter.copy_(vectors[name])
            output = module(data.tensor.requires_grad_())
            output.backward(gradient.tensor)
        except NotImplementedError as error:
            raise NotOfferedError(first_line(error) or "not implemented") from None
        except Exception as error:
            return Outcome(error=(type(error).__name__, first_line(error)))
        results = {"output": (output, x), "grad_input": (data.tensor.grad, x)}
        for name, parameter in parameters.items():
            results[f"grad_{name}"] = (parameter.grad, call.vectors[name])
        faults, outputs = [], {}
        for name, (tensor, like) in results.items():
            if tensor is None:
                faults.append(wrong(f"{name}: not there"))
                continue
            array = outputs[name] = to_array(tensor)
            if (array.shape, array.dtype) != (like.shape, like.dtype):
                text = f"{array.dtype} of shape {array.shape}"
                allowed = f"{like.dtype} of shape {like.shape}"
                faults.append(wrong(f"{name}: other dtype or shape", f"{text}; allowed: {allowed}"))
        for each in (data, gradient):
            each.fetch()
        for name, memory in watched.items():
            if fault := memory.fault(is_output=False):
                faults.append(wrong(f"{name}: {fault}"))
        return Outcome(outputs, faults=tuple(faults))
