// What the programs share: a call that must succeed, and tensors on the device.
#ifndef HOST_H
#define HOST_H

#include <stdio.h>
#include <stdlib.h>

#include "acl/acl.h"
#include "aclnn/aclnn_base.h"

// End the program if a call fails, with the reason.
#define MUST(call)                                                                                 \
    do {                                                                                           \
        int status_ = (call);                                                                      \
        if (status_ != 0) {                                                                        \
            fprintf(stderr, "%s:%d: %s = %d\n    %s\n", __FILE__, __LINE__, #call, status_,        \
                    aclGetRecentErrMsg());                                                         \
            exit(1);                                                                               \
        }                                                                                          \
    } while (0)

// A contiguous tensor, and the device memory that it lies in.
struct device_tensor {
    aclTensor *tensor;
    void *data;
    size_t size; // in bytes
};

static inline struct device_tensor make_tensor(const void *values, aclDataType type,
                                               const int64_t *shape, uint64_t axes)
{
    struct device_tensor made = {NULL, NULL, aclDataTypeSize(type)};
    for (uint64_t i = 0; i < axes; ++i)
        made.size *= (size_t)shape[i];
    MUST(aclrtMalloc(&made.data, made.size, ACL_MEM_MALLOC_HUGE_FIRST));
    if (values)
        MUST(aclrtMemcpy(made.data, made.size, values, made.size, ACL_MEMCPY_HOST_TO_DEVICE));
    made.tensor =
        aclCreateTensor(shape, axes, type, NULL, 0, ACL_FORMAT_ND, shape, axes, made.data);
    if (!made.tensor) {
        fprintf(stderr, "%s\n", aclGetRecentErrMsg());
        exit(1);
    }
    return made;
}

static inline void download(struct device_tensor from, void *values)
{
    MUST(aclrtMemcpy(values, from.size, from.data, from.size, ACL_MEMCPY_DEVICE_TO_HOST));
}

static inline void destroy_tensor(struct device_tensor made)
{
    MUST(aclDestroyTensor(made.tensor));
    MUST(aclrtFree(made.data));
}

// A workspace of the size that a phase 1 asked for; none for 0 bytes.
static inline void *make_workspace(uint64_t size)
{
    void *workspace = NULL;
    if (size > 0)
        MUST(aclrtMalloc(&workspace, size, ACL_MEM_MALLOC_HUGE_FIRST));
    return workspace;
}

static inline void start_device(aclrtStream *stream)
{
    MUST(aclInit(NULL));
    MUST(aclrtSetDevice(0));
    MUST(aclrtCreateStream(stream));
}

static inline void end_device(aclrtStream stream)
{
    MUST(aclrtDestroyStream(stream));
    MUST(aclrtResetDevice(0));
    MUST(aclFinalize());
}

#endif
