// The same for InfiniCore's runtime: cases of work on streams, "right" and wrong ones.
#include <stdio.h>
#include <stdlib.h>

#include "infiniop.h"
#include "infinirt.h"

#define MUST(call)                                                                                 \
    do {                                                                                           \
        int status_ = (int)(call);                                                                 \
        if (status_) {                                                                             \
            printf("%s = %d: %s\n", #call, status_, normgradGetRecentErrMsg());                    \
            exit(1);                                                                               \
        }                                                                                          \
    } while (0)

static infinirtStream_t one, two;
static infinirtEvent_t event;
static float x[24], data[8][24];
static void *device;

static void begin(const char *name) { fprintf(stderr, "case: %s\n", name); }

static void upload(infinirtStream_t stream)
{
    MUST(infinirtMemcpyAsync(device, x, sizeof x, INFINIRT_MEMCPY_H2D, stream));
}

int main(void)
{
    MUST(infinirtInit());
    MUST(infinirtStreamCreate(&one));
    MUST(infinirtStreamCreate(&two));
    MUST(infinirtEventCreate(&event));
    MUST(infinirtMalloc(&device, sizeof x));

    begin("right");
    upload(one);
    MUST(infinirtEventRecord(event, one));
    MUST(infinirtStreamWaitEvent(two, event));
    MUST(infinirtMemsetAsync(device, 0, sizeof x, two));
    MUST(infinirtEventRecord(event, two));
    infinirtEventStatus_t status = INFINIRT_EVENT_NOT_READY;
    while (status != INFINIRT_EVENT_COMPLETE)
        MUST(infinirtEventQuery(event, &status));
    MUST(infinirtMemcpy(x, device, sizeof x, INFINIRT_MEMCPY_D2H));

    begin("no event");
    upload(one);
    MUST(infinirtMemsetAsync(device, 0, sizeof x, two));
    MUST(infinirtDeviceSynchronize());

    begin("freed");
    upload(one);
    MUST(infinirtFree(device));
    MUST(infinirtDeviceSynchronize());
    MUST(infinirtMallocAsync(&device, sizeof x, one));

    begin("freed on another stream");
    upload(one);
    MUST(infinirtFreeAsync(device, two));
    MUST(infinirtDeviceSynchronize());

    begin("operator destroyed"); // it may be, as soon as it was called
    infiniopHandle_t handle;
    infiniopTensorDescriptor_t each[8];
    infiniopBatchNormBackwardDescriptor_t operator;
    const size_t shape[] = {2, 3, 4}, channels[] = {3};
    size_t size;
    void *workspace;
    MUST(infiniopCreateHandle(&handle));
    for (int i = 0; i < 8; ++i) {
        int is_data = i == 0 || i == 3 || i == 4;
        MUST(infiniopCreateTensorDescriptor(&each[i], is_data ? 3 : 1, is_data ? shape : channels,
                                            NULL, INFINI_DTYPE_F32));
        for (int k = 0; k < 24; ++k)
            data[i][k] = 1;
    }
    MUST(infiniopCreateBatchNormBackwardDescriptor(handle, &operator, each[0], each[1], each[2],
                                                   each[3], each[4], each[5], each[6], each[7]));
    MUST(infiniopGetBatchNormBackwardWorkspaceSize(operator, &size));
    MUST(infinirtMalloc(&workspace, size));
    MUST(infiniopBatchNormBackward(operator, workspace, size, data[0], data[1], data[2], data[3],
                                   data[4], data[5], data[6], data[7], one));
    MUST(infiniopDestroyBatchNormBackwardDescriptor(operator));
    MUST(infinirtStreamSynchronize(one));
    printf("%g\n", (double)data[2][0]);

    begin("no stream");
    MUST(infiniopCreateBatchNormBackwardDescriptor(handle, &operator, each[0], each[1], each[2],
                                                   each[3], each[4], each[5], each[6], each[7]));
    MUST(infiniopBatchNormBackward(operator, workspace, size, data[0], data[1], data[2], data[3],
                                   data[4], data[5], data[6], data[7], NULL));
    printf("%g\n", (double)data[2][0]);

    begin("no stream, after another");
    MUST(infinirtMemsetAsync(data[2], 0, 12, one));
    MUST(infiniopBatchNormBackward(operator, workspace, size, data[0], data[1], data[2], data[3],
                                   data[4], data[5], data[6], data[7], NULL));
    MUST(infinirtDeviceSynchronize());
    return 0;
}
