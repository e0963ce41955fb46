"""CANN's two-phase calls, the four gradients, on numbers small enough to check by hand."""

from __future__ import annotations

import numpy as np

from normgrad.dialects import aclnn

t = aclnn.tensor


def show(title: str, **arrays: np.ndarray) -> None:
    print(title)
    for name, array in arrays.items():
        print(f"  {name:10}", np.array2string(array.ravel(), precision=4, suppress_small=True))


# One image of two channels, of 2 x 2 pixels; the batch's own statistics.
x = np.array([1, 2, 3, 4, 2, 4, 6, 8], np.float32).reshape(1, 2, 2, 2)
dy = np.array([1, 0, 0, 1, 0, 1, 1, 0], np.float32).reshape(1, 2, 2, 2)
weight = np.array([1, 2], np.float32)
mean = x.mean(axis=(0, 2, 3))
invstd = 1 / np.sqrt(x.var(axis=(0, 2, 3)) + np.float32(1e-5))
mask = aclnn.aclCreateBoolArray([True, True, True])

grad_input, grad_weight, grad_bias = np.empty_like(x), np.empty_like(weight), np.empty_like(weight)
size, executor = aclnn.aclnnBatchNormBackwardGetWorkspaceSize(
    t(dy), t(x), t(weight), None, None, t(mean), t(invstd), True, 1e-5, mask, t(grad_input),
    t(grad_weight), t(grad_bias),
)  # fmt: skip
aclnn.aclnnBatchNormBackward(np.empty(size, np.uint8), size, executor, None)
show("aclnnBatchNormBackward", gradInput=grad_input, gradWeight=grad_weight, gradBias=grad_bias)

# The same in the two halves of synchronised batch norm: sums, which ranks would add up, and dx.
sum_dy, sum_dy_xmu = np.empty_like(mean), np.empty_like(mean)
size, executor = aclnn.aclnnBatchNormReduceBackwardGetWorkspaceSize(
    t(dy), t(x), t(mean), t(invstd), t(weight), True, True, True, t(sum_dy), t(sum_dy_xmu),
    t(grad_weight), t(grad_bias),
)  # fmt: skip
aclnn.aclnnBatchNormReduceBackward(np.empty(size, np.uint8), size, executor, None)
show("aclnnBatchNormReduceBackward", sumDy=sum_dy, sumDyXmu=sum_dy_xmu, gradWeight=grad_weight)

counter = np.array([4], np.int32)  # elements per channel, of each rank
size, executor = aclnn.aclnnBatchNormElemtBackwardGetWorkspaceSize(
    t(dy), t(x), t(mean), t(invstd), t(weight), t(sum_dy), t(sum_dy_xmu), t(counter),
    t(grad_input),
)  # fmt: skip
aclnn.aclnnBatchNormElemtBackward(np.empty(size, np.uint8), size, executor, None)
show("aclnnBatchNormElemtBackward", gradInput=grad_input)

# Both channels in one group.
group_mean = x.mean(axis=(1, 2, 3), keepdims=True).reshape(1, 1)
group_rstd = (1 / np.sqrt(x.var(axis=(1, 2, 3)) + np.float32(1e-5))).reshape(1, 1)
size, executor = aclnn.aclnnGroupNormBackwardGetWorkspaceSize(
    t(dy), t(x), t(group_mean), t(group_rstd), t(weight), 1, 2, 4, 1, mask, t(grad_input),
    t(grad_weight), t(grad_bias),
)  # fmt: skip
aclnn.aclnnGroupNormBackward(np.empty(size, np.uint8), size, executor, None)
show("aclnnGroupNormBackward", gradInput=grad_input, gradGamma=grad_weight, gradBeta=grad_bias)

# What is wrong is said in words, with the status that the C function returns.
with aclnn.product("Ascend 950"):
    try:
        aclnn.aclnnGroupNormBackwardGetWorkspaceSize(
            t(dy), t(x), t(group_mean), t(group_rstd), t(weight), 1, 2, 4, 1, mask, t(grad_input),
            t(grad_weight), t(grad_bias),
        )  # fmt: skip
    except aclnn.AclnnError as error:
        print(f"{error.status:d}: {error}")
