"""The list of the headers, types and functions that the C libraries export.

The headers for host programs, the C source of the libraries, and the ctypes callbacks that the
libraries jump to are all generated from this list.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cache
from importlib import resources

from ..aclnn import aclDataType, aclFormat, contracts, products
from ..aclnn.status import Status as aclnnStatus
from ..infiniop import INPUTS, OUTPUTS, infiniDevice_t, infiniDtype_t, infiniStatus_t
from ..rules import Contract, Parameter, Scalar
from . import enums
from .absent import ANY, Stub, absent
from .signatures import Function, Header

#: The C types of arguments that are not tensors, by the beginning of their texts in the contracts.
_SCALARS = {
    "bool": "bool ",
    "double": "double ",
    "int64": "int64_t ",
    "aclBoolArray": "const aclBoolArray *",
}


#: The inputs that are not constant, as in CANN's prototypes, and the outputs that are.
_NOT_CONSTANT = {products.ELEMT: ("counter",), products.FORWARD_ELEMT: ("mean", "invstd")}
_CONSTANT = {products.RMS_NORM: ("yOut", "rstdOut")}


def _argument(operator: str, row: Parameter | Scalar) -> str:
    if isinstance(row, Scalar):
        return _SCALARS[re.split(r"\W", row.text)[0]] + row.name
    is_variable = row.is_output or row.is_updated or row.name in _NOT_CONSTANT.get(operator, ())
    is_constant = not is_variable or row.name in _CONSTANT.get(operator, ())
    return f"{'const ' * is_constant}aclTensor *{row.name}"


def _operator_header(contract: Contract) -> Header:
    """An operator's header: phase 1 has the contract's arguments, phase 2 always the same ones."""
    words = re.sub("(?=[A-Z])", "_", contract.name).lower().removeprefix("aclnn")
    words = words.replace("_reduce_backward", "_backward_reduce")  # as CANN names that header
    arguments = ", ".join(_argument(contract.name, row) for row in contract.rows)
    return Header(
        f"aclnnop/aclnn{words}.h",
        ('"../aclnn/aclnn_base.h"',),
        (),
        "opapi",
        f"""
        aclnnStatus {contract.name}GetWorkspaceSize({arguments},
            uint64_t *workspaceSize, aclOpExecutor **executor);
        aclnnStatus {contract.name}(void *workspace, uint64_t workspaceSize,
            aclOpExecutor *executor, aclrtStream stream);
        """,
    )


def _each(kind: str, names: Iterable[str]) -> str:
    """A list of C arguments of the same type."""
    return ", ".join(kind + name for name in names)


#: The types of aclnn's handles.
_HANDLES = """
    aclTensor aclScalar aclIntArray aclFloatArray aclBoolArray aclTensorList aclScalarList
    aclOpExecutor
"""

#: The functions that return the text of a thread's last error, which are implemented in C alone.
RECENT_MESSAGES = ("aclGetRecentErrMsg", "normgradGetRecentErrMsg")


_PRESENT = (
    Header(
        "acl/acl_base.h",
        ("<stdbool.h>", "<stddef.h>", "<stdint.h>"),
        (
            ANY,
            "typedef int aclError;",
            "typedef uint16_t aclFloat16;",
            "typedef void *aclrtStream;",
            "typedef void *aclrtEvent;",
            "typedef void *aclrtContext;",
            enums.defines(enums.aclError),
            enums.other_statuses("ACL_ERROR_"),
            aclDataType,
            aclFormat,
        ),
        "ascendcl",
        """
        size_t aclDataTypeSize(aclDataType dataType);
        aclFloat16 aclFloatToFloat16(float value);
        float aclFloat16ToFloat(aclFloat16 value);
        """,
    ),
    Header(
        "acl/acl_rt.h",
        ('"acl_base.h"',),
        (
            enums.aclrtRunMode,
            enums.aclrtMemcpyKind,
            enums.aclrtMemMallocPolicy,
            enums.aclrtMemAttr,
            enums.aclrtMemGranularityOptions,
            enums.aclSysParamOpt,
            enums.aclrtEventRecordedStatus,
            enums.aclrtEventStatus,
            enums.aclrtEventWaitStatus,
            enums.aclrtStreamStatus,
            enums.defines(enums.EventFlag),
            enums.defines(enums.StreamFlag),
        ),
        "ascendcl",
        """
        aclError aclrtSetDevice(int32_t deviceId);
        aclError aclrtResetDevice(int32_t deviceId);
        aclError aclrtGetDevice(int32_t *deviceId);
        aclError aclrtGetDeviceCount(uint32_t *count);
        aclError aclrtGetRunMode(aclrtRunMode *runMode);
        const char *aclrtGetSocName(void);
        aclError aclrtDeviceCanAccessPeer(int32_t *canAccessPeer, int32_t deviceId,
                                          int32_t peerDeviceId);
        aclError aclrtDeviceEnablePeerAccess(int32_t peerDeviceId, uint32_t flags);
        aclError aclrtDeviceDisablePeerAccess(int32_t peerDeviceId);
        aclError aclrtGetMemInfo(aclrtMemAttr attr, size_t *free, size_t *total);
        aclError aclrtSynchronizeDevice(void);
        aclError aclrtSynchronizeDeviceWithTimeout(int32_t timeout);
        aclError aclrtCtxSetSysParamOpt(aclSysParamOpt opt, int64_t value);

        aclError aclrtCreateContext(aclrtContext *context, int32_t deviceId);
        aclError aclrtDestroyContext(aclrtContext context);
        aclError aclrtSetCurrentContext(aclrtContext context);
        aclError aclrtGetCurrentContext(aclrtContext *context);

        aclError aclrtCreateStream(aclrtStream *stream);
        aclError aclrtCreateStreamWithConfig(aclrtStream *stream, uint32_t priority,
                                             uint32_t flag);
        aclError aclrtDestroyStream(aclrtStream stream);
        aclError aclrtSynchronizeStream(aclrtStream stream);
        aclError aclrtSynchronizeStreamWithTimeout(aclrtStream stream, int32_t timeout);
        aclError aclrtStreamQuery(aclrtStream stream, aclrtStreamStatus *status);

        aclError aclrtSubscribeReport(uint64_t threadId, aclrtStream stream);
        aclError aclrtUnSubscribeReport(uint64_t threadId, aclrtStream stream);
        aclError aclrtLaunchCallback(aclrtCallback fn, void *userData,
                                     aclrtCallbackBlockType blockType, aclrtStream stream);
        aclError aclrtProcessReport(int32_t timeout);

        aclError aclrtCreateEvent(aclrtEvent *event);
        aclError aclrtCreateEventWithFlag(aclrtEvent *event, uint32_t flag);
        aclError aclrtDestroyEvent(aclrtEvent event);
        aclError aclrtRecordEvent(aclrtEvent event, aclrtStream stream);
        aclError aclrtResetEvent(aclrtEvent event, aclrtStream stream);
        aclError aclrtSynchronizeEvent(aclrtEvent event);
        aclError aclrtSynchronizeEventWithTimeout(aclrtEvent event, int32_t timeout);
        aclError aclrtStreamWaitEvent(aclrtStream stream, aclrtEvent event);
        aclError aclrtQueryEvent(aclrtEvent event, aclrtEventStatus *status);
        aclError aclrtQueryEventStatus(aclrtEvent event, aclrtEventRecordedStatus *status);
        aclError aclrtQueryEventWaitStatus(aclrtEvent event, aclrtEventWaitStatus *status);
        aclError aclrtEventElapsedTime(float *ms, aclrtEvent startEvent, aclrtEvent endEvent);

        aclError aclrtMalloc(void **devPtr, size_t size, aclrtMemMallocPolicy policy);
        aclError aclrtMallocAlign32(void **devPtr, size_t size, aclrtMemMallocPolicy policy);
        aclError aclrtFree(void *devPtr);
        aclError aclrtMemGetAllocationGranularity(aclrtPhysicalMemProp *prop,
                                                  aclrtMemGranularityOptions option,
                                                  size_t *granularity);
        aclError aclrtMallocPhysical(aclrtDrvMemHandle *handle, size_t size,
                                     const aclrtPhysicalMemProp *prop, uint64_t flags);
        aclError aclrtFreePhysical(aclrtDrvMemHandle handle);
        aclError aclrtReserveMemAddress(void **virPtr, size_t size, size_t alignment,
                                        void *expectPtr, uint64_t flags);
        aclError aclrtReleaseMemAddress(void *virPtr);
        aclError aclrtMapMem(void *virPtr, size_t size, size_t offset, aclrtDrvMemHandle handle,
                             uint64_t flags);
        aclError aclrtUnmapMem(void *virPtr);
        aclError aclrtMallocHost(void **hostPtr, size_t size);
        aclError aclrtFreeHost(void *hostPtr);
        aclError aclrtMemcpy(void *dst, size_t destMax, const void *src, size_t count,
                             aclrtMemcpyKind kind);
        aclError aclrtMemcpyAsync(void *dst, size_t destMax, const void *src, size_t count,
                                  aclrtMemcpyKind kind, aclrtStream stream);
        aclError aclrtMemcpy2d(void *dst, size_t dpitch, const void *src, size_t spitch,
                               size_t width, size_t height, aclrtMemcpyKind kind);
        aclError aclrtMemcpy2dAsync(void *dst, size_t dpitch, const void *src, size_t spitch,
                                    size_t width, size_t height, aclrtMemcpyKind kind,
                                    aclrtStream stream);
        aclError aclrtMemset(void *devPtr, size_t maxCount, int32_t value, size_t count);
        aclError aclrtMemsetAsync(void *devPtr, size_t maxCount, int32_t value, size_t count,
                                  aclrtStream stream);
        """,
    ),
    Header(
        "acl/acl.h",
        ('"acl_base.h"', '"acl_rt.h"', '"acl_op.h"', '"acl_mdl.h"'),
        (),
        "ascendcl",
        """
        aclError aclInit(const char *configPath);
        aclError aclFinalize(void);
        const char *aclGetRecentErrMsg(void);
        aclError aclrtGetVersion(int32_t *majorVersion, int32_t *minorVersion,
                                 int32_t *patchVersion);
        """,
    ),
    Header(
        "aclnn/acl_meta.h",
        ('"../acl/acl_base.h"',),
        (
            "typedef int32_t aclnnStatus;",
            *(f"typedef struct {name} {name};" for name in _HANDLES.split()),
            enums.defines(aclnnStatus),
            enums.other_statuses("ACLNN_ERR_INNER_"),
        ),
        "nnopbase",
        """
        aclTensor *aclCreateTensor(const int64_t *viewDims, uint64_t viewDimsNum,
                                   aclDataType dataType, const int64_t *stride, int64_t offset,
                                   aclFormat format, const int64_t *storageDims,
                                   uint64_t storageDimsNum, void *tensorData);
        aclScalar *aclCreateScalar(void *value, aclDataType dataType);
        aclIntArray *aclCreateIntArray(const int64_t *value, uint64_t size);
        aclFloatArray *aclCreateFloatArray(const float *value, uint64_t size);
        aclBoolArray *aclCreateBoolArray(const bool *value, uint64_t size);
        aclTensorList *aclCreateTensorList(const aclTensor *const *value, uint64_t size);
        aclScalarList *aclCreateScalarList(const aclScalar *const *value, uint64_t size);
        aclnnStatus aclDestroyTensor(const aclTensor *tensor);
        aclnnStatus aclDestroyScalar(const aclScalar *scalar);
        aclnnStatus aclDestroyIntArray(const aclIntArray *array);
        aclnnStatus aclDestroyFloatArray(const aclFloatArray *array);
        aclnnStatus aclDestroyBoolArray(const aclBoolArray *array);
        aclnnStatus aclDestroyTensorList(const aclTensorList *array);
        aclnnStatus aclDestroyScalarList(const aclScalarList *array);
        aclnnStatus aclGetIntArraySize(const aclIntArray *array, uint64_t *size);
        aclnnStatus aclGetFloatArraySize(const aclFloatArray *array, uint64_t *size);
        aclnnStatus aclGetBoolArraySize(const aclBoolArray *array, uint64_t *size);
        aclnnStatus aclGetTensorListSize(const aclTensorList *tensorList, uint64_t *size);
        aclnnStatus aclGetScalarListSize(const aclScalarList *scalarList, uint64_t *size);
        aclnnStatus aclGetStorageShape(const aclTensor *tensor, int64_t **storageDims,
                                       uint64_t *storageDimsNum);
        aclnnStatus aclGetViewOffset(const aclTensor *tensor, int64_t *offset);
        aclnnStatus aclGetViewShape(const aclTensor *tensor, int64_t **viewDims,
                                    uint64_t *viewDimsNum);
        aclnnStatus aclGetViewStrides(const aclTensor *tensor, int64_t **stridesValue,
                                      uint64_t *stridesNum);
        aclnnStatus aclGetDataType(const aclTensor *tensor, aclDataType *dataType);
        aclnnStatus aclGetFormat(const aclTensor *tensor, aclFormat *format);
        """,
    ),
    Header(
        "aclnn/aclnn_base.h",
        ('"acl_meta.h"', '"../acl/acl_rt.h"'),
        ("#define AclSetTensorAddr aclSetTensorAddr",),
        "nnopbase",
        """
        aclnnStatus aclnnInit(const char *configPath);
        aclnnStatus aclnnFinalize(void);
        aclnnStatus aclSetTensorAddr(aclOpExecutor *executor, const size_t index,
                                     aclTensor *tensor, void *addr);
        aclnnStatus aclSetInputTensorAddr(aclOpExecutor *executor, const size_t irIndex,
                                          aclTensor *tensor, void *addr);
        aclnnStatus aclSetOutputTensorAddr(aclOpExecutor *executor, const size_t irIndex,
                                           aclTensor *tensor, void *addr);
        aclnnStatus aclSetAclOpExecutorRepeatable(aclOpExecutor *executor);
        aclnnStatus aclDestroyAclOpExecutor(aclOpExecutor *executor);
        """,
    ),
    Header(
        "hccl/hccl_types.h",
        ("<stdint.h>",),
        (
            "typedef void *HcclComm;",
            enums.HcclResult,
            enums.HcclReduceOp,
            enums.HcclDataType,
            "#define HCCL_ROOT_INFO_BYTES 4108",
            "typedef struct HcclRootInfoDef { char internal[HCCL_ROOT_INFO_BYTES]; } HcclRootInfo;",
        ),
    ),
    Header(
        "hccl/hccl.h",
        ('"hccl_types.h"', '"../acl/acl.h"'),
        (),
        "hccl",
        """
        HcclResult HcclGetRootInfo(HcclRootInfo *rootInfo);
        HcclResult HcclCommInitRootInfo(uint32_t nRanks, const HcclRootInfo *rootInfo,
                                        uint32_t rank, HcclComm *comm);
        HcclResult HcclCommDestroy(HcclComm comm);
        HcclResult HcclGetRankSize(HcclComm comm, uint32_t *rankSize);
        HcclResult HcclGetRankId(HcclComm comm, uint32_t *rank);
        HcclResult HcclAllReduce(void *sendBuf, void *recvBuf, uint64_t count,
                                 HcclDataType dataType, HcclReduceOp op, HcclComm comm,
                                 aclrtStream stream);
        HcclResult HcclAllGather(void *sendBuf, void *recvBuf, uint64_t sendCount,
                                 HcclDataType dataType, HcclComm comm, aclrtStream stream);
        HcclResult HcclBroadcast(void *buf, uint64_t count, HcclDataType dataType, uint32_t root,
                                 HcclComm comm, aclrtStream stream);
        HcclResult HcclBarrier(HcclComm comm, aclrtStream stream);
        const char *HcclGetErrorString(HcclResult code);
        """,
    ),
    *map(_operator_header, contracts.CONTRACTS.values()),
    Header(
        "infinicore.h",
        ("<stddef.h>", "<stdint.h>"),
        (
            ANY,
            infiniStatus_t,
            "typedef infiniStatus_t infiniopStatus_t;",
            infiniDevice_t,
            f"#define INFINI_DEVICE_TYPE_COUNT {len(infiniDevice_t)}",
            infiniDtype_t,
            "// This is normgrad's stand-in, which has a text for each error.\n"
            "#define NORMGRAD_CAPI 1",
        ),
        "infinirt",
        "const char *normgradGetRecentErrMsg(void);",
    ),
    Header(
        "infinirt.h",
        ('"infinicore.h"',),
        (
            "typedef void *infinirtStream_t;",
            "typedef void *infinirtEvent_t;",
            enums.infinirtMemcpyKind_t,
            enums.infinirtEventStatus_t,
            enums.defines(enums.infinirtEventFlags_t),
            "#define INFINIRT_EVENT_DEFAULT 0u",
        ),
        "infinirt",
        """
        infiniStatus_t infinirtInit(void);
        infiniStatus_t infinirtGetAllDeviceCount(int *count_array);
        infiniStatus_t infinirtGetDeviceCount(infiniDevice_t device, int *count);
        infiniStatus_t infinirtSetDevice(infiniDevice_t device, int device_id);
        infiniStatus_t infinirtGetDevice(infiniDevice_t *device_ptr, int *device_id_ptr);
        infiniStatus_t infinirtGetMemInfo(infiniDevice_t device, int device_id,
                                          size_t *free_bytes, size_t *total_bytes);
        infiniStatus_t infinirtDeviceSynchronize(void);

        infiniStatus_t infinirtStreamCreate(infinirtStream_t *stream_ptr);
        infiniStatus_t infinirtStreamDestroy(infinirtStream_t stream);
        infiniStatus_t infinirtStreamSynchronize(infinirtStream_t stream);
        infiniStatus_t infinirtStreamWaitEvent(infinirtStream_t stream, infinirtEvent_t event);

        infiniStatus_t infinirtEventCreate(infinirtEvent_t *event_ptr);
        infiniStatus_t infinirtEventCreateWithFlags(infinirtEvent_t *event_ptr,
                                                    uint32_t flags);
        infiniStatus_t infinirtEventQuery(infinirtEvent_t event,
                                          infinirtEventStatus_t *status_ptr);
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
    Header(
        "infiniop/handle.h",
        ('"../infinicore.h"',),
        ("typedef struct InfiniopHandle *infiniopHandle_t;",),
        "infiniop",
        """
        infiniStatus_t infiniopCreateHandle(infiniopHandle_t *handle_ptr);
        infiniStatus_t infiniopDestroyHandle(infiniopHandle_t handle);
        """,
    ),
    Header(
        "infiniop/tensor_descriptor.h",
        ('"../infinicore.h"',),
        ("typedef struct InfiniopTensorDescriptor *infiniopTensorDescriptor_t;",),
        "infiniop",
        """
        infiniStatus_t infiniopCreateTensorDescriptor(infiniopTensorDescriptor_t *desc_ptr,
            size_t ndim, const size_t *shape, const ptrdiff_t *strides, infiniDtype_t dtype);
        infiniStatus_t infiniopDestroyTensorDescriptor(infiniopTensorDescriptor_t desc);
        """,
    ),
    Header(
        "infiniop/operator_descriptor.h",
        ('"handle.h"', '"tensor_descriptor.h"'),
        ("struct InfiniopDescriptor;",),
        "infiniop",
        """
        infiniStatus_t infiniopGetDescriptorDeviceType(
            const struct InfiniopDescriptor *desc_ptr, infiniDevice_t *device_type);
        infiniStatus_t infiniopGetDescriptorDeviceId(
            const struct InfiniopDescriptor *desc_ptr, int *device_id);
        """,
    ),
    Header(
        "infiniop/ops/batch_norm_backward.h",
        ('"../operator_descriptor.h"',),
        ("typedef struct InfiniopDescriptor *infiniopBatchNormBackwardDescriptor_t;",),
        "infiniop",
        f"""
        infiniStatus_t infiniopCreateBatchNormBackwardDescriptor(infiniopHandle_t handle,
            infiniopBatchNormBackwardDescriptor_t *desc_ptr,
            {_each("infiniopTensorDescriptor_t ", (*OUTPUTS, *INPUTS))});
        infiniStatus_t infiniopGetBatchNormBackwardWorkspaceSize(
            infiniopBatchNormBackwardDescriptor_t desc, size_t *size);
        infiniStatus_t infiniopBatchNormBackward(infiniopBatchNormBackwardDescriptor_t desc,
            void *workspace, size_t workspace_size, {_each("void *", OUTPUTS)},
            {_each("const void *", INPUTS)}, void *stream);
        infiniStatus_t infiniopDestroyBatchNormBackwardDescriptor(
            infiniopBatchNormBackwardDescriptor_t desc);
        """,
    ),
    Header(
        "infiniop.h",
        ('"infiniop/handle.h"', '"infiniop/ops/batch_norm_backward.h"',
         '"infiniop/tensor_descriptor.h"',
         *(f'"{path}"' for path in absent() if path.startswith("infiniop/ops/"))),
        (),
        "infiniop",
    ),
)  # fmt: skip


def _with_absent(header: Header) -> Header:
    """The header with what it declares although that is absent."""
    found = absent().get(header.path)
    if found is None:
        return header
    return replace(header, types=(*header.types, *found.types), stubs=tuple(found.stubs))


HEADERS = (
    *map(_with_absent, _PRESENT),
    *(
        Header(path, each.includes, tuple(each.types), each.library, stubs=tuple(each.stubs))
        for path, each in absent().items()
        if path not in [header.path for header in _PRESENT]
    ),
)


@dataclass(frozen=True)
class Dialect:
    """The libraries that host programs of one dialect link with; each needs those after it."""

    name: str
    description: str
    libraries: tuple[str, ...]


DIALECTS = (
    Dialect("acl", "CANN's aclnn calls, on the CPU", ("opapi", "nnopbase", "hccl", "ascendcl")),
    Dialect("infini", "InfiniCore's infiniop calls, on the CPU", ("infiniop", "infinirt")),
)


@cache
def functions_of(library: str) -> tuple[Function, ...]:
    """The functions that a library exports, in the order of its table."""
    return tuple(each for header in HEADERS for each in header.functions if each.lib == library)


@cache
def stubs_of(library: str) -> tuple[Stub, ...]:
    """The functions that a library lacks, and has stubs of."""
    return tuple(each for header in HEADERS for each in header.stubs if header.library == library)


@cache
def digest() -> str:
    """A digest of this list and of the code that starts Python.

    A library and the Python package that it calls must agree on it.
    """
    text = "\n".join(each.prototype for header in HEADERS for each in header.functions)
    text += resources.files(__package__).joinpath("boot.c").read_text("utf-8")
    return hashlib.sha256(text.encode()).hexdigest()[:16]
