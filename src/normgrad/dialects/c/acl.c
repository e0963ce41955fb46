// libascendcl: CANN's runtime. Device memory is the machine's, and its work is the CPU's.
#define _GNU_SOURCE
#include "core.h"

#include <acl/acl.h>
#include <pthread.h>
#include <unistd.h>

enum { MOST_DEVICES = 64, LEAST_PRIORITY = 7 };

struct context {
    struct object object;
    int32_t device;
};

static bool by_acl, by_aclnn, was_finalized, has_default;
static int users[MOST_DEVICES]; // calls of aclrtSetDevice minus those of aclrtResetDevice
static volatile unsigned lives[MOST_DEVICES]; // increase when a device's resources are released
static void *own[MOST_DEVICES];               // the handles of devices' own contexts, if asked for

// Of each thread: its device, its context's handle, null for the device's own, and the device's life.
struct thread {
    int32_t device;
    void *context;
    unsigned life;
};
static __thread struct thread current;

static int need_init(const struct call *call)
{
    if (by_acl || by_aclnn)
        return 0;
    return fail(call, call->statuses == &OF_ACL ? ACL_ERROR_UNINITIALIZE : call->statuses->failure,
                "before aclInit; allowed: after it");
}

static bool has_device(void)
{
    enum kind kind;
    if (current.life != lives[current.device] + 1)
        return has_default;
    return !current.context || (peek(current.context, &kind) && kind == CONTEXT);
}

static void enter(int32_t device, void *context)
{
    current.device = device;
    current.context = context;
    current.life = lives[device] + 1;
}

int need_device(const struct call *call, int status)
{
    if (has_device())
        return 0;
    return fail(
        call, status,
        "%sno device in this thread; allowed: after aclrtSetDevice or aclrtSetCurrentContext "
        "in it, and before aclrtResetDevice",
        call->statuses == &OF_PHASE_2 ? "stream: " : "");
}

#define BEGIN_ANYWHERE BEGIN(&OF_ACL)
#define BEGIN_AFTER_INIT                                                                           \
    BEGIN(&OF_ACL);                                                                                \
    TRY(need_init(call))
#define BEGIN_ON_DEVICE                                                                            \
    BEGIN_AFTER_INIT;                                                                              \
    TRY(need_device(call, ACL_ERROR_RT_CONTEXT_NULL))

// Initialisation

static int initialize(const struct call *call, const char *path, bool *has_device_of_file)
{
    TRY(read_settings(call, ACL_ERROR_INVALID_PARAM));
    struct request request = {.operator = path, .size = ACL_ERROR_INVALID_PARAM};
    TRY(ask(call, READ_CONFIG, &request));
    *has_device_of_file = request.size == 1;
    return 0;
}

API aclError aclInit(const char *configPath)
{
    BEGIN_ANYWHERE;
    if (by_acl)
        return fail(call, ACL_ERROR_REPEAT_INITIALIZE, "a second time; allowed: once");
    TRY(initialize(call, configPath, &has_default));
    by_acl = true;
    was_finalized = false;
    return 0;
}

static int finalize(void)
{
    if (by_acl || by_aclnn)
        return 0;
    int status = finish_all();
    for (int i = 0; i < MOST_DEVICES; ++i) {
        users[i] = 0;
        ++lives[i];
    }
    if (settings()->report)
        report_lines();
    return status;
}

API aclError aclFinalize(void)
{
    BEGIN_ANYWHERE;
    if (was_finalized)
        return fail(call, ACL_ERROR_REPEAT_FINALIZE, "a second time; allowed: once");
    if (!by_acl)
        return fail(call, ACL_ERROR_UNINITIALIZE, "before aclInit; allowed: after it");
    by_acl = has_default = false;
    was_finalized = true;
    return finalize();
}

int begin_aclnn(const struct call *call)
{
    bool ignored;
    if (by_aclnn)
        return refuse(call, "configPath: a second call; allowed: one");
    TRY(initialize(call, NULL, &ignored));
    by_aclnn = true;
    return 0;
}

int end_aclnn(void)
{
    by_aclnn = false;
    return finalize();
}

API const char *aclGetRecentErrMsg(void) { return last_message(); }

API aclError aclrtGetVersion(int32_t *majorVersion, int32_t *minorVersion, int32_t *patchVersion)
{
    BEGIN_ANYWHERE;
    NEED_PLACE(majorVersion);
    NEED_PLACE(minorVersion);
    NEED_PLACE(patchVersion);
    *majorVersion = 1;
    *minorVersion = 15;
    *patchVersion = 0;
    return 0;
}

API aclFloat16 aclFloatToFloat16(float value)
{
    uint32_t bits, sign, exponent, rest;
    memcpy(&bits, &value, sizeof bits);
    sign = bits >> 16 & 0x8000;
    bits &= 0x7FFFFFFF;
    if (bits > 0x7F800000)
        return (aclFloat16)(sign | 0x7E00);
    if (bits >= 0x477FF000) // rounds to infinity
        return (aclFloat16)(sign | 0x7C00);
    exponent = bits >> 23;
    if (exponent < 102)
        return (aclFloat16)sign;
    // Subnormal numbers lose more bits. To nearest, ties to even.
    uint32_t lost = exponent < 113 ? 126 - exponent : 13;
    uint32_t digits = exponent < 113 ? (bits & 0x7FFFFF) | 0x800000 : bits - (112u << 23);
    rest = digits & ((1u << lost) - 1);
    digits >>= lost;
    digits += rest > 1u << (lost - 1) || (rest == 1u << (lost - 1) && (digits & 1));
    return (aclFloat16)(sign | digits);
}

API float aclFloat16ToFloat(aclFloat16 value)
{
    uint32_t digits = value & 0x7FFF, bits;
    float result;
    if (digits < 0x400) { // a multiple of 2^-24
        result = (float)digits / 16777216.0f;
        return value & 0x8000 ? -result : result;
    }
    bits = (uint32_t)(value & 0x8000) << 16 |
           (digits >= 0x7C00 ? 0x7F800000 | (digits & 0x3FF) << 13 : (digits << 13) + (112u << 23));
    memcpy(&result, &bits, sizeof result);
    return result;
}

// Devices

static int check_device(const struct call *call, int32_t device)
{
    int count = settings()->devices;
    if (device >= 0 && device < count)
        return 0;
    if (count == 1)
        return refuse(call, "deviceId: %d; allowed: 0, the only one", device);
    return refuse(call, "deviceId: %d; allowed: 0 to %d", device, count - 1);
}

static int check_peer(const struct call *call, int32_t peer, int32_t device)
{
    if (peer >= 0 && peer < settings()->devices && peer != device)
        return 0;
    return refuse(call, "peerDeviceId: %d; allowed: another device than %d", peer, device);
}

static int32_t own_device(void)
{
    return current.life == lives[current.device] + 1 ? current.device : 0;
}

// The context that what a thread makes belongs to: a handle, or the address of the device's users.
static void *own_context(void)
{
    return current.life == lives[current.device] + 1 && current.context
               ? current.context
               : (void *)&users[own_device()];
}

API aclError aclrtSetDevice(int32_t deviceId)
{
    BEGIN_AFTER_INIT;
    TRY(check_device(call, deviceId));
    __atomic_add_fetch(&users[deviceId], 1, __ATOMIC_RELAXED);
    enter(deviceId, NULL);
    return 0;
}

static void reset_stream(void *handle, enum kind kind, void *object, void *data)
{
    const struct call call = {"aclrtResetDevice", NULL, &OF_ACL};
    if (kind == STREAM && ((struct stream *)object)->context == data)
        end_stream(&call, "stream", handle);
}

API aclError aclrtResetDevice(int32_t deviceId)
{
    BEGIN_AFTER_INIT;
    TRY(check_device(call, deviceId));
    if (users[deviceId] == 0)
        return fail(call, ACL_ERROR_RT_CONTEXT_NULL,
                    "deviceId: a device that is not set; allowed: once for each aclrtSetDevice");
    int status = finish_all();
    if (__atomic_sub_fetch(&users[deviceId], 1, __ATOMIC_RELAXED) == 0) {
        ++lives[deviceId];
        each_object(reset_stream, &users[deviceId]);
        release_context(&users[deviceId]);
    }
    return status;
}

API aclError aclrtGetDevice(int32_t *deviceId)
{
    BEGIN_ON_DEVICE;
    NEED_PLACE(deviceId);
    *deviceId = own_device();
    return 0;
}

API aclError aclrtGetDeviceCount(uint32_t *count)
{
    BEGIN_ANYWHERE;
    NEED_PLACE(count);
    *count = (uint32_t)settings()->devices;
    return 0;
}

API aclError aclrtGetRunMode(aclrtRunMode *runMode)
{
    BEGIN_ANYWHERE;
    NEED_PLACE(runMode);
    *runMode = ACL_HOST;
    return 0;
}

API const char *aclrtGetSocName(void)
{
    BEGIN_ANYWHERE;
    static char chip[64];
    struct request request = {
        .size = ACL_ERROR_INVALID_PARAM, .workspace = chip, .capacity = sizeof chip};
    return ask(call, FIND_CHIP, &request) ? NULL : chip;
}

API aclError aclrtDeviceCanAccessPeer(int32_t *canAccessPeer, int32_t deviceId,
                                      int32_t peerDeviceId)
{
    BEGIN_ON_DEVICE;
    NEED_PLACE(canAccessPeer);
    TRY(check_device(call, deviceId));
    TRY(check_peer(call, peerDeviceId, deviceId));
    *canAccessPeer = 1;
    return 0;
}

API aclError aclrtDeviceEnablePeerAccess(int32_t peerDeviceId, uint32_t flags)
{
    (void)flags;
    BEGIN_ON_DEVICE;
    return check_peer(call, peerDeviceId, own_device());
}

API aclError aclrtDeviceDisablePeerAccess(int32_t peerDeviceId)
{
    BEGIN_ON_DEVICE;
    return check_peer(call, peerDeviceId, own_device());
}

API aclError aclrtGetMemInfo(aclrtMemAttr attr, size_t *free, size_t *total)
{
    (void)attr;
    BEGIN_ON_DEVICE;
    NEED_PLACE(free);
    NEED_PLACE(total);
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    *free = page * (size_t)sysconf(_SC_AVPHYS_PAGES);
    *total = page * (size_t)sysconf(_SC_PHYS_PAGES);
    return 0;
}

// Options of the process and of contexts. They are kept; results are deterministic whatever they are.

static struct option {
    int64_t value;
    bool is_set;
} of_process[3], of_context[3];

static int check_option(const struct call *call, aclSysParamOpt opt)
{
    if ((unsigned)opt <= ACL_OPT_STRONG_CONSISTENCY)
        return 0;
    return refuse(call,
                  "opt: %d; allowed: ACL_OPT_DETERMINISTIC (0) to ACL_OPT_STRONG_CONSISTENCY (2)",
                  (int)opt);
}

static int set_option(const struct call *call, aclSysParamOpt opt, int64_t value,
                      struct option *options)
{
    TRY(check_option(call, opt));
    options[opt] = (struct option){value, true};
    return 0;
}

static int get_option(const struct call *call, aclSysParamOpt opt, int64_t *value,
                      const struct option *options)
{
    NEED_PLACE(value);
    TRY(check_option(call, opt));
    if (!options[opt].is_set)
        return fail(call, ACL_ERROR_RT_SYSPARAMOPT_NOT_SET,
                    "opt: %d, which was not set; allowed: after it was", (int)opt);
    *value = options[opt].value;
    return 0;
}

API aclError aclrtSetSysParamOpt(aclSysParamOpt opt, int64_t value)
{
    BEGIN_AFTER_INIT;
    return set_option(call, opt, value, of_process);
}

API aclError aclrtGetSysParamOpt(aclSysParamOpt opt, int64_t *value)
{
    BEGIN_AFTER_INIT;
    return get_option(call, opt, value, of_process);
}

API aclError aclrtCtxSetSysParamOpt(aclSysParamOpt opt, int64_t value)
{
    BEGIN_ON_DEVICE;
    return set_option(call, opt, value, of_context);
}

API aclError aclrtCtxGetSysParamOpt(aclSysParamOpt opt, int64_t *value)
{
    BEGIN_ON_DEVICE;
    return get_option(call, opt, value, of_context);
}

// Contexts

static void *new_context(const struct call *call, int32_t device, bool is_owned)
{
    struct context *context = calloc(1, sizeof *context);
    if (context)
        context->device = device;
    return handle_of(call, CONTEXT, context, is_owned);
}

static bool is_own(const void *context)
{
    for (int i = 0; i < MOST_DEVICES; ++i)
        if (own[i] && own[i] == context)
            return true;
    return false;
}

API aclError aclrtCreateContext(aclrtContext *context, int32_t deviceId)
{
    BEGIN_AFTER_INIT;
    NEED_PLACE(context);
    TRY(check_device(call, deviceId));
    *context = new_context(call, deviceId, true);
    if (!*context)
        return call->statuses->failure;
    enter(deviceId, *context);
    return 0;
}

API aclError aclrtDestroyContext(aclrtContext context)
{
    BEGIN_ANYWHERE;
    struct context *it;
    if (is_own(context))
        return refuse(call, "context: the device's own; allowed: what aclrtCreateContext made");
    if (!context) // the vendors' samples do this
        return fail_quietly(call, ACL_ERROR_RT_PARAM_INVALID,
                            "context: null; allowed: what aclrtCreateContext made");
    return take(call, "context", CONTEXT, context, &it);
}

API aclError aclrtSetCurrentContext(aclrtContext context)
{
    BEGIN_AFTER_INIT;
    struct context *it;
    TRY(need(call, "context", CONTEXT, context, &it));
    enter(it->device, is_own(context) ? NULL : context);
    return 0;
}

API aclError aclrtGetCurrentContext(aclrtContext *context)
{
    BEGIN_ON_DEVICE;
    NEED_PLACE(context);
    int32_t device = own_device();
    if (!__atomic_load_n(&own[device], __ATOMIC_ACQUIRE)) {
        void *none = NULL, *made = new_context(call, device, false);
        if (!made)
            return call->statuses->failure;
        if (!__atomic_compare_exchange_n(&own[device], &none, made, false, __ATOMIC_ACQ_REL,
                                         __ATOMIC_ACQUIRE)) // another thread was faster
            end_handle(call, made);
    }
    bool has_one = current.life == lives[current.device] + 1 && current.context;
    *context = has_one ? current.context : own[device];
    return 0;
}

// Streams

static int check_timeout(const struct call *call, int32_t timeout)
{
    if (timeout >= -1)
        return 0;
    return refuse(call, "timeout: %d; allowed: milliseconds, or -1 for any time", timeout);
}

static int create_stream(const struct call *call, aclrtStream *stream)
{
    NEED_PLACE(stream);
    return put_handle(call, stream, STREAM, new_stream(own_context()));
}

API aclError aclrtCreateStream(aclrtStream *stream)
{
    BEGIN_ON_DEVICE;
    return create_stream(call, stream);
}

API aclError aclrtCreateStreamWithConfig(aclrtStream *stream, uint32_t priority, uint32_t flag)
{
    BEGIN_ON_DEVICE;
    if (priority > LEAST_PRIORITY)
        return refuse(call, "priority: %u; allowed: 0 to %d", priority, LEAST_PRIORITY);
    if (flag & ~0x3Fu)
        return refuse(
            call,
            "flag: %#x; allowed: ACL_STREAM_FAST_LAUNCH (0x1), ACL_STREAM_FAST_SYNC (0x2), "
            "ACL_STREAM_PERSISTENT (0x4), ACL_STREAM_HUGE (0x8), ACL_STREAM_CPU_SCHEDULE "
            "(0x10), ACL_STREAM_DEVICE_USE_ONLY (0x20), or some of them",
            flag);
    return create_stream(call, stream);
}

API aclError aclrtDestroyStream(aclrtStream stream)
{
    BEGIN_ANYWHERE;
    return end_stream(call, "stream", stream);
}

API aclError aclrtSynchronizeStream(aclrtStream stream)
{
    BEGIN_ON_DEVICE;
    STREAM_OF(it, stream);
    return finish(it);
}

API aclError aclrtSynchronizeStreamWithTimeout(aclrtStream stream, int32_t timeout)
{
    BEGIN_ON_DEVICE;
    TRY(check_timeout(call, timeout));
    STREAM_OF(it, stream);
    return finish(it);
}

API aclError aclrtSynchronizeDevice(void)
{
    BEGIN_ON_DEVICE;
    return finish_all();
}

API aclError aclrtSynchronizeDeviceWithTimeout(int32_t timeout)
{
    BEGIN_ON_DEVICE;
    TRY(check_timeout(call, timeout));
    return finish_all();
}

API aclError aclrtStreamQuery(aclrtStream stream, aclrtStreamStatus *status)
{
    BEGIN_ON_DEVICE;
    STREAM_OF(it, stream);
    NEED_PLACE(status);
    *status = is_idle(it) ? ACL_STREAM_STATUS_COMPLETE : ACL_STREAM_STATUS_NOT_READY;
    return 0;
}

// Events

static int create_event(const struct call *call, aclrtEvent *event, uint32_t flag)
{
    NEED_PLACE(event);
    bool can_order = flag & (ACL_EVENT_SYNC | ACL_EVENT_EXTERNAL),
         has_time = flag & ACL_EVENT_TIME_LINE;
    return put_handle(call, event, EVENT, new_event(can_order, has_time));
}

API aclError aclrtCreateEvent(aclrtEvent *event)
{
    BEGIN_ON_DEVICE;
    return create_event(call, event, ACL_EVENT_SYNC | ACL_EVENT_TIME_LINE);
}

API aclError aclrtCreateEventWithFlag(aclrtEvent *event, uint32_t flag)
{
    BEGIN_ON_DEVICE;
    if (flag & ~0x3Bu)
        return refuse(call,
                      "flag: %#x; allowed: ACL_EVENT_SYNC (0x1), ACL_EVENT_CAPTURE_STREAM_PROGRESS "
                      "(0x2), ACL_EVENT_TIME_LINE (0x8), ACL_EVENT_DEVICE_USE_ONLY (0x10), "
                      "ACL_EVENT_EXTERNAL (0x20), or some of them",
                      flag);
    return create_event(call, event, flag);
}

API aclError aclrtDestroyEvent(aclrtEvent event)
{
    BEGIN_ANYWHERE;
    struct event *it;
    if (!event) // the vendors' samples do this
        return fail_quietly(call, ACL_ERROR_RT_PARAM_INVALID,
                            "event: null; allowed: what aclrtCreateEvent made");
    return take(call, "event", EVENT, event, &it);
}

API aclError aclrtRecordEvent(aclrtEvent event, aclrtStream stream)
{
    BEGIN_ON_DEVICE;
    EVENT_OF(it, event);
    STREAM_OF(of, stream);
    record(it, of);
    return 0;
}

API aclError aclrtResetEvent(aclrtEvent event, aclrtStream stream)
{
    BEGIN_ON_DEVICE;
    EVENT_OF(it, event);
    STREAM_OF(of, stream);
    (void)of;
    reset(it);
    return 0;
}

API aclError aclrtSynchronizeEvent(aclrtEvent event)
{
    BEGIN_ON_DEVICE;
    EVENT_OF(it, event);
    return finish_event(it);
}

API aclError aclrtSynchronizeEventWithTimeout(aclrtEvent event, int32_t timeout)
{
    BEGIN_ON_DEVICE;
    TRY(check_timeout(call, timeout));
    EVENT_OF(it, event);
    return finish_event(it);
}

API aclError aclrtStreamWaitEvent(aclrtStream stream, aclrtEvent event)
{
    BEGIN_ON_DEVICE;
    STREAM_OF(waiting, stream);
    EVENT_OF(it, event);
    return wait_for_event(call, waiting, it);
}

// Whether an event is over, in the words of three functions.
#define QUERY(function, type, over, other, is_true)                                                \
    API aclError function(aclrtEvent event, type *status)                                          \
    {                                                                                              \
        BEGIN_ON_DEVICE;                                                                           \
        EVENT_OF(it, event);                                                                       \
        NEED_PLACE(status);                                                                        \
        *status = (is_true) ? over : other;                                                        \
        return 0;                                                                                  \
    }
QUERY(aclrtQueryEvent, aclrtEventStatus, ACL_EVENT_STATUS_COMPLETE, ACL_EVENT_STATUS_NOT_READY,
      was_recorded(it) && is_over(it))
QUERY(aclrtQueryEventStatus, aclrtEventRecordedStatus, ACL_EVENT_RECORDED_STATUS_COMPLETE,
      ACL_EVENT_RECORDED_STATUS_NOT_READY, was_recorded(it) && is_over(it))
QUERY(aclrtQueryEventWaitStatus, aclrtEventWaitStatus, ACL_EVENT_WAIT_STATUS_COMPLETE,
      ACL_EVENT_WAIT_STATUS_NOT_READY, !was_recorded(it) || is_over(it))

API aclError aclrtEventElapsedTime(float *ms, aclrtEvent startEvent, aclrtEvent endEvent)
{
    BEGIN_ON_DEVICE;
    struct event *start, *end;
    NEED_PLACE(ms);
    TRY(need(call, "start", EVENT, startEvent, &start));
    TRY(need(call, "end", EVENT, endEvent, &end));
    return elapsed(call, start, end, ms);
}

// Callbacks. They run where their stream's work does; the thread that subscribes waits for them.

enum { MOST_PENDING = 4096 };
static struct pending {
    uint64_t thread;
    struct task *task;
    bool is_used;
} pending[MOST_PENDING];
static volatile uint32_t launched;
static int subscriptions;

API aclError aclrtSubscribeReport(uint64_t threadId, aclrtStream stream)
{
    BEGIN_ON_DEVICE;
    STREAM_OF(it, stream);
    if (it->is_subscribed)
        return fail(call, ACL_ERROR_REPEAT_SUBSCRIBE,
                    "stream: one of thread %zu; allowed: one of no thread", (size_t)it->subscriber);
    it->is_subscribed = true;
    it->subscriber = threadId;
    __atomic_add_fetch(&subscriptions, 1, __ATOMIC_RELAXED);
    return 0;
}

static int need_subscriber(const struct call *call, const struct stream *stream)
{
    if (stream->is_subscribed)
        return 0;
    return fail(call, ACL_ERROR_STREAM_NOT_SUBSCRIBE,
                "stream: one of no thread; allowed: after aclrtSubscribeReport");
}

API aclError aclrtUnSubscribeReport(uint64_t threadId, aclrtStream stream)
{
    BEGIN_ON_DEVICE;
    STREAM_OF(it, stream);
    TRY(need_subscriber(call, it));
    if (it->subscriber != threadId)
        return refuse(call, "threadId: %zu; allowed: %zu, the stream's", (size_t)threadId,
                      (size_t)it->subscriber);
    it->is_subscribed = false;
    __atomic_sub_fetch(&subscriptions, 1, __ATOMIC_RELAXED);
    return 0;
}

struct callback {
    aclrtCallback run;
    void *data;
    struct thread thread; // that launched it, in whose context it runs
};

static int run_callback(void *data)
{
    struct callback *callback = data;
    struct thread before = current;
    current = callback->thread;
    callback->run(callback->data);
    current = before;
    return 0;
}

API aclError aclrtLaunchCallback(aclrtCallback fn, void *userData, aclrtCallbackBlockType blockType,
                                 aclrtStream stream)
{
    BEGIN_ON_DEVICE;
    STREAM_OF(it, stream);
    TRY(need_subscriber(call, it));
    if (!fn)
        return refuse(call, "fn: null; allowed: a function");
    if ((unsigned)blockType > ACL_CALLBACK_BLOCK)
        return refuse(call, "blockType: %d; allowed: ACL_CALLBACK_NO_BLOCK, ACL_CALLBACK_BLOCK",
                      (int)blockType);
    struct callback *callback = malloc(sizeof *callback);
    if (!callback)
        return fail(call, call->statuses->failure, "no memory");
    *callback = (struct callback){fn, userData, current};
    TRY(submit(call, it, run_callback, callback, free));
    lock(&rare_lock);
    struct pending *place = pending;
    while (place < pending + MOST_PENDING && place->is_used)
        ++place;
    if (place < pending + MOST_PENDING)
        *place = (struct pending){it->subscriber, latest_task(it), true};
    __atomic_add_fetch(&launched, 1, __ATOMIC_RELEASE);
    unlock(&rare_lock);
    wake(&launched);
    return 0;
}

static bool take_pending(uint64_t thread, struct task **task)
{
    bool found = false;
    lock(&rare_lock);
    for (struct pending *each = pending; each < pending + MOST_PENDING && !found; ++each)
        if (each->is_used && each->thread == thread) {
            found = true;
            *task = each->task;
            each->is_used = false;
        }
    unlock(&rare_lock);
    return found;
}

static void find_subscriber(void *handle, enum kind kind, void *object, void *data)
{
    (void)handle;
    const struct stream *stream = object;
    if (kind == STREAM && stream->is_subscribed && stream->subscriber == (uint64_t)pthread_self())
        *(bool *)data = true;
}

API aclError aclrtProcessReport(int32_t timeout)
{
    BEGIN_ON_DEVICE;
    if (timeout < -1)
        return refuse(call, "timeout: %d; allowed: -1 for no limit, or milliseconds", timeout);
    uint64_t thread = (uint64_t)pthread_self();
    bool is_subscriber = default_stream.is_subscribed && default_stream.subscriber == thread;
    if (!is_subscriber)
        each_object(find_subscriber, &is_subscriber);
    if (!is_subscriber)
        return fail(call, ACL_ERROR_THREAD_NOT_SUBSCRIBE,
                    "a thread of no stream; allowed: after aclrtSubscribeReport");
    struct task *task = NULL;
    for (;;) {
        uint32_t before = __atomic_load_n(&launched, __ATOMIC_ACQUIRE);
        if (take_pending(thread, &task))
            break;
        if (!wait_while(&launched, before, timeout))
            return fail_quietly(call, ACL_ERROR_WAIT_CALLBACK_TIMEOUT,
                                "timeout: no callback in %d ms", timeout);
    }
    wait_for_task(task);
    leave_task(task);
    return 0;
}

// Memory

static const char DEVICE_MAKERS[] = "aclrtMalloc or aclrtMallocAlign32";

static int allocate_block(const struct call *call, void **place, size_t size, bool is_device)
{
    if (!size)
        return fail(call, ACL_ERROR_INVALID_PARAM, "size: 0; allowed: 1 or more");
    return allocate(call, ACL_ERROR_RT_MEMORY_ALLOCATION, own_context(), size, is_device, place);
}

API aclError aclrtMalloc(void **devPtr, size_t size, aclrtMemMallocPolicy policy)
{
    (void)policy;
    BEGIN_ON_DEVICE;
    NEED_PLACE(devPtr);
    return allocate_block(call, devPtr, size, true);
}

API aclError aclrtMallocAlign32(void **devPtr, size_t size, aclrtMemMallocPolicy policy)
{
    (void)policy;
    BEGIN_ON_DEVICE;
    NEED_PLACE(devPtr);
    return allocate_block(call, devPtr, size, true);
}

API aclError aclrtMallocHost(void **hostPtr, size_t size)
{
    BEGIN_AFTER_INIT;
    NEED_PLACE(hostPtr);
    return allocate_block(call, hostPtr, size, false);
}

API aclError aclrtFree(void *devPtr)
{
    BEGIN_ANYWHERE;
    return release(call, "devPtr", DEVICE_MAKERS, devPtr);
}

API aclError aclrtFreeHost(void *hostPtr)
{
    BEGIN_ANYWHERE;
    return release(call, "hostPtr", "aclrtMallocHost", hostPtr);
}

static bool is_device(const void *address)
{
    struct block block;
    return block_at(address, &block) && block.is_device;
}

// Copy rows on a stream, or at once; the kind says which sides are device memory.
static int copy_rows(const struct call *call, struct stream *stream, void *dst, size_t dpitch,
                     const void *src, size_t spitch, size_t width, size_t height, size_t most,
                     aclrtMemcpyKind kind, bool crosses)
{
    static const bool TO[] = {0, 1, 0, 1, 0, 1, 1, 1}, FROM[] = {0, 0, 1, 1, 0, 0, 1, 1};
    if ((unsigned)kind > ACL_MEMCPY_INTER_DEVICE_TO_DEVICE)
        return refuse(call,
                      "kind: %d; allowed: ACL_MEMCPY_HOST_TO_HOST (0) to "
                      "ACL_MEMCPY_INTER_DEVICE_TO_DEVICE (7)",
                      (int)kind);
    bool is_default = kind == ACL_MEMCPY_DEFAULT;
    struct side to = {"dst", dst, dpitch, is_default ? is_device(dst) : TO[kind]};
    struct side from = {"src", (char *)src, spitch, is_default ? is_device(src) : FROM[kind]};
    if (crosses && to.on_device == from.on_device)
        return refuse(call, "kind: %d; allowed: between the host and the device", (int)kind);
    return copy(call, true, stream, &to, &from, width, height, most, 0);
}

static int copy_bytes(const struct call *call, struct stream *stream, void *dst, size_t destMax,
                      const void *src, size_t count, aclrtMemcpyKind kind)
{
    return copy_rows(call, stream, dst, count, src, count, count, 1, destMax, kind, false);
}

API aclError aclrtMemcpy(void *dst, size_t destMax, const void *src, size_t count,
                         aclrtMemcpyKind kind)
{
    BEGIN_ON_DEVICE;
    return copy_bytes(call, NULL, dst, destMax, src, count, kind);
}

API aclError aclrtMemcpyAsync(void *dst, size_t destMax, const void *src, size_t count,
                              aclrtMemcpyKind kind, aclrtStream stream)
{
    BEGIN_ON_DEVICE;
    STREAM_OF(on, stream);
    return copy_bytes(call, on, dst, destMax, src, count, kind);
}

API aclError aclrtMemcpy2d(void *dst, size_t dpitch, const void *src, size_t spitch, size_t width,
                           size_t height, aclrtMemcpyKind kind)
{
    BEGIN_ON_DEVICE;
    return copy_rows(call, NULL, dst, dpitch, src, spitch, width, height, SIZE_MAX, kind, true);
}

API aclError aclrtMemcpy2dAsync(void *dst, size_t dpitch, const void *src, size_t spitch,
                                size_t width, size_t height, aclrtMemcpyKind kind,
                                aclrtStream stream)
{
    BEGIN_ON_DEVICE;
    STREAM_OF(on, stream);
    return copy_rows(call, on, dst, dpitch, src, spitch, width, height, SIZE_MAX, kind, true);
}

static int set_bytes(const struct call *call, struct stream *stream, void *devPtr, size_t maxCount,
                     int32_t value, size_t count)
{
    struct side to = {"devPtr", devPtr, count, true};
    if (count > maxCount)
        return refuse(call, "count: %zu bytes; allowed: up to maxCount, %zu", count, maxCount);
    return copy(call, true, stream, &to, NULL, count, 1, SIZE_MAX, value);
}

API aclError aclrtMemset(void *devPtr, size_t maxCount, int32_t value, size_t count)
{
    BEGIN_ON_DEVICE;
    return set_bytes(call, NULL, devPtr, maxCount, value, count);
}

API aclError aclrtMemsetAsync(void *devPtr, size_t maxCount, int32_t value, size_t count,
                              aclrtStream stream)
{
    BEGIN_ON_DEVICE;
    STREAM_OF(on, stream);
    return set_bytes(call, on, devPtr, maxCount, value, count);
}
