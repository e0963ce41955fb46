// Blocks: freed twice, freed by the wrong function, used after they were freed.
#include "misuse.h"

int main(void)
{
    start();
    float host[8] = {0};
    void *host_block = NULL, *data = block(BYTES);
    MUST(aclrtMallocHost(&host_block, BYTES));

    SAY("malloc to null", aclrtMalloc(NULL, 8, ACL_MEM_MALLOC_HUGE_FIRST));
    SAY("malloc of nothing", aclrtMalloc(&data, 0, ACL_MEM_MALLOC_HUGE_FIRST));
    void *absurd = NULL;
    SAY("malloc of too much", aclrtMalloc(&absurd, SIZE_MAX, ACL_MEM_MALLOC_HUGE_FIRST));
    SAY("malloc of far too much", aclrtMalloc(&absurd, SIZE_MAX / 4, ACL_MEM_MALLOC_HUGE_FIRST));
    printf("pointer after it %d | 0 |\n", absurd != NULL);
    SAY("host malloc of too much", aclrtMallocHost(&absurd, SIZE_MAX));

    SAY("free null", aclrtFree(NULL));
    SAY("free the stack", aclrtFree(host));
    SAY("free the middle", aclrtFree((char *)data + 8));
    SAY("free host memory", aclrtFree(host_block));
    SAY("free device memory as the host's", aclrtFreeHost(data));
    SAY("free", aclrtFree(data));
    SAY("free twice", aclrtFree(data));
    SAY("free the middle of what is freed", aclrtFree((char *)data + 8));
    SAY("free host", aclrtFreeHost(host_block));
    SAY("free host twice", aclrtFreeHost(host_block));
    SAY("free host null", aclrtFreeHost(NULL));

    SAY("copy from what is freed",
        aclrtMemcpy(host, BYTES, data, BYTES, ACL_MEMCPY_DEVICE_TO_HOST));
    SAY("copy to what is freed", aclrtMemcpy(data, BYTES, host, BYTES, ACL_MEMCPY_HOST_TO_DEVICE));
    SAY("set what is freed", aclrtMemset(data, BYTES, 0, BYTES));

    struct call it = good_call();
    it.weight = vector_over(data);
    SAY("tensor over what is freed", phase_1(&it));
    it.weight = NULL;
    MUST(aclrtFree(it.data[1]));
    SAY("tensor whose memory was freed", phase_1(&it));
    it = good_call();
    MUST(phase_1(&it));
    void *workspace = block(it.size ? it.size : 1);
    MUST(aclrtFree(it.data[3]));
    SAY("memory freed before phase 2", phase_2(&it, workspace));
    SAY("the same again", phase_2(&it, workspace));

    // Far more blocks than are remembered.
    void *first = block(1 << 20);
    MUST(aclrtFree(first));
    for (int i = 0; i < 3000; ++i)
        MUST(aclrtFree(block(64)));
    SAY("free long after", aclrtFree(first));
    return 0;
}
