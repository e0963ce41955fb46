"""The parts of synchronised batch norm on other devices than the CPU: PyTorch's own kernels.

They are CUDA's. What they do not take (a batch without elements) is answered here.
"""

from __future__ import annotations

import torch

from .kernels import absent, wide

Tensor = torch.Tensor


def _dense(tensor: Tensor) -> Tensor:
    """A tensor in one of the layouts that those kernels read."""
    formats = {4: torch.channels_last, 5: torch.channels_last_3d}
    last = formats.get(tensor.dim())
    if last is not None and tensor.is_contiguous(memory_format=last):
        return tensor
    return tensor.contiguous()


def batch_norm_stats(input: Tensor, eps: float) -> tuple[Tensor, ...]:
    """As :func:`.kernels.batch_norm_stats`."""
    if input.numel() == 0:
        zeros = torch.zeros(input.shape[1], dtype=wide(input), device=input.device)
        return zeros, zeros.clone()
    return torch.batch_norm_stats(_dense(input), eps)


def wide_stats(input: Tensor, eps: float) -> tuple[Tensor, ...]:
    """As :func:`.kernels.wide_stats`, but no more exact than PyTorch's are."""
    return tuple(value.double() for value in batch_norm_stats(input, eps))


def batch_norm_gather_stats_with_counts(
    input: Tensor,
    mean: Tensor,
    invstd: Tensor,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    momentum: float,
    eps: float,
    counts: Tensor,
) -> tuple[Tensor, ...]:
    """As :func:`.kernels.batch_norm_gather_stats_with_counts`, in float64: it is C values."""
    share = counts.reshape(-1, 1).double()
    some = share > 0
    total = share.sum()
    share = share / total.clamp(min=1)
    mu = torch.where(some, mean.double(), 0)
    everywhere = (share * mu).sum(0)
    spread = torch.where(some, invstd.double(), 1).pow(-2) + (mu - everywhere).square()
    spread = (share * spread).sum(0)
    r = torch.where(total > 0, spread.rsqrt(), 0)
    variance = (spread - eps).clamp(min=0) * (total / (total - 1).clamp(min=1))
    weight = torch.where(total > 0, momentum, 0.0)
    running = [
        absent(mean.dtype, mean)
        if old is None
        else torch.lerp(old.double(), new, weight).to(old.dtype)
        for old, new in ((running_mean, everywhere), (running_var, variance))
    ]
    return everywhere.to(mean.dtype), r.to(mean.dtype), *running


def batch_norm_elemt(
    input: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    mean: Tensor,
    invstd: Tensor,
    eps: float,
) -> Tensor:
    """As :func:`.kernels.batch_norm_elemt`."""
    if input.numel() == 0:
        return torch.empty_like(input)
    return torch.batch_norm_elemt(_dense(input), weight, bias, mean, invstd, eps)


def batch_norm_backward_reduce(
    grad_out: Tensor,
    input: Tensor,
    mean: Tensor,
    invstd: Tensor,
    weight: Tensor | None,
    input_g: bool,
    weight_g: bool,
    bias_g: bool,
) -> tuple[Tensor, ...]:
    """As :func:`.kernels.batch_norm_backward_reduce`."""
    parameters = mean.dtype if weight is None else weight.dtype
    wanted = (input_g, input_g, weight_g, bias_g)
    dtypes = (mean.dtype, mean.dtype, parameters, parameters)
    if input.numel() == 0:
        return tuple(
            torch.zeros(input.shape[1] * want, dtype=dtype, device=input.device)
            for want, dtype in zip(wanted, dtypes, strict=True)
        )
    results = torch.batch_norm_backward_reduce(
        _dense(grad_out),
        _dense(input),
        mean.to(wide(input)),
        invstd,
        weight,
        input_g,
        weight_g,
        bias_g,
    )
    return tuple(
        value.to(dtype) if want else absent(dtype, input)
        for value, want, dtype in zip(results, wanted, dtypes, strict=True)
    )


def batch_norm_backward_elemt(
    grad_out: Tensor,
    input: Tensor,
    mean: Tensor,
    invstd: Tensor,
    weight: Tensor | None,
    sum_dy: Tensor,
    sum_dy_xmu: Tensor,
    count: Tensor,
) -> Tensor:
    """As :func:`.kernels.batch_norm_backward_elemt`."""
    if input.numel() == 0:
        return torch.empty_like(input)
    return torch.batch_norm_backward_elemt(
        _dense(grad_out),
        _dense(input),
        mean,
        invstd,
        weight,
        sum_dy.to(wide(input)),
        sum_dy_xmu.to(wide(input)),
        count.to(torch.int32),
    )


#: The kernels by their operators' names.
KERNELS = {
    kernel.__name__: kernel
    for kernel in (
        batch_norm_stats,
        batch_norm_gather_stats_with_counts,
        batch_norm_elemt,
        batch_norm_backward_reduce,
        batch_norm_backward_elemt,
    )
}
