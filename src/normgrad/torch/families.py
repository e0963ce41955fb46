"""The norms that model libraries write in PyTorch's elementwise operators, found by formula.

transformers, diffusers, timm and many models have classes that compute RMS norm, layer norm or
frozen batch norm without PyTorch's functions. Names say little about them: one ``RMSNorm`` scales
by the weight, the next by 1 + weight. A layer is one of :data:`FORMULAS` if its own ``forward``
agrees with the formula on random inputs, in values, dtypes and gradients.
"""

from __future__ import annotations

import inspect
from collections.abc import Container, Iterator
from contextlib import contextmanager, suppress
from itertools import product
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import Module
from torch.overrides import TorchFunctionMode

from . import functional

#: The names of the attributes that hold weights, biases and the number added to the variance.
WEIGHTS, BIASES = ("weight", "gamma", "scale"), ("bias", "beta")
EPS = ("eps", "variance_epsilon", "epsilon")
RUNNING = ("running_mean", "running_var")
#: The children that a norm layer may have, in the order in which they follow the norm, as timm's.
CHILDREN = ("drop", "act")
#: The number that layers without such an attribute add.
DEFAULT_EPS = 1e-5


class Formula(NamedTuple):
    """How a class computes a norm.

    Attributes:
        function: the name of normgrad's function.
        axis: the axis that the norm runs over, or that batch norm's vectors lie along.
        offset: the number added to the weight.
        result: the result's dtype: the "input"'s; that of the product of input and weight
            ("promoted"); or the "weight"'s if it has 16 bits, else as "promoted".
        weight, bias, eps: the names of the layer's attributes, if it has them.
    """

    function: str
    axis: int
    offset: int = 0
    result: str = "input"
    weight: str | None = None
    bias: str | None = None
    eps: str | None = None

    def compute(self, layer: Any, x: Tensor, functions: Any = functional) -> Tensor:
        """Compute the layer's output by the functions of this name in a module."""
        weight = None if self.weight is None else getattr(layer, self.weight)
        bias = None if self.bias is None else getattr(layer, self.bias)
        target = wide = x.dtype
        if weight is not None and (weight.dtype is not target or self.offset):
            target = self.dtype(x.dtype, weight.dtype)
            wide = torch.promote_types(x.dtype, target)
            if self.offset:
                weight = weight.to(torch.promote_types(weight.dtype, torch.float32)) + self.offset
            if wide is torch.float64:
                weight, bias = weight.double(), None if bias is None else bias.double()
        if wide is not x.dtype:
            x = x.to(wide)
        y = self._norm(functions, layer, x, weight, bias)
        if y.dtype is not target:
            y = y.to(target)
        for name in CHILDREN if layer._modules else ():
            if (child := layer._modules.get(name)) is not None:
                y = child(y)
        return y

    def _norm(self, functions: Any, layer: Any, x: Tensor, weight: Any, bias: Any) -> Any:
        eps = DEFAULT_EPS if self.eps is None else getattr(layer, self.eps)
        if self.function == "batch_norm":
            running = [getattr(layer, name) for name in RUNNING]
            if x.dtype is torch.float64:
                running = [each.double() for each in running]
            return functions.batch_norm(x, *running, weight, bias, False, 0.0, eps)
        if self.axis == -1:
            return self._of_rows(functions, x, weight, bias, eps)
        form = torch.contiguous_format
        if x.is_contiguous(memory_format=torch.channels_last):
            form = torch.channels_last
        y = self._of_rows(functions, x.movedim(self.axis, -1), weight, bias, eps)
        return y.movedim(-1, self.axis).contiguous(memory_format=form)

    def _of_rows(self, functions: Any, x: Tensor, weight: Any, bias: Any, eps: Any) -> Any:
        shape = (x.shape[-1],)
        if self.function == "layer_norm":
            return functions.layer_norm(x, shape, weight, bias, eps)
        y = functions.rms_norm(x, shape, weight, eps)
        return y if bias is None else y + bias

    def dtype(self, x: torch.dtype, weight: torch.dtype) -> torch.dtype:
        """The result's dtype."""
        if self.result == "input":
            return x
        narrow = self.result == "weight" and weight.itemsize == 2
        return weight if narrow else torch.promote_types(x, weight)

    def takes(self, x: Any) -> bool:
        """Whether the formula is known to be the layer's for inputs of this rank."""
        return isinstance(x, Tensor) and x.dim() in _RANKS[self.axis] and x.is_floating_point()


#: What is tried, the frequent first.
FORMULAS = [
    Formula(*choice)
    for choice in (
        *product(("rms_norm",), (-1,), (0, 1), ("promoted", "input", "weight")),
        *product(("layer_norm",), (-1,), (0,), ("promoted", "input")),
        *product(("rms_norm", "layer_norm"), (1,), (0,), ("promoted", "input")),
        ("batch_norm", 1, 0, "promoted"),
    )
]
#: The ranks of the inputs, by axis.
_RANKS = {-1: (2, 3, 4), 1: (4,)}
#: The dtypes of weight and input of the trials after those in float64.
_DTYPES = (
    (torch.float32, torch.float32), (torch.bfloat16, torch.bfloat16),
    (torch.float32, torch.bfloat16), (torch.bfloat16, torch.float32),
)  # fmt: skip
#: The allowed differences, in units of the coarsest dtype's precision: roundings of the parts of a
#: row's sum, and of the three steps after it.
_ROUNDINGS = 32


def formula_of(layer: Module) -> Formula | None:
    """The formula that a layer computes, if it is one of normgrad's.

    The layer's own ``forward`` is called with random inputs and parameters, on a copy; once for
    layers that differ in the values of their parameters and buffers only.
    """
    if not _may_be_one(layer):
        return None
    tensors = {**layer._parameters, **layer._buffers}
    shapes = [(name, None if one is None else one.shape) for name, one in tensors.items()]
    facts = {name: value for name, value in vars(layer).items() if name[0] != "_"}
    del facts["training"]
    key = (type(layer), *shapes, *layer._parameters, *facts.items())
    if not all(type(value) in _IMMUTABLE for value in facts.values()):
        return _find_formula(layer)
    if key not in _formulas:
        _formulas[key] = _find_formula(layer)
    return _formulas[key]


#: The types of attributes that cannot change without being replaced.
_IMMUTABLE = (int, float, bool, str, torch.Size, torch.dtype, type(None))
#: The formulas of layers, by all that their ``forward`` may depend on.
_formulas: dict[Any, Formula | None] = {}


def _find_formula(layer: Module) -> Formula | None:
    """The formula that agrees with a layer in trials."""
    with _trial_context():
        names = [_name(layer, names_of) for names_of in (WEIGHTS, BIASES, EPS)]
        tracked = RUNNING[0] in layer._buffers
        for formula in (Formula(*each[:4], *names) for each in FORMULAS):
            if tracked == (formula.function == "batch_norm") and _agrees(layer, formula):
                return formula
        return None


@contextmanager
def _trial_context() -> Iterator[None]:
    """A context for trials: in no mode of the caller's, and with random numbers of their own."""
    with (
        torch.device("cpu"),
        torch.random.fork_rng(devices=[]),
        torch.inference_mode(False),
        torch.enable_grad(),
        torch.autocast("cpu", enabled=False),
    ):
        yield


def calls(layer: Module, functions: Container[Any]) -> bool:
    """Whether a layer's ``forward`` calls a function, as far as one call without options shows."""
    if not {*CHILDREN}.issuperset(layer._modules):
        return True  # a child's call might change it
    has_called = False

    class Recorder(TorchFunctionMode):
        def __torch_function__(
            self, function: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            nonlocal has_called
            has_called |= function in functions
            return function(*args, **(kwargs or {}))

    copy = _copy(layer, torch.float32, torch.Generator())
    size = next((each.shape[0] for each in copy.parameters(False) if each.dim() == 1), 8)
    with suppress(Exception), _trial_context(), Recorder():
        type(layer).forward(copy, torch.ones(3, size, device="cpu"))
        return has_called
    return True  # it needs other arguments


def _may_be_one(layer: Module) -> bool:
    """Whether a layer's tensors, children and arguments are those of a norm."""
    tensors = {**layer._parameters, **layer._buffers}
    vectors = [name for name, value in tensors.items() if value is not None]
    names = {*WEIGHTS, *BIASES, *RUNNING}
    shapes = {tuple(getattr(layer, name).shape) for name in vectors}
    try:
        arguments = [*inspect.signature(type(layer).forward).parameters.values()][1:]
    except (TypeError, ValueError):
        return False
    return (
        names.issuperset(vectors)
        and len(shapes) <= 1
        and all(len(shape) == 1 and shape[0] > 1 for shape in shapes)
        and set(layer._modules) <= {*CHILDREN}
        and [each.kind for each in arguments] == [inspect.Parameter.POSITIONAL_OR_KEYWORD]
    )


def _agrees(layer: Module, formula: Formula) -> bool:
    """Whether a formula agrees with the layer's ``forward`` in all trials."""
    generator = torch.Generator().manual_seed(0)
    try:
        return all(
            _agrees_once(*trial, formula, trial[1].dtype is torch.float64)
            for trial in _trials(layer, formula, generator)
        )
    except Exception:  # of the layer's own code, or of a formula that does not fit it
        return False


def _trials(layer: Any, formula: Formula, generator: Any) -> Iterator[tuple[Any, Tensor]]:
    """Copies of a layer with random vectors, and an input for each."""
    shapes = [each.shape for each in (*layer.parameters(False), *layer.buffers(False))]
    size = shapes[0][0] if shapes else 8
    eps = DEFAULT_EPS if formula.eps is None else float(getattr(layer, formula.eps))
    ranks = _RANKS[formula.axis]
    wide = (torch.float64, torch.float64)
    for (of_weight, of_input), rank in (*product([wide], ranks), *product(_DTYPES, ranks[:1])):
        shape = (*(3, 2, 2)[: rank - 1], size)
        x = torch.randn(shape, generator=generator, dtype=torch.float64, device="cpu") + 0.5
        # Rows of zeros, and rows so small that the place of eps shows.
        x[1] *= eps**0.5
        x[2] = 0
        x = x.movedim(-1, formula.axis).contiguous().to(of_input)
        copy = _copy(layer, of_weight, generator)
        copy.__dict__["training"] = rank % 2 == 0
        yield copy, x


def _copy(layer: Module, dtype: torch.dtype, generator: Any) -> Any:
    """A copy of a layer without hooks, with random vectors on the CPU; children are marked."""
    copy: Any = object.__new__(type(layer))
    copy.__dict__.update(layer.__dict__)
    for table in ("_parameters", "_buffers"):
        copy.__dict__[table] = {
            name: None
            if value is None
            else torch.rand(value.shape, generator=generator, dtype=torch.float64, device="cpu")
            .add(0.5)
            .to(dtype)
            .requires_grad_(table == "_parameters")
            for name, value in layer.__dict__[table].items()
        }
    # Two functions whose order shows.
    children = {"drop": lambda y: y * 2, "act": lambda y: y + 1}
    copy.__dict__["_modules"] = {name: children[name] for name in layer._modules}
    return copy


def _agrees_once(copy: Any, x: Tensor, formula: Formula, with_gradients: bool) -> bool:
    x.requires_grad_(with_gradients)
    theirs = type(copy).forward(copy, x.clone())
    wide = _copy(copy, torch.float64, torch.Generator())
    for table in ("_parameters", "_buffers"):
        for name, value in copy.__dict__[table].items():
            wide.__dict__[table][name] = None if value is None else value.double()
    ours = formula.compute(wide, x.double(), torch.nn.functional)
    weight = None if formula.weight is None else getattr(copy, formula.weight)
    dtypes = [x.dtype, theirs.dtype, torch.float32]
    if weight is not None:
        dtypes.append(weight.dtype)
    if theirs.dtype != formula.dtype(x.dtype, x.dtype if weight is None else weight.dtype):
        return False
    pairs = [(theirs, ours)]
    if with_gradients:
        leaves = [each for each in (x, *copy._parameters.values()) if each is not None]
        grad = torch.linspace(-1, 1, ours.numel(), dtype=ours.dtype).reshape(ours.shape)
        pairs += zip(*(torch.autograd.grad(y, leaves, grad) for y in (theirs, ours)), strict=True)
    precision = max(torch.finfo(dtype).eps for dtype in dtypes)
    return all(
        mine.shape == their.shape
        and (mine - their.double()).abs().max() <= _ROUNDINGS * precision * mine.abs().max()
        for their, mine in ((each.detach() for each in pair) for pair in pairs)
    )


def _name(layer: Any, names: tuple[str, ...]) -> str | None:
    """The first of these names under which a layer has an attribute that is not None."""
    return next((name for name in names if getattr(layer, name, None) is not None), None)
