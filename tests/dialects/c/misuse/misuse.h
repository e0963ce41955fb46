// What the programs share. Each prints a line "case | status | message" for each mistake it makes;
// the tests know what each has to be. None of them reaches a kernel.
#ifndef MISUSE_H
#define MISUSE_H

#include <stdio.h>
#include <stdlib.h>

#include "acl/acl.h"
#include "aclnnop/aclnn_batch_norm_backward.h"
#include "aclnnop/aclnn_group_norm_backward.h"

#include "../must.h"

#define SAY(name, call)                                                                            \
    do {                                                                                           \
        int status_ = (call);                                                                      \
        printf("%s | %d | %s\n", name, status_, status_ ? aclGetRecentErrMsg() : "");              \
    } while (0)

// For calls that return a pointer: null is a failure.
#define SAY_MADE(name, call)                                                                       \
    do {                                                                                           \
        const void *made_ = (call);                                                                \
        printf("%s | %s | %s\n", name, made_ ? "made" : "null", made_ ? "" : aclGetRecentErrMsg());\
    } while (0)

enum { BYTES = 8 * sizeof(float) };

static const int64_t SHAPE[] = {1, 2, 4}, CHANNELS[] = {2};

static inline void *block(size_t size)
{
    void *data = NULL;
    MUST(aclrtMalloc(&data, size, ACL_MEM_MALLOC_HUGE_FIRST));
    return data;
}

static inline aclTensor *over(void *data)
{
    return aclCreateTensor(SHAPE, 3, ACL_FLOAT, NULL, 0, ACL_FORMAT_ND, SHAPE, 3, data);
}

static inline aclTensor *vector_over(void *data)
{
    return aclCreateTensor(CHANNELS, 1, ACL_FLOAT, NULL, 0, ACL_FORMAT_ND, CHANNELS, 1, data);
}

// A call whose arguments are right until one is made wrong.
struct call {
    aclTensor *grad_out, *input, *weight, *grad_input, *grad_weight, *grad_bias;
    aclBoolArray *mask;
    void *data[6];
    uint64_t size;
    aclOpExecutor *executor;
};

static inline struct call good_call(void)
{
    static const bool all[] = {true, true, true};
    struct call it = {0};
    for (int i = 0; i < 6; ++i)
        it.data[i] = block(BYTES);
    it.grad_out = over(it.data[0]);
    it.input = over(it.data[1]);
    it.weight = vector_over(it.data[2]);
    it.grad_input = over(it.data[3]);
    it.grad_weight = vector_over(it.data[4]);
    it.grad_bias = vector_over(it.data[5]);
    it.mask = aclCreateBoolArray(all, 3);
    return it;
}

static inline int phase_1(struct call *it)
{
    return aclnnBatchNormBackwardGetWorkspaceSize(
        it->grad_out, it->input, it->weight, NULL, NULL, NULL, NULL, true, 1e-5, it->mask,
        it->grad_input, it->grad_weight, it->grad_bias, &it->size, &it->executor);
}

static inline int phase_2(struct call *it, void *workspace)
{
    return aclnnBatchNormBackward(workspace, it->size, it->executor, NULL);
}

static inline void start(void)
{
    setvbuf(stdout, NULL, _IOLBF, 0);
    MUST(aclInit(NULL));
    MUST(aclrtSetDevice(0));
}

#endif
