// Texts of errors: twice in one expression, of each thread its own, and copies that another thread's
// free does not disturb.
#define _GNU_SOURCE
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "acl/acl.h"

static void *other(void *nothing)
{
    printf("[%s]\n", aclGetRecentErrMsg());
    return nothing;
}

static void *big;

static void *free_it(void *nothing)
{
    usleep(20000);
    aclrtSetDevice(0);
    aclrtFree(big);
    for (int i = 0; i < 1100; ++i) { // so that it is not remembered any more
        void *small;
        aclrtMalloc(&small, 64, ACL_MEM_MALLOC_HUGE_FIRST);
        aclrtFree(small);
    }
    return nothing;
}

int main(void)
{
    enum { SIZE = 256 << 20 };
    pthread_t thread;
    aclInit(NULL);
    aclrtSetDevice(0);
    aclrtFree((void *)(uintptr_t)0x1234);
    printf("%d\n", strcmp(aclGetRecentErrMsg(), aclGetRecentErrMsg()));
    printf("%.26s|%.26s\n", aclGetRecentErrMsg(), aclGetRecentErrMsg());
    pthread_create(&thread, NULL, other, NULL);
    pthread_join(thread, NULL);

    char *host = calloc(1, SIZE);
    if (!host || aclrtMalloc(&big, SIZE, ACL_MEM_MALLOC_HUGE_FIRST))
        return 1;
    pthread_create(&thread, NULL, free_it, NULL);
    int status = 0, rounds = 0;
    while (!status && ++rounds < 1000)
        status = aclrtMemcpy(big, SIZE, host, SIZE, ACL_MEMCPY_HOST_TO_DEVICE);
    pthread_join(thread, NULL);
    printf("%d\n", status); // it was freed at last
    free(host);
    return 0;
}
