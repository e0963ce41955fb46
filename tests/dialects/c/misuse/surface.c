// Calls around the operators: contexts, lists, executors that are used again for other memory.
#include <pthread.h>

#include "aclnn/aclnn_base.h"
#include "misuse.h"

static void *in_a_thread(void *context)
{
    aclrtEvent event = NULL;
    aclrtContext mine = NULL;
    SAY("event in a thread without a device", aclrtCreateEvent(&event));
    SAY("set the context of another thread", aclrtSetCurrentContext(context));
    SAY("event with that", aclrtCreateEvent(&event));
    MUST(aclrtGetCurrentContext(&mine));
    printf("the same context %d | 0 |\n", mine == context);
    return event;
}

int main(void)
{
    setvbuf(stdout, NULL, _IOLBF, 0);
    void *data = NULL;
    aclrtStream stream = NULL;
    aclrtContext context = NULL, another = NULL;
    int32_t device = -1;
    SAY("aclnnInit", aclnnInit(NULL));
    SAY("aclnnInit twice", aclnnInit(NULL));
    SAY("malloc before a device", aclrtMalloc(&data, 8, ACL_MEM_MALLOC_HUGE_FIRST));
    SAY("finalize without aclInit", aclFinalize());
    SAY("both inits", aclInit(NULL));
    SAY("stream before a device", aclrtCreateStream(&stream));
    SAY("device before one", aclrtGetDevice(&device));
    SAY("synchronize before a device", aclrtSynchronizeDevice());
    MUST(aclrtSetDevice(0));
    MUST(aclrtSetDevice(0));
    MUST(aclrtResetDevice(0));
    SAY("reset less often than set", aclrtCreateStream(&stream));
    SAY("its own context", aclrtGetCurrentContext(&context));
    SAY("destroy that", aclrtDestroyContext(context));
    pthread_t thread;
    MUST(pthread_create(&thread, NULL, in_a_thread, context));
    MUST(pthread_join(thread, NULL));
    MUST(aclrtCreateContext(&another, 0));
    MUST(aclrtGetCurrentContext(&context));
    printf("a context that was made is the thread's %d | 0 |\n", context == another);
    MUST(aclrtDestroyContext(another));
    SAY("malloc in a dead context", aclrtMalloc(&data, 8, ACL_MEM_MALLOC_HUGE_FIRST));
    MUST(aclrtSetDevice(0));

    aclrtEvent event = NULL, timed = NULL;
    aclrtEventRecordedStatus status = ACL_EVENT_RECORDED_STATUS_COMPLETE;
    float milliseconds = 0;
    SAY("stream of no priority", aclrtCreateStreamWithConfig(&stream, 8, 0));
    SAY("stream of no kind", aclrtCreateStreamWithConfig(&stream, 0, 0x40));
    SAY("stream of a kind", aclrtCreateStreamWithConfig(&stream, 7, ACL_STREAM_FAST_LAUNCH));
    SAY("timeout", aclrtSynchronizeStreamWithTimeout(stream, -2));
    SAY("no time limit", aclrtSynchronizeStreamWithTimeout(stream, -1));
    SAY("event of no kind", aclrtCreateEventWithFlag(&event, 0x80));
    MUST(aclrtCreateEventWithFlag(&event, ACL_EVENT_CAPTURE_STREAM_PROGRESS));
    MUST(aclrtCreateEventWithFlag(&timed, ACL_EVENT_TIME_LINE | ACL_EVENT_SYNC));
    SAY("status of null", aclrtQueryEventStatus(NULL, &status));
    SAY("status to null", aclrtQueryEventStatus(event, NULL));
    MUST(aclrtQueryEventStatus(event, &status));
    printf("not recorded %d | 0 |\n", status == ACL_EVENT_RECORDED_STATUS_NOT_READY);
    MUST(aclrtRecordEvent(event, stream));
    MUST(aclrtRecordEvent(timed, stream));
    SAY("wait for one that cannot", aclrtStreamWaitEvent(stream, event));
    SAY("time of one that has none", aclrtEventElapsedTime(&milliseconds, event, timed));

    float host[12] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12}, back[12] = {0};
    void *rows = block(6 * sizeof(float));
    SAY("rows", aclrtMemcpy2d(rows, 12, host, 16, 8, 2, ACL_MEMCPY_HOST_TO_DEVICE));
    SAY("rows back", aclrtMemcpy2d(back, 8, rows, 12, 8, 2, ACL_MEMCPY_DEVICE_TO_HOST));
    printf("are 1 2 5 6 %d | 0 |\n", back[0] == 1 && back[1] == 2 && back[2] == 5 && back[3] == 6);
    SAY("rows past the end", aclrtMemcpy2d(rows, 12, host, 16, 12, 3, ACL_MEMCPY_HOST_TO_DEVICE));
    SAY("rows over each other", aclrtMemcpy2d(rows, 8, host, 16, 12, 2, ACL_MEMCPY_HOST_TO_DEVICE));
    SAY("rows on the device", aclrtMemcpy2d(rows, 8, rows, 8, 8, 1, ACL_MEMCPY_DEVICE_TO_DEVICE));
    SAY("no rows", aclrtMemcpy2d(rows, 8, NULL, 8, 8, 0, ACL_MEMCPY_HOST_TO_DEVICE));
    SAY("set later, past the end", aclrtMemsetAsync(rows, 48, 0, 48, stream));
    SAY("set later", aclrtMemsetAsync(rows, 24, 0, 24, stream));

    const int64_t integers[] = {1, 2, 3};
    float numbers[] = {1, 2};
    uint64_t size = 0;
    aclScalar *scalar = aclCreateScalar(numbers, ACL_FLOAT);
    aclIntArray *some = aclCreateIntArray(integers, 3);
    SAY_MADE("scalar of null", aclCreateScalar(NULL, ACL_FLOAT));
    SAY_MADE("scalar of no dtype", aclCreateScalar(numbers, ACL_STRING));
    SAY_MADE("integers of null", aclCreateIntArray(NULL, 3));
    SAY_MADE("numbers", aclCreateFloatArray(numbers, 2));
    SAY("size of integers", aclGetIntArraySize(some, &size));
    printf("is 3 %d | 0 |\n", size == 3);
    SAY("size of another kind", aclGetFloatArraySize((const aclFloatArray *)some, &size));
    SAY("size to null", aclGetIntArraySize(some, NULL));
    SAY("destroy integers", aclDestroyIntArray(some));
    SAY("destroy integers twice", aclDestroyIntArray(some));
    const aclTensor *tensors[] = {over(rows), NULL, over(rows)};
    aclTensorList *list = aclCreateTensorList(tensors, 3);
    SAY("size of tensors", aclGetTensorListSize(list, &size));
    const aclTensor *wrong[] = {(const aclTensor *)scalar};
    SAY_MADE("tensors that are a scalar", aclCreateTensorList(wrong, 1));
    SAY("destroy tensors", aclDestroyTensorList(list));
    SAY("one of them again", aclDestroyTensor(tensors[0]));
    const aclScalar *scalars[] = {scalar};
    aclScalarList *few = aclCreateScalarList(scalars, 1);
    SAY("destroy scalar", aclDestroyScalar(scalar));
    SAY("and the list with it", aclDestroyScalarList(few));
    SAY("destroy no list", aclDestroyScalarList(NULL));

    struct call it = good_call();
    aclTensor *unset = over(NULL);
    it.input = unset;
    MUST(phase_1(&it));
    void *workspace = block(it.size);
    SAY("address of null", aclSetTensorAddr(NULL, 1, unset, it.data[1]));
    SAY("address for null", aclSetTensorAddr(it.executor, 1, NULL, it.data[1]));
    SAY("address in an executor for one use", aclSetTensorAddr(it.executor, 1, unset, it.data[1]));
    SAY("repeatable", aclSetAclOpExecutorRepeatable(it.executor));
    SAY("without the address", phase_2(&it, workspace));
    SAY("address of no tensor", aclSetTensorAddr(it.executor, 10, unset, it.data[1]));
    SAY("address of a null tensor", aclSetTensorAddr(it.executor, 3, it.weight, it.data[1]));
    SAY("address of another tensor", aclSetTensorAddr(it.executor, 2, unset, it.data[1]));
    SAY("address of the host", aclSetTensorAddr(it.executor, 1, unset, host));
    SAY("address too near the end", aclSetTensorAddr(it.executor, 1, unset, (char *)it.data[1] + 8));
    SAY("address", aclSetTensorAddr(it.executor, 1, unset, it.data[1]));
    SAY("of an input", aclSetInputTensorAddr(it.executor, 0, it.grad_out, it.data[0]));
    SAY("of an output", aclSetOutputTensorAddr(it.executor, 0, it.grad_input, it.data[3]));
    SAY("of no output", aclSetOutputTensorAddr(it.executor, 3, it.grad_input, it.data[3]));
    SAY("destroy null", aclDestroyAclOpExecutor(NULL));

    MUST(aclrtResetDevice(0));
    SAY("reset as often", aclrtSynchronizeStream(stream));
    MUST(aclrtResetDevice(0));
    SAY("phase 2 without a device", phase_2(&it, workspace));
    SAY("synchronize without a device", aclrtSynchronizeStream(stream));
    SAY("free without one", aclrtFree(workspace));
    SAY("aclnnFinalize", aclnnFinalize());
    SAY("finalize", aclFinalize());
    printf("names %d %d %d | 0 |\n", ACL_ERROR_NONE, ACL_ERROR_REPEAT_FINALIZE,
           ACL_ERROR_RT_STREAM_SYNC_TIMEOUT);
    return 0;
}
