// Blocks: memory that programs allocate, found by any address in it; and copies.
//
// New blocks are filled with bytes that are NaN in every floating-point dtype, so that reads of what
// was never written show. Freed blocks are kept for a while, so that a use after the end shows too.
#define _GNU_SOURCE
#include "core.h"

#include <pthread.h>
#include <search.h>
#include <sys/mman.h>
#include <unistd.h>

#include "report.h"

enum { LINE = 64, FILLED = 64 << 20, HUGE_PAGE = 2 << 20, HUGE_FROM = 4 << 20 };
// The limits on freed blocks that are kept; the last one is in any case. The pages of those from a
// certain size on go back to the system at once.
enum { MOST_FREED = 1024, RETURNED_FROM = 64 << 10 };
#define MOST_FREED_BYTES (4ull << 30)

extern void __asan_poison_memory_region(const volatile void *, size_t) __attribute__((weak));
extern void __asan_unpoison_memory_region(const volatile void *, size_t) __attribute__((weak));

static void *tree;                    // of all blocks, by address
static struct block *oldest, *newest; // of those that were freed
static size_t freed_count, freed_bytes;
spin_lock block_lock;

static int compare(const void *a, const void *b)
{
    const struct block *one = a, *two = b;
    return one->address + one->size <= two->address   ? -1
           : two->address + two->size <= one->address ? 1
                                                      : 0;
}

static struct block *find(const void *address)
{
    struct block key = {.address = (char *)address, .size = 1};
    struct block **node = tfind(&key, &tree, compare);
    return node ? *node : NULL;
}

// The blocks that a thread has found last, by the addresses it asked for, as long as no block has come
// or gone: so threads do not wait for each other.
enum { RECENT = 16 };
struct recent {
    const void *address;
    unsigned version;
    struct block block;
};
static volatile unsigned version = 1; // of the tree
static pthread_key_t recent_key;
static pthread_once_t recent_once = PTHREAD_ONCE_INIT;
static __thread struct recent *recents; // not here, since a thread's variables are on its stack

static void drop_recents(void *all)
{
    recents = NULL; // destructors of the program's own may call after this one
    free(all);
}

static void make_recent_key(void) { pthread_key_create(&recent_key, drop_recents); }

static struct recent *recent_of(const void *address)
{
    if (!recents && (recents = calloc(RECENT, sizeof *recents))) {
        pthread_once(&recent_once, make_recent_key);
        pthread_setspecific(recent_key, recents);
    }
    return recents ? &recents[((size_t)address >> 6 ^ (size_t)address >> 12) % RECENT] : NULL;
}

bool block_at(const void *address, struct block *found)
{
    struct recent *recent = recent_of(address);
    unsigned now = __atomic_load_n(&version, __ATOMIC_ACQUIRE);
    if (recent && recent->address == address && recent->version == now) {
        *found = recent->block;
        return true;
    }
    lock(&block_lock);
    struct block *block = find(address);
    if (block)
        *found = *block;
    unlock(&block_lock);
    if (block && recent)
        *recent = (struct recent){address, now, *found};
    return block;
}

// Tell all threads that blocks have changed.
static void changed(void) { __atomic_add_fetch(&version, 1, __ATOMIC_RELEASE); }

char *end_of_block(const struct block *block)
{
    struct block next;
    char *end = block->address + block->size;
    while (block->is_mapped && block_at(end, &next) && next.is_mapped && !next.freed_by)
        end = next.address + next.size;
    return end;
}

static bool add(const struct call *call, struct block block)
{
    static size_t number;
    struct block *new = malloc(sizeof *new);
    if (!new)
        return false;
    *new = block;
    new->maker = call->function;
    new->from = call->from;
    lock(&block_lock);
    new->number = ++number;
    bool is_added = tsearch(new, &tree, compare);
    changed();
    unlock(&block_lock);
    if (!is_added)
        free(new);
    return is_added;
}

bool add_mapping(const struct call *call, void *address, size_t size, bool is_device)
{
    return add(call,
               (struct block){
                   .address = address, .size = size, .is_device = is_device, .is_mapped = true});
}

// Remove a block from the tree, and give its memory back. Needs the lock.
static void remove_block(struct block *block)
{
    tdelete(block, &tree, compare);
    changed();
    freed_bytes -= block->size;
    --freed_count;
    if (!block->is_mapped) {
        if (__asan_unpoison_memory_region)
            __asan_unpoison_memory_region(block->address, block->size);
        free(block->address);
    }
    free(block);
}

static void drop_oldest(void)
{
    struct block *block = oldest;
    oldest = block->next;
    if (!oldest)
        newest = NULL;
    remove_block(block);
}

void forget_blocks(const char *first, const char *end)
{
    lock(&block_lock);
    for (struct block **each = &oldest; *each;) {
        struct block *block = *each;
        if (block->address + block->size <= first || block->address >= end) {
            each = &block->next;
            continue;
        }
        *each = block->next;
        remove_block(block);
    }
    for (newest = oldest; newest && newest->next; newest = newest->next)
        ;
    unlock(&block_lock);
}

static void *new_memory(size_t size)
{
    void *data = NULL;
    if (size > PTRDIFF_MAX / 2)
        return NULL;
    int status = posix_memalign(&data, size >= HUGE_FROM ? HUGE_PAGE : LINE, size);
    if (status)
        return NULL;
    if (size >= HUGE_FROM)
        madvise(data, size, MADV_HUGEPAGE);
    return data;
}

int allocate(const struct call *call, int no_memory, void *context, size_t size, bool is_device,
             void **place)
{
    size_t bytes = size ? size : 1;
    char *data = new_memory(bytes);
    if (!data) {
        lock(&block_lock);
        while (oldest)
            drop_oldest();
        unlock(&block_lock);
        data = new_memory(bytes);
    }
    if (!data ||
        !add(call,
             (struct block){
                 .address = data, .size = bytes, .is_device = is_device, .context = context})) {
        free(data);
        return fail(call, no_memory, "size: %zu bytes; allowed: what the machine has", size);
    }
    if (bytes <= FILLED)
        memset(data, 0xFF, bytes);
    *place = data;
    return 0;
}

// Mark a block as freed. Needs the lock.
static void end_block(struct block *block, const char *function)
{
    block->freed_by = function;
    changed();
    block->next = NULL;
    *(newest ? &newest->next : &oldest) = block;
    newest = block;
    freed_bytes += block->size;
    ++freed_count;
    while (freed_count > 1 && (freed_count > MOST_FREED || freed_bytes > MOST_FREED_BYTES))
        drop_oldest();
    if (block->is_mapped)
        return;
    if (block->size >= RETURNED_FROM) {
        size_t page = (size_t)sysconf(_SC_PAGESIZE);
        char *first = (char *)(((size_t)block->address + page - 1) / page * page);
        char *end = (char *)((size_t)(block->address + block->size) / page * page);
        madvise(first, (size_t)(end - first), MADV_DONTNEED);
    }
    if (__asan_poison_memory_region)
        __asan_poison_memory_region(block->address, block->size);
}

// Whether a list such as "aclrtMalloc or aclrtMallocAlign32" has a function's name.
static bool is_in(const char *makers, const char *maker)
{
    size_t length = strlen(maker);
    const char *at = strstr(makers, maker);
    while (at && at[length] && at[length] != ' ')
        at = strstr(at + 1, maker);
    return at;
}

static bool is_reset(const struct block *block)
{
    return block->freed_by && !strcmp(block->freed_by, "aclrtResetDevice");
}

int release(const struct call *call, const char *name, const char *makers, void *address)
{
    if (!address)
        return fail_quietly(call, call->statuses->null, "%s: null; allowed: what %s allocated",
                            name, makers);
    lock(&block_lock);
    struct block *block = find(address);
    struct block found = block ? *block : (struct block){0};
    bool is_right = block && is_in(makers, found.maker) && found.address == address;
    bool can_free = is_right && (!found.freed_by || is_reset(&found));
    if (can_free && is_reset(&found))
        block->freed_by = call->function, changed();
    else if (can_free) {
        enter_place(call->from);
        announce(address, found.size, true);
        leave_place();
        end_block(block, call->function);
    }
    unlock(&block_lock);
    if (can_free)
        return 0;
    if (!block)
        return refuse(call, "%s: %#zx is in no block; allowed: what %s allocated", name,
                      (size_t)address, makers);
    if (!is_in(makers, found.maker))
        return refuse(call, "%s: memory from %s; allowed: what %s allocated", name, found.maker,
                      makers);
    if (!is_right)
        return refuse(call, "%s: %td bytes behind the start of a block; allowed: its start", name,
                      (char *)address - found.address);
    return refuse(call, "%s: memory that %s has freed; allowed: what %s allocated", name,
                  found.freed_by, makers);
}

// Walks of the tree, which take no arguments

static void *reset_context;
static struct block *to_reset[4096];
static int reset_count;
static const char *mapping_first, *mapping_end;
static bool mapping_found;
static struct leftovers left;

static void visit_to_reset(const void *node, VISIT visit, int depth)
{
    (void)depth;
    struct block *block = *(struct block *const *)node;
    if ((visit == postorder || visit == leaf) && block->context == reset_context &&
        block->is_device && !block->freed_by &&
        reset_count < (int)(sizeof to_reset / sizeof *to_reset))
        to_reset[reset_count++] = block;
}

void release_context(void *context)
{
    lock(&block_lock);
    do {
        reset_context = context;
        reset_count = 0;
        twalk(tree, visit_to_reset);
        for (int i = 0; i < reset_count; ++i)
            end_block(to_reset[i], "aclrtResetDevice");
    } while (reset_count);
    unlock(&block_lock);
}

static void visit_mapping(const void *node, VISIT visit, int depth)
{
    (void)depth;
    const struct block *block = *(struct block *const *)node;
    if ((visit == postorder || visit == leaf) && block->is_mapped && !block->freed_by)
        mapping_found |=
            block->address < mapping_end && mapping_first < block->address + block->size;
}

bool has_mapping(const char *first, const char *end)
{
    lock(&block_lock);
    mapping_first = first;
    mapping_end = end;
    mapping_found = false;
    twalk(tree, visit_mapping);
    bool found = mapping_found;
    unlock(&block_lock);
    return found;
}

static void visit_left(const void *node, VISIT visit, int depth)
{
    (void)depth;
    const struct block *block = *(struct block *const *)node;
    if ((visit == postorder || visit == leaf) && !block->is_parents &&
        (!block->freed_by || is_reset(block)))
        leftover(&left, "", block->maker, block->from, block->size, block->number);
}

static int by_number(const void *a, const void *b)
{
    return ((const struct leftover *)a)->number < ((const struct leftover *)b)->number ? -1 : 1;
}

void report_blocks(void)
{
    char place[700];
    twalk(tree, visit_left);
    qsort(left.each, (size_t)left.count, sizeof *left.each, by_number);
    for (int i = 0; i < left.count; ++i) {
        struct leftover *each = &left.each[i];
        char several[40] = "";
        if (each->count > 1)
            snprintf(several, sizeof several, " in %d blocks", each->count);
        complain("never freed: %zu bytes%s from %s%s", each->bytes, several, each->maker,
                 place_of(each->from, place, sizeof place));
    }
}

static void visit_parents(const void *node, VISIT visit, int depth)
{
    (void)visit, (void)depth;
    (*(struct block *const *)node)->is_parents = true;
}

void forget_parents_blocks(void) { twalk(tree, visit_parents); }

// Copies

int reach(const struct call *call, bool checks_sides, const char *name, const void *address,
          size_t count, bool on_device)
{
    struct block block;
    if (!address) {
        if (count)
            return fail(call, call->statuses->null, "%s: null; allowed: %zu bytes of memory", name,
                        count);
        return 0;
    }
    bool is_strict = checks_sides && !settings()->host_memory;
    if (!block_at(address, &block)) {
        if (on_device && is_strict)
            return refuse(call, "%s: %#zx is no device memory; allowed: device memory", name,
                          (size_t)address);
        return 0;
    }
    if (block.freed_by)
        return refuse(call, "%s: memory that %s has freed; allowed: not freed", name,
                      block.freed_by);
    size_t offset = (size_t)((const char *)address - block.address);
    size_t rest = (size_t)(end_of_block(&block) - (const char *)address);
    if (count > rest) {
        char where[64] = "";
        if (offset)
            snprintf(where, sizeof where, ", from byte %zu of it", offset);
        return refuse(call, "%s: %zu bytes; allowed: %zu, in a block of %zu%s", name, count, rest,
                      block.size, where);
    }
    if (is_strict && block.is_device != on_device)
        return refuse(call, "%s: %s memory; allowed: %s memory for a copy of this kind", name,
                      block.is_device ? "device" : "host", block.is_device ? "host" : "device");
    return 0;
}

struct rows {
    char *to;
    const char *from;
    size_t to_pitch, from_pitch, width, height;
    int value;
};

static int copy_rows(void *data)
{
    struct rows *rows = data;
    for (size_t row = 0; row < rows->height; ++row) {
        char *to = rows->to + row * rows->to_pitch;
        if (rows->from)
            memmove(to, rows->from + row * rows->from_pitch, rows->width);
        else
            memset(to, rows->value, rows->width);
    }
    return 0;
}

int copy(const struct call *call, bool checks_sides, struct stream *stream, const struct side *to,
         const struct side *from, size_t width, size_t height, size_t most, int value)
{
    const struct side *sides[] = {to, from};
    for (int i = 0; i < 2 && sides[i]; ++i) {
        const struct side *side = sides[i];
        if (side->pitch < width)
            return refuse(call, "%cpitch: %zu bytes; allowed: %zu or more", *side->name,
                          side->pitch, width);
        size_t count = height && width ? (height - 1) * side->pitch + width : 0;
        TRY(reach(call, checks_sides, side->name, side->address, count, side->on_device));
    }
    if (width > most)
        return refuse(call, "count: %zu bytes; allowed: up to destMax, %zu", width, most);
    if (!to->address || (from && !from->address) || !width || !height)
        return 0;
    struct rows *rows = malloc(sizeof *rows);
    if (!rows)
        return fail(call, call->statuses->failure, "no memory");
    *rows = (struct rows){
        to->address, from ? from->address : NULL, to->pitch, from ? from->pitch : 0, width, height,
        value};
    return submit(call, stream, copy_rows, rows, free);
}
