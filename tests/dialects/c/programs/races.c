// Programs that pass where streams run at once, and fail on a device: each is a case, whose name is
// printed to stderr before its findings. "right" orders everything.
#include "races.h"

static float expected[COUNT];

static void end(void)
{
    MUST(aclrtSynchronizeDevice());
    if (data[2])
        MUST(aclrtMemcpy(result, BYTES, data[2], BYTES, ACL_MEMCPY_DEVICE_TO_HOST));
    if (memcmp(result, expected, BYTES))
        printf("another result\n");
    clean_up();
}

static void polled(void)
{
    aclrtEventRecordedStatus status = ACL_EVENT_RECORDED_STATUS_NOT_READY;
    int asked = 0;
    for (; status == ACL_EVENT_RECORDED_STATUS_NOT_READY && asked < 1000; ++asked)
        MUST(aclrtQueryEventStatus(event, &status));
    printf("asked: %d\n", asked);
}

int main(void)
{
    start();

    begin("right");
    MUST(aclrtMemcpyAsync(data[1], BYTES, values[1], BYTES, ACL_MEMCPY_HOST_TO_DEVICE, one));
    MUST(aclrtRecordEvent(event, one));
    MUST(aclrtStreamWaitEvent(two, event));
    launch(two);
    launch(two);
    MUST(aclrtRecordEvent(event, two));
    polled();
    MUST(aclrtMemcpy(expected, BYTES, data[2], BYTES, ACL_MEMCPY_DEVICE_TO_HOST));
    MUST(aclrtMemsetAsync(data[0], BYTES, 0, BYTES, one));
    MUST(aclrtMemcpyAsync(result, BYTES, data[2], BYTES, ACL_MEMCPY_DEVICE_TO_HOST, two));
    MUST(aclrtSynchronizeStreamWithTimeout(two, 1000));
    end();

    // The memory of a queued call's tensors is what it was when the call was made.
    begin("addresses");
    aclOpExecutor *executor;
    void *second;
    const int64_t shape[] = {2, 3, 4};
    const bool first_alone[] = {true, false, false};
    aclBoolArray *mask = aclCreateBoolArray(first_alone, 3);
    MUST(aclDestroyTensor(tensors[2]));
    tensors[2] = aclCreateTensor(shape, 3, ACL_FLOAT, NULL, 0, ACL_FORMAT_ND, shape, 3, NULL);
    MUST(aclnnBatchNormBackwardGetWorkspaceSize(tensors[0], tensors[1], NULL, NULL, NULL, NULL,
                                                NULL, true, 1e-5, mask, tensors[2], NULL, NULL,
                                                &size, &executor));
    MUST(aclSetAclOpExecutorRepeatable(executor));
    MUST(aclrtMalloc(&workspace, size, ACL_MEM_MALLOC_HUGE_FIRST));
    MUST(aclrtMalloc(&second, BYTES, ACL_MEM_MALLOC_HUGE_FIRST));
    MUST(aclSetTensorAddr(executor, 7, tensors[2], data[2]));
    MUST(aclnnBatchNormBackward(workspace, size, executor, one));
    MUST(aclSetOutputTensorAddr(executor, 0, tensors[2], second));
    MUST(aclnnBatchNormBackward(workspace, size, executor, one));
    MUST(aclrtSynchronizeStream(one));
    MUST(aclrtMemcpy(result, BYTES, second, BYTES, ACL_MEMCPY_DEVICE_TO_HOST));
    if (memcmp(result, expected, BYTES))
        printf("another result at the second address\n");
    MUST(aclDestroyAclOpExecutor(executor));
    MUST(aclDestroyBoolArray(mask));
    MUST(aclrtFree(second));
    end();

    begin("no synchronize");
    launch(one);
    MUST(aclrtMemcpy(result, BYTES, data[2], BYTES, ACL_MEMCPY_DEVICE_TO_HOST));
    end();

    begin("no event");
    MUST(aclrtMemcpyAsync(data[1], BYTES, values[1], BYTES, ACL_MEMCPY_HOST_TO_DEVICE, one));
    launch(two);
    end();

    begin("event too early");
    MUST(aclrtRecordEvent(event, one));
    launch(one);
    MUST(aclrtStreamWaitEvent(two, event));
    MUST(aclrtMemcpyAsync(result, BYTES, data[2], BYTES, ACL_MEMCPY_DEVICE_TO_HOST, two));
    end();

    begin("workspace freed");
    launch(one);
    MUST(aclrtFree(workspace));
    workspace = NULL;
    end();

    begin("workspace shared");
    launch(one);
    void *other = data[2];
    MUST(aclrtMalloc(&data[2], BYTES, ACL_MEM_MALLOC_HUGE_FIRST));
    aclTensor *first = tensors[2];
    tensors[2] = aclCreateTensor(shape, 3, ACL_FLOAT, NULL, 0, ACL_FORMAT_ND, shape, 3, data[2]);
    launch(two);
    MUST(aclrtSynchronizeDevice());
    MUST(aclrtFree(other));
    MUST(aclDestroyTensor(first));
    end();

    begin("tensor and array destroyed");
    launch(one);
    for (int i = 0; i < 3; ++i)
        MUST(aclDestroyTensor(tensors[i]));
    memset(tensors, 0, sizeof tensors);
    end();

    begin("input overwritten");
    launch(one);
    MUST(aclrtMemset(data[0], BYTES, 0, BYTES));
    end();

    begin("host memory used again");
    float staged[COUNT];
    memcpy(staged, values[1], BYTES);
    MUST(aclrtMemcpyAsync(data[1], BYTES, staged, BYTES, ACL_MEMCPY_HOST_TO_DEVICE, one));
    staged[3] = 100;
    MUST(aclrtSynchronizeStream(one));
    MUST(aclrtMemcpy(data[1], BYTES, values[1], BYTES, ACL_MEMCPY_HOST_TO_DEVICE));
    launch(one);
    end();

    begin("host memory twice");
    launch(one);
    for (int i = 0; i < 2; ++i)
        MUST(aclrtMemcpyAsync(result, BYTES, data[2], BYTES, ACL_MEMCPY_DEVICE_TO_HOST, one));
    end();

    begin("host memory read too early");
    launch(one);
    MUST(aclrtMemcpyAsync(result, BYTES, data[2], BYTES, ACL_MEMCPY_DEVICE_TO_HOST, one));
    printf("early: %s\n", result[0] == expected[0] ? "right"
                          : result[0] != result[0] ? "nan"
                                                   : "wrong");
    end();

    begin("stream destroyed");
    launch(one);
    MUST(aclrtDestroyStream(one));
    one = NULL;
    end();

    begin("time too early");
    MUST(aclrtRecordEvent(event, one));
    launch(one);
    aclrtEvent after;
    float milliseconds;
    MUST(aclrtCreateEvent(&after));
    MUST(aclrtRecordEvent(after, one));
    int status = aclrtEventElapsedTime(&milliseconds, event, after);
    printf("time: %s\n", status && strstr(aclGetRecentErrMsg(), "not done") ? "not done"
                         : status                                           ? "?"
                                                                            : "done");
    MUST(aclrtDestroyEvent(after));
    end();

    MUST(aclFinalize());
    return 0;
}
