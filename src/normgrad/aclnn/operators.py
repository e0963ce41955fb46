"""The eight functions of the dialect, with CANN's names and arguments."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from .phases import aclOpExecutor, phase_1, phase_2
from .tensors import aclTensor
from .translations import BATCH_NORM, ELEMT, GROUP_NORM, REDUCE


def aclnnBatchNormBackwardGetWorkspaceSize(
    gradOut: aclTensor | None,
    input: aclTensor | None,
    weight: aclTensor | None,
    runningMean: aclTensor | None,
    runningVar: aclTensor | None,
    saveMean: aclTensor | None,
    saveInvstd: aclTensor | None,
    training: bool,
    eps: float,
    outputMask: Sequence[bool] | None,
    gradInput: aclTensor | None,
    gradWeight: aclTensor | None,
    gradBias: aclTensor | None,
) -> tuple[int, aclOpExecutor]:
    """Phase 1 of batch norm's gradients: (workspace size in bytes, executor).

    The mathematics is that of :func:`normgrad.batch_norm_backward`; ``normgrad aclnn contract``
    prints what each argument may be on each product.

    Args:
        gradOut, input: (N, C, ...) with 2 to 8 axes, or the axes that their format requires.
        weight: (C,); None for ones.
        runningMean, runningVar: (C,), used in evaluation; None for 0 and for 1.
        saveMean, saveInvstd: (C,), used in training: the batch's mean and 1/sqrt(var + eps); None
            to compute them from ``input``.
        training: whether the forward pass used the batch's statistics.
        eps: added to a variance.
        outputMask: three booleans: which of the gradients are wanted.
        gradInput, gradWeight, gradBias: the outputs that phase 2 writes, of input's shape and (C,);
            None where not wanted.

    Returns:
        The workspace's size in bytes, and the executor, which phase 2 takes.

    Raises:
        AclnnError: 161001 for a null, 561003 for a product without the operator, 161002 for
            anything else that the contract does not allow.
    """
    return phase_1(BATCH_NORM, locals())


def aclnnBatchNormBackward(
    workspace: Any, workspaceSize: int, executor: aclOpExecutor | None, stream: Any = None
) -> None:
    """Phase 2: write the gradients that phase 1 was asked for.

    Args:
        workspace: any writable buffer of at least the size that phase 1 returned; None if that is
            0.
        workspaceSize: the size of the workspace in bytes.
        executor: the executor that phase 1 returned; it can be used once.
        stream: ignored; the call returns when the gradients are written.

    Raises:
        AclnnError: 161001 for a null executor, or a null workspace that is needed; 161002 for a
            workspace that is too small, or an executor that was used before or belongs to another
            operator.
    """
    phase_2(BATCH_NORM, workspace, workspaceSize, executor, stream)


def aclnnBatchNormReduceBackwardGetWorkspaceSize(
    gradOut: aclTensor | None,
    input: aclTensor | None,
    mean: aclTensor | None,
    invstd: aclTensor | None,
    weight: aclTensor | None,
    inputG: bool,
    weightG: bool,
    biasG: bool,
    sumDy: aclTensor | None,
    sumDyXmu: aclTensor | None,
    gradWeight: aclTensor | None,
    gradBias: aclTensor | None,
) -> tuple[int, aclOpExecutor]:
    """Phase 1 of synchronised batch norm's sums: (workspace size in bytes, executor).

    The mathematics is that of :func:`normgrad.batch_norm_backward_reduce`: sums, not averages.

    Args:
        gradOut, input: (N, C, ...), 2 to 8 axes, of one shape, dtype and format.
        mean, invstd: (C,), of the whole batch.
        weight: (C,), or None; it takes no part in the arithmetic.
        inputG, weightG, biasG: whether the two sums, gradWeight and gradBias are wanted.
        sumDy, sumDyXmu, gradWeight, gradBias: the outputs that phase 2 writes, (C,); None where not
            wanted.

    Raises:
        AclnnError: as for :func:`aclnnBatchNormBackwardGetWorkspaceSize`.
    """
    return phase_1(REDUCE, locals())


def aclnnBatchNormReduceBackward(
    workspace: Any, workspaceSize: int, executor: aclOpExecutor | None, stream: Any = None
) -> None:
    """Phase 2; see :func:`aclnnBatchNormBackward`."""
    phase_2(REDUCE, workspace, workspaceSize, executor, stream)


def aclnnBatchNormElemtBackwardGetWorkspaceSize(
    gradOut: aclTensor | None,
    input: aclTensor | None,
    mean: aclTensor | None,
    invstd: aclTensor | None,
    weight: aclTensor | None,
    sumDy: aclTensor | None,
    sumDyXmu: aclTensor | None,
    counter: aclTensor | None,
    gradInput: aclTensor | None,
) -> tuple[int, aclOpExecutor]:
    """Phase 1 of synchronised batch norm's element-wise part: (workspace size in bytes, executor).

    The mathematics is that of :func:`normgrad.batch_norm_backward_elemt`.

    Args:
        gradOut, input: (N, C, ...), 2 to 8 axes, of one shape.
        mean, invstd: (C,), of the whole batch.
        weight: (C,); None for ones.
        sumDy, sumDyXmu: (C,), added up over all ranks.
        counter: each rank's number of elements per channel, in any shape; their sum is the divisor.
        gradInput: the output that phase 2 writes, of input's shape.

    Raises:
        AclnnError: as for :func:`aclnnBatchNormBackwardGetWorkspaceSize`.
    """
    return phase_1(ELEMT, locals())


def aclnnBatchNormElemtBackward(
    workspace: Any, workspaceSize: int, executor: aclOpExecutor | None, stream: Any = None
) -> None:
    """Phase 2; see :func:`aclnnBatchNormBackward`."""
    phase_2(ELEMT, workspace, workspaceSize, executor, stream)


def aclnnGroupNormBackwardGetWorkspaceSize(
    gradOut: aclTensor | None,
    input: aclTensor | None,
    mean: aclTensor | None,
    rstd: aclTensor | None,
    gamma: aclTensor | None,
    N: int,
    C: int,
    HxW: int,
    group: int,
    outputMask: Sequence[bool] | None,
    gradInput: aclTensor | None,
    gradGammaOut: aclTensor | None,
    gradBetaOut: aclTensor | None,
) -> tuple[int, aclOpExecutor]:
    """Phase 1 of group norm's gradients: (workspace size in bytes, executor).

    The mathematics is that of :func:`normgrad.group_norm_backward`.

    Args:
        gradOut, input: N·C·HxW elements, read as (N, C, HxW) whatever their shape.
        mean, rstd: N·group elements: each group's mean and 1/sqrt(var + eps).
        gamma: C elements; None for ones.
        N, C, HxW, group: the numbers of samples, channels, positions, and groups of channels.
        outputMask: three booleans: which of the gradients are wanted.
        gradInput: an output that phase 2 writes, of input's shape; None where not wanted.
        gradGammaOut, gradBetaOut: such outputs, of gamma's shape.

    Raises:
        AclnnError: as for :func:`aclnnBatchNormBackwardGetWorkspaceSize`.
    """
    return phase_1(GROUP_NORM, locals())


def aclnnGroupNormBackward(
    workspace: Any, workspaceSize: int, executor: aclOpExecutor | None, stream: Any = None
) -> None:
    """Phase 2; see :func:`aclnnBatchNormBackward`."""
    phase_2(GROUP_NORM, workspace, workspaceSize, executor, stream)
