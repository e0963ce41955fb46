// Many threads call at once: the first calls start Python, the others compute, fail and read their
// own messages. Prints how many results were wrong.
#define _GNU_SOURCE
#include <pthread.h>
#include <stdio.h>
#include <string.h>

#include "acl/acl.h"
#include "aclnnop/aclnn_batch_norm_backward.h"

enum { THREADS = 8, ROUNDS = 40 };

static const int64_t SHAPE[] = {4, 2, 64};
static float reference[512];
static pthread_barrier_t barrier;

static int compute(float *result)
{
    enum { BYTES = 512 * 4 };
    float values[512];
    void *data[4];
    aclTensor *tensors[4];
    for (int i = 0; i < 512; ++i)
        values[i] = (float)(i * 37 % 101) / 50 - 1;
    for (int i = 0; i < 3; ++i) {
        if (aclrtMalloc(&data[i], BYTES, ACL_MEM_MALLOC_HUGE_FIRST) ||
            aclrtMemcpy(data[i], BYTES, values + (i == 1 ? 7 : 0), BYTES - 28,
                        ACL_MEMCPY_HOST_TO_DEVICE) ||
            aclrtMemset((char *)data[i] + BYTES - 28, 28, 0, 28))
            return 1;
        tensors[i] = aclCreateTensor(SHAPE, 3, ACL_FLOAT, NULL, 0, ACL_FORMAT_ND, SHAPE, 3, data[i]);
    }
    const bool first[] = {true, false, false};
    aclBoolArray *mask = aclCreateBoolArray(first, 3);
    uint64_t size;
    aclOpExecutor *executor;
    if (aclnnBatchNormBackwardGetWorkspaceSize(tensors[0], tensors[1], NULL, NULL, NULL, NULL, NULL,
                                               true, 1e-5, mask, tensors[2], NULL, NULL, &size,
                                               &executor))
        return 2;
    if (aclrtMalloc(&data[3], size, ACL_MEM_MALLOC_HUGE_FIRST) ||
        aclnnBatchNormBackward(data[3], size, executor, NULL))
        return 3;
    if (aclrtMemcpy(result, BYTES, data[2], BYTES, ACL_MEMCPY_DEVICE_TO_HOST))
        return 4;
    int failed = 0;
    for (int i = 0; i < 4; ++i)
        failed |= aclrtFree(data[i]);
    for (int i = 0; i < 3; ++i)
        failed |= aclDestroyTensor(tensors[i]);
    return failed | aclDestroyBoolArray(mask);
}

static void *work(void *argument)
{
    long number = (long)argument, wrong = 0;
    float result[512];
    char expected[64];
    pthread_barrier_wait(&barrier);
    aclInit(NULL); // one of them is the first
    pthread_barrier_wait(&barrier);
    wrong += aclrtSetDevice(0) != 0;
    for (int i = 0; i < ROUNDS; ++i) {
        wrong += compute(result) != 0;
        if (number == 0 && i == 0)
            memcpy(reference, result, sizeof reference);
        if (i == 0)
            pthread_barrier_wait(&barrier);
        wrong += memcmp(reference, result, sizeof reference) != 0;
        // A mistake of this thread's own, and its own message.
        wrong += aclrtSetDevice((int32_t)number + 100) != 107000;
        snprintf(expected, sizeof expected, "deviceId: %ld;", number + 100);
        wrong += strstr(aclGetRecentErrMsg(), expected) == NULL;
    }
    return (void *)wrong;
}

int main(void)
{
    pthread_t threads[THREADS];
    pthread_barrier_init(&barrier, NULL, THREADS);
    for (long i = 0; i < THREADS; ++i)
        pthread_create(&threads[i], NULL, work, (void *)i);
    long wrong = 0;
    for (int i = 0; i < THREADS; ++i) {
        void *mine;
        pthread_join(threads[i], &mine);
        wrong += (long)mine;
    }
    printf("wrong: %ld\n", wrong);
    return aclFinalize() != 0 || wrong != 0;
}
