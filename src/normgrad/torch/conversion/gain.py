"""The estimate of a conversion's gain: a model's steps and norms, timed with and without it."""

from __future__ import annotations

import itertools
import os
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import Module
from torch.utils import _pytree as pytree

from ...bench import timing
from ...support import notices
from ..compilation import copy_of, differentiable, like
from ..nn import Ours, check_module
from .model import Conversion, convert, converted, revert, stock_name

#: For how long, in seconds, the steps take turns, and the two layers of each kind of call.
STEP_SECONDS, LAYER_SECONDS = 3.0, 0.1
#: The smallest share of a step that counts as a gain; less is lost in noise.
LEAST_GAIN = 0.02
#: The ratio of elapsed to CPU time from which a process had to wait for cores. Of several threads
#: one runs at any time, or spins while it waits for the others.
CONTENDED = 1.1

#: PyTorch's operators, by what a reader calls them, and parts of their names.
_KINDS = {
    "convolutions": ("conv",),
    "matrix products": ("mm", "linear", "matmul"),
    "attention": ("attention",),
}


class Gain(NamedTuple):
    """The calls of a class's layers in a step: their number, and seconds before and after.

    ``spread`` is the interquartile range of the longer ones, in seconds.
    """

    calls: int
    stock: float
    converted: float
    spread: float = 0.0


class Estimate(NamedTuple):
    """What a step costs with PyTorch's layers and converted.

    Attributes:
        stock, converted: seconds of a whole step, medians of alternating steps.
        layers: the calls of converted layers alone, by the name of the class that they replace.
        saved: bytes that autograd keeps for the backward pass, before and after.
        shares: how much of the stock step's time is spent in each kind of other operators.
        conversion: which layers are converted, and why others are not.
        spread: the ratio of interquartile range to median of the steps' times.
        threads: how many threads PyTorch had; 1 for a model on a GPU.
        waited: the share of the time in which no thread ran, since other programs had the cores.
    """

    stock: float
    converted: float
    layers: dict[str, Gain]
    saved: tuple[int, int]
    shares: dict[str, float]
    conversion: Conversion
    spread: float
    threads: int = 1
    waited: float = 0.0

    @property
    def share(self) -> float:
        """How much of the stock step's time its norms take."""
        return sum(gain.stock for gain in self.layers.values()) / self.stock

    @property
    def gain(self) -> float:
        """How much of the stock step's time the norms by themselves would save."""
        return sum(gain.stock - gain.converted for gain in self.layers.values()) / self.stock

    def __str__(self) -> str:
        lines = [
            f"step       {_ms(self.stock)} → {_ms(self.converted)}: "
            f"{self.stock / self.converted:.2f} times as fast",
            f"norms      {self.share:.0%} of the step",
        ]
        for name, (calls, stock, ours, _) in self.layers.items():
            lines.append(
                f"           {calls} {name}: {_ms(stock)} → {_ms(ours)}: {stock / ours:.2f} times "
                "as fast"
            )
        before, after = (each / 2**20 for each in self.saved)
        lines.append(f"memory     {before:.1f} MiB → {after:.1f} MiB kept for the backward pass")
        if self.conversion.left:
            lines.append(f"converted  {self.conversion}")
        longer = sum(max(gain.stock, gain.converted) for gain in self.layers.values())
        of_norms = self._doubt / longer if longer else 0.0
        if max(self.spread, of_norms) > timing.NOISY:
            lines.append(
                f"noise      the steps' times spread by {self.spread:.0%}, the norms' by "
                f"{of_norms:.0%}: the machine had other work"
            )
        lines.append(f"verdict    {self._verdict()}")
        return "\n".join(lines)

    @property
    def _doubt(self) -> float:
        """By how many seconds the norms' times may be wrong."""
        return sum(gain.spread for gain in self.layers.values())

    def _verdict(self) -> str:
        better = "measure on an idle machine"
        if self.threads > 1:  # which wait for each other, and so for other programs
            better += ", or after torch.set_num_threads(1)"
        if self.waited > 1 - 1 / CONTENDED:
            return f"none: other programs had the cores for {self.waited:.0%} of the time; {better}"
        if self.share > 1:
            return f"none: the norms took longer than a whole step; {better}"
        if self.spread > timing.NOISY:
            return f"none: the steps' times differ too much; {better}"
        if self._doubt / self.stock > max(abs(self.gain), LEAST_GAIN):
            return f"none: the norms' times differ too much; {better}"
        of_step = 1 - self.converted / self.stock
        if abs(self.gain - of_step) > max(self.spread, LEAST_GAIN) and self.gain * of_step < 0:
            return (
                f"none: {_percent(self.gain)} by the norms' times, but {_percent(of_step)} by the "
                "steps' times"
            )
        if self.gain <= -LEAST_GAIN:
            return _percent(self.gain)
        if self.gain >= LEAST_GAIN:
            return f"{_percent(self.gain)}, by the norms' times"
        if not self.layers:
            return "no gain expected: the step calls no norm that normgrad can convert"
        kind, share = max(self.shares.items(), key=lambda each: each[1], default=("", 0.0))
        if share > self.share:
            return f"no gain expected: {share:.0%} of the step is {kind}"
        return "no gain expected: the norms take as long in PyTorch"


def _percent(gain: float) -> str:
    return f"{abs(gain):.0%} of the step {'saved' if gain >= 0 else 'lost'}"


def _ms(seconds: float) -> str:
    return f"{seconds * 1e3:.{0 if seconds >= 0.1 else 2}f} ms"


def estimate(
    module: Module, /, *example: Any, varying_axis: int | None = None, **kwargs: Any
) -> Estimate:
    """Measure what :func:`.convert` would bring to a model, which stays as it is.

    The function calls copies of the model, as ``module(*example, **named)``: one with PyTorch's
    layers and a converted one, alternately. In training mode a step is a forward and a backward
    pass, in evaluation mode a forward pass without gradients; there is no optimiser. Then it times
    each kind of call of the norm layers alone, on the inputs that they get in a step. Kernels are
    compiled before. Hooks are called. With one thread, CPU time counts where other programs keep
    the core busy.

    Args:
        module: a model, converted or not.
        example, kwargs: the arguments of the model's call, such as a batch of the training.
        varying_axis: the axis of the tensors among ``example`` whose size differs from step to
            step, such as that of the batch. Each step then has a size that no step had before, and
            so a new plan for each norm.

    Returns:
        The figures; ``print`` shows them with a verdict.

    Raises:
        TypeError: as for :func:`warmup`.
        ValueError: in training mode, no result requires gradients; or a tensor of ``example``
            has no axis ``varying_axis``.
        Exception: any exception of the model.
    """
    check_module(module)
    with warnings.catch_warnings(), torch.inference_mode(False):
        warnings.simplefilter("ignore")  # the report says what is left
        models = revert(copy_of(module)), convert(revert(copy_of(module)))
    tensors = [*module.parameters(), *pytree.tree_leaves((example, kwargs))]
    on_gpu = any(isinstance(each, Tensor) and each.is_cuda for each in tensors)
    on_cpu = _Stopwatch()
    stopwatch = _on_gpu if on_gpu else on_cpu
    positional, keywords = pytree.tree_map_only(Tensor, like, (example, kwargs))
    steps = {
        name: partial(_step, model, _arguments(positional, varying_axis), keywords)
        for name, model in zip(("stock", "ours"), models, strict=True)
    }
    notices.say("normgrad measures a model's steps and norms, which takes some seconds")
    with torch.random.fork_rng(), torch.inference_mode(False):
        saved = tuple(_saved_bytes(step) for step in steps.values())
        times = timing.measure(steps, STEP_SECONDS, stopwatch=stopwatch)
        shares = _shares(steps["stock"], on_gpu)
        with _timed_layers(*models, stopwatch) as layers:
            steps["stock"]()
    stock, ours = (times.medians[name] for name in steps)
    return Estimate(
        stock,
        ours,
        layers,
        (saved[0], saved[1]),
        shares,
        conversion=converted(models[1]),
        spread=times.spread,
        threads=1 if on_gpu else torch.get_num_threads(),
        waited=on_cpu.waited,
    )


def _arguments(positional: Any, axis: int | None) -> Iterator[Any]:
    """The arguments of each step: the same, or tensors of ever smaller sizes along an axis."""
    if axis is None:
        return itertools.repeat(positional)
    ranks = {each.ndim for each in pytree.tree_leaves(positional) if isinstance(each, Tensor)}
    if not ranks or not all(-rank <= axis < rank for rank in ranks):
        axes = f"{min(ranks)} axes" if ranks else "no tensor"
        raise ValueError(
            f"varying_axis: {axis}; allowed: an axis of each tensor of example ({axes})"
        )

    def shorter(step: int) -> Any:
        def cut(tensor: Tensor) -> Tensor:
            size = tensor.shape[axis] - step % max(1, tensor.shape[axis] // 2)
            return tensor.detach().narrow(axis, 0, size).requires_grad_(tensor.requires_grad)

        return pytree.tree_map_only(Tensor, cut, positional)

    return map(shorter, itertools.count())


class _Stopwatch:
    """Times calls on the CPU, and how long the process has to wait for cores.

    With one thread CPU time counts where it waits. Several threads spin while one of them waits,
    which is CPU time too, so that nobody knows how long their calls take on an idle machine.
    """

    def __init__(self) -> None:
        self._elapsed = self._used = 0.0

    def __call__(self, call: timing.Call, count: int) -> float:
        """Seconds per call, over this many in a row."""
        before = time.process_time()
        elapsed = timing.one_by_one(call, count)
        used = (time.process_time() - before) / count
        if torch.get_num_threads() == 1:
            return used if elapsed > CONTENDED * used > 0 else elapsed
        self._elapsed += elapsed * count
        self._used += used * count
        return elapsed

    @property
    def waited(self) -> float:
        """The share of the time in which none of several threads ran."""
        return max(0.0, 1 - self._used / self._elapsed) if self._elapsed else 0.0


def _on_gpu(call: timing.Call, count: int) -> float:
    torch.cuda.synchronize()

    def calls() -> None:
        for _ in range(count):
            call()
        torch.cuda.synchronize()

    return timing.one_by_one(calls, 1) / count


def _step(model: Module, arguments: Iterator[Any], keywords: Any) -> None:
    """A training step without an optimiser, or an evaluation."""
    positional = next(arguments)
    if not model.training:
        with torch.no_grad():
            model(*positional, **keywords)
        return
    model.zero_grad()
    with torch.enable_grad():
        outputs = differentiable(model(*positional, **keywords))
        if not outputs:
            raise ValueError(
                "module: no result requires gradients; allowed in training mode: one that does; "
                "module.eval() first measures evaluations"
            )
        torch.autograd.backward(outputs, [torch.ones_like(each) for each in outputs])


def _saved_bytes(step: Callable[[], None]) -> int:
    """The bytes of the memory that autograd keeps in a step."""
    sizes: dict[int, int] = {}

    def pack(tensor: Tensor) -> Tensor:
        memory = tensor.untyped_storage()
        if not tensor.is_leaf or not tensor.requires_grad:
            sizes[memory.data_ptr()] = memory.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        step()
    return sum(sizes.values())


@contextmanager
def _quiet() -> Iterator[None]:
    """A context without what the profiler and its library say of their own workings."""
    level = "KINETO_LOG_LEVEL"
    is_users = level in os.environ
    os.environ.setdefault(level, "99")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        if not is_users:
            del os.environ[level]


def _shares(step: Callable[[], None], on_gpu: bool) -> dict[str, float]:
    """The shares of a step's time that each kind of operator takes."""
    with _quiet(), torch.profiler.profile() as profile:
        step()
    times_of: Counter[str] = Counter()
    for event in profile.key_averages():
        kind = next(
            (kind for kind, parts in _KINDS.items() if any(part in event.key for part in parts)), ""
        )
        times_of[kind] += event.self_device_time_total if on_gpu else event.self_cpu_time_total
    total = max(times_of.total(), 1)
    return {kind: times_of[kind] / total for kind in _KINDS if times_of[kind]}


@contextmanager
def _timed_layers(
    stock: Module, ours: Module, stopwatch: Callable[..., float]
) -> Iterator[dict[str, Gain]]:
    """A context in which calls of the stock model's norms are timed, beside the converted ones."""
    gains: dict[str, Gain] = {}
    measured: dict[Any, timing.Times] = {}
    is_timing = False

    def time_call(converted: Module, layer: Module, args: Any, kwargs: Any) -> None:
        nonlocal is_timing
        if is_timing:
            return
        leaves = pytree.tree_leaves((args, kwargs))
        key = (repr(layer), layer.training, torch.is_grad_enabled(), *map(_facts, leaves))
        is_timing = True
        try:
            if key not in measured:
                pair = {"stock": layer, "ours": converted}
                calls = {name: _call_of(one, args, kwargs) for name, one in pair.items()}
                measured[key] = timing.measure(calls, LAYER_SECONDS, stopwatch=stopwatch)
        finally:
            is_timing = False
        kind, (seconds, _, spread) = stock_name(converted), measured[key]
        before = gains.get(kind, Gain(0, 0.0, 0.0))
        gains[kind] = Gain(
            before.calls + 1,
            before.stock + seconds["stock"],
            before.converted + seconds["ours"],
            before.spread + spread * max(seconds.values()),
        )

    with ExitStack() as hooks:
        for name, layer in ours.named_modules():
            if isinstance(layer, Ours):
                hook = partial(time_call, layer)
                handle = stock.get_submodule(name).register_forward_pre_hook(hook, with_kwargs=True)
                hooks.callback(handle.remove)
        yield gains


def _facts(value: Any) -> Any:
    """What the time of a call depends on in one of its arguments."""
    if isinstance(value, Tensor):
        return value.shape, value.stride(), value.dtype, value.device, value.requires_grad
    return repr(value)


def _call_of(layer: Module, args: Any, kwargs: Any) -> Callable[[], None]:
    """A layer's forward pass, and its backward pass where gradients are wanted."""

    def own(tensor: Tensor) -> Tensor:
        return tensor.detach().requires_grad_(tensor.requires_grad)

    positional, keywords = pytree.tree_map_only(Tensor, own, (args, kwargs))
    leaves = differentiable((positional, keywords, [*layer.parameters()]))
    grads: list[Tensor] = []

    def call() -> None:
        y = layer(*positional, **keywords)
        if torch.is_grad_enabled() and leaves:
            if not grads:
                grads.append(torch.ones_like(y))
            torch.autograd.grad(y, leaves, grads, allow_unused=True)

    return call
