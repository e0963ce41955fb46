// Workspaces: null, small, not on the device, freed.
#include "misuse.h"

int main(void)
{
    start();
    struct call it = good_call();
    MUST(phase_1(&it));
    printf("a workspace is needed %d | 0 |\n", it.size > 0);
    void *workspace = block(it.size), *small = block(it.size - 1);
    char *host = malloc(it.size);

    SAY("null", phase_2(&it, NULL));
    SAY("size too small", aclnnBatchNormBackward(workspace, it.size - 1, it.executor, NULL));
    SAY("size 0", aclnnBatchNormBackward(workspace, 0, it.executor, NULL));
    SAY("block too small", phase_2(&it, small));
    SAY("rest of a block too small", phase_2(&it, (char *)workspace + 1));
    SAY("memory of the host", phase_2(&it, host));
    void *host_block = NULL;
    MUST(aclrtMallocHost(&host_block, it.size));
    SAY("a block of the host's", phase_2(&it, host_block));
    SAY("made up", phase_2(&it, (void *)(uintptr_t)0x1000));
    MUST(aclrtFree(workspace));
    SAY("freed", phase_2(&it, workspace));
    free(host);
    return 0;
}
