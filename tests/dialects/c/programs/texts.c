// Texts of errors: twice in one expression, and of each thread its own.
#define _GNU_SOURCE
#include <pthread.h>
#include <stdio.h>
#include <string.h>

#include "acl/acl.h"

static void *other(void *nothing)
{
    printf("[%s]\n", aclGetRecentErrMsg());
    return nothing;
}

int main(void)
{
    pthread_t thread;
    aclInit(NULL);
    aclrtSetDevice(0);
    aclrtFree((void *)(uintptr_t)0x1234);
    printf("%d\n", strcmp(aclGetRecentErrMsg(), aclGetRecentErrMsg()));
    printf("%.26s|%.26s\n", aclGetRecentErrMsg(), aclGetRecentErrMsg());
    pthread_create(&thread, NULL, other, NULL);
    pthread_join(thread, NULL);
    return 0;
}
