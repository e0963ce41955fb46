// Calls that fail, and things that are never destroyed or freed.
#include "acl/acl.h"
#include "aclnnop/aclnn_batch_norm_backward.h"

__attribute__((noinline)) static void *make_tensor(void)
{
    const int64_t shape[] = {2, 3};
    void *data = NULL;
    aclrtMalloc(&data, 24, ACL_MEM_MALLOC_HUGE_FIRST);
    aclCreateTensor(shape, 2, ACL_BF16, NULL, 0, ACL_FORMAT_NC, shape, 2, data);
    return data;
}

int main(void)
{
    const bool mask[] = {true, false, true};
    void *data;
    aclrtStream stream;
    aclInit(NULL);
    aclrtSetDevice(0);
    int right = 1;
    for (int i = 0; i < 3; ++i)
        right &= aclrtFree((void *)0x10) == 107000;
    // What samples do, and what no report names.
    right &= aclrtFree(NULL) == 107000 && aclrtDestroyStream(NULL) == 107000;
    aclrtCreateStream(&stream);
    for (int i = 0; i < 3; ++i)
        right &= make_tensor() != NULL;
    aclCreateBoolArray(mask, 3);
    aclFinalize();
    aclInit(NULL);
    aclrtSetDevice(0);
    aclrtMalloc(&data, 25, ACL_MEM_MALLOC_HUGE_FIRST);
    return !right; // without aclFinalize: reported all the same
}
