// What BatchNormBackward costs a C program: `capi N C L ROUNDS` prints a line when the first result
// is there, then the median microseconds of phase 1, of phase 2, and of both.
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "../examples/capi/host.h"
#include "aclnnop/aclnn_batch_norm_backward.h"

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

static double median(double *values, int count)
{
    qsort(values, (size_t)count, sizeof *values, order);
    return values[count / 2];
}

int main(int argc, char **argv)
{
    if (argc != 5)
        return 2;
    const int64_t shape[] = {atol(argv[1]), atol(argv[2]), atol(argv[3])};
    const int rounds = atoi(argv[4]);
    const size_t count = (size_t)(shape[0] * shape[1] * shape[2]);
    float *values = malloc(count * sizeof *values);
    double *first = malloc(3 * (size_t)rounds * sizeof *first), *second = first + rounds,
           *both = second + rounds;
    if (!values || !first)
        return 3;
    for (size_t i = 0; i < count; ++i)
        values[i] = (float)(i % 97) / 50 - 1;

    aclrtStream stream;
    start_device(&stream);
    struct device_tensor grad_out = make_tensor(values, ACL_FLOAT, shape, 3);
    struct device_tensor input = make_tensor(values, ACL_FLOAT, shape, 3);
    struct device_tensor weight = make_tensor(values, ACL_FLOAT, shape + 1, 1);
    struct device_tensor grad_input = make_tensor(NULL, ACL_FLOAT, shape, 3);
    struct device_tensor grad_weight = make_tensor(NULL, ACL_FLOAT, shape + 1, 1);
    struct device_tensor grad_bias = make_tensor(NULL, ACL_FLOAT, shape + 1, 1);
    const bool all[] = {true, true, true};
    aclBoolArray *mask = aclCreateBoolArray(all, 3);

    void *workspace = NULL;
    for (int i = 0; i <= rounds; ++i) {
        uint64_t size = 0;
        aclOpExecutor *executor = NULL;
        double start = now();
        MUST(aclnnBatchNormBackwardGetWorkspaceSize(
            grad_out.tensor, input.tensor, weight.tensor, NULL, NULL, NULL, NULL, true, 1e-5, mask,
            grad_input.tensor, grad_weight.tensor, grad_bias.tensor, &size, &executor));
        double between = now();
        if (i == 0)
            workspace = make_workspace(size);
        double again = now();
        MUST(aclnnBatchNormBackward(workspace, size, executor, stream));
        double end = now();
        if (i == 0) {
            printf("first\n");
            fflush(stdout);
        } else {
            first[i - 1] = between - start;
            second[i - 1] = end - again;
            both[i - 1] = first[i - 1] + second[i - 1];
        }
    }
    printf("%.2f %.2f %.2f\n", median(first, rounds), median(second, rounds),
           median(both, rounds));
    return 0;
}
