// Two ranks, of which one is forked after the other has made the root info.
#define _GNU_SOURCE
#include <stdio.h>
#include <sys/wait.h>
#include <unistd.h>

#include "acl/acl.h"
#include "hccl/hccl.h"

#include "../must.h"

int main(int count, char **words)
{
    (void)words;
    if (count > 1)
        close(STDIN_FILENO);
    HcclRootInfo root;
    HcclComm comm;
    void *memory;
    float value;
    MUST(aclInit(NULL));
    MUST(aclrtSetDevice(0));
    MUST(HcclGetRootInfo(&root));
    uint32_t rank = fork() == 0;
    MUST(HcclCommInitRootInfo(2, &root, rank, &comm));
    value = (float)rank + 1;
    MUST(aclrtMalloc(&memory, sizeof value, ACL_MEM_MALLOC_HUGE_FIRST));
    MUST(aclrtMemcpy(memory, sizeof value, &value, sizeof value, ACL_MEMCPY_HOST_TO_DEVICE));
    MUST(HcclAllReduce(memory, memory, 1, HCCL_DATA_TYPE_FP32, HCCL_REDUCE_SUM, comm, NULL));
    MUST(aclrtMemcpy(&value, sizeof value, memory, sizeof value, ACL_MEMCPY_DEVICE_TO_HOST));
    printf("rank %u: %g\n", rank, (double)value);
    fflush(stdout);
    MUST(HcclCommDestroy(comm));
    int status = 0;
    if (rank == 0)
        wait(&status);
    return status != 0;
}
