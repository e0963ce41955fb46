// Tensors that devices may refuse, and these libraries do not.
#include "../must.h"

#include "aclnn/acl_meta.h"

int main(void)
{
    const int64_t shape[] = {2, 4}, huge[] = {INT64_C(1) << 40, INT64_C(1) << 40};
    char *data;
    MUST(aclInit(NULL));
    MUST(aclrtSetDevice(0));
    MUST(aclrtMalloc((void **)&data, 64, ACL_MEM_MALLOC_HUGE_FIRST));
    for (int i = 0; i < 3; ++i)
        MUST(aclDestroyTensor(aclCreateTensor(shape, 2, ACL_FLOAT, NULL, 0, ACL_FORMAT_ND, shape, 2,
                                              data + 8 * (i > 0))));
    MUST(aclDestroyTensor(
        aclCreateTensor(huge, 2, ACL_FLOAT, NULL, 0, ACL_FORMAT_ND, huge, 2, data)));
    MUST(aclrtFree(data));
    MUST(aclrtResetDevice(0));
    MUST(aclFinalize());
    return 0;
}
