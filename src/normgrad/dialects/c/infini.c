// libinfinirt and libinfiniop: InfiniCore's runtime, descriptors and operator, on the CPU.
#include "core.h"

#include <infiniop.h>
#include <infinirt.h>
#include <unistd.h>

#include "types.h"

enum { MOST_AXES = 1024, TENSORS = 8 };

API const char *normgradGetRecentErrMsg(void) { return last_message(); }

// Devices

API infiniStatus_t infinirtInit(void)
{
    BEGIN(&OF_INFINI);
    return (infiniStatus_t)read_settings(call, INFINI_STATUS_BAD_PARAM);
}

static int check_kind(const struct call *call, infiniDevice_t device)
{
    if ((unsigned)device < INFINI_DEVICE_TYPE_COUNT)
        return 0;
    return refuse(call, "device: %d; allowed: an infiniDevice_t", (int)device);
}

API infiniStatus_t infinirtGetDeviceCount(infiniDevice_t device, int *count)
{
    BEGIN(&OF_INFINI);
    NEED_PLACE(count);
    TRY(check_kind(call, device));
    *count = device == INFINI_DEVICE_CPU;
    return 0;
}

API infiniStatus_t infinirtGetAllDeviceCount(int *count_array)
{
    BEGIN(&OF_INFINI);
    NEED_PLACE(count_array);
    for (int device = 0; device < INFINI_DEVICE_TYPE_COUNT; ++device)
        count_array[device] = device == INFINI_DEVICE_CPU;
    return 0;
}

API infiniStatus_t infinirtSetDevice(infiniDevice_t device, int device_id)
{
    BEGIN(&OF_INFINI);
    TRY(check_kind(call, device));
    if (device != INFINI_DEVICE_CPU)
        return fail(call, INFINI_STATUS_DEVICE_TYPE_NOT_SUPPORTED,
                    "device: %s; allowed: INFINI_DEVICE_CPU", DEVICES[device]);
    if (device_id != 0)
        return fail(call, INFINI_STATUS_DEVICE_NOT_FOUND, "device_id: %d; allowed: 0", device_id);
    return 0;
}

API infiniStatus_t infinirtGetDevice(infiniDevice_t *device_ptr, int *device_id_ptr)
{
    BEGIN(&OF_INFINI);
    if (!device_ptr && !device_id_ptr)
        return refuse_null(call, "device_ptr", "a pointer to write to");
    if (device_ptr)
        *device_ptr = INFINI_DEVICE_CPU;
    if (device_id_ptr)
        *device_id_ptr = 0;
    return 0;
}

API infiniStatus_t infinirtGetMemInfo(infiniDevice_t device, int device_id, size_t *free_bytes,
                                      size_t *total_bytes)
{
    BEGIN(&OF_INFINI);
    NEED_PLACE(free_bytes);
    NEED_PLACE(total_bytes);
    if (device != INFINI_DEVICE_CPU || device_id != 0)
        return refuse(call, "device: %d, %d; allowed: INFINI_DEVICE_CPU, 0", (int)device,
                      device_id);
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    *free_bytes = page * (size_t)sysconf(_SC_AVPHYS_PAGES);
    *total_bytes = page * (size_t)sysconf(_SC_PHYS_PAGES);
    return 0;
}

API infiniStatus_t infinirtDeviceSynchronize(void) { return (infiniStatus_t)finish_all(); }

// Streams and events

API infiniStatus_t infinirtStreamCreate(infinirtStream_t *stream_ptr)
{
    BEGIN(&OF_INFINI);
    NEED_PLACE(stream_ptr);
    return (infiniStatus_t)put_handle(call, stream_ptr, STREAM, new_stream(NULL));
}

API infiniStatus_t infinirtStreamDestroy(infinirtStream_t stream)
{
    BEGIN(&OF_INFINI);
    return (infiniStatus_t)end_stream(call, "stream", stream);
}

API infiniStatus_t infinirtStreamSynchronize(infinirtStream_t stream)
{
    BEGIN(&OF_INFINI);
    STREAM_OF(it, stream);
    return (infiniStatus_t)finish(it);
}

API infiniStatus_t infinirtStreamWaitEvent(infinirtStream_t stream, infinirtEvent_t event)
{
    BEGIN(&OF_INFINI);
    STREAM_OF(waiting, stream);
    EVENT_OF(it, event);
    return (infiniStatus_t)wait_for_event(call, waiting, it);
}

API infiniStatus_t infinirtEventCreateWithFlags(infinirtEvent_t *event_ptr, uint32_t flags)
{
    BEGIN(&OF_INFINI);
    NEED_PLACE(event_ptr);
    if (flags & ~3u)
        return refuse(call, "flags: %#x; allowed: 0, 1, 2 or 3, as infinirtEventFlags_t has",
                      flags);
    bool has_time = !(flags & INFINIRT_EVENT_DISABLE_TIMING);
    return (infiniStatus_t)put_handle(call, event_ptr, EVENT, new_event(true, has_time));
}

API infiniStatus_t infinirtEventCreate(infinirtEvent_t *event_ptr)
{
    BEGIN(&OF_INFINI);
    NEED_PLACE(event_ptr);
    return (infiniStatus_t)put_handle(call, event_ptr, EVENT, new_event(true, true));
}

API infiniStatus_t infinirtEventQuery(infinirtEvent_t event, infinirtEventStatus_t *status_ptr)
{
    BEGIN(&OF_INFINI);
    EVENT_OF(it, event);
    NEED_PLACE(status_ptr);
    *status_ptr =
        was_recorded(it) && is_over(it) ? INFINIRT_EVENT_COMPLETE : INFINIRT_EVENT_NOT_READY;
    return 0;
}

API infiniStatus_t infinirtEventRecord(infinirtEvent_t event, infinirtStream_t stream)
{
    BEGIN(&OF_INFINI);
    EVENT_OF(it, event);
    STREAM_OF(of, stream);
    record(it, of);
    return 0;
}

API infiniStatus_t infinirtEventSynchronize(infinirtEvent_t event)
{
    BEGIN(&OF_INFINI);
    EVENT_OF(it, event);
    return (infiniStatus_t)finish_event(it);
}

API infiniStatus_t infinirtEventDestroy(infinirtEvent_t event)
{
    BEGIN(&OF_INFINI);
    struct event *it;
    if (!event)
        return (infiniStatus_t)fail_quietly(call, INFINI_STATUS_BAD_PARAM,
                                            "event: null; allowed: what infinirtEventCreate made");
    return (infiniStatus_t)take(call, "event", EVENT, event, &it);
}

API infiniStatus_t infinirtEventElapsedTime(float *ms_ptr, infinirtEvent_t start,
                                            infinirtEvent_t end)
{
    BEGIN(&OF_INFINI);
    struct event *first, *last;
    NEED_PLACE(ms_ptr);
    TRY(need(call, "start", EVENT, start, &first));
    TRY(need(call, "end", EVENT, end, &last));
    return (infiniStatus_t)elapsed(call, first, last, ms_ptr);
}

// Memory

static int allocate_block(const struct call *call, void **p_ptr, size_t size, bool is_device)
{
    NEED_PLACE(p_ptr);
    return allocate(call, INFINI_STATUS_INTERNAL_ERROR, NULL, size, is_device, p_ptr);
}

API infiniStatus_t infinirtMalloc(void **p_ptr, size_t size)
{
    BEGIN(&OF_INFINI);
    return (infiniStatus_t)allocate_block(call, p_ptr, size, true);
}

API infiniStatus_t infinirtMallocHost(void **p_ptr, size_t size)
{
    BEGIN(&OF_INFINI);
    return (infiniStatus_t)allocate_block(call, p_ptr, size, false);
}

API infiniStatus_t infinirtMallocAsync(void **p_ptr, size_t size, infinirtStream_t stream)
{
    BEGIN(&OF_INFINI);
    STREAM_OF(on, stream);
    (void)on;
    return (infiniStatus_t)allocate_block(call, p_ptr, size, true);
}

static int free_block(const struct call *call, void *ptr, const char *makers)
{
    return ptr ? release(call, "ptr", makers, ptr) : 0; // as for free() in C
}

API infiniStatus_t infinirtFree(void *ptr)
{
    BEGIN(&OF_INFINI);
    return (infiniStatus_t)free_block(call, ptr, "infinirtMalloc or infinirtMallocAsync");
}

API infiniStatus_t infinirtFreeHost(void *ptr)
{
    BEGIN(&OF_INFINI);
    return (infiniStatus_t)free_block(call, ptr, "infinirtMallocHost");
}

API infiniStatus_t infinirtFreeAsync(void *ptr, infinirtStream_t stream)
{
    BEGIN(&OF_INFINI);
    STREAM_OF(on, stream);
    TRY(finish(on));
    return (infiniStatus_t)free_block(call, ptr, "infinirtMalloc or infinirtMallocAsync");
}

static int copy_bytes(const struct call *call, struct stream *stream, void *dst, const void *src,
                      size_t size, infinirtMemcpyKind_t kind)
{
    struct side to = {"dst", dst, size, true}, from = {"src", (char *)src, size, true};
    if ((unsigned)kind >
        INFINIRT_MEMCPY_D2D) // all kinds do the same, since all memory is the CPU's
        return refuse(call, "kind: %d; allowed: 0 to 3, an infinirtMemcpyKind_t", (int)kind);
    return copy(call, false, stream, &to, &from, size, 1, SIZE_MAX, 0);
}

API infiniStatus_t infinirtMemcpy(void *dst, const void *src, size_t size,
                                  infinirtMemcpyKind_t kind)
{
    BEGIN(&OF_INFINI);
    return (infiniStatus_t)copy_bytes(call, NULL, dst, src, size, kind);
}

API infiniStatus_t infinirtMemcpyAsync(void *dst, const void *src, size_t size,
                                       infinirtMemcpyKind_t kind, infinirtStream_t stream)
{
    BEGIN(&OF_INFINI);
    STREAM_OF(on, stream);
    return (infiniStatus_t)copy_bytes(call, on, dst, src, size, kind);
}

static int set_bytes(const struct call *call, struct stream *stream, void *ptr, int value,
                     size_t count)
{
    struct side to = {"ptr", ptr, count, true};
    return copy(call, false, stream, &to, NULL, count, 1, SIZE_MAX, value);
}

API infiniStatus_t infinirtMemset(void *ptr, int value, size_t count)
{
    BEGIN(&OF_INFINI);
    return (infiniStatus_t)set_bytes(call, NULL, ptr, value, count);
}

API infiniStatus_t infinirtMemsetAsync(void *ptr, int value, size_t count, infinirtStream_t stream)
{
    BEGIN(&OF_INFINI);
    STREAM_OF(on, stream);
    return (infiniStatus_t)set_bytes(call, on, ptr, value, count);
}

// Handles and descriptions of tensors

static const struct {
    const char *name;
    int64_t size;
} DTYPES[] = {{"INVALID", 0}, {"BYTE", 1}, {"BOOL", 1}, {"I8", 1},    {"I16", 2},
              {"I32", 4},     {"I64", 8},  {"U8", 1},   {"U16", 2},   {"U32", 4},
              {"U64", 8},     {"F8", 1},   {"F16", 2},  {"F32", 4},   {"F64", 8},
              {"C16", 2},     {"C32", 4},  {"C64", 8},  {"C128", 16}, {"BF16", 2}};

const char *infini_type_name(int type)
{
    static __thread char text[32];
    snprintf(text, sizeof text, "INFINI_DTYPE_%s", DTYPES[type].name);
    return text;
}

API infiniStatus_t infiniopCreateHandle(infiniopHandle_t *handle_ptr)
{
    BEGIN(&OF_INFINI);
    NEED_PLACE(handle_ptr);
    void *object = calloc(1, sizeof(struct object));
    return (infiniStatus_t)put_handle(call, handle_ptr, INFINI_HANDLE, object);
}

API infiniStatus_t infiniopDestroyHandle(infiniopHandle_t handle)
{
    BEGIN(&OF_INFINI);
    struct object *it;
    return (infiniStatus_t)take(call, "handle", INFINI_HANDLE, handle, &it);
}

API infiniStatus_t infiniopCreateTensorDescriptor(infiniopTensorDescriptor_t *desc_ptr, size_t ndim,
                                                  const size_t *shape, const ptrdiff_t *strides,
                                                  infiniDtype_t dtype)
{
    BEGIN(&OF_INFINI);
    NEED_PLACE(desc_ptr);
    if (ndim > MOST_AXES)
        return refuse(call, "ndim: %zu; allowed: up to %d", ndim, MOST_AXES);
    if (!shape && ndim)
        return fail(call, call->statuses->null, "shape: null; allowed: %zu sizes", ndim);
    if ((unsigned)dtype >= sizeof DTYPES / sizeof *DTYPES)
        return refuse(call, "dtype: %d; allowed: an infiniDtype_t", (int)dtype);
    struct tensor *tensor =
        new_tensor((int64_t)ndim, (const int64_t *)shape, (const int64_t *)strides, 0, NULL);
    if (!tensor)
        return fail(call, call->statuses->failure, "no memory");
    tensor->data_type = (int32_t)dtype;
    tensor->item_size = DTYPES[dtype].size;
    struct job job = {.operator = call->function, .count = 1};
    job.arguments[0] = (struct argument){.kind = INFINI_TENSOR, .object = tensor};
    struct request request = {.operator = call->function, .arguments = job.arguments, .count = 1};
    // Only Python knows in which words a size or a stride is too large.
    bool is_plain = true;
    int64_t reach = 8;
    for (size_t i = 0; i < ndim; ++i) {
        int64_t step = tensor->strides[i] < 0 ? -tensor->strides[i] : tensor->strides[i];
        is_plain &= tensor->dims[i] >= 0 && tensor->dims[i] < 1 << 30 && step >= 0 &&
                    step < 1ll << 40 &&
                    !__builtin_mul_overflow(reach, tensor->dims[i] ? tensor->dims[i] : 1, &reach);
    }
    int status = is_plain && reach < 1ll << 50 ? 0 : ask(call, FIND_PLAN, &request);
    if (status) {
        free(tensor);
        return (infiniStatus_t)status;
    }
    return (infiniStatus_t)put_handle(call, desc_ptr, INFINI_TENSOR, tensor);
}

API infiniStatus_t infiniopDestroyTensorDescriptor(infiniopTensorDescriptor_t desc)
{
    BEGIN(&OF_INFINI);
    struct object *it;
    return (infiniStatus_t)take(call, "desc", INFINI_TENSOR, desc, &it);
}

// The operator: its job has a handle and the descriptions of the tensors, in the order of the functions'
// arguments.

static const char *const NAMES[] = {"handle",    "grad_input",   "grad_weight",
                                    "grad_bias", "input",        "grad_output",
                                    "weight",    "running_mean", "running_var"};

struct batch_norm {
    struct object object;
    struct job job;
};

static void drop_operator(void *object)
{
    struct batch_norm *it = object;
    for (int i = 0; i < it->job.count; ++i)
        leave((void *)it->job.arguments[i].object);
    leave_plan(it->job.plan);
    free(it);
}

API infiniStatus_t infiniopCreateBatchNormBackwardDescriptor(
    infiniopHandle_t handle, infiniopBatchNormBackwardDescriptor_t *desc_ptr,
    infiniopTensorDescriptor_t grad_input, infiniopTensorDescriptor_t grad_weight,
    infiniopTensorDescriptor_t grad_bias, infiniopTensorDescriptor_t input,
    infiniopTensorDescriptor_t grad_output, infiniopTensorDescriptor_t weight,
    infiniopTensorDescriptor_t running_mean, infiniopTensorDescriptor_t running_var)
{
    BEGIN(&OF_INFINI);
    const void *handles[] = {handle,      grad_input, grad_weight,  grad_bias,  input,
                             grad_output, weight,     running_mean, running_var};
    char problems[MOST_ARGUMENTS][PROBLEM_SIZE];
    if (handle && !desc_ptr) // a null handle is told first
        return (infiniStatus_t)refuse_null(call, "desc_ptr", "a pointer to write to");
    struct batch_norm *made = calloc(1, sizeof *made);
    if (!made)
        return (infiniStatus_t)fail(call, call->statuses->failure, "no memory");
    made->object = (struct object){1, drop_operator};
    made->job.operator = call->function;
    for (int i = 0; i <= TENSORS; ++i)
        made->job.arguments[made->job.count++] = argument_of(handles[i], problems[i]);
    int status = find_plan(call, &made->job);
    if (status) {
        drop_operator(made);
        return (infiniStatus_t)status;
    }
    return (infiniStatus_t)put_handle(call, desc_ptr, INFINI_OPERATOR, made);
}

API infiniStatus_t
infiniopGetBatchNormBackwardWorkspaceSize(infiniopBatchNormBackwardDescriptor_t desc, size_t *size)
{
    BEGIN(&OF_INFINI);
    struct batch_norm *it;
    TRY(need(call, "desc", INFINI_OPERATOR, desc, &it));
    NEED_PLACE(size);
    *size = workspace_size(it->job.plan);
    return 0;
}

API infiniStatus_t infiniopGetDescriptorDeviceType(const struct InfiniopDescriptor *desc_ptr,
                                                   infiniDevice_t *device_type)
{
    BEGIN(&OF_INFINI);
    struct batch_norm *it;
    TRY(need(call, "desc", INFINI_OPERATOR, desc_ptr, &it));
    NEED_PLACE(device_type);
    *device_type = INFINI_DEVICE_CPU;
    return 0;
}

API infiniStatus_t infiniopGetDescriptorDeviceId(const struct InfiniopDescriptor *desc_ptr,
                                                 int *device_id)
{
    BEGIN(&OF_INFINI);
    struct batch_norm *it;
    TRY(need(call, "desc", INFINI_OPERATOR, desc_ptr, &it));
    NEED_PLACE(device_id);
    *device_id = 0;
    return 0;
}

// Find how many bytes there are from an address on, as far as it is known.
static int find_size(const struct call *call, const char *name, const void *address, uint64_t *size)
{
    struct block block;
    TRY(living_block(call, name, address, &block));
    if (block.size)
        *size = (uint64_t)(end_of_block(&block) - (const char *)address);
    return 0;
}

API infiniStatus_t infiniopBatchNormBackward(infiniopBatchNormBackwardDescriptor_t desc,
                                             void *workspace, size_t workspace_size_,
                                             void *grad_input, void *grad_weight, void *grad_bias,
                                             const void *input, const void *grad_output,
                                             const void *weight, const void *running_mean,
                                             const void *running_var, void *stream)
{
    BEGIN(&OF_INFINI);
    const void *data[] = {grad_input,  grad_weight, grad_bias,    input,
                          grad_output, weight,      running_mean, running_var};
    struct batch_norm *it;
    STREAM_OF(on, stream);
    TRY(need(call, "desc", INFINI_OPERATOR, desc, &it));
    struct job job = it->job;
    for (int i = 1; i <= TENSORS; ++i) {
        int64_t low = 0, high = 0;
        uint64_t size = UINT64_MAX;
        span_of(job.plan, i, &low, &high);
        job.addresses[i] = (char *)data[i - 1];
        if (high == low)
            continue;
        if (!data[i - 1])
            return (infiniStatus_t)refuse_null(call, NAMES[i], "the tensor's memory");
        TRY(find_size(call, NAMES[i], data[i - 1], &size));
        if (size < (uint64_t)high)
            return (infiniStatus_t)refuse(call, "%s: %zu bytes; allowed: %zu", NAMES[i],
                                          (size_t)size, (size_t)high);
    }
    uint64_t needed = workspace_size(job.plan), size = UINT64_MAX;
    if (needed) {
        if (workspace)
            TRY(find_size(call, "workspace", workspace, &size));
        uint64_t is = size < workspace_size_ ? size : workspace_size_;
        char of[40] = "";
        if (workspace && size != UINT64_MAX)
            snprintf(of, sizeof of, " of %zu", (size_t)size);
        if (is < needed)
            return (infiniStatus_t)fail(call, INFINI_STATUS_INSUFFICIENT_WORKSPACE,
                                        "workspace: %zu bytes%s; allowed: %zu or more",
                                        workspace_size_, of, (size_t)needed);
        if (!workspace) // the size counts first, as in InfiniCore
            return (infiniStatus_t)fail(call, INFINI_STATUS_BAD_PARAM,
                                        "workspace: null; allowed: %zu bytes", (size_t)needed);
    }
    job.operator = call->function;
    job.workspace = workspace;
    job.joins = !stream; // InfiniCore's CPU computes at once
    hold(it);
    int status = run_job(call, on, &job);
    leave(it);
    return (infiniStatus_t)status;
}

API infiniStatus_t
infiniopDestroyBatchNormBackwardDescriptor(infiniopBatchNormBackwardDescriptor_t desc)
{
    BEGIN(&OF_INFINI);
    struct object *it;
    return (infiniStatus_t)take(call, "desc", INFINI_OPERATOR, desc, &it);
}
