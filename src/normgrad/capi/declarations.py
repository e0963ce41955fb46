"""The list of the headers, types and functions that the C libraries export.

The headers for host programs, the C source of the libraries, and the ctypes callbacks that the
libraries jump to are all generated from this list. What the vendors' libraries have and these lack
comes from absent.txt: programs that use it compile and link, to stubs.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cache
from importlib import resources

from ..aclnn import Status as aclnnStatus
from ..aclnn import aclDataType, aclFormat, contracts, products
from ..infiniop import INPUTS, OUTPUTS, infiniDevice_t, infiniDtype_t, infiniStatus_t
from ..rules import Contract, Parameter, Scalar
from . import enums
from .signatures import Function, Header, status_type

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
    words = re.sub("(?=[A-Z])", "_", contract.name).lower().removeprefix("aclnn_")
    words = words.replace("_reduce_backward", "_backward_reduce")  # as CANN names that header
    arguments = ", ".join(_argument(contract.name, row) for row in contract.rows)
    prototypes = f"""
        {contract.name}GetWorkspaceSize({arguments}, uint64_t *workspaceSize,
            aclOpExecutor **executor);
        {contract.name}(void *workspace, uint64_t workspaceSize, aclOpExecutor *executor,
            aclrtStream stream);
        """
    library, path, include, _ = _OPERATORS["aclnn"]
    return Header(path.format(words), library, include, prototypes=prototypes)


def _each(kind: str, names: Iterable[str]) -> str:
    return ", ".join(kind + name for name in names)


#: The types of aclnn's handles.
_HANDLES = """
    aclTensor aclScalar aclIntArray aclFloatArray aclBoolArray aclTensorList aclScalarList
    aclOpExecutor
"""

#: The library of each dialect's operators, their headers, what these include, and the names of
#: each operator's functions.
_OPERATORS = {
    "aclnn": (
        "opapi", "aclnnop/aclnn_{}.h", "../aclnn/aclnn_base.h",
        ("aclnn{}GetWorkspaceSize", "aclnn{}"),
    ),
    "infiniop": (
        "infiniop", "infiniop/ops/{}.h", "../operator_descriptor.h",
        ("infiniopCreate{}Descriptor", "infiniopGet{}WorkspaceSize", "infiniop{}",
         "infiniopDestroy{}Descriptor"),
    ),
}  # fmt: skip

#: The parameters of a stub's declaration: any in C++ and in C23, unspecified in C before.
_ANY = """\
#ifndef NORMGRAD_ANY
#if defined(__cplusplus) || (defined(__STDC_VERSION__) && __STDC_VERSION__ > 201710L)
#define NORMGRAD_ANY ...
#else
#define NORMGRAD_ANY
#endif
#endif"""

#: The functions that return the text of a thread's last error, which are implemented in C alone.
RECENT_MESSAGES = ("aclGetRecentErrMsg", "normgradGetRecentErrMsg")


def _absent() -> dict[str, Header]:
    """The headers of absent.txt, by path, with what these libraries lack."""
    headers: dict[str, Header] = {}
    text = resources.files(__package__).joinpath("absent.txt").read_text("utf-8")
    for line in re.sub(r"\n +", " ", text).splitlines():  # a space continues the line before
        kind, _, rest = line.partition(" ")
        if kind in ("", "#"):
            continue
        if kind == "header":
            path, library, *includes = rest.split()
            header = headers[path] = Header(path, library, " ".join(includes))
        elif kind == "operators":
            dialect, _, lists = rest.partition(" ")
            library, path, include, functions = _OPERATORS[dialect]
            for each in lists.split(","):
                name, _, operators = each.strip().partition(": ")
                header = headers[path.format(name)] = Header(path.format(name), library, include)
                header.stubs += [
                    Function(library, status_type(library), function.format(operator))
                    for operator in operators.split()
                    for function in functions
                ]
        elif kind == "text":
            header.types.append(rest)
        elif kind in ("struct", "pointer"):
            typedef = "typedef struct {0} {0};" if kind == "struct" else "typedef void *{0};"
            header.types += map(typedef.format, rest.split())
        elif kind == "enum":
            name, *values = rest.split()
            header.types.append(enums.typedef(name, values))
        else:
            returns, _, names = line.partition(": ")
            header.stubs += [Function(header.library, returns, name) for name in names.split()]
    return headers


_ABSENT = _absent()

_PRESENT = (
    Header(
        "acl/acl_base.h", "ascendcl", "<stdbool.h> <stddef.h> <stdint.h>",
        [_ANY, "typedef int aclError;", "typedef uint16_t aclFloat16;",
         "typedef void *aclrtStream;", "typedef void *aclrtEvent;", "typedef void *aclrtContext;",
         "#define ACL_SUCCESS 0", enums.defines(enums.aclError.__members__),
         aclDataType, aclFormat],
        """
        size_t aclDataTypeSize(aclDataType dataType);
        aclFloat16 aclFloatToFloat16(float value);
        float aclFloat16ToFloat(aclFloat16 value);
        """,
    ),
    Header(
        "acl/acl_rt.h", "ascendcl", "acl_base.h",
        [enums.aclrtRunMode, enums.aclrtMemcpyKind, enums.aclrtMemMallocPolicy, enums.aclrtMemAttr,
         enums.aclrtMemGranularityOptions, enums.aclSysParamOpt, enums.aclrtEventRecordedStatus,
         enums.aclrtEventStatus, enums.aclrtEventWaitStatus, enums.aclrtStreamStatus,
         enums.EventFlag, enums.StreamFlag],
        """
        aclrtSetDevice(int32_t deviceId);
        aclrtResetDevice(int32_t deviceId);
        aclrtGetDevice(int32_t *deviceId);
        aclrtGetDeviceCount(uint32_t *count);
        aclrtGetRunMode(aclrtRunMode *runMode);
        const char *aclrtGetSocName(void);
        aclrtDeviceCanAccessPeer(int32_t *canAccessPeer, int32_t deviceId, int32_t peerDeviceId);
        aclrtDeviceEnablePeerAccess(int32_t peerDeviceId, uint32_t flags);
        aclrtDeviceDisablePeerAccess(int32_t peerDeviceId);
        aclrtGetMemInfo(aclrtMemAttr attr, size_t *free, size_t *total);
        aclrtSynchronizeDevice(void);
        aclrtSynchronizeDeviceWithTimeout(int32_t timeout);
        aclrtCtxSetSysParamOpt(aclSysParamOpt opt, int64_t value);

        aclrtCreateContext(aclrtContext *context, int32_t deviceId);
        aclrtDestroyContext(aclrtContext context);
        aclrtSetCurrentContext(aclrtContext context);
        aclrtGetCurrentContext(aclrtContext *context);

        aclrtCreateStream(aclrtStream *stream);
        aclrtCreateStreamWithConfig(aclrtStream *stream, uint32_t priority, uint32_t flag);
        aclrtDestroyStream(aclrtStream stream);
        aclrtSynchronizeStream(aclrtStream stream);
        aclrtSynchronizeStreamWithTimeout(aclrtStream stream, int32_t timeout);
        aclrtStreamQuery(aclrtStream stream, aclrtStreamStatus *status);

        aclrtSubscribeReport(uint64_t threadId, aclrtStream stream);
        aclrtUnSubscribeReport(uint64_t threadId, aclrtStream stream);
        aclrtLaunchCallback(aclrtCallback fn, void *userData, aclrtCallbackBlockType blockType,
            aclrtStream stream);
        aclrtProcessReport(int32_t timeout);

        aclrtCreateEvent(aclrtEvent *event);
        aclrtCreateEventWithFlag(aclrtEvent *event, uint32_t flag);
        aclrtDestroyEvent(aclrtEvent event);
        aclrtRecordEvent(aclrtEvent event, aclrtStream stream);
        aclrtResetEvent(aclrtEvent event, aclrtStream stream);
        aclrtSynchronizeEvent(aclrtEvent event);
        aclrtSynchronizeEventWithTimeout(aclrtEvent event, int32_t timeout);
        aclrtStreamWaitEvent(aclrtStream stream, aclrtEvent event);
        aclrtQueryEvent(aclrtEvent event, aclrtEventStatus *status);
        aclrtQueryEventStatus(aclrtEvent event, aclrtEventRecordedStatus *status);
        aclrtQueryEventWaitStatus(aclrtEvent event, aclrtEventWaitStatus *status);
        aclrtEventElapsedTime(float *ms, aclrtEvent startEvent, aclrtEvent endEvent);

        aclrtMalloc(void **devPtr, size_t size, aclrtMemMallocPolicy policy);
        aclrtMallocAlign32(void **devPtr, size_t size, aclrtMemMallocPolicy policy);
        aclrtFree(void *devPtr);
        aclrtMemGetAllocationGranularity(aclrtPhysicalMemProp *prop,
            aclrtMemGranularityOptions option, size_t *granularity);
        aclrtMallocPhysical(aclrtDrvMemHandle *handle, size_t size,
            const aclrtPhysicalMemProp *prop, uint64_t flags);
        aclrtFreePhysical(aclrtDrvMemHandle handle);
        aclrtReserveMemAddress(void **virPtr, size_t size, size_t alignment, void *expectPtr,
            uint64_t flags);
        aclrtReleaseMemAddress(void *virPtr);
        aclrtMapMem(void *virPtr, size_t size, size_t offset, aclrtDrvMemHandle handle,
            uint64_t flags);
        aclrtUnmapMem(void *virPtr);
        aclrtMallocHost(void **hostPtr, size_t size);
        aclrtFreeHost(void *hostPtr);
        aclrtMemcpy(void *dst, size_t destMax, const void *src, size_t count, aclrtMemcpyKind kind);
        aclrtMemcpyAsync(void *dst, size_t destMax, const void *src, size_t count,
            aclrtMemcpyKind kind, aclrtStream stream);
        aclrtMemcpy2d(void *dst, size_t dpitch, const void *src, size_t spitch, size_t width,
            size_t height, aclrtMemcpyKind kind);
        aclrtMemcpy2dAsync(void *dst, size_t dpitch, const void *src, size_t spitch, size_t width,
            size_t height, aclrtMemcpyKind kind, aclrtStream stream);
        aclrtMemset(void *devPtr, size_t maxCount, int32_t value, size_t count);
        aclrtMemsetAsync(void *devPtr, size_t maxCount, int32_t value, size_t count,
            aclrtStream stream);
        """,
    ),
    Header(
        "acl/acl.h", "ascendcl", "acl_base.h acl_rt.h acl_op.h acl_mdl.h",
        [],
        """
        aclInit(const char *configPath);
        aclFinalize(void);
        const char *aclGetRecentErrMsg(void);
        aclrtGetVersion(int32_t *majorVersion, int32_t *minorVersion, int32_t *patchVersion);
        """,
    ),
    Header(
        "aclnn/acl_meta.h", "nnopbase", "../acl/acl_base.h",
        ["typedef int32_t aclnnStatus;",
         *(f"typedef struct {name} {name};" for name in _HANDLES.split()),
         enums.defines({**aclnnStatus.__members__, **enums.OTHER_STATUSES})],
        """
        aclTensor *aclCreateTensor(const int64_t *viewDims, uint64_t viewDimsNum,
            aclDataType dataType, const int64_t *stride, int64_t offset, aclFormat format,
            const int64_t *storageDims, uint64_t storageDimsNum, void *tensorData);
        aclScalar *aclCreateScalar(void *value, aclDataType dataType);
        aclIntArray *aclCreateIntArray(const int64_t *value, uint64_t size);
        aclFloatArray *aclCreateFloatArray(const float *value, uint64_t size);
        aclBoolArray *aclCreateBoolArray(const bool *value, uint64_t size);
        aclTensorList *aclCreateTensorList(const aclTensor *const *value, uint64_t size);
        aclScalarList *aclCreateScalarList(const aclScalar *const *value, uint64_t size);
        aclDestroyTensor(const aclTensor *tensor);
        aclDestroyScalar(const aclScalar *scalar);
        aclDestroyIntArray(const aclIntArray *array);
        aclDestroyFloatArray(const aclFloatArray *array);
        aclDestroyBoolArray(const aclBoolArray *array);
        aclDestroyTensorList(const aclTensorList *array);
        aclDestroyScalarList(const aclScalarList *array);
        aclGetIntArraySize(const aclIntArray *array, uint64_t *size);
        aclGetFloatArraySize(const aclFloatArray *array, uint64_t *size);
        aclGetBoolArraySize(const aclBoolArray *array, uint64_t *size);
        aclGetTensorListSize(const aclTensorList *tensorList, uint64_t *size);
        aclGetScalarListSize(const aclScalarList *scalarList, uint64_t *size);
        aclGetStorageShape(const aclTensor *tensor, int64_t **storageDims,
            uint64_t *storageDimsNum);
        aclGetViewOffset(const aclTensor *tensor, int64_t *offset);
        aclGetViewShape(const aclTensor *tensor, int64_t **viewDims, uint64_t *viewDimsNum);
        aclGetViewStrides(const aclTensor *tensor, int64_t **stridesValue, uint64_t *stridesNum);
        aclGetDataType(const aclTensor *tensor, aclDataType *dataType);
        aclGetFormat(const aclTensor *tensor, aclFormat *format);
        """,
    ),
    Header(
        "aclnn/aclnn_base.h", "nnopbase", "acl_meta.h ../acl/acl_rt.h",
        ["#define AclSetTensorAddr aclSetTensorAddr"],
        """
        aclnnInit(const char *configPath);
        aclnnFinalize(void);
        aclSetTensorAddr(aclOpExecutor *executor, const size_t index, aclTensor *tensor,
            void *addr);
        aclSetInputTensorAddr(aclOpExecutor *executor, const size_t irIndex, aclTensor *tensor,
            void *addr);
        aclSetOutputTensorAddr(aclOpExecutor *executor, const size_t irIndex, aclTensor *tensor,
            void *addr);
        aclSetAclOpExecutorRepeatable(aclOpExecutor *executor);
        aclDestroyAclOpExecutor(aclOpExecutor *executor);
        """,
    ),
    Header(
        "hccl/hccl_types.h", "hccl", "<stdint.h>",
        ["typedef void *HcclComm;", enums.HcclResult, enums.HcclReduceOp, enums.HcclDataType,
         "#define HCCL_ROOT_INFO_BYTES 4108",
         "typedef struct HcclRootInfoDef { char internal[HCCL_ROOT_INFO_BYTES]; } HcclRootInfo;"],
    ),
    Header(
        "hccl/hccl.h", "hccl", "hccl_types.h ../acl/acl.h",
        [],
        """
        HcclGetRootInfo(HcclRootInfo *rootInfo);
        HcclCommInitRootInfo(uint32_t nRanks, const HcclRootInfo *rootInfo, uint32_t rank,
            HcclComm *comm);
        HcclCommDestroy(HcclComm comm);
        HcclGetRankSize(HcclComm comm, uint32_t *rankSize);
        HcclGetRankId(HcclComm comm, uint32_t *rank);
        HcclAllReduce(void *sendBuf, void *recvBuf, uint64_t count, HcclDataType dataType,
            HcclReduceOp op, HcclComm comm, aclrtStream stream);
        HcclAllGather(void *sendBuf, void *recvBuf, uint64_t sendCount, HcclDataType dataType,
            HcclComm comm, aclrtStream stream);
        HcclBroadcast(void *buf, uint64_t count, HcclDataType dataType, uint32_t root,
            HcclComm comm, aclrtStream stream);
        HcclBarrier(HcclComm comm, aclrtStream stream);
        const char *HcclGetErrorString(HcclResult code);
        """,
    ),
    *map(_operator_header, contracts.CONTRACTS.values()),
    Header(
        "infinicore.h", "infinirt", "<stddef.h> <stdint.h>",
        [_ANY, infiniStatus_t, "typedef infiniStatus_t infiniopStatus_t;", infiniDevice_t,
         f"#define INFINI_DEVICE_TYPE_COUNT {len(infiniDevice_t)}", infiniDtype_t,
         "// This is normgrad's stand-in, which has a text for each error.\n"
         "#define NORMGRAD_CAPI 1"],
        "const char *normgradGetRecentErrMsg(void);",
    ),
    Header(
        "infinirt.h", "infinirt", "infinicore.h",
        ["typedef void *infinirtStream_t;", "typedef void *infinirtEvent_t;",
         enums.infinirtMemcpyKind_t, enums.infinirtEventStatus_t,
         enums.infinirtEventFlags_t, "#define INFINIRT_EVENT_DEFAULT 0u"],
        """
        infinirtInit(void);
        infinirtGetAllDeviceCount(int *count_array);
        infinirtGetDeviceCount(infiniDevice_t device, int *count);
        infinirtSetDevice(infiniDevice_t device, int device_id);
        infinirtGetDevice(infiniDevice_t *device_ptr, int *device_id_ptr);
        infinirtGetMemInfo(infiniDevice_t device, int device_id, size_t *free_bytes,
            size_t *total_bytes);
        infinirtDeviceSynchronize(void);

        infinirtStreamCreate(infinirtStream_t *stream_ptr);
        infinirtStreamDestroy(infinirtStream_t stream);
        infinirtStreamSynchronize(infinirtStream_t stream);
        infinirtStreamWaitEvent(infinirtStream_t stream, infinirtEvent_t event);

        infinirtEventCreate(infinirtEvent_t *event_ptr);
        infinirtEventCreateWithFlags(infinirtEvent_t *event_ptr, uint32_t flags);
        infinirtEventQuery(infinirtEvent_t event, infinirtEventStatus_t *status_ptr);
        infinirtEventRecord(infinirtEvent_t event, infinirtStream_t stream);
        infinirtEventSynchronize(infinirtEvent_t event);
        infinirtEventDestroy(infinirtEvent_t event);
        infinirtEventElapsedTime(float *ms_ptr, infinirtEvent_t start, infinirtEvent_t end);

        infinirtMalloc(void **p_ptr, size_t size);
        infinirtMallocHost(void **p_ptr, size_t size);
        infinirtMallocAsync(void **p_ptr, size_t size, infinirtStream_t stream);
        infinirtFree(void *ptr);
        infinirtFreeHost(void *ptr);
        infinirtFreeAsync(void *ptr, infinirtStream_t stream);
        infinirtMemcpy(void *dst, const void *src, size_t size, infinirtMemcpyKind_t kind);
        infinirtMemcpyAsync(void *dst, const void *src, size_t size, infinirtMemcpyKind_t kind,
            infinirtStream_t stream);
        infinirtMemset(void *ptr, int value, size_t count);
        infinirtMemsetAsync(void *ptr, int value, size_t count, infinirtStream_t stream);
        """,
    ),
    Header(
        "infiniop/handle.h", "infiniop", "../infinicore.h",
        ["typedef struct InfiniopHandle *infiniopHandle_t;"],
        """
        infiniopCreateHandle(infiniopHandle_t *handle_ptr);
        infiniopDestroyHandle(infiniopHandle_t handle);
        """,
    ),
    Header(
        "infiniop/tensor_descriptor.h", "infiniop", "../infinicore.h",
        ["typedef struct InfiniopTensorDescriptor *infiniopTensorDescriptor_t;"],
        """
        infiniopCreateTensorDescriptor(infiniopTensorDescriptor_t *desc_ptr, size_t ndim,
            const size_t *shape, const ptrdiff_t *strides, infiniDtype_t dtype);
        infiniopDestroyTensorDescriptor(infiniopTensorDescriptor_t desc);
        """,
    ),
    Header(
        "infiniop/operator_descriptor.h", "infiniop", "handle.h tensor_descriptor.h",
        ["struct InfiniopDescriptor;"],
        """
        infiniopGetDescriptorDeviceType(const struct InfiniopDescriptor *desc_ptr,
            infiniDevice_t *device_type);
        infiniopGetDescriptorDeviceId(const struct InfiniopDescriptor *desc_ptr, int *device_id);
        """,
    ),
    Header(
        "infiniop/ops/batch_norm_backward.h", "infiniop", "../operator_descriptor.h",
        ["typedef struct InfiniopDescriptor *infiniopBatchNormBackwardDescriptor_t;"],
        f"""
        infiniopCreateBatchNormBackwardDescriptor(infiniopHandle_t handle,
            infiniopBatchNormBackwardDescriptor_t *desc_ptr,
            {_each("infiniopTensorDescriptor_t ", (*OUTPUTS, *INPUTS))});
        infiniopGetBatchNormBackwardWorkspaceSize(infiniopBatchNormBackwardDescriptor_t desc,
            size_t *size);
        infiniopBatchNormBackward(infiniopBatchNormBackwardDescriptor_t desc, void *workspace,
            size_t workspace_size, {_each("void *", OUTPUTS)},
            {_each("const void *", INPUTS)}, void *stream);
        infiniopDestroyBatchNormBackwardDescriptor(infiniopBatchNormBackwardDescriptor_t desc);
        """,
    ),
    Header(
        "infiniop.h", "infiniop",
        " ".join(["infiniop/handle.h", "infiniop/ops/batch_norm_backward.h",
                  "infiniop/tensor_descriptor.h",
                  *(path for path in _ABSENT if path.startswith("infiniop/ops/"))]),
    ),
)  # fmt: skip


def _with_absent(header: Header) -> Header:
    """The header with what it declares although that is absent."""
    absent = _ABSENT.pop(header.path, None)
    if absent is None:
        return header
    return replace(header, types=[*header.types, *absent.types], stubs=absent.stubs)


HEADERS = (*map(_with_absent, _PRESENT), *_ABSENT.values())


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
    return tuple(function for header in _of(library) for function in header.functions)


@cache
def stubs_of(library: str) -> tuple[Function, ...]:
    """The functions that a library lacks, and has stubs of."""
    return tuple(stub for header in _of(library) for stub in header.stubs)


def _of(library: str) -> list[Header]:
    return [header for header in HEADERS if header.library == library]


@cache
def digest() -> str:
    """A digest of this list and of the code that starts Python.

    A library and the Python package that it calls must agree on it.
    """
    text = "\n".join(each.prototype for header in HEADERS for each in header.functions)
    text += resources.files(__package__).joinpath("boot.c").read_text("utf-8")
    return hashlib.sha256(text.encode()).hexdigest()[:16]
