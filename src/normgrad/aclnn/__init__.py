"""The aclnn dialect: CANN's two-phase calls, with the contract of each product and status codes.

``aclnnXxxGetWorkspaceSize(...)`` checks every argument and returns a workspace's size and an
executor; ``aclnnXxx(workspace, size, executor, stream)`` computes. See docs/aclnn.md.
"""

from __future__ import annotations

from .operators import aclnnBatchNormBackward as aclnnBatchNormBackward
from .operators import (
    aclnnBatchNormBackwardGetWorkspaceSize as aclnnBatchNormBackwardGetWorkspaceSize,
)
from .operators import aclnnBatchNormElemtBackward as aclnnBatchNormElemtBackward
from .operators import (
    aclnnBatchNormElemtBackwardGetWorkspaceSize as aclnnBatchNormElemtBackwardGetWorkspaceSize,
)
from .operators import aclnnBatchNormReduceBackward as aclnnBatchNormReduceBackward
from .operators import (
    aclnnBatchNormReduceBackwardGetWorkspaceSize as aclnnBatchNormReduceBackwardGetWorkspaceSize,
)
from .operators import aclnnGroupNormBackward as aclnnGroupNormBackward
from .operators import (
    aclnnGroupNormBackwardGetWorkspaceSize as aclnnGroupNormBackwardGetWorkspaceSize,
)
from .phases import aclOpExecutor as aclOpExecutor
from .products import product as product
from .products import set_product as set_product
from .status import AclnnError as AclnnError
from .status import Status as Status
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
    ACL_COMPLEX64, ACL_COMPLEX128, ACL_BF16,
) = aclDataType  # fmt: skip
(
    ACL_FORMAT_UNDEFINED, ACL_FORMAT_NCHW, ACL_FORMAT_NHWC, ACL_FORMAT_ND, ACL_FORMAT_NC1HWC0,
    ACL_FORMAT_FRACTAL_Z, ACL_FORMAT_NC1HWC0_C04, ACL_FORMAT_HWCN, ACL_FORMAT_NDHWC,
    ACL_FORMAT_FRACTAL_NZ, ACL_FORMAT_NCDHW, ACL_FORMAT_NDC1HWC0, ACL_FORMAT_NC, ACL_FORMAT_NCL,
) = aclFormat  # fmt: skip

__all__ = [
    name
    for name in dir()
    if name.lower().startswith("acl") or name in ("Status", "product", "set_product", "tensor")
]
