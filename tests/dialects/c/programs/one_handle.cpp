// The way of PyTorch's adapter: every function, of the runtime too, by dlsym from the handle of one
// library, and nothing linked: `one_handle LIBRARY`.
#include <dlfcn.h>

#include <cstdio>
#include <cstdlib>

#include "acl/acl.h"
#include "aclnnop/aclnn_batch_norm_backward.h"

static void *handle;

template <typename Function> static Function found(const char *name)
{
    void *address = dlsym(handle, name);
    if (!address) {
        std::printf("%s\n", dlerror());
        std::exit(1);
    }
    return reinterpret_cast<Function>(address);
}
#define DL(name) found<decltype(&name)>(#name)

int main(int, char **argv)
{
    handle = dlopen(argv[1], RTLD_LAZY | RTLD_LOCAL);
    if (!handle || DL(aclInit)(nullptr) || DL(aclrtSetDevice)(0))
        return 2;
    const int64_t shape[] = {1, 2, 2};
    const float values[2][4] = {{1, 2, 3, 5}, {1, 0, 0, 2}};
    float result[2] = {-1, -1};
    aclTensor *tensors[3];
    void *data[3];
    for (int i = 0; i < 3; ++i) {
        DL(aclrtMalloc)(&data[i], 16, ACL_MEM_MALLOC_HUGE_FIRST);
        if (i < 2)
            DL(aclrtMemcpy)(data[i], 16, values[i], 16, ACL_MEMCPY_HOST_TO_DEVICE);
        tensors[i] = DL(aclCreateTensor)(i < 2 ? shape : shape + 1, i < 2 ? 3 : 1, ACL_FLOAT, nullptr, 0,
                                         ACL_FORMAT_ND, shape, 3, data[i]);
    }
    const bool bias[] = {false, false, true};
    aclBoolArray *mask = DL(aclCreateBoolArray)(bias, 3);
    uint64_t size = 0;
    aclOpExecutor *executor = nullptr;
    int status = DL(aclnnBatchNormBackwardGetWorkspaceSize)(
        tensors[1], tensors[0], nullptr, nullptr, nullptr, nullptr, nullptr, true, 1e-5, mask, nullptr,
        nullptr, tensors[2], &size, &executor);
    void *workspace = nullptr;
    if (size)
        DL(aclrtMalloc)(&workspace, size, ACL_MEM_MALLOC_HUGE_FIRST);
    status += DL(aclnnBatchNormBackward)(workspace, size, executor, nullptr);
    status += DL(aclrtSynchronizeDevice)();
    DL(aclrtMemcpy)(result, 8, data[2], 8, ACL_MEMCPY_DEVICE_TO_HOST);
    std::printf("%d %g %g\n", status, double(result[0]), double(result[1]));
    return 0;
}
