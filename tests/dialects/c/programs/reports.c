// Threads fail in ever new ways while the report is printed.
#define _GNU_SOURCE
#include <pthread.h>

#include "acl/acl.h"

#include "../must.h"

static int ends;

static void *run(void *unused)
{
    for (size_t i = 1; !__atomic_load_n(&ends, __ATOMIC_RELAXED); ++i)
        aclrtFree((void *)(i % 500 * 16 + 16));
    return unused;
}

int main(void)
{
    pthread_t threads[2];
    for (int i = 0; i < 2; ++i)
        pthread_create(&threads[i], NULL, run, NULL);
    for (int i = 0; i < 50; ++i) {
        MUST(aclInit(NULL));
        MUST(aclFinalize());
    }
    __atomic_store_n(&ends, 1, __ATOMIC_RELAXED);
    for (int i = 0; i < 2; ++i)
        pthread_join(threads[i], NULL);
    return 0;
}
