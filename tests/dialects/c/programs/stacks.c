// Calls from a thread whose stack is as small as its argument says, in KiB; 0 is the smallest there
// is. Prints each call's result, and the text.
#define _GNU_SOURCE
#include <limits.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "acl/acl.h"
#include "aclnnop/aclnn_batch_norm_backward.h"

static const int64_t SHAPE[] = {1, 2, 4};
static int statuses[5];
static char text[256];
static const char *name;

static int compute(void)
{
    const bool first[] = {true, false, false};
    aclTensor *tensors[3];
    void *data[4];
    uint64_t size;
    aclOpExecutor *executor;
    for (int i = 0; i < 3; ++i) {
        aclrtMalloc(&data[i], 32, ACL_MEM_MALLOC_HUGE_FIRST);
        tensors[i] = aclCreateTensor(SHAPE, 3, ACL_FLOAT, NULL, 0, ACL_FORMAT_ND, SHAPE, 3, data[i]);
    }
    int status = aclnnBatchNormBackwardGetWorkspaceSize(
        tensors[0], tensors[1], NULL, NULL, NULL, NULL, NULL, true, 1e-5,
        aclCreateBoolArray(first, 3), tensors[2], NULL, NULL, &size, &executor);
    if (status)
        return status;
    aclrtMalloc(&data[3], size, ACL_MEM_MALLOC_HUGE_FIRST);
    return aclnnBatchNormBackward(data[3], size, executor, NULL);
}

static void *work(void *argument)
{
    int *status = statuses;
    *status++ = aclInit(NULL);
    strncpy(text, aclGetRecentErrMsg(), sizeof text - 1);
    aclrtSetDevice(0);
    name = aclrtGetSocName();
    *status++ = aclDestroyTensor(NULL);
    *status++ = compute();
    *status++ = aclnnBatchNormBackward(NULL, 0, NULL, NULL);
    *status++ = aclrtFree(NULL);
    return argument;
}

int main(int count, char **words)
{
    (void)count;
    size_t size = (size_t)atoi(words[1]) << 10;
    pthread_attr_t attributes;
    pthread_t thread;
    pthread_attr_init(&attributes);
    if (pthread_attr_setstacksize(&attributes, size ? size : (size_t)PTHREAD_STACK_MIN) ||
        pthread_create(&thread, &attributes, work, NULL) || pthread_join(thread, NULL))
        return 1;
    for (int i = 0; i < 5; ++i)
        printf("%d ", statuses[i]);
    printf("%s\n%s\n", name ? name : "null", text);
    return aclrtFree(NULL) != 107000; // this thread can call
}
