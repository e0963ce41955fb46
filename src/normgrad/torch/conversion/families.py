"""The norms that model libraries write in PyTorch's elementwise operators, found by formula.

transformers, diffusers, timm and many models have classes that compute RMS norm, layer norm or
frozen batch norm without PyTorch's functions. Names say little about them: one ``RMSNorm`` scales
by the weight, the next by 1 + weight. A layer is one of :data:`FORMULAS` if its own ``forward``
agrees with the formula on random inputs, in values, dtypes and gradients, and its code depends on
nothing but the layer and the input.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Container, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from itertools import product
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import Module
from torch.overrides import TorchFunctionMode

from .. import functional
from . import dependencies

#: The names of norms' classes, but for those that say that there is none, or a parametrization's.
NAMED = re.compile(
    r"(?<!No)(?<!NoRMS)(?<!Un)(?<!Spectral)(?<!Weight)(norm|Norm)(?!al|ed|Free)|^GRN"
    r"|(?<![A-Z])RMS$"
)
#: The names of the attributes that hold weights, biases and the number added to the variance.
WEIGHTS, BIASES = ("weight", "gamma", "scale"), ("bias", "beta")
EPS = ("eps", "variance_epsilon", "epsilon")
RUNNING = ("running_mean", "running_var")
#: The children that a norm layer may have, in the order in which they follow the norm, as timm's.
CHILDREN = ("drop", "act")
#: The number that layers without such an attribute add.
DEFAULT_EPS = 1e-5


def apply_children(layer: Any, y: Any) -> Any:
    """Call the children of a norm layer on its norm."""
    for name in CHILDREN if layer._modules else ():
        if (child := layer._modules.get(name)) is not None:
            y = child(y)
    return y


class Formula(NamedTuple):
    """How a class computes a norm.

    Attributes:
        function: the name of normgrad's function.
        axis: the axis that the norm runs over, or that batch norm's vectors lie along.
        offset: the number added to the weight.
        result: the result's dtype: the "input"'s; that of the product of input and weight
            ("promoted"); or the "weight"'s if it has 16 bits, else as "promoted".
        weight, bias, eps: the names of the layer's attributes, if it has them.
        options: the other attributes that the class's ``forward`` reads, and their values. A layer
            of which one has another value now may compute something else.
    """

    function: str
    axis: int
    offset: int = 0
    result: str = "input"
    weight: str | None = None
    bias: str | None = None
    eps: str | None = None
    options: tuple[tuple[str, Any], ...] = ()

    def compute(self, layer: Any, x: Tensor, functions: Any = functional) -> Any:
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
        elif self._may_change(x, weight, bias):
            x = x.clone()
        y = self._norm(functions, layer, x, weight, bias)
        if y.dtype is not target:
            y = y.to(target)
        return apply_children(layer, y)

    def _may_change(self, x: Tensor, *vectors: Any) -> bool:
        """Whether the input may change before the backward pass, but normgrad would save it.

        Most classes save a copy of their input in float32, or its difference from the mean. Only
        those of RMS norm save inputs of float32 themselves, and normgrad's RMS norm copies inputs
        of 16 bits on CPUs, as PyTorch's does.
        """
        is_kept = x.dtype is torch.float32 or (x.is_cpu and x.dtype.itemsize == 2)
        return (
            any(each is not None and each.requires_grad for each in (x, *vectors))
            and torch.is_grad_enabled()
            and not torch.compiler.is_compiling()  # where changes are made to copies
            and not (self.function == "rms_norm" and is_kept)
        )

    def _norm(self, functions: Any, layer: Any, x: Tensor, weight: Any, bias: Any) -> Any:
        eps = DEFAULT_EPS if self.eps is None else getattr(layer, self.eps)
        if self.function == "batch_norm":
            running = [getattr(layer, name) for name in RUNNING]
            if x.dtype is torch.float64:
                running = [each.double() for each in running]
            return functions.batch_norm(x, *running, weight, bias, False, 0.0, eps)
        rows = x if self.axis == -1 else x.movedim(self.axis, -1)
        shape = (rows.shape[-1],)
        if self.function == "layer_norm":
            y = functions.layer_norm(rows, shape, weight, bias, eps)
        else:
            y = functions.rms_norm(rows, shape, weight, eps)
            y = y if bias is None else y + bias
        if self.axis == -1:
            return y
        is_last = x.is_contiguous(memory_format=torch.channels_last)
        form = torch.channels_last if is_last else torch.contiguous_format
        return y.movedim(-1, self.axis).contiguous(memory_format=form)

    def dtype(self, x: torch.dtype, weight: torch.dtype) -> torch.dtype:
        """The result's dtype."""
        if self.result == "input":
            return x
        narrow = self.result == "weight" and weight.itemsize == 2
        return weight if narrow else torch.promote_types(x, weight)

    def takes(self, layer: Any, x: Any) -> bool:
        """Whether the formula is known to be the layer's, as it is now, for inputs of this rank."""
        now = layer.__dict__
        for name, value in self.options:
            if name not in now or (now[name] is not value and now[name] != value):
                return False
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
#: The ranks of the inputs, by axis; 4 first, since a class for images would broadcast an input with
#: fewer axes to something huge.
_RANKS = {-1: (4, 3, 2), 1: (4,)}
#: The dtypes of weight and input of the trials after those in float64.
_DTYPES = (
    (torch.float32, torch.float32), (torch.bfloat16, torch.bfloat16),
    (torch.float16, torch.float16), (torch.float32, torch.bfloat16),
    (torch.bfloat16, torch.float32), (torch.float32, torch.float16),
)  # fmt: skip
#: The allowed differences, in units of the coarsest dtype's precision: roundings of the parts of a
#: row's sum, and of the three steps after it.
_ROUNDINGS = 32


def formula_of(layer: Module) -> Formula | str | None:
    """The formula that a layer computes, if it is one of normgrad's; else why it was not tried.

    The layer's own ``forward`` is called with random inputs and parameters, on a copy; once for
    layers that differ in the values of their parameters and buffers, and in attributes that
    ``forward`` does not read, only.
    """
    if not _may_be_one(layer):
        return None
    if obstacle := next(_obstacles(layer), None):
        return f"its forward {obstacle.clause}; see normgrad.torch.register"
    tensors = {**layer._parameters, **layer._buffers}
    shapes = [(name, None if one is None else one.shape) for name, one in tensors.items()]
    key = (type(layer), *shapes, *layer._parameters, *layer._modules, *_options(layer))
    if key not in _formulas:
        _formulas[key] = _apart(_find_formula, layer)
    return _formulas[key]


#: The formulas of layers, by all that their ``forward`` may depend on.
_formulas: dict[Any, Formula | None] = {}


def _read(layer: Module) -> dependencies.Reading:
    return dependencies.read(type(layer))  # type: ignore[arg-type]


def _options(layer: Module) -> list[tuple[str, Any]]:
    """The attributes that a layer's ``forward`` may read, but for tensors and children."""
    names = _read(layer).names
    tables = {"training", *vars(Module())}
    return [(name, value) for name, value in vars(layer).items() if name in names - tables]


def _obstacles(layer: Module) -> Iterator[dependencies.Obstacle]:
    """What of a layer's ``forward`` no trial can judge."""
    for obstacle in _read(layer).obstacles:
        if obstacle.attribute not in vars(layer):  # which hides the class's
            yield obstacle
    for name, value in _options(layer):
        if not dependencies.is_constant(value):
            clause = f"reads the attribute {name}, a {type(value).__name__}, which may change"
            yield dependencies.Obstacle(clause, True)


def _apart(function: Callable[..., Any], *arguments: Any) -> Any:
    """Call a function in a thread, since modes, autocast and the like are the caller's thread's."""
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(torch.random.fork_rng(devices=[])(function), *arguments).result()


def _find_formula(layer: Module) -> Formula | None:
    """The formula that agrees with a layer in trials."""
    weight, bias, eps = (_name(layer, names) for names in (WEIGHTS, BIASES, EPS))
    options = tuple(each for each in _options(layer) if each[0] not in (weight, bias, eps))
    is_batch_norm = RUNNING[0] in layer._buffers
    for formula in FORMULAS:
        named = formula._replace(weight=weight, bias=bias, eps=eps, options=options)
        if is_batch_norm == (formula.function == "batch_norm") and _agrees(layer, named):
            return named
    return None


def calls(layer: Module, functions: Container[Any]) -> bool:
    """Whether a layer's ``forward`` calls a function, as far as one call without options shows."""
    if not {*CHILDREN}.issuperset(layer._modules) or any(
        obstacle.acts for obstacle in _obstacles(layer)
    ):
        return True  # a call of it, or of a child, might change something
    called = []

    class Recorder(TorchFunctionMode):
        def __torch_function__(
            self, function: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            called.append(function)
            return function(*args, **(kwargs or {}))

    def call() -> None:
        copy = _copy(layer, _random(torch.float32, torch.Generator()))
        size = next((each.shape[0] for each in copy.parameters(False) if each.dim() == 1), 8)
        with Recorder():
            type(layer).forward(copy, torch.ones(3, size))

    with suppress(Exception):
        _apart(call)
        return any(function in functions for function in called)
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
        (bool(vectors) or NAMED.search(type(layer).__name__) is not None)
        and names.issuperset(vectors)
        and len(shapes) <= 1
        and all(len(shape) == 1 and shape[0] > 1 for shape in shapes)
        and set(layer._modules) <= {*CHILDREN}
        and [each.kind for each in arguments] == [inspect.Parameter.POSITIONAL_OR_KEYWORD]
    )


def _agrees(layer: Module, formula: Formula) -> bool:
    """Whether a formula agrees with the layer's ``forward`` in all trials."""
    generator = torch.Generator().manual_seed(0)
    try:
        return all(_agrees_once(*trial, formula) for trial in _trials(layer, formula, generator))
    except Exception:  # of the layer's own code, or of a formula that does not fit it
        return False


#: The rows of an input that are not ordinary: one so small that the place of eps shows, and zeros;
#: those that a guard against overflow would change, as a whole and in single elements; those that
#: one against infinities and NaN would.
_SMALL, _ZERO, _HUGE, _PEAKED, _INFINITE, _NAN = range(6)


def _trials(layer: Any, formula: Formula, generator: Any) -> Iterator[tuple[Any, Tensor, bool]]:
    """Copies of a layer with random vectors, an input for each, and whether autocast is on."""
    shapes = [each.shape for each in (*layer.parameters(False), *layer.buffers(False))]
    size = shapes[0][0] if shapes else 8
    eps = DEFAULT_EPS if formula.eps is None else float(getattr(layer, formula.eps))
    ranks = _RANKS[formula.axis]
    wide, single = (torch.float64,) * 2, (torch.float32,) * 2
    for (of_weight, of_input), rank, training, autocast in (
        *product([wide], ranks, (True, False), (False,)),
        *product(_DTYPES, ranks[:1], (True,), (False,)),
        (single, ranks[0], False, True),
    ):
        x = torch.randn(8, size, generator=generator, dtype=torch.float64) + 0.5
        x[_SMALL] *= eps**0.5
        x[_ZERO] = 0
        x[_HUGE] *= 1e3 if of_input is torch.float16 else 1e8
        x[_PEAKED, :2] = torch.tensor([1e4, 200.0])
        if of_input is not torch.float64:  # whose gradients are sums over rows
            x[_INFINITE, 0], x[_NAN, 1] = torch.inf, torch.nan
        x = x.view(8 >> rank - 2, *(2, 2)[: rank - 2], size)
        x = x.movedim(-1, formula.axis).contiguous().to(of_input)
        copy = _copy(layer, _random(of_weight, generator))
        copy.__dict__["training"] = training
        yield copy, x, autocast


def _random(dtype: torch.dtype, generator: Any) -> Callable[[Tensor], Tensor]:
    """Makes random vectors in the shapes of others."""
    options = {"generator": generator, "dtype": torch.float64}
    return lambda value: torch.rand(value.shape, **options).add(0.5).to(dtype)


def _copy(layer: Module, vector_for: Callable[[Tensor], Tensor]) -> Any:
    """A copy of a layer, with a vector for each of its own; children are marked."""
    copy: Any = object.__new__(type(layer))
    for name, value in vars(layer).items():
        copy.__dict__[name] = value.copy() if isinstance(value, dict) else value
    for table in ("_parameters", "_buffers"):
        for name, value in copy.__dict__[table].items():
            copy.__dict__[table][name] = None if value is None else vector_for(value)
    # Two functions whose order shows.
    children = {"drop": lambda y: y * 2, "act": lambda y: y + 1}
    copy.__dict__["_modules"] = {name: children[name] for name in layer._modules}
    return copy


def _state(copy: Any) -> list[Any]:
    """What a call may not change: attributes, tables of hooks and tensors, and tensors' values."""
    return [
        (name, key, id(one), getattr(one, "_version", None))
        for name, value in vars(copy).items()
        for key, one in (value.items() if isinstance(value, dict) else [("", value)])
    ]


def _agrees_once(copy: Any, x: Tensor, autocast: bool, formula: Formula) -> bool:
    with_gradients = x.dtype is torch.float64
    leaves = [each for each in (x, *copy._parameters.values()) if each is not None]
    for leaf in leaves:
        leaf.requires_grad_(with_gradients)
    given = x.clone()
    before = [*_state(copy), given._version]
    with torch.set_grad_enabled(with_gradients), torch.autocast("cpu", enabled=autocast):
        theirs = type(copy).forward(copy, given)
    wide = _copy(copy, Tensor.double)
    ours = formula.compute(wide, x.double(), torch.nn.functional)
    weight = x if formula.weight is None else getattr(copy, formula.weight)
    if (
        before != [*_state(copy), given._version]
        or theirs.shape != ours.shape
        or theirs.dtype != formula.dtype(x.dtype, weight.dtype)
    ):
        return False
    dtypes = (x.dtype, theirs.dtype, weight.dtype, torch.float32)
    bound = _ROUNDINGS * max(torch.finfo(dtype).eps for dtype in dtypes)
    x_rows, their_rows, our_rows = (_rows(each, formula.axis) for each in (x, theirs, ours))
    close = _are_close(their_rows, our_rows, bound)
    if x.dtype is torch.float16:
        # What is small is rounded to multiples of 6e-8, in each class at other places. Squares
        # overflow if they have 16 bits, and their row becomes zero.
        close[[_SMALL, _ZERO]] = True
        large = [_HUGE, _PEAKED]
        close[large] |= _are_close(their_rows[large], our_rows[[_ZERO, _ZERO]], bound)
    if not (with_gradients and close.all()):
        return bool(close.all())
    grad = torch.linspace(-1, 1, ours.numel(), dtype=ours.dtype).reshape(ours.shape)
    (dx, *others), (our_dx, *our_others) = (
        torch.autograd.grad(y, leaves, grad) for y in (theirs, ours)
    )
    # Terms of the size of y / x cancel in the gradient by x.
    rise = our_rows.abs().amax(-1) / x_rows.abs().amax(-1).clamp(1e-9)
    gradients = _rows(dx, formula.axis), _rows(our_dx, formula.axis)
    return bool(_are_close(*gradients, bound, rise).all()) and all(
        _are_close(their.double(), mine, bound)
        for their, mine in zip(others, our_others, strict=True)
    )


def _rows(values: Tensor, axis: int) -> Tensor:
    return values.detach().double().movedim(axis, -1).flatten(0, -2)


def _are_close(theirs: Tensor, ours: Tensor, bound: float, least: Any = 0.0) -> Tensor:
    """Whether rows differ within a bound, relative to their largest values; NaN equals NaN."""
    scale = ours.nan_to_num(0, 0, 0).abs().amax(-1).clamp(least)
    near = (ours - theirs).abs() <= bound * scale.unsqueeze(-1)
    return (near | (ours == theirs) | (ours.isnan() & theirs.isnan())).all(-1)


def _name(layer: Any, names: tuple[str, ...]) -> str | None:
    """The first of these names under which a layer has an attribute that is not None."""
    return next((name for name in names if getattr(layer, name, None) is not None), None)
