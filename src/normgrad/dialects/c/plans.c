// Plans: what computes calls of one signature, without Python. A signature is all that a call's check
// and its plan depend on: the descriptions of the tensors, and the other arguments.
#include "core.h"

#include <fenv.h>

extern void *__asan_region_is_poisoned(void *, size_t) __attribute__((weak));
extern void __asan_report_load1(void *) __attribute__((weak));
extern void __asan_report_store1(void *) __attribute__((weak));

enum {
    BUCKETS = 1024,
    MOST_PLANS = 4096,
    MOST_WORDS = 1 << 15,
    MOST_KEY = 2 + 18 * MOST_ARGUMENTS
};
// Places of the workspace's address, and of none, as bridge.py gives them.
enum { NO_PLACE = -1, WORKSPACE_PLACE = -2 };

// The words that bridge.py gives, up to those of the tensors; after these come PLACES indices of
// arguments, the driver's block and its steps.
struct words {
    int64_t workspace_size, alignment, is_native, driver, team, threads, step_count, block_size,
        step_size, used_count;
};
// A tensor that a plan reads or writes: the bytes from its first element, and a bit for each argument
// whose memory may be exactly the same.
struct used {
    int64_t index, low, high, writes, in_place;
};

struct plan {
    int users;
    struct plan *next; // of the same bucket
    const struct words *words;
    const struct used *used;
    const int64_t *places, *block, *steps;
    int64_t key_size, numbers[]; // the signature, and then the words
};

static struct plan *buckets[BUCKETS];
static int plan_count;
spin_lock plan_lock;

struct plan *hold_plan(struct plan *plan)
{
    __atomic_add_fetch(&plan->users, 1, __ATOMIC_RELAXED);
    return plan;
}

void leave_plan(struct plan *plan)
{
    if (plan && __atomic_sub_fetch(&plan->users, 1, __ATOMIC_ACQ_REL) == 0)
        free(plan);
}

uint64_t workspace_size(const struct plan *plan) { return (uint64_t)plan->words->workspace_size; }

static const struct used *use_of(const struct plan *plan, int index)
{
    for (int64_t i = 0; i < plan->words->used_count; ++i)
        if (plan->used[i].index == index)
            return &plan->used[i];
    return NULL;
}

bool uses_argument(const struct plan *plan, int index) { return use_of(plan, index); }

bool span_of(const struct plan *plan, int index, int64_t *low, int64_t *high)
{
    const struct used *used = use_of(plan, index);
    if (used) {
        *low = used->low;
        *high = used->high;
    }
    return used;
}

// Signatures

// Write the signature of a call; its size, or 0 if an argument is none that a plan can be for.
static int64_t signature_of(const struct job *job, int64_t *key)
{
    int64_t size = 0;
    key[size++] = (int64_t)(uintptr_t)job->operator;
    key[size++] = settings()->version;
    for (int i = 0; i < job->count; ++i) {
        const struct argument *argument = &job->arguments[i];
        const struct tensor *tensor = argument->object;
        const struct array *array = argument->object;
        key[size++] = argument->kind;
        switch (argument->kind) {
        case TENSOR:
        case INFINI_TENSOR:
            if (tensor->rank > 8 || tensor->offset >> 48 || argument->problem)
                return 0;
            key[size++] = tensor->rank << 32 | (int64_t)(tensor->data_type & 0xFFFF) << 16 |
                          (tensor->format & 0xFFFF);
            memcpy(key + size, tensor->dims, (size_t)tensor->rank * sizeof *key);
            size += tensor->rank;
            memcpy(key + size, tensor->strides, (size_t)tensor->rank * sizeof *key);
            size += tensor->rank;
            break;
        case BOOL_ARRAY:
            if (array->count > 8)
                return 0;
            key[size++] = (int64_t)array->count;
            for (uint64_t k = 0; k < array->count; ++k)
                key[size++] = array->values[k] != 0;
            break;
        case IS_REAL:
            memcpy(key + size++, &argument->real, sizeof *key);
            break;
        case IS_NULL:
        case INFINI_HANDLE:
            break;
        case IS_INTEGER:
        case IS_BOOL:
            key[size++] = argument->integer;
            break;
        default:
            return 0;
        }
    }
    return size;
}

static struct plan **bucket_of(const int64_t *key, int64_t size)
{
    uint64_t hash = (uint64_t)size;
    for (int64_t i = 0; i < size; ++i) {
        hash = (hash ^ (uint64_t)key[i]) * 0x9E3779B97F4A7C15u;
        hash ^= hash >> 29;
    }
    return &buckets[hash % BUCKETS];
}

// The kept plan of a signature, held; or null.
static struct plan *kept(const int64_t *key, int64_t size)
{
    lock(&plan_lock);
    struct plan *plan = *bucket_of(key, size);
    while (plan &&
           (plan->key_size != size || memcmp(plan->numbers, key, (size_t)size * sizeof *key)))
        plan = plan->next;
    if (plan)
        hold_plan(plan);
    unlock(&plan_lock);
    return plan;
}

static void keep(struct plan *plan)
{
    lock(&plan_lock);
    if (plan_count >= MOST_PLANS) {
        for (int i = 0; i < BUCKETS; ++i)
            for (struct plan *each; (each = buckets[i]);) {
                buckets[i] = each->next;
                leave_plan(each);
            }
        plan_count = 0;
    }
    struct plan **bucket = bucket_of(plan->numbers, plan->key_size);
    plan->next = *bucket;
    *bucket = hold_plan(plan);
    ++plan_count;
    unlock(&plan_lock);
}

static struct plan *new_plan(const int64_t *key, int64_t size, const int64_t *numbers)
{
    const struct words *words = (const void *)numbers;
    int64_t used = words->used_count * (int64_t)(sizeof(struct used) / sizeof *numbers);
    int64_t header = (int64_t)(sizeof *words / sizeof *numbers);
    int64_t count = header + used + PLACES + words->block_size + words->step_size;
    struct plan *plan = malloc(sizeof *plan + (size_t)(size + count) * sizeof *numbers);
    if (!plan)
        return NULL;
    memcpy(plan->numbers, key, (size_t)size * sizeof *key);
    memcpy(plan->numbers + size, numbers, (size_t)count * sizeof *numbers);
    plan->users = 1;
    plan->key_size = size;
    plan->words = (const void *)(plan->numbers + size);
    plan->used = (const void *)(plan->numbers + size + header);
    plan->places = plan->numbers + size + header + used;
    plan->block = plan->places + PLACES;
    plan->steps = plan->block + words->block_size;
    return plan;
}

// Whether the memory of a call's tensors can be used, as far as a kept plan uses them. If not, Python
// finds out why.
static bool has_memory(const struct job *job, const struct plan *plan)
{
    for (int64_t i = 0; i < plan->words->used_count; ++i) {
        const struct used *used = &plan->used[i];
        const struct argument *argument = &job->arguments[used->index];
        if (argument->kind != TENSOR || !((const struct tensor *)argument->object)->data)
            continue;
        const char *address = job->addresses[used->index];
        if (argument->problem)
            return false;
        if (argument->block && (address + used->low < argument->block ||
                                address + used->high > argument->block + argument->block_size))
            return false;
    }
    return true;
}

struct argument argument_of(const void *handle, char *problem)
{
    enum kind kind = NOTHING;
    if (!handle)
        return (struct argument){.kind = IS_NULL};
    void *object = peek(handle, &kind);
    struct argument argument = {.kind = (int)kind};
    if (object) {
        bool is_usable =
            kind == TENSOR || kind == BOOL_ARRAY || kind == INFINI_TENSOR || kind == INFINI_HANDLE;
        argument.object = hold(object);
        argument.problem = is_usable ? NULL : name_of(kind);
    } else {
        argument.problem = problem;
        snprintf(problem, PROBLEM_SIZE, "%s", problem_of(handle));
    }
    return argument;
}

int find_plan(const struct call *call, struct job *job)
{
    int64_t key[MOST_KEY], size = signature_of(job, key);
    job->plan = size ? kept(key, size) : NULL;
    if (job->plan && has_memory(job, job->plan))
        return 0;
    leave_plan(job->plan);
    job->plan = NULL;
    int64_t *words = malloc(MOST_WORDS * sizeof *words);
    if (!words)
        return fail(call, call->statuses->failure, "no memory");
    struct request request = {.operator = job->operator,
                              .arguments = job->arguments,
                              .count = job->count,
                              .words = words,
                              .capacity = MOST_WORDS,
                              .size = settings()->report};
    int status = ask(call, FIND_PLAN, &request);
    if (!status && !(job->plan = new_plan(key, size, words)))
        status = fail(call, call->statuses->failure, "no memory");
    free(words);
    if (!status && size && job->plan->words->is_native >= 0)
        keep(job->plan);
    return status;
}

// Runs

// Whether no output shares memory with another tensor or the workspace, but where it may.
static bool is_apart(const struct job *job)
{
    const struct plan *plan = job->plan;
    const struct words *words = plan->words;
    for (int64_t i = 0; i < words->used_count; ++i) {
        const struct used *one = &plan->used[i];
        const char *first = job->addresses[one->index] + one->low;
        const char *end = job->addresses[one->index] + one->high;
        if (words->workspace_size && first < job->workspace + words->workspace_size &&
            job->workspace < end)
            return false;
        for (int64_t k = 0; one->writes && k < words->used_count; ++k) {
            const struct used *other = &plan->used[k];
            const char *start = job->addresses[other->index];
            if (k == i || start + other->low >= end || first >= start + other->high)
                continue;
            if (start != job->addresses[one->index] || !(one->in_place >> other->index & 1))
                return false;
        }
    }
    return true;
}

// Tell sanitizers of each run of adjacent elements that a call uses.
static void announce_tensor(const struct tensor *tensor, char *address, bool writes)
{
    int64_t item = tensor->item_size, run = item, axis = tensor->rank;
    while (axis > 0 && (tensor->strides[axis - 1] * item == run || tensor->dims[axis - 1] == 1))
        run *= tensor->dims[--axis];
    int64_t rows = 1, index[8] = {0};
    for (int64_t i = 0; i < axis; ++i)
        rows *= tensor->dims[i];
    for (int64_t row = 0; row < rows; ++row) {
        char *at = address;
        for (int64_t i = 0; i < axis; ++i)
            at += index[i] * tensor->strides[i] * item;
        void *bad = __asan_region_is_poisoned ? __asan_region_is_poisoned(at, (size_t)run) : NULL;
        if (bad)
            (writes ? __asan_report_store1 : __asan_report_load1)(bad);
        announce(at, (size_t)run, writes);
        for (int64_t i = axis; i-- > 0 && ++index[i] == tensor->dims[i];)
            index[i] = 0;
    }
}

typedef void driver(const int64_t *table, int64_t team, int64_t threads, const int64_t *places);

static void drive(void *data)
{
    const struct job *job = data;
    const struct plan *plan = job->plan;
    const struct words *words = plan->words;
    int64_t places[PLACES];
    if (!words->driver) // there is nothing to compute
        return;
    int64_t start = (int64_t)(uintptr_t)job->workspace;
    for (int i = 0; i < PLACES; ++i) {
        int64_t index = plan->places[i];
        places[i] = index == NO_PLACE ? 0
                    : index == WORKSPACE_PLACE
                        ? (start + words->alignment - 1) / words->alignment * words->alignment
                        : (int64_t)(uintptr_t)job->addresses[index];
    }
    const int64_t table[] = {(int64_t)(uintptr_t)plan->block, (int64_t)(uintptr_t)plan->steps,
                             words->step_count};
    // ThreadSanitizer would take the threads' order for the program's.
    bool is_alone = is_forked() || announces();
    ((driver *)(uintptr_t)words->driver)(table, is_alone ? 0 : words->team,
                                         is_alone ? 1 : words->threads, places);
}

struct run {
    struct call call;
    struct job job;
};

static int compute(void *data)
{
    struct run *run = data;
    const struct job *job = &run->job;
    const struct words *words = job->plan->words;
    bool is_watched = announces() || __asan_region_is_poisoned;
    for (int64_t i = 0; is_watched && i < words->used_count; ++i) {
        const struct used *used = &job->plan->used[i];
        const struct argument *argument = &job->arguments[used->index];
        if (used->high > used->low && (argument->kind == TENSOR || argument->kind == INFINI_TENSOR))
            announce_tensor(argument->object, job->addresses[used->index], used->writes);
    }
    announce(job->workspace, (size_t)words->workspace_size, true);
    if (words->is_native > 0 && is_apart(job)) {
        fenv_t arithmetic; // the program's, which must not change results
        fegetenv(&arithmetic);
        fesetenv(FE_DFL_ENV);
        with_stack(drive, (void *)job);
        fesetenv(&arithmetic);
        return 0;
    }
    struct request request = {.operator = job->operator,
                              .arguments = job->arguments,
                              .count = job->count,
                              .addresses = job->addresses,
                              .workspace = job->workspace,
                              .size = workspace_size(job->plan)};
    return ask(&run->call, RUN_PLAN, &request);
}

static void drop_run(void *data)
{
    struct run *run = data;
    for (int i = 0; i < run->job.count; ++i)
        leave((void *)run->job.arguments[i].object);
    leave_plan(run->job.plan);
    free(run);
}

int run_job(const struct call *call, struct stream *stream, const struct job *job)
{
    struct run now = {*call, *job};
    TRY(need_python(call));
    // What only Python can tell, it tells at once.
    bool is_late = runs_later(stream) && !job->joins && is_apart(job);
    if (!is_late) {
        if (stream)
            TRY(finish(stream));
        enter_place(call->from);
        int status = compute(&now);
        leave_place();
        return status;
    }
    struct run *later = malloc(sizeof *later);
    if (!later)
        return fail(call, call->statuses->failure, "no memory");
    *later = now;
    hold_plan(job->plan);
    for (int i = 0; i < job->count; ++i)
        if (job->arguments[i].object)
            hold((void *)job->arguments[i].object);
    return submit(call, stream, compute, later, drop_run);
}
