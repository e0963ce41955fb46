#ifndef NORMGRAD_HCCL_HCCL_H
#define NORMGRAD_HCCL_HCCL_H

#include "hccl_types.h"
#include "../acl/acl.h"
#include "../normgrad_absent.h"

#ifdef __cplusplus
extern "C" {
#endif

HcclResult HcclGetRootInfo(HcclRootInfo *rootInfo);
HcclResult HcclCommInitRootInfo(uint32_t nRanks, const HcclRootInfo *rootInfo, uint32_t rank,
    HcclComm *comm);
HcclResult HcclCommDestroy(HcclComm comm);
HcclResult HcclGetRankSize(HcclComm comm, uint32_t *rankSize);
HcclResult HcclGetRankId(HcclComm comm, uint32_t *rank);
HcclResult HcclAllReduce(void *sendBuf, void *recvBuf, uint64_t count, HcclDataType dataType,
    HcclReduceOp op, HcclComm comm, aclrtStream stream);
HcclResult HcclAllGather(void *sendBuf, void *recvBuf, uint64_t sendCount, HcclDataType dataType,
    HcclComm comm, aclrtStream stream);
HcclResult HcclBroadcast(void *buf, uint64_t count, HcclDataType dataType, uint32_t root, HcclComm
    comm, aclrtStream stream);
HcclResult HcclBarrier(HcclComm comm, aclrtStream stream);
const char *HcclGetErrorString(HcclResult code);

NORMGRAD_ABSENT(HcclResult, HcclCommInitClusterInfo)
NORMGRAD_ABSENT(HcclResult, HcclCommInitClusterInfoConfig)
NORMGRAD_ABSENT(HcclResult, HcclCreateSubCommConfig)
NORMGRAD_ABSENT(HcclResult, HcclCommInitRootInfoConfig) NORMGRAD_ABSENT(HcclResult, HcclSetConfig)
NORMGRAD_ABSENT(HcclResult, HcclGetConfig) NORMGRAD_ABSENT(HcclResult, HcclGetCommName)
NORMGRAD_ABSENT(HcclResult, HcclReduceScatter) NORMGRAD_ABSENT(HcclResult, HcclReduceScatterV)
NORMGRAD_ABSENT(HcclResult, HcclScatter) NORMGRAD_ABSENT(HcclResult, HcclAllGatherV)
NORMGRAD_ABSENT(HcclResult, HcclSend) NORMGRAD_ABSENT(HcclResult, HcclRecv)
NORMGRAD_ABSENT(HcclResult, HcclAlltoAllVC) NORMGRAD_ABSENT(HcclResult, HcclAlltoAllV)
NORMGRAD_ABSENT(HcclResult, HcclAlltoAll) NORMGRAD_ABSENT(HcclResult, HcclReduce)
NORMGRAD_ABSENT(HcclResult, HcclCommInitAll) NORMGRAD_ABSENT(HcclResult, HcclGetCommAsyncError)
NORMGRAD_ABSENT(HcclResult, HcclBatchSendRecv) NORMGRAD_ABSENT(HcclResult, HcclCommSuspend)
NORMGRAD_ABSENT(HcclResult, HcclCommResume) NORMGRAD_ABSENT(HcclResult, HcclCommSetMemoryRange)
NORMGRAD_ABSENT(HcclResult, HcclCommUnsetMemoryRange)
NORMGRAD_ABSENT(HcclResult, HcclCommActivateCommMemory)
NORMGRAD_ABSENT(HcclResult, HcclCommDeactivateCommMemory)
NORMGRAD_ABSENT(HcclResult, HcclCommWorkingDevNicSet) NORMGRAD_ABSENT(HcclResult, HcclGroupStart)
NORMGRAD_ABSENT(HcclResult, HcclGroupEnd) NORMGRAD_ABSENT(HcclResult, HcclSetCommConfig)
NORMGRAD_ABSENT(HcclResult, HcclGetCommConfig) NORMGRAD_ABSENT(HcclResult, HcclCommRegister)
NORMGRAD_ABSENT(HcclResult, HcclCommDeregister) NORMGRAD_ABSENT(HcclResult, HcclCommExchangeMem)
NORMGRAD_ABSENT_VALUE(uint32_t, HcclGetCommConfigCapability)

#ifdef __cplusplus
}
#endif

#endif
