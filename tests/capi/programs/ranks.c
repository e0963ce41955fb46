// Synchronised batch norm's backward on two ranks, two processes with a device each: `ranks`.
// Rank 0 prints how far the gathered gradients are from those of one batch norm over both batches.
#define _GNU_SOURCE
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "../../../examples/capi/host.h"
#include "aclnnop/aclnn_batch_norm_backward.h"
#include "aclnnop/aclnn_batch_norm_backward_reduce.h"
#include "aclnnop/aclnn_batch_norm_elemt_backward.h"
#include "hccl/hccl.h"

enum { RANKS = 2, N = 3, C = 2, L = 5, COUNT = N * C * L, BYTES = COUNT * 4 };

static float x[RANKS * COUNT], dy[RANKS * COUNT], mean[C], invstd[C];
static const int64_t part[] = {N, C, L}, whole[] = {RANKS * N, C, L}, channels[] = {C}, ranks[] = {RANKS};

static void fill(void)
{
    for (int i = 0; i < RANKS * COUNT; ++i) {
        x[i] = (float)(i * 7 % 11) + (float)(i / COUNT);
        dy[i] = (float)(i * 5 % 9) - 4;
    }
    for (int c = 0; c < C; ++c) {
        double sum = 0, squares = 0;
        for (int i = 0; i < RANKS * COUNT; ++i)
            sum += i / L % C == c ? x[i] : 0;
        for (int i = 0; i < RANKS * COUNT; ++i)
            squares += i / L % C == c ? pow(x[i] - sum / (RANKS * N * L), 2) : 0;
        mean[c] = (float)(sum / (RANKS * N * L));
        invstd[c] = (float)(1 / sqrt(squares / (RANKS * N * L) + 1e-5));
    }
}

// gradInput of both batches in one process.
static void compute_whole(float *result, aclrtStream stream)
{
    struct device_tensor grad_out = make_tensor(dy, ACL_FLOAT, whole, 3);
    struct device_tensor input = make_tensor(x, ACL_FLOAT, whole, 3);
    struct device_tensor grad_input = make_tensor(NULL, ACL_FLOAT, whole, 3);
    const bool first[] = {true, false, false};
    aclBoolArray *mask = aclCreateBoolArray(first, 3);
    uint64_t size = 0;
    aclOpExecutor *executor = NULL;
    MUST(aclnnBatchNormBackwardGetWorkspaceSize(grad_out.tensor, input.tensor, NULL, NULL, NULL, NULL,
                                                NULL, true, 1e-5, mask, grad_input.tensor, NULL,
                                                NULL, &size, &executor));
    void *workspace = make_workspace(size);
    MUST(aclnnBatchNormBackward(workspace, size, executor, stream));
    MUST(aclrtSynchronizeStream(stream));
    download(grad_input, result);
    destroy_tensor(grad_out);
    destroy_tensor(input);
    destroy_tensor(grad_input);
    MUST(aclDestroyBoolArray(mask));
    if (workspace)
        MUST(aclrtFree(workspace));
}

static void work(uint32_t rank, const HcclRootInfo *root)
{
    aclrtStream stream;
    MUST(aclrtSetDevice((int32_t)rank));
    MUST(aclrtCreateStream(&stream));
    HcclComm comm;
    MUST(HcclCommInitRootInfo(RANKS, root, rank, &comm));
    struct device_tensor grad_out = make_tensor(dy + rank * COUNT, ACL_FLOAT, part, 3);
    struct device_tensor input = make_tensor(x + rank * COUNT, ACL_FLOAT, part, 3);
    struct device_tensor means = make_tensor(mean, ACL_FLOAT, channels, 1);
    struct device_tensor invstds = make_tensor(invstd, ACL_FLOAT, channels, 1);
    struct device_tensor sum = make_tensor(NULL, ACL_FLOAT, channels, 1);
    struct device_tensor sum_xmu = make_tensor(NULL, ACL_FLOAT, channels, 1);
    struct device_tensor counts = make_tensor(NULL, ACL_FLOAT, ranks, 1);
    struct device_tensor grad_input = make_tensor(NULL, ACL_FLOAT, part, 3);
    struct device_tensor gathered = make_tensor(NULL, ACL_FLOAT, whole, 3);
    uint64_t size = 0, second_size = 0;
    aclOpExecutor *executor = NULL;
    MUST(aclnnBatchNormReduceBackwardGetWorkspaceSize(grad_out.tensor, input.tensor, means.tensor,
                                                      invstds.tensor, NULL, true, false, false,
                                                      sum.tensor, sum_xmu.tensor, NULL, NULL, &size,
                                                      &executor));
    void *workspace = make_workspace(size);
    MUST(aclnnBatchNormReduceBackward(workspace, size, executor, stream));
    MUST(HcclAllReduce(sum.data, sum.data, C, HCCL_DATA_TYPE_FP32, HCCL_REDUCE_SUM, comm, stream));
    MUST(HcclAllReduce(sum_xmu.data, sum_xmu.data, C, HCCL_DATA_TYPE_FP32, HCCL_REDUCE_SUM, comm,
                       stream));
    const float mine = N * L;
    struct device_tensor count = make_tensor(&mine, ACL_FLOAT, ranks, 0);
    MUST(HcclAllGather(count.data, counts.data, 1, HCCL_DATA_TYPE_FP32, comm, stream));
    MUST(aclnnBatchNormElemtBackwardGetWorkspaceSize(
        grad_out.tensor, input.tensor, means.tensor, invstds.tensor, NULL, sum.tensor,
        sum_xmu.tensor, counts.tensor, grad_input.tensor, &second_size, &executor));
    void *second = make_workspace(second_size);
    MUST(aclnnBatchNormElemtBackward(second, second_size, executor, stream));
    MUST(HcclAllGather(grad_input.data, gathered.data, COUNT, HCCL_DATA_TYPE_FP32, comm, stream));
    MUST(HcclBroadcast(counts.data, RANKS, HCCL_DATA_TYPE_FP32, 1, comm, stream));
    MUST(HcclBarrier(comm, stream));
    MUST(aclrtSynchronizeStream(stream));
    float result[RANKS * COUNT], expected[RANKS * COUNT], both[RANKS];
    download(gathered, result);
    download(counts, both);
    uint32_t number, of;
    MUST(HcclGetRankId(comm, &number));
    MUST(HcclGetRankSize(comm, &of));
    if (rank == 0) {
        compute_whole(expected, stream);
        double largest = 0;
        for (int i = 0; i < RANKS * COUNT; ++i)
            largest = fmax(largest, fabs(result[i] - expected[i]));
        printf("rank %u of %u, counts %g %g, difference %s\n", number, of, (double)both[0],
               (double)both[1], largest < 1e-6 ? "small" : "LARGE");
    }
    struct device_tensor all[] = {grad_out, input,      means,    invstds, sum, sum_xmu,
                                  counts,   grad_input, gathered, count};
    for (int i = 0; i < 10; ++i)
        destroy_tensor(all[i]);
    if (workspace)
        MUST(aclrtFree(workspace));
    if (second)
        MUST(aclrtFree(second));
    MUST(HcclCommDestroy(comm));
    MUST(aclrtDestroyStream(stream));
    MUST(aclrtResetDevice((int32_t)rank));
    MUST(aclFinalize());
}

int main(void)
{
    int ends[2], status;
    HcclRootInfo root;
    fill();
    if (pipe(ends))
        return 1;
    pid_t child = fork();
    MUST(aclInit(NULL));
    if (child == 0) {
        if (read(ends[0], &root, sizeof root) != sizeof root)
            return 1;
        work(1, &root);
        return 0;
    }
    MUST(HcclGetRootInfo(&root));
    if (write(ends[1], &root, sizeof root) != sizeof root)
        return 1;
    work(0, &root);
    return waitpid(child, &status, 0) != child || status != 0;
}
