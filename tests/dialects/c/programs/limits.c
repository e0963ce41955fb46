// A limit on addresses: statuses of allocations that fail and of computations meanwhile, and the same
// computation before, under and after it. With "cold" there is none before.
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>

#include "infinirt.h"
#include "once.h"

static size_t used(void)
{
    size_t pages = 0;
    FILE *file = fopen("/proc/self/statm", "r");
    if (!file || fscanf(file, "%zu", &pages) != 1)
        pages = 0;
    if (file)
        fclose(file);
    return pages * 4096;
}

int main(int argc, char **argv)
{
    const int cold = argc > 1 && strcmp(argv[1], "cold") == 0;
    float first[24] = {0}, meanwhile[24] = {0}, after[24] = {0};
    void *memory = NULL;
    int statuses[5] = {aclInit(NULL) | aclrtSetDevice(0)};
    if (!cold)
        statuses[1] = compute_once(first);
    struct rlimit before, limit;
    getrlimit(RLIMIT_AS, &before);
    limit = before;
    limit.rlim_cur = used() + (cold ? 32u << 20 : 4u << 20);
    setrlimit(RLIMIT_AS, &limit);
    statuses[2] = aclrtMalloc(&memory, (size_t)1 << 30, ACL_MEM_MALLOC_HUGE_FIRST);
    printf("%s\n", aclGetRecentErrMsg());
    statuses[3] = infinirtMalloc(&memory, (size_t)1 << 30);
    printf("%s\n", normgradGetRecentErrMsg());
    statuses[4] = compute_once(meanwhile);
    if (statuses[4])
        printf("%s\n", aclGetRecentErrMsg());
    setrlimit(RLIMIT_AS, &before);
    const int last = compute_once(after);
    for (int i = 0; i < 5; ++i)
        printf("%d ", statuses[i]);
    printf("%d %d %d\n", last, memcmp(first, after, sizeof first) == 0,
           memcmp(meanwhile, after, sizeof after) == 0);
    return 0;
}
