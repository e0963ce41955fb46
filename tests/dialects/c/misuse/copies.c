// Copies: past an end, from or to null, of the wrong kind.
#include "misuse.h"

int main(void)
{
    start();
    float host[16] = {0};
    void *data = block(BYTES), *more = block(2 * BYTES), *host_block = NULL;
    MUST(aclrtMallocHost(&host_block, BYTES));

    SAY("nothing from null", aclrtMemcpy(data, BYTES, NULL, 0, ACL_MEMCPY_HOST_TO_DEVICE));
    SAY("nothing to null", aclrtMemset(NULL, 0, 0, 0));
    SAY("to null", aclrtMemcpy(NULL, BYTES, host, BYTES, ACL_MEMCPY_HOST_TO_DEVICE));
    SAY("from null", aclrtMemcpy(data, BYTES, NULL, BYTES, ACL_MEMCPY_HOST_TO_DEVICE));
    SAY("past the end of the target",
        aclrtMemcpy(data, 2 * BYTES, host, 2 * BYTES, ACL_MEMCPY_HOST_TO_DEVICE));
    SAY("past the end, from its middle",
        aclrtMemcpy((char *)data + 16, BYTES, host, BYTES, ACL_MEMCPY_HOST_TO_DEVICE));
    SAY("past the end of the source",
        aclrtMemcpy(host, sizeof host, data, BYTES + 1, ACL_MEMCPY_DEVICE_TO_HOST));
    SAY("past the end of host memory",
        aclrtMemcpy(host_block, 2 * BYTES, more, 2 * BYTES, ACL_MEMCPY_DEVICE_TO_HOST));
    SAY("past destMax", aclrtMemcpy(more, BYTES, host, BYTES + 4, ACL_MEMCPY_HOST_TO_DEVICE));
    SAY("a length that was negative",
        aclrtMemcpy(data, BYTES, host, (size_t)-4, ACL_MEMCPY_HOST_TO_DEVICE));
    SAY("device to device, to the host",
        aclrtMemcpy(host, BYTES, data, BYTES, ACL_MEMCPY_DEVICE_TO_DEVICE));
    SAY("device to host, from the host",
        aclrtMemcpy(host, BYTES, host + 8, BYTES, ACL_MEMCPY_DEVICE_TO_HOST));
    SAY("host to device, the wrong way round",
        aclrtMemcpy(host, BYTES, data, BYTES, ACL_MEMCPY_HOST_TO_DEVICE));
    SAY("host to device, from the device",
        aclrtMemcpy(data, BYTES, more, BYTES, ACL_MEMCPY_HOST_TO_DEVICE));
    SAY("host to device, to a host block",
        aclrtMemcpy(host_block, BYTES, host, BYTES, ACL_MEMCPY_HOST_TO_DEVICE));
    SAY("no kind", aclrtMemcpy(data, BYTES, host, BYTES, (aclrtMemcpyKind)9));
    SAY("set past the end", aclrtMemset(data, 2 * BYTES, 0, BYTES + 1));
    SAY("set past maxCount", aclrtMemset(data, 4, 0, 8));
    SAY("set null", aclrtMemset(NULL, 4, 0, 4));
    SAY("set the host", aclrtMemset(host, 4, 0, 4));
    SAY("asynchronous, past the end",
        aclrtMemcpyAsync(data, 2 * BYTES, host, 2 * BYTES, ACL_MEMCPY_HOST_TO_DEVICE, NULL));

    // And what is right.
    for (int i = 0; i < 8; ++i)
        host[i] = (float)i;
    SAY("there", aclrtMemcpy(data, BYTES, host, BYTES, ACL_MEMCPY_HOST_TO_DEVICE));
    SAY("across", aclrtMemcpy(more, BYTES, data, BYTES, ACL_MEMCPY_DEVICE_TO_DEVICE));
    SAY("and back", aclrtMemcpy(host + 8, BYTES, more, BYTES, ACL_MEMCPY_DEFAULT));
    printf("equal %d | 0 |\n", host[8] == 0 && host[15] == 7);
    MUST(aclrtMemset((char *)data + 4, 4, -1, 4));
    MUST(aclrtMemcpy(host, BYTES, data, BYTES, ACL_MEMCPY_DEVICE_TO_HOST));
    printf("set %d | 0 |\n", host[0] == 0 && host[1] != host[1] && host[2] == 2);
    return 0;
}
