// The runtime: in the wrong order, with dead streams, events and contexts.
#include "misuse.h"

int main(void)
{
    setvbuf(stdout, NULL, _IOLBF, 0);
    void *data = NULL;
    aclrtStream stream = NULL;
    printf("message before any error [%s] | 0 |\n", aclGetRecentErrMsg());
    SAY("malloc before aclInit", aclrtMalloc(&data, 8, ACL_MEM_MALLOC_HUGE_FIRST));
    SAY("stream before aclInit", aclrtCreateStream(&stream));
    SAY("finalize before aclInit", aclFinalize());
    SAY("config that is not there", aclInit("/nowhere/acl.json"));
    SAY("config that is none", aclInit("/proc/self/status"));
    SAY("init", aclInit(""));
    SAY("init twice", aclInit(NULL));
    SAY("no such device", aclrtSetDevice(7));
    SAY("negative device", aclrtSetDevice(-1));
    SAY("device", aclrtSetDevice(0));
    SAY("device to null", aclrtGetDevice(NULL));
    SAY("stream to null", aclrtCreateStream(NULL));

    MUST(aclrtCreateStream(&stream));
    SAY("synchronize the default stream", aclrtSynchronizeStream(NULL));
    SAY("synchronize", aclrtSynchronizeStream(stream));
    SAY("destroy stream", aclrtDestroyStream(stream));
    SAY("destroy stream twice", aclrtDestroyStream(stream));
    SAY("destroy the default stream", aclrtDestroyStream(NULL));
    SAY("synchronize a dead stream", aclrtSynchronizeStream(stream));
    SAY("synchronize a made up stream", aclrtSynchronizeStream((aclrtStream)&data));

    aclrtEvent start_event = NULL, end_event = NULL;
    float ms = -1;
    MUST(aclrtCreateEvent(&start_event));
    MUST(aclrtCreateEvent(&end_event));
    SAY("stream is an event", aclrtSynchronizeStream((aclrtStream)start_event));
    SAY("time not recorded", aclrtEventElapsedTime(&ms, start_event, end_event));
    SAY("record on a dead stream", aclrtRecordEvent(start_event, stream));
    MUST(aclrtRecordEvent(start_event, NULL));
    MUST(aclrtRecordEvent(end_event, NULL));
    SAY("time to null", aclrtEventElapsedTime(NULL, start_event, end_event));
    SAY("time", aclrtEventElapsedTime(&ms, start_event, end_event));
    printf("time is positive %d | 0 |\n", ms > 0 && ms < 10000);
    SAY("wait", aclrtStreamWaitEvent(NULL, start_event));
    SAY("destroy event", aclrtDestroyEvent(start_event));
    SAY("wait for a dead event", aclrtStreamWaitEvent(NULL, start_event));
    SAY("synchronize a dead event", aclrtSynchronizeEvent(start_event));

    aclrtContext context = NULL;
    MUST(aclrtCreateContext(&context, 0));
    SAY("set context", aclrtSetCurrentContext(context));
    SAY("destroy context", aclrtDestroyContext(context));
    SAY("set a dead context", aclrtSetCurrentContext(context));

    SAY("finalize", aclFinalize());
    SAY("finalize twice", aclFinalize());
    SAY("malloc after the end", aclrtMalloc(&data, 8, ACL_MEM_MALLOC_HUGE_FIRST));
    return 0;
}
