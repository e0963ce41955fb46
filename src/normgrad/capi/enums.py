"""Numbers of the runtimes that the dialects in Python have no use for."""

from __future__ import annotations

from enum import IntEnum


class aclError(IntEnum):
    """What the functions of libascendcl return."""

    ACL_SUCCESS = 0
    ACL_ERROR_INVALID_PARAM = 100000
    ACL_ERROR_UNINITIALIZE = 100001
    ACL_ERROR_REPEAT_INITIALIZE = 100002
    ACL_ERROR_RT_PARAM_INVALID = 107000
    ACL_ERROR_RT_MEMORY_ALLOCATION = 207001
    ACL_ERROR_INTERNAL_ERROR = 500000


class aclrtRunMode(IntEnum):
    """Where the host program runs."""

    ACL_DEVICE = 0
    ACL_HOST = 1


class aclrtMemcpyKind(IntEnum):
    """From where to where a copy goes."""

    ACL_MEMCPY_HOST_TO_HOST = 0
    ACL_MEMCPY_HOST_TO_DEVICE = 1
    ACL_MEMCPY_DEVICE_TO_HOST = 2
    ACL_MEMCPY_DEVICE_TO_DEVICE = 3


class aclrtMemMallocPolicy(IntEnum):
    """Which pages to take; here all are the same."""

    ACL_MEM_MALLOC_HUGE_FIRST = 0
    ACL_MEM_MALLOC_HUGE_ONLY = 1
    ACL_MEM_MALLOC_NORMAL_ONLY = 2


class aclrtMemAttr(IntEnum):
    """Kinds of device memory; here all are the machine's."""

    ACL_DDR_MEM = 0
    ACL_HBM_MEM = 1
    ACL_DDR_MEM_HUGE = 2
    ACL_DDR_MEM_NORMAL = 3
    ACL_HBM_MEM_HUGE = 4
    ACL_HBM_MEM_NORMAL = 5


class aclSysParamOpt(IntEnum):
    """Options of a context."""

    ACL_OPT_DETERMINISTIC = 0


class infinirtMemcpyKind_t(IntEnum):
    """From where to where a copy goes."""

    INFINIRT_MEMCPY_H2H = 0
    INFINIRT_MEMCPY_H2D = 1
    INFINIRT_MEMCPY_D2H = 2
    INFINIRT_MEMCPY_D2D = 3
