// A program that frees and destroys in a static destructor, after it has reset the device and
// finalised, as libraries with pools do. `statics`: all of it; `statics some`: but for one block.
#include <cstdio>

#include "acl/acl.h"
#include "aclnn/acl_meta.h"

struct Pool {
    void *blocks[3] = {};
    aclTensor *tensor = nullptr;
    int kept = 0;

    ~Pool()
    {
        int failed = aclDestroyTensor(tensor);
        for (int i = kept; i < 3; ++i)
            failed += aclrtFree(blocks[i]);
        std::printf("%d\n", failed);
        if (!kept)
            std::printf("%d\n", aclrtFree(blocks[0]));
    }
};

static Pool pool;

int main(int argc, char **)
{
    pool.kept = argc > 1;
    const int64_t shape[] = {2};
    if (aclInit(nullptr) || aclrtSetDevice(0))
        return 2;
    for (void *&block : pool.blocks)
        aclrtMalloc(&block, 64, ACL_MEM_MALLOC_HUGE_FIRST);
    pool.tensor =
        aclCreateTensor(shape, 1, ACL_FLOAT, nullptr, 0, ACL_FORMAT_ND, shape, 1, pool.blocks[0]);
    return aclrtResetDevice(0) || aclFinalize();
}
