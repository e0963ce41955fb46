// What the parts of the C libraries share: calls and their failures, the report, objects behind handles,
// memory, streams, and Python.
#ifndef NORMGRAD_CORE_H
#define NORMGRAD_CORE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define API __attribute__((visibility("default")))

// Calls (report.c)

// The statuses of a vendor's functions for wrong arguments, for nulls and for what was not foreseen.
struct statuses {
    int refusal, null, failure;
};
extern const struct statuses OF_ACL, OF_HCCL, OF_ACLNN, OF_PHASE_2, OF_INFINI;

// A call of an exported function: its name, the address that it returns to, and its statuses.
struct call {
    const char *function;
    void *from;
    const struct statuses *statuses;
};
#define BEGIN(statuses)                                                                            \
    const struct call *call = &(const struct call)                                                 \
    {                                                                                              \
        __func__, __builtin_return_address(0), statuses                                            \
    }
#define TRY(status)                                                                                \
    do {                                                                                           \
        int status_ = (status);                                                                    \
        if (status_)                                                                               \
            return status_;                                                                        \
    } while (0)

// Store a message as this thread's last error, note it for the report, and return the status.
#define fail(call, ...) fail_and_note(call, true, __VA_ARGS__)
// The same for a failure that the report leaves out, such as freeing a null.
#define fail_quietly(call, ...) fail_and_note(call, false, __VA_ARGS__)
int fail_and_note(const struct call *call, bool is_noted, int status, const char *format, ...)
    __attribute__((format(printf, 4, 5)));
#define refuse(call, ...) fail(call, (call)->statuses->refusal, __VA_ARGS__)
#define refuse_null(call, name, allowed)                                                           \
    fail(call, (call)->statuses->null, "%s: null; allowed: %s", name, allowed)
#define NEED_PLACE(place)                                                                          \
    do {                                                                                           \
        if (!(place))                                                                              \
            return refuse_null(call, #place, "a pointer to write to");                             \
    } while (0)

char *last_message(void); // MESSAGE_SIZE bytes
enum { MESSAGE_SIZE = 4096 };

// Note what succeeds here, and that a device may refuse or get wrong.
void note_device(const struct call *call, const char *format, ...)
    __attribute__((format(printf, 2, 3)));
void report_lines(void); // print what was noted since the last time, at aclFinalize and at the end
// Count something that the program has left, which a function made when it was called from a place:
// bytes, or else an object. The report has them in the order of the numbers.
void leftover(const char *what, const char *maker, void *from, size_t bytes, size_t number);
void fail_at_end(void); // make the program fail when it ends, if that is wanted for findings

// What the environment asks for; docs/capi.md has the variables.
struct settings {
    bool report, is_fatal, host_memory, has_threads;
    int devices;
    char product[128], save_invstd[16]; // empty if not set
    unsigned version;                   // increases when they are read again
};
const struct settings *settings(void);
int read_settings(const struct call *call, int status); // fails with the status for a wrong value

// Locks, which ThreadSanitizer does not see: it shall know of the program's order alone (streams.c)

typedef volatile uint32_t spin_lock;
void lock(spin_lock *lock);
void unlock(spin_lock *lock);
// Those that a fork waits for.
extern spin_lock object_lock, block_lock, plan_lock, rare_lock; // rare: of what is seldom used

// Objects and their handles (objects.c)

enum kind {
    NOTHING,
    STREAM,
    EVENT,
    CONTEXT,
    PHYSICAL,
    COMMUNICATOR,
    TENSOR,
    SCALAR,
    INT_ARRAY,
    FLOAT_ARRAY,
    BOOL_ARRAY,
    TENSOR_LIST,
    SCALAR_LIST,
    EXECUTOR,
    INFINI_HANDLE,
    INFINI_TENSOR,
    INFINI_OPERATOR
};
// Each object begins with this. It is freed by ``drop``, or else by free(), when its last user leaves.
struct object {
    int users;
    void (*drop)(void *object);
};
void *hold(void *object);
void leave(void *object);

// Make the handle of a new object, which the program has to end if it is owned. Without memory for
// either the call fails: null is returned, or the status.
void *handle_of(const struct call *call, enum kind kind, void *object, bool is_owned);
int put_handle(const struct call *call, void *place, enum kind kind, void *object);
// Find the living object of a kind behind a handle; fails for all other handles, and for null.
int need(const struct call *call, const char *name, enum kind kind, const void *handle,
         void *place);
// The same, and end the handle: of two threads only one succeeds.
int take(const struct call *call, const char *name, enum kind kind, const void *handle,
         void *place);
void *peek(const void *handle,
           enum kind *kind); // null if the handle is not that of a living object
const char *
problem_of(const void *handle);      // what is wrong with a handle that ``peek`` does not know
const char *name_of(enum kind kind); // such as "an aclTensor"
void end_handle(const struct call *call, const void *handle);
// Call a function for the handle, kind and object of each living one.
void each_object(void (*visit)(void *handle, enum kind kind, void *object, void *data), void *data);
void replace_object(const void *handle, void *object); // give a handle another object
void count_objects(void);  // as leftovers, those that the program has not ended
void forget_objects(void); // those that a parent process made are not reported

// Memory (memory.c)

struct block {
    char *address;
    size_t size, number; // number: blocks are counted
    bool is_device, is_mapped;
    const char *maker, *freed_by; // names of functions
    void *from, *context;         // context: whose reset frees it
    struct block *next;           // in the list of freed ones
    bool is_parents;
};
int allocate(const struct call *call, int no_memory, void *context, size_t size, bool is_device,
             void **place);
// Free a block that one of the makers, such as "aclrtMalloc or aclrtMallocAlign32", has made.
int release(const struct call *call, const char *name, const char *makers, void *address);
// The block with an address in it, freed or not, as a copy; false if there is none.
bool block_at(const void *address, struct block *found);
// The same, but fails for a freed block; ``found`` has no size if there is none.
int living_block(const struct call *call, const char *name, const void *address,
                 struct block *found);
// The first address after a block and after mappings that continue it.
char *end_of_block(const struct block *block);
bool add_mapping(const struct call *call, void *address, size_t size, bool is_device);
bool has_mapping(const char *first, const char *end);
void forget_blocks(const char *first, const char *end); // freed ones, whose addresses serve again
void release_context(void *context);                    // free what belongs to it
void count_blocks(void);                                // as leftovers, those that were not freed
void forget_parents_blocks(void); // those of a parent process are not reported

// One side of a copy: rows of bytes whose starts are ``pitch`` bytes apart.
struct side {
    const char *name;
    char *address;
    size_t pitch;
    bool on_device;
};
// Check that bytes are within one block, if they begin in one, and are a device's or not.
int reach(const struct call *call, bool checks_sides, const char *name, const void *address,
          size_t count, bool on_device);
struct stream;
// Copy rows, on a stream or, without one, at once; from null, set bytes to ``value``. A program may
// say that the destination has ``most`` bytes.
int copy(const struct call *call, bool checks_sides, struct stream *stream, const struct side *to,
         const struct side *from, size_t width, size_t height, size_t most, int value);

// Streams (streams.c)

struct task; // work of a stream, or the end of it, which an event marks
struct stream {
    struct object object;
    void *context;
    spin_lock lock;
    struct task *first, *last, *latest; // those that wait, and the last that was added
    volatile uint32_t added;            // counts tasks, for the thread to wait on
    bool has_thread, is_ending;
    int failure; // of the first task that failed since the last wait
    char *message;
    uint64_t subscriber; // the thread that processes its callbacks' reports
    bool is_subscribed;
};
struct event {
    struct object object;
    spin_lock lock; // of the task and the time
    struct task *task;
    double time; // milliseconds
    bool is_recorded, can_order, has_time;
};
// The stream of a handle, or the default one for null; null after a failure.
struct stream *stream_of(const struct call *call, const void *handle);
extern struct stream default_stream;
struct stream *new_stream(void *context);
int end_stream(const struct call *call, const char *name, const void *handle);
// Do work now or, if streams have threads, later; ``drop`` ends the data after it.
int submit(const struct call *call, struct stream *stream, int (*work)(void *), void *data,
           void (*drop)(void *));
bool runs_later(const struct stream *stream);
int finish(struct stream *stream); // wait for a stream's work, and return the first failure
int finish_all(void);
bool is_idle(struct stream *stream);
// Tell ThreadSanitizer of a use of memory that it does not see.
void announce(const void *address, size_t size, bool writes);
bool announces(void);
// Between these, what this thread does is shown as done at a place in the program.
void enter_place(void *from);
void leave_place(void);
// In a program for ThreadSanitizer, let queued work access memory before the program's thread does,
// without an order that the sanitizer sees. It remembers only the last few accesses of a place: if
// the program's copy and free came first, it would name the free. It waits at most 0.1 s a stream.
void settle(void);
struct event *new_event(bool can_order, bool has_time);
void record(struct event *event, struct stream *stream);
void reset(struct event *event);
#define STREAM_OF(name, handle)                                                                    \
    struct stream *name = stream_of(call, handle);                                                 \
    if (!name)                                                                                     \
    return call->statuses->refusal
#define EVENT_OF(name, handle)                                                                     \
    struct event *name;                                                                            \
    TRY(need(call, "event", EVENT, handle, &name))
bool was_recorded(struct event *event);
int finish_event(struct event *event);
bool is_over(struct event *event); // whether the work before it is done
int wait_for_event(const struct call *call, struct stream *stream, struct event *event);
int elapsed(const struct call *call, struct event *start, struct event *end, float *ms);
struct task *latest_task(struct stream *stream); // held
void wait_for_task(struct task *task);
void leave_task(struct task *task);
bool wait_while(volatile uint32_t *word, uint32_t value, int milliseconds); // false: it took longer
void wake(volatile uint32_t *word);
void streams_forked(void);

// Tensors and arrays, which bridge.py reads (tensors.c)

struct tensor {
    struct object object;
    int64_t rank, storage_rank, offset, *dims, *strides, *storage;
    char *data;
    int32_t data_type, format;
    int64_t item_size; // 0 for types that are not numbers
};
struct array {
    struct object object;
    uint64_t count;
    char values[];
};

// Describe an object; returns the length of the text.
int describe(char *text, size_t size, enum kind kind, const void *object);
struct tensor *new_tensor(int64_t rank, const int64_t *dims, const int64_t *strides,
                          int64_t storage_rank, const int64_t *storage);

// What the libraries know of each other

int need_device(const struct call *call, int status); // acl.c
int begin_aclnn(const struct call *call);
int end_aclnn(void);
const char *operator_of_executor(const void *executor); // opapi.c
const char *infini_type_name(int data_type);            // infini.c

// Plans: calls whose arguments Python has checked (plans.c)

enum { MOST_ARGUMENTS = 16, PLACES = 32, PROBLEM_SIZE = 128 };
// An argument of an operator's call: a handle's object, a number, or what is wrong with it.
struct argument {
    int kind; // of enum kind, or one of these
    const void *object;
    int64_t integer;
    double real;
    const char *problem; // of a tensor's memory, or of a handle that is none
    char *block;         // the start of the block in which a tensor's data is, and its size
    uint64_t block_size;
};
enum { IS_NULL = 100, IS_INTEGER, IS_REAL, IS_BOOL };
// The argument that a handle stands for. Its object is held; what is wrong with the handle may be
// written to ``problem``, of PROBLEM_SIZE bytes.
struct argument argument_of(const void *handle, char *problem);
// A call that was checked, and what computes it. ``addresses`` are those of the first elements of the
// tensors among the arguments, or null.
struct plan;
struct job {
    struct plan *plan;
    const char *operator; // as Python knows it
    int count;
    bool joins; // whether a stream's work is done when the call returns
    struct argument arguments[MOST_ARGUMENTS];
    char *addresses[MOST_ARGUMENTS];
    char *workspace;
};
// Check a call and find its plan, by Python if it is new. 0, or the call's status after a failure.
int find_plan(const struct call *call, struct job *job);
uint64_t workspace_size(const struct plan *plan);
bool uses_argument(const struct plan *plan, int index);
// The bytes from a tensor's first element that a plan uses, from ``low`` to ``high``.
bool span_of(const struct plan *plan, int index, int64_t *low, int64_t *high);
int run_job(const struct call *call, struct stream *stream, const struct job *job);
struct plan *hold_plan(struct plan *plan);
void leave_plan(struct plan *plan);

// Python (python.c)

// What C asks of Python, and the answer; bridge.py has the same fields.
struct request {
    const char *operator, * product, *save_invstd; // or null
    const struct argument *arguments;
    int64_t count;
    char *const *addresses;
    void *workspace;
    uint64_t size;
    int64_t *words; // the plan
    uint64_t capacity;
    char *message, *notes; // MESSAGE_SIZE bytes each
};
enum question { FIND_PLAN, RUN_PLAN, READ_CONFIG, FIND_CHIP };
// Ask Python; returns a status, 0 for success, or the call's failure if Python cannot be started.
int ask(const struct call *call, enum question question, struct request *request);
int need_python(const struct call *call); // fails after the end of the Python that was asked
// Run a function where the thread's stack has room for Python and for kernels.
void with_stack(void (*run)(void *), void *data);
bool is_forked(void); // whether this process is a fork's child, which has no other threads

#endif
