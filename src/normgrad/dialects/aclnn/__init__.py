"""The aclnn dialect: CANN's two-phase calls, with the contract of each product and status codes.

``aclnnXxxGetWorkspaceSize(...)`` checks every argument and returns a workspace's size and an
executor; ``aclnnXxx(workspace, size, executor, stream)`` computes. All operators' functions raise
the errors of :func:`aclnnBatchNormBackwardGetWorkspaceSize` and :func:`aclnnBatchNormBackward`. See
docs/aclnn.md.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from . import translations
from .phases import aclOpExecutor as aclOpExecutor
from .phases import phase_1, phase_2
from .products import product as product
from .products import set_product as set_product
from .tensors import AclnnError as AclnnError
from .tensors import Status as Status
from .tensors import aclBoolArray as aclBoolArray
from .tensors import aclCreateBoolArray as aclCreateBoolArray
from .tensors import aclCreateTensor as aclCreateTensor
from .tensors import aclDataType as aclDataType
from .tensors import aclFormat as aclFormat
from .tensors import aclTensor as aclTensor
from .tensors import tensor as tensor

# Each enumeration's members are also names of this module, as in C.
(
    ACLNN_SUCCESS, ACLNN_ERR_PARAM_NULLPTR, ACLNN_ERR_PARAM_INVALID, ACLNN_ERR_RUNTIME_ERROR,
    ACLNN_ERR_INNER, ACLNN_ERR_INNER_FIND_KERNEL_ERROR, ACLNN_ERR_INNER_NULLPTR,
) = Status  # fmt: skip
(
    ACL_DT_UNDEFINED, ACL_FLOAT, ACL_FLOAT16, ACL_INT8, ACL_INT32, ACL_UINT8, ACL_INT16,
    ACL_UINT16, ACL_UINT32, ACL_INT64, ACL_UINT64, ACL_DOUBLE, ACL_BOOL, ACL_STRING,
    ACL_COMPLEX64, ACL_COMPLEX128, ACL_BF16, ACL_INT4, ACL_UINT1, ACL_COMPLEX32, ACL_HIFLOAT8,
    ACL_FLOAT8_E5M2, ACL_FLOAT8_E4M3FN, ACL_FLOAT8_E8M0, ACL_FLOAT6_E3M2, ACL_FLOAT6_E2M3,
    ACL_FLOAT4_E2M1, ACL_FLOAT4_E1M2,
) = aclDataType  # fmt: skip
(
    ACL_FORMAT_UNDEFINED, ACL_FORMAT_NCHW, ACL_FORMAT_NHWC, ACL_FORMAT_ND, ACL_FORMAT_NC1HWC0,
    ACL_FORMAT_FRACTAL_Z, ACL_FORMAT_NC1HWC0_C04, ACL_FORMAT_HWCN, ACL_FORMAT_NDHWC,
    ACL_FORMAT_FRACTAL_NZ, ACL_FORMAT_NCDHW, ACL_FORMAT_NDC1HWC0, ACL_FRACTAL_Z_3D, ACL_FORMAT_NC,
    ACL_FORMAT_NCL, ACL_FORMAT_FRACTAL_NZ_C0_16, ACL_FORMAT_FRACTAL_NZ_C0_32,
) = aclFormat  # fmt: skip


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
    return phase_1(translations.BATCH_NORM, locals())


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
    phase_2(translations.BATCH_NORM, workspace, workspaceSize, executor, stream)


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
    """
    return phase_1(translations.REDUCE, locals())


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
    """
    return phase_1(translations.ELEMT, locals())


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
    """
    return phase_1(translations.GROUP_NORM, locals())


def aclnnBatchNormStatsGetWorkspaceSize(
    input: aclTensor | None, eps: float, mean: aclTensor | None, invstd: aclTensor | None
) -> tuple[int, aclOpExecutor]:
    """Phase 1 of one rank's batch statistics: (workspace size in bytes, executor).

    The mathematics is that of :func:`normgrad.batch_norm_stats`.

    Args:
        input: (N, C, ...), 2 to 8 axes.
        eps: added to the variance.
        mean, invstd: the outputs that phase 2 writes, (C,) in float32; 0 for an input without
            elements.
    """
    return phase_1(translations.STATS, locals())


def aclnnBatchNormGatherStatsWithCountsGetWorkspaceSize(
    input: aclTensor | None,
    mean: aclTensor | None,
    invstd: aclTensor | None,
    runningMean: aclTensor | None,
    runningVar: aclTensor | None,
    momentum: float,
    eps: float,
    counts: aclTensor | None,
    meanAll: aclTensor | None,
    invstdAll: aclTensor | None,
) -> tuple[int, aclOpExecutor]:
    """Phase 1 of the whole batch's statistics: (workspace size in bytes, executor).

    The mathematics is that of :func:`normgrad.batch_norm_gather_stats_with_counts`.

    Args:
        input: (N, C, ...), 2 to 8 axes, of which only C is used; not empty.
        mean, invstd: (ranks, C), each rank's statistics.
        runningMean, runningVar: (C,), which phase 2 updates; None for none.
        momentum: the weight of the new statistics in the running ones.
        eps: the number that was added to the ranks' variances.
        counts: (ranks,), each rank's number of elements per channel.
        meanAll, invstdAll: the outputs that phase 2 writes, (C,).
    """
    return phase_1(translations.GATHER, locals())


def aclnnBatchNormElemtGetWorkspaceSize(
    input: aclTensor | None,
    weight: aclTensor | None,
    bias: aclTensor | None,
    mean: aclTensor | None,
    invstd: aclTensor | None,
    eps: float,
    output: aclTensor | None,
) -> tuple[int, aclOpExecutor]:
    """Phase 1 of batch norm by given statistics: (workspace size in bytes, executor).

    The mathematics is that of :func:`normgrad.batch_norm_elemt`.

    Args:
        input: (N, C, ...), 2 to 8 axes.
        weight, bias: (C,); None for ones and for zeros.
        mean, invstd: (C,), the whole batch's mean and 1/sqrt(var + eps).
        eps: not used, since invstd contains it.
        output: the output that phase 2 writes, of input's shape, dtype and format; it may have
            exactly input's memory.
    """
    return phase_1(translations.FORWARD_ELEMT, locals())


def aclnnRmsNormGetWorkspaceSize(
    x: aclTensor | None,
    gamma: aclTensor | None,
    epsilon: float,
    yOut: aclTensor | None,
    rstdOut: aclTensor | None,
) -> tuple[int, aclOpExecutor]:
    """Phase 1 of RMS norm: (workspace size in bytes, executor).

    The mathematics is that of :func:`normgrad.rms_norm`.

    Args:
        x: 1 to 8 axes.
        gamma: the shape of x's last axes, over which is normalised.
        epsilon: added to the mean of squares.
        yOut: an output that phase 2 writes, of x's shape; it may have exactly x's memory.
        rstdOut: such an output, of x's shape with ones in the place of gamma's axes, in float32.
    """
    return phase_1(translations.RMS_NORM, locals())


class _Phase2(Protocol):
    """The signature of every phase 2, for type checkers."""

    def __call__(
        self, workspace: Any, workspaceSize: int, executor: aclOpExecutor | None, stream: Any = None
    ) -> None: ...


def _phase_2(translation: translations.Translation) -> _Phase2:
    def compute(
        workspace: Any, workspaceSize: int, executor: aclOpExecutor | None, stream: Any = None
    ) -> None:
        """Phase 2; see :func:`aclnnBatchNormBackward`."""
        phase_2(translation, workspace, workspaceSize, executor, stream)

    compute.__name__ = compute.__qualname__ = translation.contract.name
    return compute


aclnnBatchNormReduceBackward = _phase_2(translations.REDUCE)
aclnnBatchNormElemtBackward = _phase_2(translations.ELEMT)
aclnnGroupNormBackward = _phase_2(translations.GROUP_NORM)
aclnnBatchNormStats = _phase_2(translations.STATS)
aclnnBatchNormGatherStatsWithCounts = _phase_2(translations.GATHER)
aclnnBatchNormElemt = _phase_2(translations.FORWARD_ELEMT)
aclnnRmsNorm = _phase_2(translations.RMS_NORM)

__all__ = [
    name
    for name in dir()
    if name.lower().startswith("acl") or name in ("Status", "product", "set_product", "tensor")
]
