// Calls that fail, and things that are never destroyed or freed.
#include "acl/acl.h"
#include "aclnnop/aclnn_batch_norm_backward.h"
int main(void)
{
    const int64_t shape[] = {2, 3};
    const bool mask[] = {true, false, true};
    void *data;
    aclrtStream stream;
    aclInit(NULL);
    int right = 1;
    for (int i = 0; i < 3; ++i)
        right &= aclrtFree(NULL) == 107000;
    aclrtMalloc(&data, 24, ACL_MEM_MALLOC_HUGE_FIRST);
    aclrtCreateStream(&stream);
    aclCreateTensor(shape, 2, ACL_BF16, NULL, 0, ACL_FORMAT_NC, shape, 2, data);
    aclCreateBoolArray(mask, 3);
    aclFinalize();
    aclInit(NULL);
    aclrtMalloc(&data, 25, ACL_MEM_MALLOC_HUGE_FIRST);
    return !right; // without aclFinalize: reported all the same
}
