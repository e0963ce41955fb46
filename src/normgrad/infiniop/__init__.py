"""The infiniop dialect: InfiniCore's descriptors and workspaces, with its status codes.

See docs/infiniop.md.
"""

from __future__ import annotations

from .operators import infiniopBatchNormBackward as infiniopBatchNormBackward
from .operators import (
    infiniopBatchNormBackwardDescriptor_t as infiniopBatchNormBackwardDescriptor_t,
)
from .operators import (
    infiniopCreateBatchNormBackwardDescriptor as infiniopCreateBatchNormBackwardDescriptor,
)
from .operators import infiniopCreateHandle as infiniopCreateHandle
from .operators import infiniopCreateTensorDescriptor as infiniopCreateTensorDescriptor
from .operators import (
    infiniopDestroyBatchNormBackwardDescriptor as infiniopDestroyBatchNormBackwardDescriptor,
)
from .operators import infiniopDestroyHandle as infiniopDestroyHandle
from .operators import infiniopDestroyTensorDescriptor as infiniopDestroyTensorDescriptor
from .operators import (
    infiniopGetBatchNormBackwardWorkspaceSize as infiniopGetBatchNormBackwardWorkspaceSize,
)
from .operators import infiniopHandle_t as infiniopHandle_t
from .operators import infiniopTensorDescriptor_t as infiniopTensorDescriptor_t
from .operators import infinirtGetDevice as infinirtGetDevice
from .operators import infinirtGetDeviceCount as infinirtGetDeviceCount
from .operators import infinirtInit as infinirtInit
from .operators import infinirtSetDevice as infinirtSetDevice
from .status import InfiniError as InfiniError
from .status import infiniDevice_t as infiniDevice_t
from .status import infiniDtype_t as infiniDtype_t
from .status import infiniStatus_t as infiniStatus_t

# Each enumeration's members are also names of this module, as in C.
(
    INFINI_STATUS_SUCCESS, INFINI_STATUS_INTERNAL_ERROR, INFINI_STATUS_NOT_IMPLEMENTED,
    INFINI_STATUS_BAD_PARAM, INFINI_STATUS_NULL_POINTER, INFINI_STATUS_DEVICE_TYPE_NOT_SUPPORTED,
    INFINI_STATUS_DEVICE_NOT_FOUND, INFINI_STATUS_DEVICE_NOT_INITIALIZED,
    INFINI_STATUS_DEVICE_ARCHITECTURE_NOT_SUPPORTED, INFINI_STATUS_BAD_TENSOR_DTYPE,
    INFINI_STATUS_BAD_TENSOR_SHAPE, INFINI_STATUS_BAD_TENSOR_STRIDES,
    INFINI_STATUS_INSUFFICIENT_WORKSPACE,
) = infiniStatus_t  # fmt: skip
(
    INFINI_DEVICE_CPU, INFINI_DEVICE_NVIDIA, INFINI_DEVICE_CAMBRICON, INFINI_DEVICE_ASCEND,
    INFINI_DEVICE_METAX, INFINI_DEVICE_MOORE, INFINI_DEVICE_ILUVATAR, INFINI_DEVICE_KUNLUN,
    INFINI_DEVICE_HYGON, INFINI_DEVICE_QY, INFINI_DEVICE_ALI,
) = infiniDevice_t  # fmt: skip
(
    INFINI_DTYPE_INVALID, INFINI_DTYPE_BYTE, INFINI_DTYPE_BOOL, INFINI_DTYPE_I8, INFINI_DTYPE_I16,
    INFINI_DTYPE_I32, INFINI_DTYPE_I64, INFINI_DTYPE_U8, INFINI_DTYPE_U16, INFINI_DTYPE_U32,
    INFINI_DTYPE_U64, INFINI_DTYPE_F8, INFINI_DTYPE_F16, INFINI_DTYPE_F32, INFINI_DTYPE_F64,
    INFINI_DTYPE_C16, INFINI_DTYPE_C32, INFINI_DTYPE_C64, INFINI_DTYPE_C128, INFINI_DTYPE_BF16,
) = infiniDtype_t  # fmt: skip

__all__ = [name for name in dir() if name.lower().startswith("infini")]
