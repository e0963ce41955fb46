"""Enumerations of the runtimes' C interfaces that the dialects in Python do not need.

A table has the members' names without their common beginning. A name has the number that stands
before it, otherwise the number after that of the name before; the first one is 0.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import IntEnum, IntFlag
from typing import Any


def _members(prefix: str, table: str) -> dict[str, int]:
    members, number = {}, 0
    for word in table.split():
        if word[0].isdigit():
            number = int(word, 0)
        else:
            members[prefix + word] = number
            number += 1
    return members


def _enum(name: str, prefix: str, table: str, kind: Any = IntEnum) -> Any:
    return kind(name, _members(prefix, table))


#: The statuses in the documents of CANN's runtime, of which libascendcl returns some.
aclError = _enum(
    "aclError",
    "ACL_ERROR_",
    """
    0 NONE
    100000 INVALID_PARAM UNINITIALIZE REPEAT_INITIALIZE INVALID_FILE WRITE_FILE INVALID_FILE_SIZE
      PARSE_FILE FILE_MISSING_ATTR FILE_ATTR_INVALID INVALID_DUMP_CONFIG INVALID_PROFILING_CONFIG
      INVALID_MODEL_ID DESERIALIZE_MODEL PARSE_MODEL READ_MODEL_FAILURE MODEL_SIZE_INVALID
      MODEL_MISSING_ATTR MODEL_INPUT_NOT_MATCH MODEL_OUTPUT_NOT_MATCH MODEL_NOT_DYNAMIC
      OP_TYPE_NOT_MATCH OP_INPUT_NOT_MATCH OP_OUTPUT_NOT_MATCH OP_ATTR_NOT_MATCH OP_NOT_FOUND
      OP_LOAD_FAILED UNSUPPORTED_DATA_TYPE FORMAT_NOT_MATCH BIN_SELECTOR_NOT_REGISTERED
      KERNEL_NOT_FOUND BIN_SELECTOR_ALREADY_REGISTERED KERNEL_ALREADY_REGISTERED INVALID_QUEUE_ID
      REPEAT_SUBSCRIBE STREAM_NOT_SUBSCRIBE THREAD_NOT_SUBSCRIBE WAIT_CALLBACK_TIMEOUT
      REPEAT_FINALIZE
    107000 RT_PARAM_INVALID RT_INVALID_DEVICEID RT_CONTEXT_NULL RT_STREAM_CONTEXT RT_MODEL_CONTEXT
      RT_STREAM_MODEL RT_EVENT_TIMESTAMP_INVALID RT_EVENT_TIMESTAMP_REVERSAL RT_ADDR_UNALIGNED
      RT_FILE_OPEN RT_FILE_WRITE RT_STREAM_SUBSCRIBE RT_THREAD_SUBSCRIBE RT_GROUP_NOT_SET
      RT_GROUP_NOT_CREATE RT_STREAM_NO_CB_REG RT_INVALID_MEMORY_TYPE RT_INVALID_HANDLE
      RT_INVALID_MALLOC_TYPE RT_WAIT_TIMEOUT RT_TASK_TIMEOUT RT_SYSPARAMOPT_NOT_SET
      RT_DEVICE_TASK_ABORT RT_STREAM_ABORT
    200000 BAD_ALLOC API_NOT_SUPPORT INVALID_DEVICE MEMORY_ADDRESS_UNALIGNED RESOURCE_NOT_MATCH
      INVALID_RESOURCE_HANDLE FEATURE_UNSUPPORTED
    207000 RT_FEATURE_NOT_SUPPORT RT_MEMORY_ALLOCATION RT_MEMORY_FREE RT_AICORE_OVER_FLOW
      RT_NO_DEVICE RT_RESOURCE_ALLOC_FAIL RT_NO_PERMISSION RT_NO_EVENT_RESOURCE
      RT_NO_STREAM_RESOURCE RT_NO_NOTIFY_RESOURCE RT_NO_MODEL_RESOURCE RT_NO_CDQ_RESOURCE
      RT_OVER_LIMIT RT_QUEUE_EMPTY RT_QUEUE_FULL RT_REPEATED_INIT RT_AIVEC_OVER_FLOW RT_OVER_FLOW
      RT_DEVICE_OOM
    300000 STORAGE_OVER_LIMIT
    500000 INTERNAL_ERROR FAILURE GE_FAILURE RT_FAILURE DRV_FAILURE PROFILING_FAILURE
    507000 RT_INTERNAL_ERROR RT_TS_ERROR RT_STREAM_TASK_FULL RT_STREAM_TASK_EMPTY
      RT_STREAM_NOT_COMPLETE RT_END_OF_SEQUENCE RT_EVENT_NOT_COMPLETE
    507014 RT_AICORE_TIMEOUT RT_AICORE_EXCEPTION
    507046 RT_STREAM_SYNC_TIMEOUT RT_EVENT_SYNC_TIMEOUT
    507899 RT_DRV_INTERNAL_ERROR RT_AICPU_INTERNAL_ERROR
    """,
)

#: Further statuses in the documents of CANN's operators, which no function here returns.
OTHER_STATUSES = _members(
    "ACLNN_ERR_INNER_",
    """
    561001 INFERSHAPE_ERROR TILING_ERROR
    561101 CREATE_EXECUTOR NOT_TRANS_EXECUTOR
    561104 WRONG_ATTR_INFO_SIZE KEY_CONFLICT INVALID_IMPL_MODE OPP_PATH_NOT_FOUND LOAD_JSON_FAILED
      JSON_VALUE_NOT_FOUND JSON_FORMAT_INVALID JSON_DTYPE_INVALID OPP_KERNEL_PKG_NOT_FOUND
      OP_FILE_INVALID ATTR_NUM_OUT_OF_BOUND ATTR_LEN_NOT_ENOUGH
    """,
)

#: Whether the work before an event is done.
aclrtEventRecordedStatus = _enum(
    "aclrtEventRecordedStatus", "ACL_EVENT_RECORDED_STATUS_", "NOT_READY COMPLETE"
)

#: Whether an event is over.
aclrtEventStatus = _enum("aclrtEventStatus", "ACL_EVENT_STATUS_", "COMPLETE NOT_READY RESERVED")

#: Whether the work that waits for an event can go on.
aclrtEventWaitStatus = _enum(
    "aclrtEventWaitStatus", "ACL_EVENT_WAIT_STATUS_", "COMPLETE NOT_READY 0xFFFF RESERVED"
)

#: Whether a stream's work is done.
aclrtStreamStatus = _enum(
    "aclrtStreamStatus", "ACL_STREAM_STATUS_", "COMPLETE NOT_READY 0xFFFF RESERVED"
)

#: The possible uses of an event.
EventFlag = _enum(
    "EventFlag",
    "ACL_EVENT_",
    "1 SYNC CAPTURE_STREAM_PROGRESS 8 TIME_LINE 16 DEVICE_USE_ONLY 32 EXTERNAL",
    IntFlag,
)

#: The kinds of streams, which make no difference here.
StreamFlag = _enum(
    "StreamFlag",
    "ACL_STREAM_",
    "1 FAST_LAUNCH FAST_SYNC 4 PERSISTENT 8 HUGE 16 CPU_SCHEDULE 32 DEVICE_USE_ONLY",
    IntFlag,
)

#: The place where the host program runs.
aclrtRunMode = _enum("aclrtRunMode", "ACL_", "DEVICE HOST")

#: The sides, host or device, of a copy's source and destination.
aclrtMemcpyKind = _enum(
    "aclrtMemcpyKind",
    "ACL_MEMCPY_",
    """
    HOST_TO_HOST HOST_TO_DEVICE DEVICE_TO_HOST DEVICE_TO_DEVICE DEFAULT HOST_TO_BUF_TO_DEVICE
    INNER_DEVICE_TO_DEVICE INTER_DEVICE_TO_DEVICE
    """,
)

#: The kinds of pages and places for memory, which make no difference here.
aclrtMemMallocPolicy = _enum(
    "aclrtMemMallocPolicy",
    "ACL_MEM_",
    """
    MALLOC_HUGE_FIRST MALLOC_HUGE_ONLY MALLOC_NORMAL_ONLY MALLOC_HUGE_FIRST_P2P MALLOC_HUGE_ONLY_P2P
    MALLOC_NORMAL_ONLY_P2P MALLOC_HUGE1G_ONLY MALLOC_HUGE1G_ONLY_P2P
    0x100 TYPE_LOW_BAND_WIDTH 0x1000 TYPE_HIGH_BAND_WIDTH 0x100000 ACCESS_USER_SPACE_READONLY
    """,
)

#: Which granularity of physical memory a program asks for; there is one here.
aclrtMemGranularityOptions = _enum(
    "aclrtMemGranularityOptions",
    "ACL_RT_MEM_ALLOC_GRANULARITY_",
    "MINIMUM RECOMMENDED 0xFFFF UNDEF",
)

#: The kinds of device memory, which are all the machine's memory here.
aclrtMemAttr = _enum(
    "aclrtMemAttr",
    "ACL_",
    """
    DDR_MEM HBM_MEM DDR_MEM_HUGE DDR_MEM_NORMAL HBM_MEM_HUGE HBM_MEM_NORMAL DDR_MEM_P2P_HUGE
    DDR_MEM_P2P_NORMAL HBM_MEM_P2P_HUGE HBM_MEM_P2P_NORMAL HBM_MEM_HUGE1G HBM_MEM_P2P_HUGE1G
    """,
)

#: The options of a context.
aclSysParamOpt = _enum(
    "aclSysParamOpt", "ACL_OPT_", "DETERMINISTIC ENABLE_DEBUG_KERNEL STRONG_CONSISTENCY"
)

#: The statuses of HCCL's functions.
HcclResult = _enum(
    "HcclResult",
    "HCCL_",
    """
    SUCCESS E_PARA E_PTR E_MEMORY E_INTERNAL E_NOT_SUPPORT E_NOT_FOUND E_UNAVAIL E_SYSCALL E_TIMEOUT
    E_OPEN_FILE_FAILURE E_TCP_CONNECT E_ROCE_CONNECT E_TCP_TRANSFER E_ROCE_TRANSFER E_RUNTIME E_DRV
    E_PROFILING E_CCE E_NETWORK E_AGAIN E_REMOTE E_SUSPENDING
    """,
)

#: The operations of reductions.
HcclReduceOp = _enum("HcclReduceOp", "HCCL_REDUCE_", "SUM PROD MAX MIN 255 RESERVED")

#: The element types of collectives.
HcclDataType = _enum(
    "HcclDataType",
    "HCCL_DATA_TYPE_",
    "INT8 INT16 INT32 FP16 FP32 INT64 UINT64 UINT8 UINT16 UINT32 FP64 BFP16 255 RESERVED",
)

#: Whether the work before an event is done.
infinirtEventStatus_t = _enum("infinirtEventStatus_t", "INFINIRT_EVENT_", "COMPLETE NOT_READY")

#: The possible uses of an event.
infinirtEventFlags_t = _enum(
    "infinirtEventFlags_t", "INFINIRT_EVENT_", "1 DISABLE_TIMING BLOCKING_SYNC", IntFlag
)

#: The sides, host or device, of a copy's source and destination.
infinirtMemcpyKind_t = _enum("infinirtMemcpyKind_t", "INFINIRT_MEMCPY_", "H2H H2D D2H D2D")


def definition(kind: Any) -> str:
    """An enumeration in C; flags are macros."""
    if issubclass(kind, IntFlag):
        return defines(kind.__members__, "u")
    return typedef(kind.__name__, [f"{name}={value:d}" for name, value in kind.__members__.items()])


def typedef(name: str, values: Iterable[str]) -> str:
    """An enumeration in C, from texts NAME or NAME=VALUE."""
    lines = ",\n".join(f"    {value.replace('=', ' = ')}" for value in values)
    return f"typedef enum {name} {{\n{lines}\n}} {name};"


def defines(members: Mapping[str, int], suffix: str = "") -> str:
    """Macros in C; ``suffix`` follows each number."""
    return "\n".join(f"#define {name} {value:d}{suffix}" for name, value in members.items())
