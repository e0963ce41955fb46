// InfiniCore's BatchNormBackward in C11: float32, (N, C, L) = (2, 3, 4), in place.

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "infiniop.h"
#include "infinirt.h"

#define MUST(call)                                                                                 \
    do {                                                                                           \
        infiniStatus_t status_ = (call);                                                           \
        if (status_ != INFINI_STATUS_SUCCESS) {                                                    \
            fprintf(stderr, "%s:%d: %s = %d\n", __FILE__, __LINE__, #call, (int)status_);          \
            exit(1);                                                                               \
        }                                                                                          \
    } while (0)

enum { N = 2, C = 3, L = 4, COUNT = N * L };

static float x[N][C][L], dy[N][C][L], weight[C], mean[C], variance[C], dweight[C], dbias[C];

int main(void)
{
    for (int c = 0; c < C; ++c) {
        double sum = 0, squares = 0;
        for (int i = 0; i < COUNT; ++i) {
            x[i / L][c][i % L] = (float)((i * 7 + c * 5) % 11);
            dy[i / L][c][i % L] = (float)((i * 5 + c * 3) % 9) - 4;
            sum += x[i / L][c][i % L];
        }
        for (int i = 0; i < COUNT; ++i)
            squares += pow(x[i / L][c][i % L] - sum / COUNT, 2);
        weight[c] = 1 + 0.5f * (float)c;
        mean[c] = (float)(sum / COUNT);
        variance[c] = (float)(squares / COUNT);
    }

    MUST(infinirtInit());
    MUST(infinirtSetDevice(INFINI_DEVICE_CPU, 0));
    infiniopHandle_t handle;
    MUST(infiniopCreateHandle(&handle));

    const size_t shape[] = {N, C, L}, channels[] = {C};
    infiniopTensorDescriptor_t data, vector;
    MUST(infiniopCreateTensorDescriptor(&data, 3, shape, NULL, INFINI_DTYPE_F32));
    MUST(infiniopCreateTensorDescriptor(&vector, 1, channels, NULL, INFINI_DTYPE_F32));
    infiniopBatchNormBackwardDescriptor_t op;
    MUST(infiniopCreateBatchNormBackwardDescriptor(handle, &op, data, vector, vector, data, data,
                                                   vector, vector, vector));
    MUST(infiniopDestroyTensorDescriptor(data)); // the operator keeps what it needs
    MUST(infiniopDestroyTensorDescriptor(vector));

    size_t size;
    MUST(infiniopGetBatchNormBackwardWorkspaceSize(op, &size));
    void *workspace;
    MUST(infinirtMalloc(&workspace, size));
    static float dx[N][C][L]; // in place: the gradients are written over grad_output
    memcpy(dx, dy, sizeof dy);
    MUST(infiniopBatchNormBackward(op, workspace, size, dx, dweight, dbias, x, dx, weight, mean,
                                   variance, NULL));
    MUST(infinirtDeviceSynchronize());

    double largest = 0;
    for (int c = 0; c < C; ++c) {
        double invstd = 1 / sqrt(variance[c]), sum_dy = 0, sum_dy_xhat = 0;
        for (int i = 0; i < COUNT; ++i) {
            sum_dy += dy[i / L][c][i % L];
            sum_dy_xhat += dy[i / L][c][i % L] * (x[i / L][c][i % L] - mean[c]) * invstd;
        }
        for (int i = 0; i < COUNT; ++i) {
            double xhat = (x[i / L][c][i % L] - mean[c]) * invstd;
            double wanted = weight[c] * invstd *
                            (dy[i / L][c][i % L] - sum_dy / COUNT - xhat * sum_dy_xhat / COUNT);
            largest = fmax(largest, fabs(wanted - dx[i / L][c][i % L]));
        }
        printf("channel %d: grad_weight %9.6f, grad_bias %9.6f, grad_input %9.6f %9.6f ...\n", c,
               dweight[c], dbias[c], dx[0][c][0], dx[0][c][1]);
    }
    printf("largest difference from the formula: %.1e\n", largest);

    MUST(infinirtFree(workspace));
    MUST(infiniopDestroyBatchNormBackwardDescriptor(op));
    MUST(infiniopDestroyHandle(handle));
    return largest < 1e-5 ? 0 : 1;
}
