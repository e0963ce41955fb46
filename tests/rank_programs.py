"""Functions that ranks run in the tests of synchronised batch norm; see ranks.py. Each rank makes
the whole batch from a seed, and takes its part."""

from __future__ import annotations

import os
import signal
import time
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch.utils.checkpoint import checkpoint

import normgrad.torch as nt
from normgrad.torch import collectives


def whole(shape: tuple[int, ...], dtype: str, seed: int, mean: float = 0.5) -> Any:
    """x and dy of all ranks, and the tensor that second derivatives are multiplied by."""
    rng = np.random.default_rng(seed)
    kind = getattr(torch, dtype)
    x, dy, u = (torch.from_numpy(rng.standard_normal(shape)) for _ in range(3))
    return (x * 1.5 + mean).to(kind), dy.to(kind), u.to(kind)


def part(tensor: Any, counts: tuple[int, ...], rank: int | None = None) -> Any:
    """A rank's samples of the whole batch."""
    return tensor.split(counts)[dist.get_rank() if rank is None else rank]


def filled(layer: Any, seed: int = 7) -> Any:
    """Fill a layer's parameters and buffers with other values than the initial ones."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for tensor in (*layer.parameters(), *layer.buffers()):
            if tensor.is_floating_point():
                tensor.copy_(torch.rand(tensor.shape, generator=generator) + 0.5)
    return layer


def lay_out(tensor: Any, layout: str) -> Any:
    if layout == "channels_last":
        forms = {4: torch.channels_last, 5: torch.channels_last_3d}
        return tensor.contiguous(memory_format=forms[tensor.dim()])
    if layout == "sliced":
        wide = torch.zeros(*tensor.shape[:-1], 2 * tensor.shape[-1], dtype=tensor.dtype)
        wide[..., ::2] = tensor
        return wide[..., ::2]
    return tensor


def _numpy(tensor: Any) -> Any:
    if tensor is None:
        return None
    tensor = tensor.detach()
    return tensor.float().numpy() if tensor.dtype == torch.bfloat16 else tensor.numpy()


def step(
    shape: Any, counts: Any, dtype: str = "float32", parameters: str = "float32",
    layout: str = "contiguous", seed: int = 0, mean: float = 0.5, steps: int = 1,
    compiled: str | None = None, ranks: Any = None, evaluating: bool = False, **options: Any,
) -> Any:  # fmt: skip
    """Make training steps of one layer; return the last step's results."""
    group = None
    if ranks is not None:
        group = dist.new_group(ranks)
        if dist.get_rank() not in ranks:
            return None
    layer = nt.nn.SyncBatchNorm(shape[1], process_group=group, **options)
    layer = filled(layer.to(getattr(torch, parameters)))
    layer.train(not evaluating)
    call = torch.compile(layer, backend=compiled) if compiled else layer
    mine = dist.get_rank(group)
    for index in range(steps):
        x, dy, _ = whole(shape, dtype, seed + index, mean)
        x = lay_out(part(x, counts, mine), layout).requires_grad_()
        dy = lay_out(part(dy, counts, mine), layout)
        layer.zero_grad()
        y = call(x)
        y.backward(dy)
    names = ("running_mean", "running_var", "num_batches_tracked")
    return {
        "output": _numpy(y),
        "grad_input": _numpy(x.grad),
        "grad_weight": _numpy(layer.weight.grad) if layer.affine else None,
        "grad_bias": _numpy(layer.bias.grad) if layer.affine else None,
        **{name: _numpy(getattr(layer, name)) for name in names},
        "strides": (y.stride(), x.grad.stride(), x.stride()),
    }


def checkpointed(shape: Any, counts: Any, momentum: Any) -> Any:
    """The buffers after a step with a checkpoint, and after two forward passes; their versions."""
    found = []
    for is_checkpointed in (True, False):
        layer = nt.nn.SyncBatchNorm(shape[1], momentum=momentum).double()
        x = part(whole(shape, "float64", 0)[0], counts).requires_grad_()
        if is_checkpointed:
            checkpoint(layer, x, use_reentrant=False).sum().backward()
        else:
            layer(x), layer(x)
        found.append({name: _numpy(value) for name, value in layer.named_buffers()})
    return *found, (layer.running_mean._version, layer.running_var._version)


def second(shape: Any, counts: Any, dtype: str = "float64", seed: int = 0) -> Any:
    """Gradients of a function of the gradients, and third-order gradients."""
    layer = filled(nt.nn.SyncBatchNorm(shape[1]).to(getattr(torch, dtype)))
    x, dy, u = (part(tensor, counts) for tensor in whole(shape, dtype, seed))
    return [_numpy(value) for value in differentiated(layer, x, dy, u)]


def differentiated(layer: Any, x: Any, dy: Any, u: Any) -> list[Any]:
    """First, second and third derivatives of a layer; the loss has one term from each rank."""
    x, dy = x.clone().requires_grad_(), dy.clone().requires_grad_()
    leaves = (x, layer.weight, layer.bias)
    first = torch.autograd.grad((layer(x) * dy).sum(), leaves, create_graph=True)
    loss = (first[0] * u).sum() + (first[1] ** 2).sum() + first[2].sum()
    wanted = (dy, x, layer.weight)
    again = torch.autograd.grad(loss, wanted, create_graph=True)
    third = torch.autograd.grad((again[1] * u).sum() + (again[0] * u).sum(), (x, dy))
    return [*first, *again, *third]


def hooked() -> int:
    """How often a hook of the input runs in a backward pass that is differentiated again."""
    runs: list[Any] = []
    x = whole((3, 4, 2), "float64", dist.get_rank())[0].requires_grad_()
    x.register_hook(runs.append)
    y = nt.nn.SyncBatchNorm(4).double()(x)
    torch.autograd.grad((y**3).sum(), x, create_graph=True)
    return len(runs)


def traffic(shape: Any, counts: Any, dtype: str = "float32", frozen: bool = False) -> Any:
    """The collectives of three steps: each one's kind, number of values and dtype."""
    seen: list[Any] = []
    real = {
        name: getattr(dist, name)
        for name in ("all_reduce", "all_gather_single", "all_gather_into_tensor")
        if hasattr(dist, name)
    }

    def counting(name: str) -> Any:
        def call(*arguments: Any, **named: Any) -> Any:
            values = arguments[-1]
            seen.append((name, values.numel(), str(values.dtype)))
            return real[name](*arguments, **named)

        return call

    gather = collectives._all_gather
    dist.all_reduce = counting("all_reduce")
    collectives._all_gather = lambda found, values, group: (
        seen.append(("all_gather", values.numel(), str(values.dtype))),
        gather(found, values, group=group),
    )
    try:
        layer = nt.nn.SyncBatchNorm(shape[1])
        if dtype == "float64":
            layer.double()
        steps = []
        for seed in range(3):
            seen.clear()
            x, dy, _ = whole(shape, dtype, seed)
            x = part(x, counts).requires_grad_(not frozen)
            layer(x).backward(part(dy, counts))
            steps.append(list(seen))
        layer.eval()
        seen.clear()
        layer(x).sum().backward()
        return [*steps, list(seen)]
    finally:
        dist.all_reduce = real["all_reduce"]
        collectives._all_gather = gather


class Network(torch.nn.Module):
    """A few layers with batch norms between them."""

    def __init__(self) -> None:
        super().__init__()
        self.first = torch.nn.Conv2d(3, 8, 3, padding=1)
        self.norm = torch.nn.BatchNorm2d(8)
        self.second = torch.nn.Conv2d(8, 6, 3, stride=2, padding=1)
        self.again = torch.nn.BatchNorm2d(6)
        self.last = torch.nn.Linear(6, 4)

    def forward(self, x: Any) -> Any:
        x = torch.relu(self.norm(self.first(x)))
        return self.last(self.again(self.second(x)).mean((2, 3)))


def network(seed: int = 3) -> Any:
    torch.manual_seed(seed)
    return Network().double()


def wrapped(kind: str, counts: Any, steps: int = 3) -> Any:
    """Train a network under a wrapper; return its parameters and buffers at the end."""
    model = nt.convert_sync_batchnorm(network())
    if kind == "ddp":
        trained = torch.nn.parallel.DistributedDataParallel(model)
    elif kind == "fsdp":
        from torch.distributed.fsdp import FullyShardedDataParallel

        trained = FullyShardedDataParallel(
            model, device_id=torch.device("cpu"), use_orig_params=True
        )
    else:
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import fully_shard

        mesh = init_device_mesh("cpu", (dist.get_world_size(),))
        trained = fully_shard(model, mesh=mesh)
    optimiser = torch.optim.SGD(trained.parameters(), lr=0.1)
    for seed in range(steps):
        x, _, _ = whole((sum(counts), 3, 6, 6), "float64", seed)
        optimiser.zero_grad()
        # Wrappers average gradients over ranks. Scale the loss so that they are those of the mean
        # over all ranks' samples.
        loss = trained(part(x, counts)).square().sum() * dist.get_world_size() / sum(counts)
        loss.backward()
        optimiser.step()
    if kind == "fsdp":
        from torch.distributed.fsdp import FullyShardedDataParallel

        with FullyShardedDataParallel.summon_full_params(trained):
            return {
                name.replace("_fsdp_wrapped_module.", ""): _numpy(value.clone())
                for name, value in trained.named_parameters()
            }
    if kind == "fully_shard":
        return {name: _numpy(value.full_tensor()) for name, value in trained.named_parameters()}
    return {name: _numpy(value) for name, value in model.state_dict().items()}


def disagree(features: int = 4, dtype: str = "float32", **options: Any) -> None:
    """Make a step of a layer that differs between ranks."""
    layer = nt.nn.SyncBatchNorm(features, **options)
    layer(torch.ones(3, features, 2, dtype=getattr(torch, dtype)))


def copied_on_one_rank() -> Any:
    """Make two steps, between which one rank replaces the layer by an equal copy."""
    import copy

    layer = nt.nn.SyncBatchNorm(4)
    x = torch.arange(12.0).reshape(3, 4) + dist.get_rank()
    first = layer(x)
    if dist.get_rank() == 0:
        layer = copy.deepcopy(layer)
    return bool((layer(x) == first).all())


def exported() -> Any:
    """Export a converted model in evaluation, run it, and try to export it in training.

    Returns whether the results agree, the operators' names, and the error in training.
    """
    model = nt.convert_sync_batchnorm(network().float()).eval()
    x = torch.randn(2, 3, 6, 6, generator=torch.Generator().manual_seed(0))
    program = torch.export.export(model, (x,))
    same = torch.allclose(program.module()(x), model(x))
    try:
        torch.export.export(model.train(), (x,))
    except Exception as error:
        return same, {str(node.target) for node in program.graph.nodes}, str(error)


def still_works() -> float:
    """Make a collective, to show that the group works after an error was raised."""
    value = torch.ones(1)
    dist.all_reduce(value)
    return float(value)


def convert(layers: int = 2, features: int = 4, outside: bool = False) -> Any:
    """Convert a model that may differ between ranks."""
    model = torch.nn.Sequential(*[torch.nn.BatchNorm1d(features) for _ in range(layers)])
    group = dist.new_group([0]) if outside else None
    try:
        nt.convert_sync_batchnorm(model, group)
    except ValueError:
        assert type(model[0]) is torch.nn.BatchNorm1d
        raise
    return [type(layer).__name__ for layer in model]


def fail(how: str, when: str, seconds: float = 0.0) -> Any:
    """Make a step in which this rank dies, comes late, or waits for one that does."""
    layer = nt.nn.SyncBatchNorm(4)
    x = whole((3, 4, 2), "float32", dist.get_rank())[0].requires_grad_()
    layer(x).sum().backward()  # a first step without failure
    x.grad = None
    y = layer(x) if when == "backward" else None
    if how == "die":
        os._exit(3)
    if how == "killed":
        os.kill(os.getpid(), signal.SIGKILL)
    if how == "late":
        time.sleep(seconds)
    if y is None:
        y = layer(x)
    (y**3).sum().backward()
    return _numpy(x.grad)


def destroyed_group() -> None:
    """Make a forward pass of a copy, which knows its group by name, after that was destroyed."""
    import copy

    group = dist.new_group(list(range(dist.get_world_size())))
    layer = copy.deepcopy(nt.nn.SyncBatchNorm(4, process_group=group))
    still_works()  # synchronise, since another rank may still be connecting to the group
    dist.destroy_process_group(group)
    layer(torch.ones(3, 4))


def copies() -> Any:
    """Copy and save layers with their own process group, which is stored by its name."""
    import copy
    import io

    group = dist.new_group(list(range(dist.get_world_size())))
    layer = nt.nn.SyncBatchNorm(4, process_group=group)
    file = io.BytesIO()
    torch.save(layer, file)
    file.seek(0)
    found = []
    for one in (copy.deepcopy(layer), torch.load(file, weights_only=False)):
        y = one(torch.arange(12.0).reshape(3, 4) + dist.get_rank())
        found.append(float(y.detach().sum()))
        assert one.process_group == group.group_name
    return found


def sharded(layer_name: str, training: bool = True) -> Any:
    """A step of a layer of PyTorch's and of its converted copy on data that ranks share.

    Returns, of both, the results in whole or the error's type and text.
    """
    from layer_pairs import data, pair
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor
    from torch.distributed.tensor.parallel import SequenceParallel, parallelize_module

    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    outcomes = []
    for layer in pair(layer_name, training):
        x = distribute_tensor(data(layer_name), mesh, [Shard(0)]).requires_grad_()
        if list(layer.parameters()) and not list(layer.buffers()):
            layer = parallelize_module(layer, mesh, SequenceParallel(sequence_dim=0))
        else:
            layer = torch.distributed.tensor.distribute_module(layer, mesh)
        try:
            y = layer(x)
            (y**3).sum().backward()
            values = [y, x.grad, *(each.grad for each in layer.parameters()), *layer.buffers()]
            outcomes.append(
                [
                    _numpy(v.redistribute(placements=[Replicate()]).to_local())
                    if isinstance(v, DTensor)
                    else _numpy(v)
                    for v in values
                ]
            )
        except Exception as error:
            outcomes.append([type(error).__name__, str(error)])
    return outcomes


def fully_sharded() -> Any:
    """The gradients of a model with every norm, whose parameters FSDP shards: ours, theirs."""
    import copy

    from torch.distributed.fsdp import fully_shard

    torch.manual_seed(0)
    theirs = torch.nn.Sequential(
        torch.nn.Conv2d(3, 4, 1), torch.nn.BatchNorm2d(4), torch.nn.GroupNorm(2, 4),
        torch.nn.InstanceNorm2d(4, affine=True), torch.nn.LayerNorm(5), torch.nn.Linear(5, 5),
        torch.nn.RMSNorm(5),
    ).double()  # fmt: skip
    gradients = []
    for model in (nt.convert(copy.deepcopy(theirs)), theirs):
        for layer in model:
            if list(layer.parameters()):
                fully_shard(layer)
        fully_shard(model)
        for step in range(2):
            generator = torch.Generator().manual_seed(10 * step + dist.get_rank())
            x = torch.randn(6, 3, 4, 5, generator=generator, dtype=torch.float64)
            (model(x) ** 3).sum().backward()
        gradients.append([_numpy(each.grad.full_tensor()) for each in model.parameters()])
    return gradients


class _OwnRMSNorm(torch.nn.Module):
    """As transformers' are written, of a module of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.weight, self.eps = torch.nn.Parameter(torch.ones(8)), 1e-6

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.weight * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.eps))


def parallel_plan() -> Any:
    """Results of a block under a tensor-parallel plan: stock, converted before it, and after it."""
    import copy

    from torch.distributed.tensor.parallel import (
        ColwiseParallel,
        RowwiseParallel,
        SequenceParallel,
        parallelize_module,
    )

    mesh = dist.device_mesh.init_device_mesh("cpu", (dist.get_world_size(),))
    plan = {"0": SequenceParallel(), "1": SequenceParallel(), "2": SequenceParallel()}
    plan |= {"3": ColwiseParallel(), "4": RowwiseParallel()}
    torch.manual_seed(0)
    norms = torch.nn.RMSNorm(8), torch.nn.LayerNorm(8), _OwnRMSNorm()
    stock = torch.nn.Sequential(*norms, torch.nn.Linear(8, 16), torch.nn.Linear(16, 8)).double()
    found = []
    for order in ("stock", "before", "after"):
        model = copy.deepcopy(stock)
        if order == "before":
            nt.convert(model)
        parallelize_module(model, mesh, plan)
        if order == "after":
            nt.convert(model)
        x = torch.linspace(-1, 2, 2 * 4 * 8, dtype=torch.float64).reshape(2, 4, 8)
        y = model(x)
        (y**3).sum().backward()
        gradients = [each.grad.full_tensor() for each in model.parameters()]
        found.append([_numpy(each.detach()) for each in (y, *gradients)])
    return found
