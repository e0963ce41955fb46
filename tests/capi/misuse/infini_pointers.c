// InfiniCore: pointers to the host's memory that are wrong.
#define _GNU_SOURCE
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#include "infini.h"
#include "pages.h"

static infiniopBatchNormBackwardDescriptor_t op;
static char *inputs;
static float vectors[5][2];

static int run(void *workspace, size_t size, char *grad_input, char *input)
{
    return (int)infiniopBatchNormBackward(op, workspace, size, grad_input, vectors[0], vectors[1],
                                          input, inputs, vectors[2], vectors[3], vectors[4], NULL);
}

int main(void)
{
    setvbuf(stdout, NULL, _IOLBF, 0);
    inputs = pages();
    int number = -1;
    SAY("count to made up", infinirtGetDeviceCount(INFINI_DEVICE_CPU, BAD));
    SAY("counts to made up", infinirtGetAllDeviceCount(BAD));
    int *last = (int *)(pages_with_a_hole() + page) - INFINI_DEVICE_TYPE_COUNT;
    SAY("counts up to a hole", infinirtGetAllDeviceCount(last));
    SAY("counts into a hole", infinirtGetAllDeviceCount(last + 1));
    SAY("device, number made up", infinirtGetDevice(NULL, BAD));
    SAY("device, and no number", infinirtGetDevice((infiniDevice_t *)&number, NULL));
    SAY("stream to made up", infinirtStreamCreate(BAD));
    SAY("event to made up", infinirtEventCreate(BAD));
    SAY("malloc to made up", infinirtMalloc(BAD, 8));
    SAY("host malloc to read-only",
        infinirtMallocHost((void **)(pages_that_allow(PROT_READ) + page), 8));
    SAY("handle to made up", infiniopCreateHandle(BAD));

    void *target = NULL;
    MUST(infinirtMalloc(&target, all));
    SAY("from made up", infinirtMemcpy(target, BAD, 8, INFINIRT_MEMCPY_H2D));
    SAY("to made up", infinirtMemcpy(BAD, target, 8, INFINIRT_MEMCPY_D2H));
    SAY("asynchronous, made up", infinirtMemcpyAsync(target, BAD, 8, INFINIRT_MEMCPY_H2D, NULL));
    SAY("set made up", infinirtMemset(BAD, 0, 8));
    SAY("set made up, asynchronous", infinirtMemsetAsync(BAD, 0, 8, NULL));
    SAY("from a hole", infinirtMemcpy(target, pages_with_a_hole(), all, INFINIRT_MEMCPY_H2D));
    SAY("to read-only",
        infinirtMemcpy(pages_that_allow(PROT_READ), target, all, INFINIRT_MEMCPY_D2H));
    SAY("set a hole", infinirtMemset(pages_with_a_hole(), 0, all));
    SAY("set", infinirtMemset(inputs, 0, all));

    infiniopHandle_t handle;
    MUST(infiniopCreateHandle(&handle));
    const size_t shape[] = {1, 2, all / 8}, channels[] = {2};
    infiniopTensorDescriptor_t data, vector;
    SAY("descriptor to made up", infiniopCreateTensorDescriptor(BAD, 3, shape, NULL, INFINI_DTYPE_F32));
    SAY("sizes made up", infiniopCreateTensorDescriptor(&data, 3, BAD, NULL, INFINI_DTYPE_F32));
    SAY("strides made up", infiniopCreateTensorDescriptor(&data, 3, shape, BAD, INFINI_DTYPE_F32));
    MUST(infiniopCreateTensorDescriptor(&data, 3, shape, NULL, INFINI_DTYPE_F32));
    MUST(infiniopCreateTensorDescriptor(&vector, 1, channels, NULL, INFINI_DTYPE_F32));
    SAY("operator to made up",
        infiniopCreateBatchNormBackwardDescriptor(handle, BAD, data, vector, vector, data, data,
                                                  vector, vector, vector));
    MUST(infiniopCreateBatchNormBackwardDescriptor(handle, &op, data, vector, vector, data, data,
                                                   vector, vector, vector));
    size_t size = 0;
    SAY("workspace size to made up", infiniopGetBatchNormBackwardWorkspaceSize(op, BAD));
    SAY("device type to made up",
        infiniopGetDescriptorDeviceType((const struct InfiniopDescriptor *)op, BAD));
    MUST(infiniopGetBatchNormBackwardWorkspaceSize(op, &size));

    char *workspace = pages(), *grad_input = pages();
    SAY("workspace made up", run(BAD, size, grad_input, inputs));
    SAY("input with a hole", run(workspace, size, grad_input, pages_with_a_hole()));
    SAY("input that cannot be read", run(workspace, size, grad_input, pages_that_allow(PROT_NONE)));
    SAY("output that is read-only", run(workspace, size, pages_that_allow(PROT_READ), inputs));
    mprotect(workspace, page, PROT_READ);
    SAY("workspace that is read-only", run(workspace, size, grad_input, inputs));
    return 0;
}
