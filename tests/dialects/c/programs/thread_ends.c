// The destructor of a thread's own data makes calls, after those of the libraries' data.
#define _GNU_SOURCE
#include <pthread.h>
#include <stdio.h>

#include "acl/acl.h"

#include "../must.h"

static pthread_key_t key;
static void *memory;

static void end(void *unused)
{
    char byte;
    (void)unused;
    MUST(aclrtMemcpy(&byte, 1, memory, 1, ACL_MEMCPY_DEVICE_TO_HOST));
    printf("%d %s\n", aclrtFree((char *)memory + 1), aclGetRecentErrMsg());
}

static void *run(void *unused)
{
    char byte;
    MUST(aclrtSetDevice(0));
    MUST(aclrtMemcpy(&byte, 1, memory, 1, ACL_MEMCPY_DEVICE_TO_HOST));
    aclrtFree(&byte);
    pthread_key_create(&key, end);
    pthread_setspecific(key, &key);
    return unused;
}

int main(void)
{
    pthread_t thread;
    MUST(aclInit(NULL));
    MUST(aclrtSetDevice(0));
    MUST(aclrtMalloc(&memory, 64, ACL_MEM_MALLOC_HUGE_FIRST));
    pthread_create(&thread, NULL, run, NULL);
    pthread_join(thread, NULL);
    return 0;
}
