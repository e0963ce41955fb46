// What programs on streams share: three tensors on the device, two streams, an event, and a launch.
#ifndef RACES_H
#define RACES_H

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "acl/acl.h"
#include "aclnnop/aclnn_batch_norm_backward.h"

#include "../must.h"

enum { COUNT = 24, BYTES = COUNT * 4 };

static aclrtStream one, two;
static aclrtEvent event;
static float values[2][COUNT], result[COUNT];
static void *data[3], *workspace;
static aclTensor *tensors[3];
static uint64_t size;

static void begin(const char *name)
{
    fprintf(stderr, "case: %s\n", name);
    MUST(aclrtCreateStream(&one));
    MUST(aclrtCreateStream(&two));
    MUST(aclrtCreateEvent(&event));
    const int64_t shape[] = {2, 3, 4};
    for (int i = 0; i < 3; ++i) {
        MUST(aclrtMalloc(&data[i], BYTES, ACL_MEM_MALLOC_HUGE_FIRST));
        if (i < 2)
            MUST(aclrtMemcpy(data[i], BYTES, values[i], BYTES, ACL_MEMCPY_HOST_TO_DEVICE));
        tensors[i] = aclCreateTensor(shape, 3, ACL_FLOAT, NULL, 0, ACL_FORMAT_ND, shape, 3, data[i]);
    }
}

// gradInput of gradOut and input, on a stream.
static void launch(aclrtStream stream)
{
    const bool first[] = {true, false, false};
    aclBoolArray *mask = aclCreateBoolArray(first, 3);
    aclOpExecutor *executor;
    MUST(aclnnBatchNormBackwardGetWorkspaceSize(tensors[0], tensors[1], NULL, NULL, NULL, NULL, NULL,
                                                true, 1e-5, mask, tensors[2], NULL, NULL, &size,
                                                &executor));
    if (!workspace)
        MUST(aclrtMalloc(&workspace, size, ACL_MEM_MALLOC_HUGE_FIRST));
    MUST(aclnnBatchNormBackward(workspace, size, executor, stream));
    MUST(aclDestroyBoolArray(mask));
}

static void clean_up(void)
{
    for (int i = 0; i < 3; ++i) {
        if (tensors[i])
            MUST(aclDestroyTensor(tensors[i]));
        if (data[i])
            MUST(aclrtFree(data[i]));
    }
    if (workspace)
        MUST(aclrtFree(workspace));
    workspace = NULL;
    MUST(aclrtDestroyEvent(event));
    if (one)
        MUST(aclrtDestroyStream(one));
    MUST(aclrtDestroyStream(two));
}

static void start(void)
{
    MUST(aclInit(NULL));
    MUST(aclrtSetDevice(0));
    for (int i = 0; i < COUNT; ++i) {
        values[0][i] = (float)(i * 5 % 9) - 4;
        values[1][i] = (float)(i * 7 % 11);
    }
}

#endif
