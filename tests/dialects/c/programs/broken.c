// What a program sees whose Python cannot be started: statuses of the calls that ask it, and no harm
// to the others.
#include <stdio.h>
#include "acl/acl.h"
#include "aclnnop/aclnn_batch_norm_stats.h"
int main(void)
{
    uint64_t size;
    aclOpExecutor *executor;
    printf("%d ", aclInit(NULL));
    printf("%d ", aclnnBatchNormStatsGetWorkspaceSize(NULL, 0, NULL, NULL, &size, &executor));
    printf("%s\n", aclGetRecentErrMsg());
    return aclrtGetSocName() != NULL || aclDataTypeSize(ACL_FLOAT) != 4;
}
