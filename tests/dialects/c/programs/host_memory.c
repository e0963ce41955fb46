// Tensors over the program's own arrays.
#include <stdio.h>
#include "acl/acl.h"
#include "aclnnop/aclnn_batch_norm_backward.h"
int main(void)
{
    const int64_t shape[] = {1, 2, 4}, two[] = {2};
    float x[] = {0, 1, 2, 3, 4, 5, 6, 7}, dy[] = {1, 0, 0, 1, 0, 1, 1, 0}, dw[2], dx[8];
    static char workspace[4096];
    const bool mask[] = {true, true, false};
    aclOpExecutor *executor;
    uint64_t size;
    aclInit(NULL);
    aclrtSetDevice(0);
#define OVER(data) aclCreateTensor(shape, 3, ACL_FLOAT, NULL, 0, ACL_FORMAT_ND, shape, 3, data)
    int status = aclnnBatchNormBackwardGetWorkspaceSize(
        OVER(dy), OVER(x), NULL, NULL, NULL, NULL, NULL, true, 0, aclCreateBoolArray(mask, 3),
        OVER(dx), aclCreateTensor(two, 1, ACL_FLOAT, NULL, 0, ACL_FORMAT_ND, two, 1, dw),
        NULL, &size, &executor);
    if (status == 0)
        status = aclnnBatchNormBackward(workspace, sizeof workspace, executor, NULL);
    printf("%d %.4f %.4f %.4f\n", status, status ? 0 : dx[0], status ? 0 : dx[1],
           status ? 0 : dw[0]);
    return 0;
}
