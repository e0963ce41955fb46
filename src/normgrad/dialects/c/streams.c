// Streams and events. By default work is done at once, in the thread that asks for it. Where streams
// have threads, each does its stream's tasks one by one.
//
// ThreadSanitizer shall know of no other order than the program's: tasks are ordered for it by
// __tsan_acquire and __tsan_release, and it does not see this file's own locks and waits.
#define _GNU_SOURCE
#include "core.h"

#include <errno.h>
#include <linux/futex.h>
#include <pthread.h>
#include <sched.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

extern void __tsan_acquire(void *) __attribute__((weak));
extern void __tsan_release(void *) __attribute__((weak));
extern void __tsan_func_entry(void *) __attribute__((weak));
extern void __tsan_func_exit(void) __attribute__((weak));
extern void __tsan_read_range(void *, unsigned long) __attribute__((weak));
extern void __tsan_write_range(void *, unsigned long) __attribute__((weak));

static void acquire(void *token)
{
    if (__tsan_acquire)
        __tsan_acquire(token);
}

static void tsan_release(void *token)
{
    if (__tsan_release)
        __tsan_release(token);
}

void announce(const void *address, size_t size, bool writes)
{
    if (__tsan_read_range && size)
        (writes ? __tsan_write_range : __tsan_read_range)((void *)address, size);
}

void enter_place(void *from)
{
    if (__tsan_func_entry)
        __tsan_func_entry(from);
}

void leave_place(void)
{
    if (__tsan_func_exit)
        __tsan_func_exit();
}

bool announces(void) { return __tsan_read_range; }

void lock(spin_lock *lock)
{
    while (__atomic_exchange_n(lock, 1, __ATOMIC_ACQUIRE))
        while (__atomic_load_n(lock, __ATOMIC_RELAXED))
            sched_yield();
}

void unlock(spin_lock *lock) { __atomic_store_n(lock, 0, __ATOMIC_RELEASE); }

bool wait_while(volatile uint32_t *word, uint32_t value, int milliseconds)
{
    struct timespec time = {milliseconds / 1000, milliseconds % 1000 * 1000000L};
    while (__atomic_load_n(word, __ATOMIC_ACQUIRE) == value)
        if (syscall(SYS_futex, word, FUTEX_WAIT_PRIVATE, value, milliseconds < 0 ? NULL : &time) &&
            errno == ETIMEDOUT)
            return false;
    return true;
}

void wake(volatile uint32_t *word) { syscall(SYS_futex, word, FUTEX_WAKE_PRIVATE, INT32_MAX); }

// Tasks

struct task {
    volatile uint32_t is_done;
    int users;
    struct stream *stream;
    struct task *next, *awaited; // awaited: what an event marks that the task waits for
    int (*work)(void *);
    void *data;
    void (*drop)(void *);
    void *from; // where the program asked for it, which ThreadSanitizer's reports show
    int status; // of the work, with its message
    char *message;
};

struct stream default_stream = {.object = {1, NULL}};

static bool has_threads(void)
{
    return (__tsan_release || settings()->has_threads) && !is_forked();
}

static struct task *hold_task(struct task *task)
{
    if (task)
        __atomic_add_fetch(&task->users, 1, __ATOMIC_RELAXED);
    return task;
}

void leave_task(struct task *task)
{
    if (!task || __atomic_sub_fetch(&task->users, 1, __ATOMIC_ACQ_REL))
        return;
    leave_task(task->awaited);
    free(task->message);
    free(task);
}

static __thread struct stream *served; // whose work this thread does

void wait_for_task(struct task *task)
{
    if (!task || is_forked()) // a child has none of its parent's threads
        return;
    if (task->stream == served) // a callback's wait for its own stream would not end
        return;
    wait_while(&task->is_done, 0, -1);
    acquire(task);
}

static bool is_task_done(struct task *task)
{
    if (!task || is_forked())
        return true;
    bool is_done = __atomic_load_n(&task->is_done, __ATOMIC_ACQUIRE);
    if (is_done)
        acquire(task);
    else
        usleep(100); // programs ask until it is done
    return is_done;
}

static void *serve(void *argument)
{
    struct stream *stream = served = argument;
    for (;;) {
        uint32_t added = __atomic_load_n(&stream->added, __ATOMIC_ACQUIRE);
        lock(&stream->lock);
        struct task *task = stream->first;
        bool is_ending = stream->is_ending;
        if (task && !(stream->first = task->next))
            stream->last = NULL;
        unlock(&stream->lock);
        if (!task && is_ending)
            break;
        if (!task) {
            wait_while(&stream->added, added, -1);
            continue;
        }
        acquire(&task->work);
        wait_for_task(task->awaited);
        leave_task(task->awaited); // now, since it may wait for another, and so on without end
        task->awaited = NULL;
        enter_place(task->from);
        int status = task->work ? task->work(task->data) : 0;
        leave_place();
        if (task->drop)
            task->drop(task->data);
        lock(&stream->lock);
        if (status) {
            task->status = status;
            task->message = strdup(last_message());
        }
        if (status && !stream->failure) {
            stream->failure = status;
            stream->message = strdup(last_message());
        }
        unlock(&stream->lock);
        tsan_release(task);
        __atomic_store_n(&task->is_done, 1, __ATOMIC_RELEASE);
        wake(&task->is_done);
        leave_task(task);
    }
    leave(stream);
    return NULL;
}

// Add a task, with a thread for the stream's first.
static int add(const struct call *call, struct stream *stream, struct task *task)
{
    lock(&stream->lock);
    if (!stream->has_thread && !stream->is_ending) {
        pthread_t thread;
        pthread_attr_t attributes;
        pthread_attr_init(&attributes);
        pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
        hold(stream);
        stream->has_thread = !pthread_create(&thread, &attributes, serve, stream);
        pthread_attr_destroy(&attributes);
        if (!stream->has_thread)
            leave(stream);
    }
    bool is_ending = stream->is_ending; // another thread destroys it
    if (is_ending || !stream->has_thread) {
        unlock(&stream->lock);
        if (task->drop)
            task->drop(task->data);
        leave_task(task);
        return fail(call, call->statuses->failure, "stream: %s",
                    is_ending ? "destroyed; allowed: one that stays" : "no thread for it");
    }
    task->users = 2; // the thread, and the stream as its latest
    task->stream = stream;
    tsan_release(&task->work);
    *(stream->last ? &stream->last->next : &stream->first) = task;
    stream->last = task;
    struct task *before = stream->latest;
    stream->latest = task;
    __atomic_add_fetch(&stream->added, 1, __ATOMIC_RELEASE);
    unlock(&stream->lock);
    wake(&stream->added);
    leave_task(before);
    return 0;
}

static void settle_one(void *handle, enum kind kind, void *object, void *data)
{
    (void)handle, (void)data;
    if (kind != STREAM)
        return;
    struct task *task = latest_task(object);
    if (task)
        wait_while(&task->is_done, 0, 100); // not longer: it may wait for the program
    leave_task(task);
}

void settle(void)
{
    if (!announces() || served || is_forked())
        return;
    settle_one(NULL, STREAM, &default_stream, NULL);
    each_object(settle_one, NULL);
}

bool runs_later(const struct stream *stream) { return stream && has_threads(); }

int submit(const struct call *call, struct stream *stream, int (*work)(void *), void *data,
           void (*drop)(void *))
{
    if (runs_later(stream)) {
        struct task *task = calloc(1, sizeof *task);
        if (!task) {
            if (drop)
                drop(data);
            return fail(call, call->statuses->failure, "no memory");
        }
        *task =
            (struct task){.users = 1, .work = work, .data = data, .drop = drop, .from = call->from};
        return add(call, stream, task);
    }
    settle();
    enter_place(call->from);
    int status = work(data);
    leave_place();
    if (drop)
        drop(data);
    return status;
}

// Streams

static void drop_stream(void *object)
{
    struct stream *stream = object;
    leave_task(stream->latest);
    free(stream->message);
    free(stream);
}

struct stream *new_stream(void *context)
{
    struct stream *stream = calloc(1, sizeof *stream);
    if (stream) {
        stream->object.drop = drop_stream;
        stream->context = context;
    }
    return stream;
}

struct stream *stream_of(const struct call *call, const void *handle)
{
    struct stream *stream = &default_stream;
    return handle && need(call, "stream", STREAM, handle, &stream) ? NULL : stream;
}

// The first failure since the last wait, with its message.
static int take_failure(struct stream *stream)
{
    lock(&stream->lock);
    int status = stream->failure;
    char *message = stream->message;
    stream->failure = 0;
    stream->message = NULL;
    unlock(&stream->lock);
    if (message)
        snprintf(last_message(), MESSAGE_SIZE, "%s", message);
    free(message);
    return status;
}

struct task *latest_task(struct stream *stream)
{
    lock(&stream->lock);
    struct task *task = hold_task(stream->latest);
    unlock(&stream->lock);
    return task;
}

int finish(struct stream *stream)
{
    struct task *task = latest_task(stream);
    wait_for_task(task);
    leave_task(task);
    return take_failure(stream);
}

static void finish_each(void *handle, enum kind kind, void *object, void *data)
{
    (void)handle;
    int status = kind == STREAM ? finish(object) : 0;
    if (!*(int *)data)
        *(int *)data = status;
}

int finish_all(void)
{
    int status = finish(&default_stream);
    each_object(finish_each, &status);
    return status;
}

bool is_idle(struct stream *stream)
{
    struct task *task = latest_task(stream);
    bool is_done = is_task_done(task);
    leave_task(task);
    return is_done;
}

int end_stream(const struct call *call, const char *name, const void *handle)
{
    struct stream *stream;
    if (!handle) // the vendors' samples do this
        return fail_quietly(call, call->statuses->null, "%s: null; allowed: what %s made", name,
                            call->statuses == &OF_INFINI ? "infinirtStreamCreate"
                                                         : "aclrtCreateStream");
    TRY(take(call, name, STREAM, handle, &stream));
    finish(stream);
    lock(&stream->lock);
    stream->is_ending = true;
    __atomic_add_fetch(&stream->added, 1, __ATOMIC_RELEASE);
    unlock(&stream->lock);
    wake(&stream->added);
    return 0;
}

static void reset_each(void *handle, enum kind kind, void *object, void *data)
{
    (void)handle, (void)data;
    struct stream *stream = object;
    if (kind == STREAM) // another thread may have been amid a change of it
        *stream = (struct stream){.object = stream->object, .context = stream->context};
    if (kind == EVENT)
        ((struct event *)object)->lock = 0;
}

void streams_forked(void) // the child has no threads
{
    each_object(reset_each, NULL);
    default_stream = (struct stream){.object = {1, NULL}};
}

// Events

static void drop_event(void *object)
{
    leave_task(((struct event *)object)->task);
    free(object);
}

struct event *new_event(bool can_order, bool has_time)
{
    struct event *event = calloc(1, sizeof *event);
    if (event)
        *event =
            (struct event){.object.drop = drop_event, .can_order = can_order, .has_time = has_time};
    return event;
}

static void mark(struct event *event, struct task *task, double time, bool is_recorded)
{
    lock(&event->lock);
    struct task *before = event->task;
    event->task = task;
    event->time = time;
    event->is_recorded = is_recorded;
    unlock(&event->lock);
    leave_task(before);
}

static struct task *task_of(struct event *event) // held
{
    lock(&event->lock);
    struct task *task = hold_task(event->task);
    unlock(&event->lock);
    return task;
}

bool was_recorded(struct event *event)
{
    lock(&event->lock);
    bool is_recorded = event->is_recorded;
    unlock(&event->lock);
    return is_recorded;
}

void record(struct event *event, struct stream *stream)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    double time = 1e3 * (double)now.tv_sec + 1e-6 * (double)now.tv_nsec;
    mark(event, latest_task(stream), time, true);
}

void reset(struct event *event) { mark(event, NULL, 0, false); }

int finish_event(struct event *event)
{
    struct task *task = task_of(event);
    wait_for_task(task);
    int status = task ? task->status : 0;
    if (status)
        snprintf(last_message(), MESSAGE_SIZE, "%s", task->message ? task->message : "");
    leave_task(task);
    return status;
}

bool is_over(struct event *event)
{
    struct task *task = task_of(event);
    bool is_done = is_task_done(task);
    leave_task(task);
    return is_done;
}

int wait_for_event(const struct call *call, struct stream *stream, struct event *event)
{
    if (!event->can_order)
        return refuse(call, "event: one without ACL_EVENT_SYNC; allowed: one with it");
    struct task *awaited = has_threads() ? task_of(event) : NULL;
    if (!awaited)
        return 0;
    struct task *task = calloc(1, sizeof *task);
    if (!task) {
        leave_task(awaited);
        return fail(call, call->statuses->failure, "no memory");
    }
    *task = (struct task){.users = 1, .awaited = awaited};
    return add(call, stream, task);
}

int elapsed(const struct call *call, struct event *start, struct event *end, float *ms)
{
    struct event *events[] = {start, end};
    for (int i = 0; i < 2; ++i) {
        const char *name = i ? "end" : "start";
        if (!was_recorded(events[i]))
            return refuse(call, "%s: an event that was not recorded; allowed: one that was", name);
        if (!events[i]->has_time)
            return refuse(call, "%s: one without a time; allowed: one that was made with it", name);
        if (!is_over(events[i]))
            return refuse(
                call, "%s: an event whose work is not done; allowed: after waiting for it", name);
    }
    *ms = (float)(end->time - start->time);
    return 0;
}
