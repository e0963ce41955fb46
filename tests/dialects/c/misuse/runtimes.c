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
    SAY("reset before it is set", aclrtResetDevice(0));
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

    int32_t version[3] = {0};
    SAY("version", aclrtGetVersion(&version[0], &version[1], &version[2]));
    printf("it is %d.%d | 0 |\n", version[0], version[1]);
    SAY("aligned memory", aclrtMallocAlign32(&data, 33, ACL_MEM_MALLOC_HUGE_FIRST));
    printf("is aligned %d | 0 |\n", (uintptr_t)data % 32 == 0);
    SAY("free it", aclrtFree(data));
    aclrtStreamStatus idle = ACL_STREAM_STATUS_NOT_READY;
    aclrtEventStatus event_status = ACL_EVENT_STATUS_NOT_READY;
    aclrtEventWaitStatus waits = ACL_EVENT_WAIT_STATUS_NOT_READY;
    MUST(aclrtStreamQuery(NULL, &idle));
    MUST(aclrtQueryEvent(end_event, &event_status));
    MUST(aclrtQueryEventWaitStatus(end_event, &waits));
    printf("done %d %d %d | 0 |\n", idle, event_status, waits);
    SAY("query a dead stream", aclrtStreamQuery(stream, &idle));
    SAY("reset on a dead stream", aclrtResetEvent(end_event, stream));
    SAY("reset an event", aclrtResetEvent(end_event, NULL));
    MUST(aclrtQueryEvent(end_event, &event_status));
    MUST(aclrtQueryEventWaitStatus(end_event, &waits));
    printf("then %d %d | 0 |\n", event_status, waits);
    SAY("time of what was reset", aclrtEventElapsedTime(&ms, end_event, end_event));
    SAY("timeout of an event", aclrtSynchronizeEventWithTimeout(end_event, -2));
    SAY("timeouts", aclrtSynchronizeEventWithTimeout(end_event, 10) +
        aclrtSynchronizeDeviceWithTimeout(-1));
    float host[4] = {1, 2, 3, 4}, back[4] = {0};
    data = block(16);
    MUST(aclrtMemcpy2dAsync(data, 8, host, 4, 4, 2, ACL_MEMCPY_HOST_TO_DEVICE, NULL));
    MUST(aclrtMemcpy2dAsync(back, 4, data, 8, 4, 2, ACL_MEMCPY_DEVICE_TO_HOST, NULL));
    MUST(aclrtSynchronizeStream(NULL));
    printf("rows %g %g %g | 0 |\n", (double)back[0], (double)back[1], (double)back[2]);
    SAY("rows past the end",
        aclrtMemcpy2dAsync(data, 16, host, 4, 4, 2, ACL_MEMCPY_HOST_TO_DEVICE, NULL));

    aclrtContext context = NULL;
    MUST(aclrtCreateContext(&context, 0));
    SAY("set context", aclrtSetCurrentContext(context));
    SAY("destroy context", aclrtDestroyContext(context));
    SAY("set a dead context", aclrtSetCurrentContext(context));

    // The last reset takes what threads made in the device's own context; the rest stays.
    MUST(aclrtSetDevice(0));
    MUST(aclrtResetDevice(0));
    void *own = block(BYTES), *others = NULL;
    aclrtStream their_stream = NULL;
    MUST(aclrtCreateStream(&stream));
    MUST(aclrtCreateContext(&context, 0));
    MUST(aclrtMalloc(&others, 8, ACL_MEM_MALLOC_HUGE_FIRST));
    MUST(aclrtCreateStream(&their_stream));
    aclTensor *tensor = over(own);
    SAY("reset", aclrtResetDevice(0));
    SAY("reset past zero", aclrtResetDevice(0));
    MUST(aclrtSetDevice(0));
    SAY("synchronize what was reset", aclrtSynchronizeStream(stream));
    SAY("destroy it", aclrtDestroyStream(stream));
    SAY("set what was reset", aclrtMemset(own, 8, 0, 8));
    SAY("copy to it", aclrtMemcpy(own, 8, others, 8, ACL_MEMCPY_DEVICE_TO_DEVICE));
    struct call it = {.grad_out = tensor, .input = tensor, .grad_input = tensor};
    it.mask = aclCreateBoolArray((bool[]){true, false, false}, 3);
    SAY("tensor over it", phase_1(&it));
    SAY("destroy the tensor", aclDestroyTensor(tensor));
    SAY("free what was reset", aclrtFree(own));
    SAY("free it twice", aclrtFree(own));
    SAY("synchronize another context's", aclrtSynchronizeStream(their_stream));
    SAY("set another context's", aclrtMemset(others, 8, 0, 8));

    SAY("finalize", aclFinalize());
    SAY("finalize twice", aclFinalize());
    SAY("free after the end", aclrtFree(others));
    SAY("malloc after the end", aclrtMalloc(&data, 8, ACL_MEM_MALLOC_HUGE_FIRST));
    return 0;
}
