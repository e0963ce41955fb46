// InfiniCore: handles, descriptors, memory and workspaces.
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#include "infini.h"

static infiniopHandle_t handle;

static int create(infiniopTensorDescriptor_t data, infiniopTensorDescriptor_t input,
                  infiniopTensorDescriptor_t vector, infiniopBatchNormBackwardDescriptor_t *op)
{
    return (int)infiniopCreateBatchNormBackwardDescriptor(handle, op, data, vector, vector, input,
                                                          data, vector, vector, vector);
}

int main(void)
{
    setvbuf(stdout, NULL, _IOLBF, 0);
    int count = -1, counts[INFINI_DEVICE_TYPE_COUNT];
    SAY("count to null", infinirtGetDeviceCount(INFINI_DEVICE_CPU, NULL));
    SAY("count", infinirtGetDeviceCount(INFINI_DEVICE_ASCEND, &count));
    MUST(infinirtGetAllDeviceCount(counts));
    printf("counts %d %d %d | 0 |\n", count, counts[0], counts[INFINI_DEVICE_TYPE_COUNT - 1]);
    SAY("another device", infinirtSetDevice(INFINI_DEVICE_ASCEND, 0));
    SAY("no such device", infinirtSetDevice(INFINI_DEVICE_CPU, 3));
    SAY("no kind of device", infinirtSetDevice((infiniDevice_t)99, 0));

    SAY("handle to null", infiniopCreateHandle(NULL));
    MUST(infiniopCreateHandle(&handle));
    infiniopHandle_t living = handle, gone;
    MUST(infiniopCreateHandle(&gone));
    SAY("destroy handle", infiniopDestroyHandle(gone));
    SAY("destroy handle twice", infiniopDestroyHandle(gone));
    SAY("destroy null", infiniopDestroyHandle(NULL));
    SAY("destroy made up", infiniopDestroyHandle((infiniopHandle_t)&count));

    const size_t shape[] = {2, 3, 4}, channels[] = {3}, huge[] = {SIZE_MAX, SIZE_MAX, SIZE_MAX};
    const ptrdiff_t far[] = {PTRDIFF_MAX};
    infiniopTensorDescriptor_t data, vector, other;
    SAY("descriptor to null", infiniopCreateTensorDescriptor(NULL, 3, shape, NULL, INFINI_DTYPE_F32));
    SAY("descriptor without a shape",
        infiniopCreateTensorDescriptor(&data, 3, NULL, NULL, INFINI_DTYPE_F32));
    SAY("descriptor of absurd rank",
        infiniopCreateTensorDescriptor(&data, SIZE_MAX, shape, NULL, INFINI_DTYPE_F32));
    SAY("descriptor of absurd size",
        infiniopCreateTensorDescriptor(&data, 3, huge, NULL, INFINI_DTYPE_F32));
    SAY("descriptor of absurd strides",
        infiniopCreateTensorDescriptor(&data, 1, channels, far, INFINI_DTYPE_F32));
    SAY("descriptor of no dtype",
        infiniopCreateTensorDescriptor(&data, 3, shape, NULL, (infiniDtype_t)77));
    MUST(infiniopCreateTensorDescriptor(&data, 3, shape, NULL, INFINI_DTYPE_F32));
    MUST(infiniopCreateTensorDescriptor(&vector, 1, channels, NULL, INFINI_DTYPE_F32));
    MUST(infiniopCreateTensorDescriptor(&other, 3, shape, NULL, INFINI_DTYPE_F16));

    infiniopBatchNormBackwardDescriptor_t op;
    SAY("operator to null", create(data, data, vector, NULL));
    SAY("descriptor null", create(data, NULL, vector, &op));
    SAY("descriptor made up", create(data, (infiniopTensorDescriptor_t)&count, vector, &op));
    SAY("descriptor is a handle", create(data, (infiniopTensorDescriptor_t)handle, vector, &op));
    SAY("two dtypes", create(data, other, vector, &op));
    SAY("matrix for a vector", create(data, data, data, &op));
    handle = gone;
    SAY("dead handle", create(data, data, vector, &op));
    handle = NULL;
    SAY("null handle", create(data, data, vector, &op));
    handle = living;
    MUST(create(data, data, vector, &op));
    MUST(infiniopDestroyTensorDescriptor(data));
    SAY("destroy descriptor twice", infiniopDestroyTensorDescriptor(data));
    SAY("descriptor destroyed", create(data, data, vector, &op));

    size_t size = 0;
    SAY("workspace size to null", infiniopGetBatchNormBackwardWorkspaceSize(op, NULL));
    SAY("workspace size of null", infiniopGetBatchNormBackwardWorkspaceSize(NULL, &size));
    MUST(infiniopGetBatchNormBackwardWorkspaceSize(op, &size));
    infiniDevice_t kind = INFINI_DEVICE_ALI;
    SAY("device of the operator",
        infiniopGetDescriptorDeviceType((const struct InfiniopDescriptor *)op, &kind));
    printf("it is %d | 0 |\n", (int)kind);

    static float x[24], dy[24], dx[24], v[5][3];
    void *workspace = NULL, *small = NULL, *short_x = NULL;
    MUST(infinirtMalloc(&workspace, size));
    MUST(infinirtMalloc(&small, size - 1));
    MUST(infinirtMalloc(&short_x, sizeof x - 1));
#define RUN(op, scratch, scratch_size, dx, x, stream)                                              \
    infiniopBatchNormBackward(op, scratch, scratch_size, dx, v[0], v[1], x, dy, v[2], v[3], v[4],  \
                              stream)
    SAY("output null", RUN(op, workspace, size, NULL, x, NULL));
    SAY("input null", RUN(op, workspace, size, dx, NULL, NULL));
    SAY("input past its block", RUN(op, workspace, size, dx, short_x, NULL));
    SAY("workspace null", RUN(op, NULL, size, dx, x, NULL));
    SAY("workspace null, and said to be small", RUN(op, NULL, size - 1, dx, x, NULL));
    SAY("workspace said to be small", RUN(op, workspace, size - 1, dx, x, NULL));
    SAY("workspace block too small", RUN(op, small, size, dx, x, NULL));
    SAY("operator null", RUN(NULL, workspace, size, dx, x, NULL));
    SAY("operator made up",
        RUN((infiniopBatchNormBackwardDescriptor_t)&count, workspace, size, dx, x, NULL));
    SAY("operator is a descriptor",
        RUN((infiniopBatchNormBackwardDescriptor_t)vector, workspace, size, dx, x, NULL));
    SAY("stream made up", RUN(op, workspace, size, dx, x, &count));
    MUST(infinirtFree(short_x));
    SAY("input freed", RUN(op, workspace, size, dx, short_x, NULL));
    MUST(infinirtFree(workspace));
    SAY("workspace freed", RUN(op, workspace, size, dx, x, NULL));
    SAY("free twice", infinirtFree(workspace));
    SAY("free null", infinirtFree(NULL));
    SAY("free the stack", infinirtFree(&count));
    SAY("free device memory as the host's", infinirtFreeHost(small));
    SAY("copy past the end", infinirtMemcpy(small, x, size, INFINIRT_MEMCPY_H2D));
    SAY("copy from null", infinirtMemcpy(small, NULL, 1, INFINIRT_MEMCPY_H2D));
    SAY("copy of no kind", infinirtMemcpy(small, x, 1, (infinirtMemcpyKind_t)9));
    SAY("set past the end", infinirtMemset(small, 0, size));
    SAY("malloc of too much", infinirtMalloc(&workspace, SIZE_MAX));
    SAY("malloc to null", infinirtMalloc(NULL, 8));
    SAY("destroy operator", infiniopDestroyBatchNormBackwardDescriptor(op));
    SAY("destroy operator twice", infiniopDestroyBatchNormBackwardDescriptor(op));
    SAY("operator destroyed", RUN(op, small, size, dx, x, NULL));
    return 0;
}
