// Blocks: memory that programs allocate, found by any address in it; and copies.
//
// New blocks are filled with bytes that are NaN in every floating-point dtype, so that reads of what
// was never written show. Freed blocks are kept for a while, so that a use after the end shows too.
#define _GNU_SOURCE
#include "core.h"

#include <sys/mman.h>
#include <unistd.h>

enum { LINE = 64, FILLED = 64 << 20, HUGE_PAGE = 2 << 20, HUGE_FROM = 4 << 20 };
// The limits on freed blocks that are kept; the last one is in any case. The pages of those from a
// certain size on go back to the system at once.
enum { MOST_FREED = 1024, RETURNED_FROM = 64 << 10 };
#define MOST_FREED_BYTES (4ull << 30)

extern void __asan_poison_memory_region(const volatile void *, size_t) __attribute__((weak));
extern void __asan_unpoison_memory_region(const volatile void *, size_t) __attribute__((weak));

static struct block **blocks;          // all of them, by address
static size_t block_count, block_room; // of the array
static struct block *oldest, *newest;  // of those that were freed
static size_t freed_count, freed_bytes;
spin_lock block_lock;

// The index of the first block that ends after an address.
static size_t index_of(const char *address)
{
    size_t low = 0, high = block_count;
    while (low < high) {
        size_t middle = (low + high) / 2;
        if (blocks[middle]->address + blocks[middle]->size <= address)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

static struct block *find(const char *address)
{
    size_t index = index_of(address);
    return index < block_count && blocks[index]->address <= address ? blocks[index] : NULL;
}

bool block_at(const void *address, struct block *found)
{
    lock(&block_lock);
    struct block *block = find(address);
    if (block)
        *found = *block;
    unlock(&block_lock);
    return block;
}

int living_block(const struct call *call, const char *name, const void *address,
                 struct block *found)
{
    *found = (struct block){0};
    if (block_at(address, found) && found->freed_by)
        return refuse(call, "%s: memory that %s has freed; allowed: not freed", name,
                      found->freed_by);
    return 0;
}

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
    if (block_count == block_room) {
        size_t more = block_room ? 2 * block_room : 64;
        struct block **larger = realloc(blocks, more * sizeof *blocks);
        blocks = larger ? larger : blocks;
        block_room = larger ? more : block_room;
    }
    bool has_room = block_count < block_room;
    if (has_room) {
        size_t index = index_of(new->address);
        memmove(blocks + index + 1, blocks + index, (block_count++ - index) * sizeof *blocks);
        blocks[index] = new;
        new->number = ++number;
    }
    unlock(&block_lock);
    if (!has_room)
        free(new);
    return has_room;
}

bool add_mapping(const struct call *call, void *address, size_t size, bool is_device)
{
    return add(call,
               (struct block){
                   .address = address, .size = size, .is_device = is_device, .is_mapped = true});
}

// Forget a block, and give its memory back. Needs the lock.
static void remove_block(struct block *block)
{
    size_t index = index_of(block->address);
    memmove(blocks + index, blocks + index + 1, (--block_count - index) * sizeof *blocks);
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

static void drop_surplus(void)
{
    while (freed_count > 1 && (freed_count > MOST_FREED || freed_bytes > MOST_FREED_BYTES))
        drop_oldest();
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
    block->next = NULL;
    *(newest ? &newest->next : &oldest) = block;
    newest = block;
    freed_bytes += block->size;
    ++freed_count;
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
    settle();
    lock(&block_lock);
    struct block *block = find(address);
    struct block found = block ? *block : (struct block){0};
    bool is_right = block && is_in(makers, found.maker) && found.address == address;
    bool can_free = is_right && (!found.freed_by || is_reset(&found));
    if (can_free && is_reset(&found))
        block->freed_by = call->function;
    else if (can_free) {
        enter_place(call->from);
        announce(address, found.size, true);
        leave_place();
        end_block(block, call->function);
        drop_surplus();
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

void release_context(void *context)
{
    lock(&block_lock);
    for (size_t i = 0; i < block_count; ++i) {
        struct block *block = blocks[i];
        if (block->context == context && block->is_device && !block->freed_by)
            end_block(block, "aclrtResetDevice");
    }
    drop_surplus();
    unlock(&block_lock);
}

bool has_mapping(const char *first, const char *end)
{
    bool found = false;
    lock(&block_lock);
    for (size_t i = index_of(first); i < block_count && blocks[i]->address < end; ++i)
        found |= blocks[i]->is_mapped && !blocks[i]->freed_by;
    unlock(&block_lock);
    return found;
}

void count_blocks(void)
{
    for (size_t i = 0; i < block_count; ++i) {
        const struct block *block = blocks[i];
        if (!block->is_parents && (!block->freed_by || is_reset(block)))
            leftover("", block->maker, block->from, block->size, block->number);
    }
}

void forget_parents_blocks(void)
{
    for (size_t i = 0; i < block_count; ++i)
        blocks[i]->is_parents = true;
}

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
    TRY(living_block(call, name, address, &block));
    if (!block.size) {
        if (on_device && is_strict)
            return refuse(call, "%s: %#zx is no device memory; allowed: device memory", name,
                          (size_t)address);
        return 0;
    }
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
