// Three ranks, of which one ends before the others make a call.
#define _GNU_SOURCE
#include <pthread.h>
#include <stdio.h>

#include "acl/acl.h"
#include "hccl/hccl.h"

#include "../must.h"

static HcclRootInfo root;
static int statuses[3];
static pthread_barrier_t over;

static void *run(void *data)
{
    int *status = data;
    uint32_t rank = (uint32_t)(status - statuses);
    HcclComm comm;
    void *memory;
    MUST(aclrtSetDevice(0));
    MUST(HcclCommInitRootInfo(3, &root, rank, &comm));
    MUST(aclrtMalloc(&memory, 64, ACL_MEM_MALLOC_HUGE_FIRST));
    if (rank == 1)
        MUST(HcclCommDestroy(comm));
    else
        *status = HcclAllReduce(memory, memory, 16, HCCL_DATA_TYPE_FP32, HCCL_REDUCE_SUM, comm,
                                NULL);
    pthread_barrier_wait(&over); // no rank ends before all have failed
    return NULL;
}

int main(void)
{
    pthread_t threads[3];
    MUST(aclInit(NULL));
    MUST(aclrtSetDevice(0));
    MUST(HcclGetRootInfo(&root));
    pthread_barrier_init(&over, NULL, 3);
    for (int i = 0; i < 3; ++i)
        pthread_create(&threads[i], NULL, run, &statuses[i]);
    for (int i = 0; i < 3; ++i)
        pthread_join(threads[i], NULL);
    printf("%d %d\n", statuses[0], statuses[2]);
    return 0;
}
