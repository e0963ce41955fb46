"""The one list of what the C libraries export: headers, types, functions.

The headers that host programs include, the C that the libraries are compiled from, and the ctypes
callbacks that they jump to are all made from it.
"""

from __future__ import annotations

import ctypes
import hashlib
import re
from collections.abc import Iterable
from dataclasses import dataclass
from enum import IntEnum
from functools import cache
from typing import Any

from ..aclnn import aclDataType, aclFormat
from ..aclnn.status import Status as aclnnStatus
from ..infiniop import infiniDevice_t, infiniDtype_t, infiniStatus_t
from .enums import (
    aclError,
    aclrtMemAttr,
    aclrtMemcpyKind,
    aclrtMemMallocPolicy,
    aclrtRunMode,
    aclSysParamOpt,
    infinirtMemcpyKind_t,
)

#: Types that are no pointers, as ctypes has them. Enumerations are ints.
_PLAIN: dict[str, Any] = {
    "bool": ctypes.c_bool,
    "int": ctypes.c_int,
    "float": ctypes.c_float,
    "double": ctypes.c_double,
    "size_t": ctypes.c_size_t,
    "int32_t": ctypes.c_int32,
    "uint32_t": ctypes.c_uint32,
    "int64_t": ctypes.c_int64,
    "uint64_t": ctypes.c_uint64,
    "aclError": ctypes.c_int,
    "aclnnStatus": ctypes.c_int32,
    "aclFloat16": ctypes.c_uint16,
    **{
        kind.__name__: ctypes.c_int
        for kind in (
            aclDataType, aclFormat, aclrtMemAttr, aclrtMemcpyKind, aclrtMemMallocPolicy,
            aclrtRunMode, aclSysParamOpt, infiniDevice_t, infiniDtype_t, infiniStatus_t,
            infinirtMemcpyKind_t,
        )
    },
}  # fmt: skip

#: Types whose names do not show that they are pointers.
_HANDLES = {
    "aclrtStream", "aclrtEvent", "aclrtContext", "infinirtStream_t", "infinirtEvent_t",
    "infiniopHandle_t", "infiniopTensorDescriptor_t", "infiniopBatchNormBackwardDescriptor_t",
}  # fmt: skip


@dataclass(frozen=True)
class Function:
    """An exported function.

    Attributes:
        prototype: its declaration in C.
        returns: the C type of its result.
        parameters: the C types and names of its arguments.
        library: which exports it, such as "opapi".
        module: the Python module with the function that it calls.
        failure: what it returns where nothing better is known, in C.
    """

    prototype: str
    name: str
    returns: str
    parameters: tuple[tuple[str, str], ...]
    library: str
    module: str
    failure: int | None

    @property
    def ctype(self) -> Any:
        """Its type for ctypes."""
        return ctypes.CFUNCTYPE(
            _ctype(self.returns), *[_ctype(kind) for kind, _ in self.parameters]
        )


def _ctype(c_type: str) -> Any:
    plain = c_type.removeprefix("const ")
    if "*" in c_type or plain in _HANDLES:
        return ctypes.c_void_p
    return _PLAIN[plain]


@dataclass(frozen=True)
class Header:
    """A file that host programs include.

    Attributes:
        path: below the include folder.
        includes: what it includes, as written there.
        types: enumerations and other definitions, in order.
        functions: what it declares.
    """

    path: str
    includes: tuple[str, ...]
    types: tuple[type[IntEnum] | str, ...] = ()
    functions: tuple[Function, ...] = ()


#: What is returned by functions of a type where Python cannot be started, or an error has no
#: status. Functions that return a pointer or a number then return 0.
_FAILURES = {
    "aclError": int(aclError.ACL_ERROR_INTERNAL_ERROR),
    "aclnnStatus": int(aclnnStatus.ACLNN_ERR_INNER),
    "infiniStatus_t": int(infiniStatus_t.INFINI_STATUS_INTERNAL_ERROR),
}
_PHASE_2_FAILURE = int(aclnnStatus.ACLNN_ERR_RUNTIME_ERROR)


def _functions(library: str, module: str, prototypes: str) -> tuple[Function, ...]:
    return tuple(
        _parse(" ".join(each.split()), library, module)
        for each in prototypes.split(";")
        if each.strip()
    )


def _parse(prototype: str, library: str, module: str) -> Function:
    match = re.fullmatch(r"(.+?[ *])(\w+)\((.*)\)", prototype)
    assert match, prototype
    returns, name, arguments = match[1].strip(), match[2], match[3]
    parameters = []
    for argument in arguments.split(", ") if arguments != "void" else []:
        kind, argument_name = re.fullmatch(r"(.+?)(\w+)", argument).groups()  # type: ignore[union-attr]
        parameters.append((kind.strip(), argument_name))
    failure = _FAILURES.get(returns)
    if parameters and parameters[0] == ("void *", "workspace") and returns == "aclnnStatus":
        failure = _PHASE_2_FAILURE
    return Function(prototype, name, returns, tuple(parameters), library, module, failure)


def _defines(values: Iterable[IntEnum]) -> str:
    return "\n".join(f"#define {value.name} {value:d}" for value in values)


HEADERS = (
    Header(
        "acl/acl_base.h",
        ("<stdbool.h>", "<stddef.h>", "<stdint.h>"),
        (
            "typedef int aclError;",
            "typedef uint16_t aclFloat16;",
            "typedef void *aclrtStream;",
            "typedef void *aclrtEvent;",
            "typedef void *aclrtContext;",
            _defines(aclError),
            aclDataType,
            aclFormat,
        ),
        _functions(
            "ascendcl",
            "acl",
            """
            size_t aclDataTypeSize(aclDataType dataType);
            aclFloat16 aclFloatToFloat16(float value);
            float aclFloat16ToFloat(aclFloat16 value);
            """,
        ),
    ),
    Header(
        "acl/acl_rt.h",
        ('"acl_base.h"',),
        (aclrtRunMode, aclrtMemcpyKind, aclrtMemMallocPolicy, aclrtMemAttr, aclSysParamOpt),
        _functions(
            "ascendcl",
            "acl",
            """
            aclError aclrtSetDevice(int32_t deviceId);
            aclError aclrtResetDevice(int32_t deviceId);
            aclError aclrtGetDevice(int32_t *deviceId);
            aclError aclrtGetDeviceCount(uint32_t *count);
            aclError aclrtGetRunMode(aclrtRunMode *runMode);
            const char *aclrtGetSocName(void);
            aclError aclrtGetMemInfo(aclrtMemAttr attr, size_t *free, size_t *total);
            aclError aclrtSynchronizeDevice(void);
            aclError aclrtCtxSetSysParamOpt(aclSysParamOpt opt, int64_t value);

            aclError aclrtCreateContext(aclrtContext *context, int32_t deviceId);
            aclError aclrtDestroyContext(aclrtContext context);
            aclError aclrtSetCurrentContext(aclrtContext context);

            aclError aclrtCreateStream(aclrtStream *stream);
            aclError aclrtDestroyStream(aclrtStream stream);
            aclError aclrtSynchronizeStream(aclrtStream stream);

            aclError aclrtCreateEvent(aclrtEvent *event);
            aclError aclrtDestroyEvent(aclrtEvent event);
            aclError aclrtRecordEvent(aclrtEvent event, aclrtStream stream);
            aclError aclrtSynchronizeEvent(aclrtEvent event);
            aclError aclrtStreamWaitEvent(aclrtStream stream, aclrtEvent event);
            aclError aclrtEventElapsedTime(float *ms, aclrtEvent startEvent, aclrtEvent endEvent);

            aclError aclrtMalloc(void **devPtr, size_t size, aclrtMemMallocPolicy policy);
            aclError aclrtFree(void *devPtr);
            aclError aclrtMallocHost(void **hostPtr, size_t size);
            aclError aclrtFreeHost(void *hostPtr);
            aclError aclrtMemcpy(void *dst, size_t destMax, const void *src, size_t count,
                                 aclrtMemcpyKind kind);
            aclError aclrtMemcpyAsync(void *dst, size_t destMax, const void *src, size_t count,
                                      aclrtMemcpyKind kind, aclrtStream stream);
            aclError aclrtMemset(void *devPtr, size_t maxCount, int32_t value, size_t count);
            """,
        ),
    ),
    Header(
        "acl/acl.h",
        ('"acl_base.h"', '"acl_rt.h"'),
        (),
        _functions(
            "ascendcl",
            "acl",
            """
            aclError aclInit(const char *configPath);
            aclError aclFinalize(void);
            const char *aclGetRecentErrMsg(void);
            """,
        ),
    ),
    Header(
        "aclnn/acl_meta.h",
        ('"../acl/acl_base.h"',),
        (
            "typedef int32_t aclnnStatus;",
            "typedef struct aclTensor aclTensor;",
            "typedef struct aclBoolArray aclBoolArray;",
            "typedef struct aclOpExecutor aclOpExecutor;",
            _defines(aclnnStatus),
        ),
        _functions(
            "nnopbase",
            "aclnn",
            """
            aclTensor *aclCreateTensor(const int64_t *viewDims, uint64_t viewDimsNum,
                                       aclDataType dataType, const int64_t *stride, int64_t offset,
                                       aclFormat format, const int64_t *storageDims,
                                       uint64_t storageDimsNum, void *tensorData);
            aclBoolArray *aclCreateBoolArray(const bool *value, uint64_t size);
            aclnnStatus aclDestroyTensor(const aclTensor *tensor);
            aclnnStatus aclDestroyBoolArray(const aclBoolArray *array);
            aclnnStatus aclGetViewShape(const aclTensor *tensor, int64_t **viewDims,
                                        uint64_t *viewDimsNum);
            aclnnStatus aclGetViewStrides(const aclTensor *tensor, int64_t **stridesValue,
                                          uint64_t *stridesNum);
            aclnnStatus aclGetDataType(const aclTensor *tensor, aclDataType *dataType);
            aclnnStatus aclGetFormat(const aclTensor *tensor, aclFormat *format);
            """,
        ),
    ),
    Header(
        "aclnn/aclnn_base.h",
        ('"acl_meta.h"', '"../acl/acl_rt.h"'),
        (),
        _functions(
            "nnopbase",
            "aclnn",
            """
            aclnnStatus aclSetAclOpExecutorRepeatable(aclOpExecutor *executor);
            aclnnStatus aclDestroyAclOpExecutor(aclOpExecutor *executor);
            """,
        ),
    ),
    Header(
        "aclnnop/aclnn_batch_norm_backward.h",
        ('"../aclnn/aclnn_base.h"',),
        (),
        _functions(
            "opapi",
            "aclnn",
            """
            aclnnStatus aclnnBatchNormBackwardGetWorkspaceSize(const aclTensor *gradOut,
                const aclTensor *input, const aclTensor *weight, const aclTensor *runningMean,
                const aclTensor *runningVar, const aclTensor *saveMean,
                const aclTensor *saveInvstd, bool training, double eps,
                const aclBoolArray *outputMask, aclTensor *gradInput, aclTensor *gradWeight,
                aclTensor *gradBias, uint64_t *workspaceSize, aclOpExecutor **executor);
            aclnnStatus aclnnBatchNormBackward(void *workspace, uint64_t workspaceSize,
                aclOpExecutor *executor, aclrtStream stream);
            """,
        ),
    ),
    Header(
        "aclnnop/aclnn_batch_norm_elemt_backward.h",
        ('"../aclnn/aclnn_base.h"',),
        (),
        _functions(
            "opapi",
            "aclnn",
            """
            aclnnStatus aclnnBatchNormElemtBackwardGetWorkspaceSize(const aclTensor *gradOut,
                const aclTensor *input, const aclTensor *mean, const aclTensor *invstd,
                const aclTensor *weight, const aclTensor *sumDy, const aclTensor *sumDyXmu,
                aclTensor *counter, aclTensor *gradInput, uint64_t *workspaceSize,
                aclOpExecutor **executor);
            aclnnStatus aclnnBatchNormElemtBackward(void *workspace, uint64_t workspaceSize,
                aclOpExecutor *executor, aclrtStream stream);
            """,
        ),
    ),
    Header(
        "aclnnop/aclnn_batch_norm_backward_reduce.h",
        ('"../aclnn/aclnn_base.h"',),
        (),
        _functions(
            "opapi",
            "aclnn",
            """
            aclnnStatus aclnnBatchNormReduceBackwardGetWorkspaceSize(const aclTensor *gradOut,
                const aclTensor *input, const aclTensor *mean, const aclTensor *invstd,
                const aclTensor *weight, bool inputG, bool weightG, bool biasG, aclTensor *sumDy,
                aclTensor *sumDyXmu, aclTensor *gradWeight, aclTensor *gradBias,
                uint64_t *workspaceSize, aclOpExecutor **executor);
            aclnnStatus aclnnBatchNormReduceBackward(void *workspace, uint64_t workspaceSize,
                aclOpExecutor *executor, aclrtStream stream);
            """,
        ),
    ),
    Header(
        "aclnnop/aclnn_group_norm_backward.h",
        ('"../aclnn/aclnn_base.h"',),
        (),
        _functions(
            "opapi",
            "aclnn",
            """
            aclnnStatus aclnnGroupNormBackwardGetWorkspaceSize(const aclTensor *gradOut,
                const aclTensor *input, const aclTensor *mean, const aclTensor *rstd,
                const aclTensor *gamma, int64_t N, int64_t C, int64_t HxW, int64_t group,
                const aclBoolArray *outputMask, aclTensor *gradInput, aclTensor *gradGammaOut,
                aclTensor *gradBetaOut, uint64_t *workspaceSize, aclOpExecutor **executor);
            aclnnStatus aclnnGroupNormBackward(void *workspace, uint64_t workspaceSize,
                aclOpExecutor *executor, aclrtStream stream);
            """,
        ),
    ),
    Header(
        "infinicore.h",
        ("<stddef.h>", "<stdint.h>"),
        (
            infiniStatus_t,
            infiniDevice_t,
            f"#define INFINI_DEVICE_TYPE_COUNT {len(infiniDevice_t)}",
            infiniDtype_t,
        ),
    ),
    Header(
        "infinirt.h",
        ('"infinicore.h"',),
        (
            "typedef void *infinirtStream_t;",
            "typedef void *infinirtEvent_t;",
            infinirtMemcpyKind_t,
        ),
        _functions(
            "infinirt",
            "infini",
            """
            infiniStatus_t infinirtInit(void);
            infiniStatus_t infinirtGetAllDeviceCount(int *count_array);
            infiniStatus_t infinirtGetDeviceCount(infiniDevice_t device, int *count);
            infiniStatus_t infinirtSetDevice(infiniDevice_t device, int device_id);
            infiniStatus_t infinirtGetDevice(infiniDevice_t *device_ptr, int *device_id_ptr);
            infiniStatus_t infinirtDeviceSynchronize(void);

            infiniStatus_t infinirtStreamCreate(infinirtStream_t *stream_ptr);
            infiniStatus_t infinirtStreamDestroy(infinirtStream_t stream);
            infiniStatus_t infinirtStreamSynchronize(infinirtStream_t stream);
            infiniStatus_t infinirtStreamWaitEvent(infinirtStream_t stream, infinirtEvent_t event);

            infiniStatus_t infinirtEventCreate(infinirtEvent_t *event_ptr);
            infiniStatus_t infinirtEventRecord(infinirtEvent_t event, infinirtStream_t stream);
            infiniStatus_t infinirtEventSynchronize(infinirtEvent_t event);
            infiniStatus_t infinirtEventDestroy(infinirtEvent_t event);
            infiniStatus_t infinirtEventElapsedTime(float *ms_ptr, infinirtEvent_t start,
                                                    infinirtEvent_t end);

            infiniStatus_t infinirtMalloc(void **p_ptr, size_t size);
            infiniStatus_t infinirtMallocHost(void **p_ptr, size_t size);
            infiniStatus_t infinirtMallocAsync(void **p_ptr, size_t size, infinirtStream_t stream);
            infiniStatus_t infinirtFree(void *ptr);
            infiniStatus_t infinirtFreeHost(void *ptr);
            infiniStatus_t infinirtFreeAsync(void *ptr, infinirtStream_t stream);
            infiniStatus_t infinirtMemcpy(void *dst, const void *src, size_t size,
                                          infinirtMemcpyKind_t kind);
            infiniStatus_t infinirtMemcpyAsync(void *dst, const void *src, size_t size,
                                               infinirtMemcpyKind_t kind, infinirtStream_t stream);
            infiniStatus_t infinirtMemset(void *ptr, int value, size_t count);
            infiniStatus_t infinirtMemsetAsync(void *ptr, int value, size_t count,
                                               infinirtStream_t stream);
            """,
        ),
    ),
    Header(
        "infiniop/handle.h",
        ('"../infinicore.h"',),
        ("typedef struct InfiniopHandle *infiniopHandle_t;",),
        _functions(
            "infiniop",
            "infini",
            """
            infiniStatus_t infiniopCreateHandle(infiniopHandle_t *handle_ptr);
            infiniStatus_t infiniopDestroyHandle(infiniopHandle_t handle);
            """,
        ),
    ),
    Header(
        "infiniop/tensor_descriptor.h",
        ('"../infinicore.h"',),
        ("typedef struct InfiniopTensorDescriptor *infiniopTensorDescriptor_t;",),
        _functions(
            "infiniop",
            "infini",
            """
            infiniStatus_t infiniopCreateTensorDescriptor(infiniopTensorDescriptor_t *desc_ptr,
                size_t ndim, const size_t *shape, const ptrdiff_t *strides, infiniDtype_t dtype);
            infiniStatus_t infiniopDestroyTensorDescriptor(infiniopTensorDescriptor_t desc);
            """,
        ),
    ),
    Header(
        "infiniop/operator_descriptor.h",
        ('"handle.h"', '"tensor_descriptor.h"'),
        ("struct InfiniopDescriptor;",),
        _functions(
            "infiniop",
            "infini",
            """
            infiniStatus_t infiniopGetDescriptorDeviceType(
                const struct InfiniopDescriptor *desc_ptr, infiniDevice_t *device_type);
            infiniStatus_t infiniopGetDescriptorDeviceId(
                const struct InfiniopDescriptor *desc_ptr, int *device_id);
            """,
        ),
    ),
    Header(
        "infiniop/ops/batch_norm_backward.h",
        ('"../operator_descriptor.h"',),
        ("typedef struct InfiniopDescriptor *infiniopBatchNormBackwardDescriptor_t;",),
        _functions(
            "infiniop",
            "infini",
            """
            infiniStatus_t infiniopCreateBatchNormBackwardDescriptor(infiniopHandle_t handle,
                infiniopBatchNormBackwardDescriptor_t *desc_ptr,
                infiniopTensorDescriptor_t grad_input, infiniopTensorDescriptor_t grad_weight,
                infiniopTensorDescriptor_t grad_bias, infiniopTensorDescriptor_t input,
                infiniopTensorDescriptor_t grad_output, infiniopTensorDescriptor_t weight,
                infiniopTensorDescriptor_t running_mean, infiniopTensorDescriptor_t running_var);
            infiniStatus_t infiniopGetBatchNormBackwardWorkspaceSize(
                infiniopBatchNormBackwardDescriptor_t desc, size_t *size);
            infiniStatus_t infiniopBatchNormBackward(infiniopBatchNormBackwardDescriptor_t desc,
                void *workspace, size_t workspace_size, void *grad_input, void *grad_weight,
                void *grad_bias, const void *input, const void *grad_output, const void *weight,
                const void *running_mean, const void *running_var, void *stream);
            infiniStatus_t infiniopDestroyBatchNormBackwardDescriptor(
                infiniopBatchNormBackwardDescriptor_t desc);
            """,
        ),
    ),
    Header(
        "infiniop.h",
        ('"infiniop/handle.h"', '"infiniop/ops/batch_norm_backward.h"',
         '"infiniop/tensor_descriptor.h"'),
    ),
)  # fmt: skip


@dataclass(frozen=True)
class Dialect:
    """What belongs together on a host program's link line."""

    name: str
    description: str
    libraries: tuple[str, ...]


DIALECTS = (
    Dialect("acl", "CANN's aclnn calls, on the CPU", ("opapi", "nnopbase", "ascendcl")),
    Dialect("infini", "InfiniCore's infiniop calls, on the CPU", ("infiniop", "infinirt")),
)


@cache
def functions_of(library: str) -> tuple[Function, ...]:
    """What a library exports, in the order of its table."""
    return tuple(each for header in HEADERS for each in header.functions if each.library == library)


@cache
def digest() -> str:
    """A short text that changes with the list: a library and its Python side must agree on it."""
    prototypes = "\n".join(each.prototype for header in HEADERS for each in header.functions)
    return hashlib.sha256(prototypes.encode()).hexdigest()[:16]
