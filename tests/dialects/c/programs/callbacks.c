// Callbacks: a thread that is told of them, as samples have it, and mistakes.
#define _GNU_SOURCE
#include <pthread.h>
#include <stdio.h>
#include <string.h>

#include "acl/acl.h"

#include "../must.h"

static int told;
static volatile int ends;
static float values[4] = {1, 2, 3, 4}, seen;

static void scale(void *data)
{
    float *at = data;
    at[0] *= 10;
    aclrtStream stream; // a callback may make calls
    MUST(aclrtCreateStream(&stream));
    MUST(aclrtDestroyStream(stream));
    MUST(aclrtSynchronizeDevice()); // which does not wait for this callback
}

static void look(void *data)
{
    seen = *(float *)data;
}

static void *wait_for_reports(void *unused)
{
    MUST(aclrtSetDevice(0));
    while (!ends)
        told += aclrtProcessReport(10) == ACL_SUCCESS;
    return unused;
}

static void say(int status)
{
    printf("%d %s\n", status, status ? strstr(aclGetRecentErrMsg(), ": ") + 2 : "");
}

int main(void)
{
    aclrtStream stream;
    pthread_t thread;
    void *memory;
    float result[4];
    MUST(aclInit(NULL));
    MUST(aclrtSetDevice(0));
    MUST(aclrtCreateStream(&stream));
    MUST(aclrtMalloc(&memory, 16, ACL_MEM_MALLOC_HUGE_FIRST));
    say(aclrtLaunchCallback(scale, values, ACL_CALLBACK_BLOCK, stream));
    say(aclrtProcessReport(10));
    MUST(aclrtSubscribeReport(pthread_self(), stream));
    say(aclrtSubscribeReport(pthread_self(), stream));
    say(aclrtLaunchCallback(NULL, values, ACL_CALLBACK_BLOCK, stream));
    say(aclrtLaunchCallback(scale, values, (aclrtCallbackBlockType)7, stream));
    say(aclrtProcessReport(10));
    say(aclrtProcessReport(-2));
    // This thread launches, and is told.
    MUST(aclrtLaunchCallback(look, values + 3, ACL_CALLBACK_NO_BLOCK, stream));
    MUST(aclrtProcessReport(-1));
    printf("seen %g\n", (double)seen);
    say(aclrtUnSubscribeReport(1, stream) == 107000 ? 0 : 1);
    MUST(aclrtUnSubscribeReport(pthread_self(), stream));
    say(aclrtUnSubscribeReport(pthread_self(), stream));
    // Work, a callback, and work that uses what the callback wrote.
    pthread_create(&thread, NULL, wait_for_reports, NULL);
    MUST(aclrtSubscribeReport(thread, stream));
    MUST(aclrtMemcpyAsync(memory, 16, values, 16, ACL_MEMCPY_HOST_TO_DEVICE, stream));
    MUST(aclrtMemcpyAsync(result, 16, memory, 16, ACL_MEMCPY_DEVICE_TO_HOST, stream));
    MUST(aclrtLaunchCallback(scale, result, ACL_CALLBACK_BLOCK, stream));
    MUST(aclrtMemcpyAsync(memory, 16, result, 16, ACL_MEMCPY_HOST_TO_DEVICE, stream));
    MUST(aclrtSynchronizeStream(stream));
    ends = 1;
    pthread_join(thread, NULL);
    MUST(aclrtUnSubscribeReport(thread, stream));
    MUST(aclrtMemcpy(result, 16, memory, 16, ACL_MEMCPY_DEVICE_TO_HOST));
    printf("%g %g\n", (double)result[0], (double)result[1]);
    MUST(aclrtFree(memory));
    MUST(aclrtDestroyStream(stream));
    MUST(aclrtResetDevice(0));
    MUST(aclFinalize());
    return told > 1;
}
