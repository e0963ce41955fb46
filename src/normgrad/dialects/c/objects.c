// Handles: numbers that stand for objects, and are looked up rather than followed as pointers.
//
// A handle has the index of an entry of a table, and the entry's generation, which increases when it
// serves again. So the handle of an object that was ended stands for no other one.
#include "core.h"

enum { CHUNK = 4096, CHUNKS = 4096, REMEMBERED = 4096 };
#define FIRST 0x4E47000000000000ull // no address, since the upper bits of those are zero
#define GENERATIONS (1u << 20)

struct entry {
    struct object *object; // the entry is one of its users until it serves again
    enum kind kind;
    uint32_t generation, next; // next: the index of the next free entry
    bool is_living, is_owned;
    const char *maker, *ended_by;
    void *from;
};

static struct entry *chunks[CHUNKS];
static uint32_t count = 1, free_count, first_free, last_free; // entry 0 is not used
spin_lock object_lock;

static const struct {
    const char *name, *acl, *infini; // who makes it, if that is what a message says is allowed
} KINDS[] = {
    [STREAM] = {"a Stream", "what aclrtCreateStream made", "what infinirtStreamCreate made"},
    [EVENT] = {"an Event", "what aclrtCreateEvent made", "what infinirtEventCreate made"},
    [CONTEXT] = {"a Context", "what aclrtCreateContext made", NULL},
    [PHYSICAL] = {"a Physical", "what aclrtMallocPhysical made", NULL},
    [COMMUNICATOR] = {"a Communicator", "what HcclCommInitRootInfo made", NULL},
    [TENSOR] = {"an aclTensor", NULL, NULL},
    [SCALAR] = {"an aclScalar", NULL, NULL},
    [INT_ARRAY] = {"an aclIntArray", NULL, NULL},
    [FLOAT_ARRAY] = {"an aclFloatArray", NULL, NULL},
    [BOOL_ARRAY] = {"an aclBoolArray", NULL, NULL},
    [TENSOR_LIST] = {"an aclTensorList", NULL, NULL},
    [SCALAR_LIST] = {"an aclScalarList", NULL, NULL},
    [EXECUTOR] = {"an aclOpExecutor", NULL, NULL},
    [INFINI_HANDLE] = {"an infiniopHandle_t", NULL, NULL},
    [INFINI_TENSOR] = {"an infiniopTensorDescriptor_t", NULL, NULL},
    [INFINI_OPERATOR] = {"an infiniopBatchNormBackwardDescriptor_t", NULL, NULL},
};

const char *name_of(enum kind kind) { return KINDS[kind].name; }

static const char *allowed(const struct call *call, enum kind kind)
{
    const char *made = call->statuses == &OF_INFINI ? KINDS[kind].infini : KINDS[kind].acl;
    return made ? made : KINDS[kind].name;
}

void *hold(void *object)
{
    __atomic_add_fetch(&((struct object *)object)->users, 1, __ATOMIC_RELAXED);
    return object;
}

void leave(void *object)
{
    struct object *it = object;
    if (it && __atomic_sub_fetch(&it->users, 1, __ATOMIC_ACQ_REL) == 0)
        (it->drop ? it->drop : free)(it);
}

static struct entry *entry_at(uint32_t index) { return &chunks[index / CHUNK][index % CHUNK]; }

static uint64_t number_of(uint32_t index, uint32_t generation)
{
    return FIRST | (uint64_t)generation << 28 | (uint64_t)index << 4;
}

void *handle_of(const struct call *call, enum kind kind, void *object, bool is_owned)
{
    struct object *old = NULL, *new = object;
    if (!new) {
        fail(call, call->statuses->failure, "no memory");
        return NULL;
    }
    new->users = 1;
    lock(&object_lock);
    uint32_t index = first_free;
    if (free_count > REMEMBERED) {
        first_free = entry_at(index)->next;
        --free_count;
        old = entry_at(index)->object;
    } else {
        index = count;
        struct entry **chunk = &chunks[index / CHUNK];
        if (index >= CHUNK * CHUNKS || (!*chunk && !(*chunk = calloc(CHUNK, sizeof **chunk)))) {
            unlock(&object_lock);
            leave(new);
            fail(call, call->statuses->failure, "no memory for one more handle");
            return NULL;
        }
        __atomic_store_n(&count, index + 1, __ATOMIC_RELEASE);
    }
    struct entry *entry = entry_at(index);
    uint32_t generation = (entry->generation + 1) % GENERATIONS;
    __atomic_store_n(&entry->generation, generation, __ATOMIC_RELEASE);
    entry->object = new;
    entry->kind = kind;
    entry->is_owned = is_owned;
    entry->maker = call->function;
    entry->ended_by = NULL;
    entry->from = call->from;
    __atomic_store_n(&entry->is_living, true, __ATOMIC_RELEASE);
    unlock(&object_lock);
    leave(old);
    return (void *)number_of(index, generation);
}

int put_handle(const struct call *call, void *place, enum kind kind, void *object)
{
    void *handle = handle_of(call, kind, object, true);
    memcpy(place, &handle, sizeof handle);
    return handle ? 0 : call->statuses->failure;
}

// The entry of a handle, living or not; null if there is none.
static struct entry *entry_of(const void *handle)
{
    uint64_t number = (uint64_t)handle - FIRST;
    uint32_t index = (uint32_t)(number >> 4 & 0xFFFFFF);
    if (number >> 48 || number & 15 || index == 0 ||
        index >= __atomic_load_n(&count, __ATOMIC_ACQUIRE))
        return NULL;
    struct entry *entry = entry_at(index);
    return __atomic_load_n(&entry->generation, __ATOMIC_ACQUIRE) == number >> 28 ? entry : NULL;
}

// Without the lock, for which threads would wait for each other: what was read counts if the entry has
// not served again meanwhile.
void *peek(const void *handle, enum kind *kind)
{
    struct entry *entry = entry_of(handle);
    if (!entry || !__atomic_load_n(&entry->is_living, __ATOMIC_ACQUIRE))
        return NULL;
    void *object = entry->object;
    enum kind its = entry->kind;
    __atomic_thread_fence(__ATOMIC_ACQUIRE);
    if (!__atomic_load_n(&entry->is_living, __ATOMIC_RELAXED) || entry_of(handle) != entry)
        return NULL;
    *kind = its;
    return object;
}

const char *problem_of(const void *handle)
{
    static __thread char text[128];
    uint64_t number = (uint64_t)handle - FIRST;
    lock(&object_lock);
    struct entry *entry = entry_of(handle);
    if (entry)
        snprintf(text, sizeof text,
                 strncmp(entry->ended_by, "aclnn", 5) ? "a handle that %s has destroyed"
                                                      : "used already, by %s",
                 entry->ended_by);
    else if (number < FIRST && number % 16 == 0)
        snprintf(text, sizeof text, "a handle that was destroyed long ago");
    else
        snprintf(text, sizeof text, "%#zx, which is no handle", (size_t)handle);
    unlock(&object_lock);
    return text;
}

// Find an object and maybe end its handle; the object stays while the entry remembers it.
static int find(const struct call *call, const char *name, enum kind kind, const void *handle,
                void *place, bool ends)
{
    if (!handle)
        return refuse_null(call, name, allowed(call, kind));
    enum kind found = NOTHING;
    *(void **)place = peek(handle, &found);
    if (found == kind && ends) {
        lock(&object_lock);
        struct entry *entry = entry_of(handle);
        found = entry && entry->is_living ? kind : NOTHING; // another thread may have been faster
        if (found) {
            entry->ended_by = call->function;
            __atomic_store_n(&entry->is_living, false, __ATOMIC_RELEASE);
            uint32_t index = (uint32_t)((uint64_t)handle >> 4 & 0xFFFFFF);
            if (free_count++)
                entry_at(last_free)->next = index;
            else
                first_free = index;
            last_free = index;
        }
        unlock(&object_lock);
    }
    if (found == kind)
        return 0;
    return refuse(call, "%s: %s; allowed: %s", name, found ? name_of(found) : problem_of(handle),
                  allowed(call, kind));
}

int need(const struct call *call, const char *name, enum kind kind, const void *handle, void *place)
{
    return find(call, name, kind, handle, place, false);
}

int take(const struct call *call, const char *name, enum kind kind, const void *handle, void *place)
{
    return find(call, name, kind, handle, place, true);
}

void end_handle(const struct call *call, const void *handle)
{
    enum kind kind;
    void *object;
    if (peek(handle, &kind))
        take(call, "handle", kind, handle, &object);
}

void replace_object(const void *handle, void *object)
{
    struct object *old = NULL, *new = object;
    new->users = 1;
    lock(&object_lock);
    struct entry *entry = entry_of(handle);
    if (entry) {
        old = entry->object;
        entry->object = new;
    }
    unlock(&object_lock);
    leave(entry ? old : new);
}

void each_object(void (*visit)(void *, enum kind, void *, void *), void *data)
{
    for (uint32_t index = 1; index < __atomic_load_n(&count, __ATOMIC_ACQUIRE); ++index) {
        lock(&object_lock);
        struct entry entry = *entry_at(index);
        struct object *object = entry.is_living ? hold(entry.object) : NULL;
        unlock(&object_lock);
        if (object)
            visit((void *)number_of(index, entry.generation), entry.kind, object, data);
        leave(object);
    }
}

void count_objects(void)
{
    char what[240];
    for (uint32_t index = 1; index < count; ++index) {
        struct entry *entry = entry_at(index);
        bool was_reset =
            !entry->is_living && entry->ended_by && !strcmp(entry->ended_by, "aclrtResetDevice");
        if (!entry->is_owned || !(entry->is_living || was_reset))
            continue;
        describe(what, sizeof what, entry->kind, entry->object);
        leftover(what, entry->maker, entry->from, 0, index);
    }
}

void forget_objects(void)
{
    for (uint32_t index = 1; index < count; ++index)
        entry_at(index)->is_owned = false;
}
