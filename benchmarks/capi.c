// What the C libraries cost a C program: `capi N C L ROUNDS` prints "first" when the first result of
// BatchNormBackward is there. Then it prints a line `VALUE NAME` for each figure: median microseconds
// on one thread, and how much two threads that do the same do in the time of one.
#define _GNU_SOURCE
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "../examples/capi/host.h"
#include "aclnnop/aclnn_batch_norm_backward.h"

enum { TENSORS = 8, SMALL_BYTES = 64 };

// One thread's tensors, and what phase 1 returned for them.
struct call {
    struct device_tensor grad_out, input, weight, grad_input, grad_weight, grad_bias;
    aclBoolArray *mask;
    aclrtStream stream;
    aclOpExecutor *executor;
    void *workspace;
    uint64_t size;
};

static int64_t shape[3];
static int rounds;
static float *values;

static double now(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec * 1e6 + (double)time.tv_nsec / 1e3;
}

static int order(const void *a, const void *b)
{
    double difference = *(const double *)a - *(const double *)b;
    return (difference > 0) - (difference < 0);
}

static struct call make_call(aclrtStream stream)
{
    const bool all[] = {true, true, true};
    return (struct call){
        .grad_out = make_tensor(values, ACL_FLOAT, shape, 3),
        .input = make_tensor(values, ACL_FLOAT, shape, 3),
        .weight = make_tensor(values, ACL_FLOAT, shape + 1, 1),
        .grad_input = make_tensor(NULL, ACL_FLOAT, shape, 3),
        .grad_weight = make_tensor(NULL, ACL_FLOAT, shape + 1, 1),
        .grad_bias = make_tensor(NULL, ACL_FLOAT, shape + 1, 1),
        .mask = aclCreateBoolArray(all, 3),
        .stream = stream,
    };
}

static void phase_1(struct call *call)
{
    MUST(aclnnBatchNormBackwardGetWorkspaceSize(
        call->grad_out.tensor, call->input.tensor, call->weight.tensor, NULL, NULL, NULL, NULL,
        true, 1e-5, call->mask, call->grad_input.tensor, call->grad_weight.tensor,
        call->grad_bias.tensor, &call->size, &call->executor));
    if (!call->workspace)
        call->workspace = make_workspace(call->size);
}

static void phase_2(struct call *call)
{
    MUST(aclnnBatchNormBackward(call->workspace, call->size, call->executor, call->stream));
}

static void both(struct call *call)
{
    phase_1(call);
    phase_2(call);
}

static void eight_tensors(struct call *call)
{
    (void)call;
    aclTensor *tensors[TENSORS];
    for (int i = 0; i < TENSORS; ++i)
        tensors[i] = aclCreateTensor(shape, 3, ACL_FLOAT, NULL, 0, ACL_FORMAT_ND, shape, 3, NULL);
    for (int i = 0; i < TENSORS; ++i)
        aclDestroyTensor(tensors[i]);
}

static void small_copy(struct call *call)
{
    MUST(aclrtMemcpy(call->workspace, SMALL_BYTES, values, SMALL_BYTES, ACL_MEMCPY_HOST_TO_DEVICE));
}

static void small_block(struct call *call)
{
    (void)call;
    void *block;
    MUST(aclrtMalloc(&block, SMALL_BYTES, ACL_MEM_MALLOC_HUGE_FIRST));
    MUST(aclrtFree(block));
}

// The median of many samples, each the mean of ten rounds: some of these take as long as the clock.
static void report(const char *name, void (*work)(struct call *), struct call *call)
{
    enum { IN_A_SAMPLE = 10 };
    double *samples = malloc((size_t)rounds * sizeof *samples);
    if (!samples)
        exit(3);
    for (int i = 0; i < rounds; ++i) {
        double start = now();
        for (int j = 0; j < IN_A_SAMPLE; ++j)
            work(call);
        samples[i] = (now() - start) / IN_A_SAMPLE;
    }
    qsort(samples, (size_t)rounds, sizeof *samples, order);
    printf("%.3f %s\n", samples[rounds / 2], name);
    free(samples);
}

static void *many_pairs(void *unused)
{
    (void)unused;
    aclrtStream stream;
    MUST(aclrtSetDevice(0));
    MUST(aclrtCreateStream(&stream));
    struct call call = make_call(stream);
    for (int i = 0; i < 20 * rounds; ++i)
        both(&call);
    return NULL;
}

static double time_of(int threads)
{
    pthread_t started[2];
    double start = now();
    for (int i = 0; i < threads; ++i)
        pthread_create(&started[i], NULL, many_pairs, NULL);
    for (int i = 0; i < threads; ++i)
        pthread_join(started[i], NULL);
    return now() - start;
}

int main(int argc, char **argv)
{
    if (argc != 5)
        return 2;
    for (int i = 0; i < 3; ++i)
        shape[i] = atol(argv[i + 1]);
    rounds = atoi(argv[4]);
    const size_t count = (size_t)(shape[0] * shape[1] * shape[2]);
    values = malloc(count * sizeof *values + SMALL_BYTES);
    if (!values)
        return 3;
    for (size_t i = 0; i < count + SMALL_BYTES / sizeof *values; ++i)
        values[i] = (float)(i % 97) / 50 - 1;

    aclrtStream stream;
    start_device(&stream);
    struct call call = make_call(stream);
    both(&call);
    printf("first\n");
    fflush(stdout);
    if (rounds == 0)
        return 0;

    report("both phases", both, &call);
    phase_1(&call);
    MUST(aclSetAclOpExecutorRepeatable(call.executor));
    report("phase 2 of a repeated executor", phase_2, &call);
    report("eight tensors, made and destroyed", eight_tensors, &call);
    report("a copy of 64 bytes to the device", small_copy, &call);
    report("64 bytes of device memory, allocated and freed", small_block, &call);
    double one = time_of(1);
    printf("%.3f both phases on two threads, by the rate of one\n", 2 * one / time_of(2));
    return 0;
}
