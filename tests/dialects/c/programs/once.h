// One computation, for programs that are about something else.
#ifndef ONCE_H
#define ONCE_H

#include "acl/acl.h"
#include "aclnnop/aclnn_batch_norm_backward.h"

// The gradient of a (2, 3, 4) batch norm with respect to its input; 0, or the first failing status.
static inline int compute_once(float *result)
{
    const int64_t shape[] = {2, 3, 4};
    float values[2][24];
    void *data[4] = {0};
    aclTensor *tensors[3] = {0};
    int status = aclrtSetDevice(0); // of this thread
    for (int i = 0; i < 24; ++i) {
        values[0][i] = (float)(i * 5 % 9) - 4;
        values[1][i] = (float)(i * 7 % 11);
    }
    for (int i = 0; i < 3 && !status; ++i) {
        status = aclrtMalloc(&data[i], 96, ACL_MEM_MALLOC_HUGE_FIRST);
        if (!status && i < 2)
            status = aclrtMemcpy(data[i], 96, values[i], 96, ACL_MEMCPY_HOST_TO_DEVICE);
        tensors[i] = aclCreateTensor(shape, 3, ACL_FLOAT, NULL, 0, ACL_FORMAT_ND, shape, 3, data[i]);
    }
    const bool first[] = {true, false, false};
    aclBoolArray *mask = aclCreateBoolArray(first, 3);
    uint64_t size = 0;
    aclOpExecutor *executor = NULL;
    if (!status)
        status = aclnnBatchNormBackwardGetWorkspaceSize(tensors[0], tensors[1], NULL, NULL, NULL,
                                                        NULL, NULL, true, 1e-5, mask, tensors[2],
                                                        NULL, NULL, &size, &executor);
    if (!status)
        status = aclrtMalloc(&data[3], size, ACL_MEM_MALLOC_HUGE_FIRST);
    if (!status)
        status = aclnnBatchNormBackward(data[3], size, executor, NULL);
    if (!status)
        status = aclrtMemcpy(result, 96, data[2], 96, ACL_MEMCPY_DEVICE_TO_HOST);
    for (int i = 0; i < 3; ++i)
        aclDestroyTensor(tensors[i]);
    for (int i = 0; i < 4; ++i)
        if (data[i])
            aclrtFree(data[i]);
    aclDestroyBoolArray(mask);
    return status;
}

#endif
