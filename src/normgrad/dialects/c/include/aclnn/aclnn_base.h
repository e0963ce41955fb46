#include "acl_meta.h"
#include "../acl/acl_rt.h"

#define AclSetTensorAddr aclSetTensorAddr

aclnnStatus aclnnInit(const char *configPath);
aclnnStatus aclnnFinalize(void);
aclnnStatus aclSetTensorAddr(aclOpExecutor *executor, const size_t index, aclTensor *tensor, void
    *addr);
aclnnStatus aclSetInputTensorAddr(aclOpExecutor *executor, const size_t irIndex, aclTensor *tensor,
    void *addr);
aclnnStatus aclSetOutputTensorAddr(aclOpExecutor *executor, const size_t irIndex, aclTensor *tensor,
    void *addr);
aclnnStatus AclSetInputTensorAddr(aclOpExecutor *executor, const size_t irIndex, aclTensor *tensor,
    void *addr);
aclnnStatus AclSetOutputTensorAddr(aclOpExecutor *executor, const size_t irIndex, aclTensor *tensor,
    void *addr);
aclnnStatus aclSetDynamicTensorAddr(aclOpExecutor *executor, const size_t irIndex,
    const size_t relativeIndex, aclTensorList *tensors, void *addr);
aclnnStatus aclSetDynamicInputTensorAddr(aclOpExecutor *executor, const size_t irIndex,
    const size_t relativeIndex, aclTensorList *tensors, void *addr);
aclnnStatus aclSetDynamicOutputTensorAddr(aclOpExecutor *executor, const size_t irIndex,
    const size_t relativeIndex, aclTensorList *tensors, void *addr);
aclnnStatus aclSetAclOpExecutorRepeatable(aclOpExecutor *executor);
aclnnStatus aclDestroyAclOpExecutor(aclOpExecutor *executor);
