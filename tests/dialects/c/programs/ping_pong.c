// Two streams wait for each other's events over and over; prints by how many MiB the process grows.
#include <stdio.h>

#include "acl/acl.h"

#include "../must.h"

static long resident(void) // in pages of 4 KiB
{
    long size = 0, pages = 0;
    FILE *file = fopen("/proc/self/statm", "r");
    if (!file || fscanf(file, "%ld %ld", &size, &pages) != 2)
        exit(1);
    fclose(file);
    return pages;
}

int main(void)
{
    aclrtStream streams[2];
    aclrtEvent event;
    void *memory;
    MUST(aclInit(NULL));
    MUST(aclrtSetDevice(0));
    MUST(aclrtCreateStream(&streams[0]));
    MUST(aclrtCreateStream(&streams[1]));
    MUST(aclrtCreateEvent(&event));
    MUST(aclrtMalloc(&memory, 64, ACL_MEM_MALLOC_HUGE_FIRST));
    MUST(aclrtMemsetAsync(memory, 64, 0, 64, streams[0]));
    long before = resident();
    for (int i = 0; i < 300000; ++i) {
        MUST(aclrtRecordEvent(event, streams[i % 2]));
        MUST(aclrtStreamWaitEvent(streams[1 - i % 2], event));
        if (i % 1000 == 0)
            MUST(aclrtSynchronizeDevice());
    }
    printf("%ld\n", (resident() - before) / 256);
    return 0;
}
