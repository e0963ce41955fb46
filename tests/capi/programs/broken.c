// What a program sees whose Python cannot be started.
#include <stdio.h>
#include "acl/acl.h"
#include "aclnnop/aclnn_batch_norm_backward.h"
int main(void)
{
    printf("%d ", aclInit(NULL));
    printf("%d ", aclnnBatchNormBackward(NULL, 0, NULL, NULL));
    printf("%d ", aclSetAclOpExecutorRepeatable(NULL));
    printf("%d ", aclCreateBoolArray(NULL, 0) == NULL);
    printf("%s\n", aclGetRecentErrMsg());
    return aclrtGetSocName() != NULL || aclDataTypeSize(ACL_FLOAT) != 0;
}
