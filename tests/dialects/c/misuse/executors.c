// Executors: null, made up, used, of another operator, destroyed.
#include "misuse.h"

int main(void)
{
    start();
    struct call it = good_call();
    SAY("phase 1 without a place for the executor",
        aclnnBatchNormBackwardGetWorkspaceSize(it.grad_out, it.input, it.weight, NULL, NULL, NULL,
                                               NULL, true, 1e-5, it.mask, it.grad_input,
                                               it.grad_weight, it.grad_bias, &it.size, NULL));
    SAY("phase 1 without a place for the size",
        aclnnBatchNormBackwardGetWorkspaceSize(it.grad_out, it.input, it.weight, NULL, NULL, NULL,
                                               NULL, true, 1e-5, it.mask, it.grad_input,
                                               it.grad_weight, it.grad_bias, NULL, &it.executor));
    MUST(phase_1(&it));
    void *workspace = it.size ? block(it.size) : NULL;

    SAY("executor null", aclnnBatchNormBackward(workspace, it.size, NULL, NULL));
    SAY("executor null, stream made up",
        aclnnBatchNormBackward(workspace, it.size, NULL, (aclrtStream)(uintptr_t)0x10));
    SAY("executor made up",
        aclnnBatchNormBackward(workspace, it.size, (aclOpExecutor *)(uintptr_t)0x1234, NULL));
    SAY("executor is a tensor",
        aclnnBatchNormBackward(workspace, it.size, (aclOpExecutor *)it.input, NULL));
    SAY("executor of another operator",
        aclnnGroupNormBackward(workspace, it.size, it.executor, NULL));
    SAY("stream made up",
        aclnnBatchNormBackward(workspace, it.size, it.executor, (aclrtStream)(uintptr_t)0x10));
    SAY("destroy executor", aclDestroyAclOpExecutor(it.executor));
    SAY("destroy executor twice", aclDestroyAclOpExecutor(it.executor));
    SAY("executor destroyed", phase_2(&it, workspace));
    SAY("repeatable null", aclSetAclOpExecutorRepeatable(NULL));
    SAY("repeatable destroyed", aclSetAclOpExecutorRepeatable(it.executor));

    // A call that computes nothing uses its executor up too.
    const bool none[] = {false, false, false};
    it.mask = aclCreateBoolArray(none, 3);
    MUST(phase_1(&it));
    printf("workspace for nothing %lu | 0 |\n", (unsigned long)it.size);
    SAY("executor once", phase_2(&it, NULL));
    SAY("executor twice", phase_2(&it, NULL));
    MUST(phase_1(&it));
    MUST(aclSetAclOpExecutorRepeatable(it.executor));
    SAY("repeatable once", phase_2(&it, NULL));
    SAY("repeatable twice", phase_2(&it, NULL));
    SAY("repeatable destroyed after use", aclDestroyAclOpExecutor(it.executor));
    SAY("repeatable after that", phase_2(&it, NULL));
    return 0;
}
