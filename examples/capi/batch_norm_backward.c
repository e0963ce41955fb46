// Batch norm's gradients in training, in C11: float32, (N, C, L) = (2, 3, 4).

#include <math.h>

#include "aclnnop/aclnn_batch_norm_backward.h"
#include "host.h"

enum { N = 2, C = 3, L = 4, COUNT = N * L };

static float x[N][C][L], dy[N][C][L], weight[C], mean[C], invstd[C];

static void make_numbers(void)
{
    for (int n = 0; n < N; ++n)
        for (int c = 0; c < C; ++c)
            for (int l = 0; l < L; ++l) {
                x[n][c][l] = (float)((n * 7 + c * 5 + l * 3) % 11);
                dy[n][c][l] = (float)((n * 5 + c * 3 + l * 7) % 9) - 4;
            }
    for (int c = 0; c < C; ++c) {
        double sum = 0, squares = 0;
        for (int i = 0; i < COUNT; ++i)
            sum += x[i / L][c][i % L];
        for (int i = 0; i < COUNT; ++i)
            squares += pow(x[i / L][c][i % L] - sum / COUNT, 2);
        weight[c] = 1 + 0.5f * (float)c;
        mean[c] = (float)(sum / COUNT);
        invstd[c] = (float)(1 / sqrt(squares / COUNT + 1e-5));
    }
}

// The largest difference from dx = w·invstd·(dy − Σdy/n − (x − mean)·invstd²·Σdy·(x − mean)/n).
static double largest_difference(float dx[N][C][L])
{
    double largest = 0;
    for (int c = 0; c < C; ++c) {
        double sum_dy = 0, sum_dy_xmu = 0;
        for (int i = 0; i < COUNT; ++i) {
            sum_dy += dy[i / L][c][i % L];
            sum_dy_xmu += (double)dy[i / L][c][i % L] * (x[i / L][c][i % L] - mean[c]);
        }
        for (int i = 0; i < COUNT; ++i) {
            double xmu = x[i / L][c][i % L] - mean[c];
            double slope = xmu * invstd[c] * invstd[c] * sum_dy_xmu / COUNT;
            double wanted = weight[c] * invstd[c] * (dy[i / L][c][i % L] - sum_dy / COUNT - slope);
            largest = fmax(largest, fabs(wanted - dx[i / L][c][i % L]));
        }
    }
    return largest;
}

int main(void)
{
    make_numbers();
    aclrtStream stream;
    start_device(&stream);

    const int64_t shape[] = {N, C, L}, channels[] = {C};
    struct device_tensor grad_out = make_tensor(dy, ACL_FLOAT, shape, 3);
    struct device_tensor input = make_tensor(x, ACL_FLOAT, shape, 3);
    struct device_tensor gamma = make_tensor(weight, ACL_FLOAT, channels, 1);
    struct device_tensor save_mean = make_tensor(mean, ACL_FLOAT, channels, 1);
    struct device_tensor save_invstd = make_tensor(invstd, ACL_FLOAT, channels, 1);
    struct device_tensor grad_input = make_tensor(NULL, ACL_FLOAT, shape, 3);
    struct device_tensor grad_weight = make_tensor(NULL, ACL_FLOAT, channels, 1);
    struct device_tensor grad_bias = make_tensor(NULL, ACL_FLOAT, channels, 1);
    const bool all[] = {true, true, true};
    aclBoolArray *mask = aclCreateBoolArray(all, 3);

    // Phase 1 checks everything and plans; phase 2 computes.
    uint64_t size = 0;
    aclOpExecutor *executor = NULL;
    MUST(aclnnBatchNormBackwardGetWorkspaceSize(
        grad_out.tensor, input.tensor, gamma.tensor, NULL, NULL, save_mean.tensor,
        save_invstd.tensor, true, 1e-5, mask, grad_input.tensor, grad_weight.tensor,
        grad_bias.tensor, &size, &executor));
    void *workspace = make_workspace(size);
    MUST(aclnnBatchNormBackward(workspace, size, executor, stream));
    MUST(aclrtSynchronizeStream(stream));

    float dx[N][C][L], dweight[C], dbias[C];
    download(grad_input, dx);
    download(grad_weight, dweight);
    download(grad_bias, dbias);
    for (int c = 0; c < C; ++c)
        printf("channel %d: grad_weight %9.6f, grad_bias %9.6f, grad_input %9.6f %9.6f ...\n", c,
               dweight[c], dbias[c], dx[0][c][0], dx[0][c][1]);
    double difference = largest_difference(dx);
    printf("largest difference from the formula: %.1e\n", difference);

    const struct device_tensor made[] = {grad_out,    input,      gamma,       save_mean,
                                         save_invstd, grad_input, grad_weight, grad_bias};
    for (size_t i = 0; i < sizeof made / sizeof *made; ++i)
        destroy_tensor(made[i]);
    MUST(aclDestroyBoolArray(mask));
    if (workspace)
        MUST(aclrtFree(workspace));
    end_device(stream);
    return difference < 1e-5 ? 0 : 1;
}
