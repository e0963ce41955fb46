// The program ends while threads are in the middle of calls, from a thread of its own.
#define _GNU_SOURCE
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "acl/acl.h"

static void *busy(void *nothing)
{
    aclrtSetDevice(0);
    for (;;) {
        void *data;
        aclrtMalloc(&data, 1 << 16, ACL_MEM_MALLOC_HUGE_FIRST);
        aclrtMemset(data, 1 << 16, 0, 1 << 16);
        aclrtFree(data);
    }
    return nothing;
}

static void *end(void *nothing)
{
    usleep(200000);
    printf("ending\n");
    exit(7);
    return nothing;
}

int main(void)
{
    pthread_t threads[4];
    if (aclInit(NULL))
        return 1;
    for (int i = 0; i < 3; ++i)
        pthread_create(&threads[i], NULL, busy, NULL);
    pthread_create(&threads[3], NULL, end, NULL);
    pthread_join(threads[3], NULL);
    return 2;
}
