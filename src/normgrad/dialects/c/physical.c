// Physical memory, which programs map at addresses that they have reserved.
#define _GNU_SOURCE
#include "core.h"

#include <acl/acl.h>
#include <sys/mman.h>
#include <unistd.h>

enum { UNIT = 2 << 20, FILLED = 64 << 20, MOST_RESERVED = 1024 };
enum { ACCESS = PROT_READ | PROT_WRITE, UNUSED = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE };

struct physical { // a file without a name, which stays while it is mapped
    struct object object;
    size_t size;
    bool is_device;
    int file;
};

static struct reserved {
    char *first, *start; // start: of the mapping that the addresses are in
    size_t size;
} reserved[MOST_RESERVED];

#define NEED_ZERO(name, value)                                                                     \
    do {                                                                                           \
        if (value)                                                                                 \
            return refuse(call, name ": %#zx; allowed: 0", (size_t)(value));                       \
    } while (0)

static int check_size(const struct call *call, size_t size)
{
    if (size && size % UNIT == 0)
        return 0;
    return refuse(call, "size: %zu; allowed: a multiple of %d, more than 0", size, UNIT);
}

static int no_memory(const struct call *call, size_t size)
{
    return fail(call, ACL_ERROR_RT_MEMORY_ALLOCATION,
                "size: %zu bytes; allowed: what the machine has", size);
}

static int check_prop(const struct call *call, const aclrtPhysicalMemProp *prop)
{
    if (!prop)
        return refuse_null(call, "prop", "a pointer");
    NEED_ZERO("prop.handleType", prop->handleType);
    NEED_ZERO("prop.allocationType", prop->allocationType);
    if ((unsigned)prop->location.type > ACL_MEM_LOCATION_TYPE_DEVICE)
        return refuse(call,
                      "prop.location.type: %d; allowed: ACL_MEM_LOCATION_TYPE_HOST, "
                      "ACL_MEM_LOCATION_TYPE_DEVICE",
                      (int)prop->location.type);
    return 0;
}

#define BEGIN_ON_DEVICE                                                                            \
    BEGIN(&OF_ACL);                                                                                \
    TRY(need_device(call, ACL_ERROR_RT_CONTEXT_NULL))

API aclError aclrtMemGetAllocationGranularity(aclrtPhysicalMemProp *prop,
                                              aclrtMemGranularityOptions option,
                                              size_t *granularity)
{
    BEGIN_ON_DEVICE;
    NEED_PLACE(granularity);
    TRY(check_prop(call, prop));
    if ((unsigned)option > ACL_RT_MEM_ALLOC_GRANULARITY_RECOMMENDED)
        return refuse(call,
                      "option: %d; allowed: ACL_RT_MEM_ALLOC_GRANULARITY_MINIMUM, "
                      "ACL_RT_MEM_ALLOC_GRANULARITY_RECOMMENDED",
                      (int)option);
    *granularity = UNIT;
    return 0;
}

static void drop_physical(void *object)
{
    close(((struct physical *)object)->file);
    free(object);
}

API aclError aclrtMallocPhysical(aclrtDrvMemHandle *handle, size_t size,
                                 const aclrtPhysicalMemProp *prop, uint64_t flags)
{
    BEGIN_ON_DEVICE;
    NEED_PLACE(handle);
    TRY(check_size(call, size));
    NEED_ZERO("flags", flags);
    TRY(check_prop(call, prop));
    int file = memfd_create("normgrad", MFD_CLOEXEC);
    struct physical *physical = malloc(sizeof *physical);
    if (file < 0 || !physical || size > PTRDIFF_MAX || ftruncate(file, (off_t)size)) {
        free(physical);
        close(file);
        return no_memory(call, size);
    }
    *physical = (struct physical){
        {0, drop_physical}, size, prop->location.type == ACL_MEM_LOCATION_TYPE_DEVICE, file};
    void *data = size <= FILLED ? mmap(NULL, size, ACCESS, MAP_SHARED, file, 0) : MAP_FAILED;
    if (data != MAP_FAILED) {
        memset(data, 0xFF, size);
        munmap(data, size);
    }
    return put_handle(call, handle, PHYSICAL, physical);
}

API aclError aclrtFreePhysical(aclrtDrvMemHandle handle)
{
    BEGIN(&OF_ACL);
    struct physical *physical;
    return take(call, "handle", PHYSICAL, handle, &physical);
}

API aclError aclrtReserveMemAddress(void **virPtr, size_t size, size_t alignment, void *expectPtr,
                                    uint64_t flags)
{
    BEGIN_ON_DEVICE;
    NEED_PLACE(virPtr);
    TRY(check_size(call, size));
    NEED_ZERO("alignment", alignment);
    NEED_ZERO("expectPtr", expectPtr);
    if (flags > 1)
        return refuse(call, "flags: %zu; allowed: 0 or 1", (size_t)flags);
    // They can be accessed at any time, so that no mistake ends a program.
    char *start = size < 1ull << 60 ? mmap(NULL, size + UNIT, ACCESS, UNUSED, -1, 0) : MAP_FAILED;
    if (start == MAP_FAILED)
        return no_memory(call, size);
    char *first = (char *)(((size_t)start + UNIT - 1) / UNIT * UNIT);
    lock(&rare_lock);
    struct reserved *place = reserved;
    while (place < reserved + MOST_RESERVED && place->first)
        ++place;
    bool has_room = place < reserved + MOST_RESERVED;
    if (has_room)
        *place = (struct reserved){first, start, size};
    unlock(&rare_lock);
    if (!has_room) {
        munmap(start, size + UNIT);
        return no_memory(call, size);
    }
    *virPtr = first;
    return 0;
}

// The reserved addresses that hold ``size`` bytes from an address on; with 0, those that start there.
static struct reserved *reserved_at(const char *address, size_t size)
{
    for (struct reserved *each = reserved; address && each < reserved + MOST_RESERVED; ++each)
        if (each->first && (size ? each->first <= address && size <= each->size &&
                                       address <= each->first + each->size - size
                                 : each->first == address))
            return each;
    return NULL;
}

API aclError aclrtReleaseMemAddress(void *virPtr)
{
    BEGIN(&OF_ACL);
    struct reserved *its = reserved_at(virPtr, 0);
    if (!virPtr)
        return refuse_null(call, "virPtr", "what aclrtReserveMemAddress reserved");
    if (!its)
        return refuse(call, "virPtr: %#zx; allowed: what aclrtReserveMemAddress reserved",
                      (size_t)virPtr);
    if (has_mapping(its->first, its->first + its->size))
        return refuse(call,
                      "virPtr: addresses with memory; allowed: after aclrtUnmapMem of all of it");
    forget_blocks(its->first, its->first + its->size);
    munmap(its->start, its->size + UNIT);
    its->first = NULL;
    return 0;
}

API aclError aclrtMapMem(void *virPtr, size_t size, size_t offset, aclrtDrvMemHandle handle,
                         uint64_t flags)
{
    BEGIN_ON_DEVICE;
    struct physical *physical;
    TRY(need(call, "handle", PHYSICAL, handle, &physical));
    NEED_ZERO("offset", offset);
    NEED_ZERO("flags", flags);
    if (size != physical->size)
        return refuse(call, "size: %zu; allowed: %zu, that of the physical memory", size,
                      physical->size);
    char *first = virPtr;
    if ((size_t)first % UNIT || !reserved_at(first, size))
        return refuse(call,
                      "virPtr: %#zx and %zu bytes; allowed: a multiple of %d in what "
                      "aclrtReserveMemAddress reserved",
                      (size_t)first, size, UNIT);
    if (has_mapping(first, first + size))
        return refuse(call, "virPtr: addresses with memory; allowed: after aclrtUnmapMem");
    if (mmap(first, size, ACCESS, MAP_SHARED | MAP_FIXED, physical->file, 0) == MAP_FAILED)
        return no_memory(call, size);
    forget_blocks(first, first + size);
    if (!add_mapping(call, first, size, physical->is_device)) {
        mmap(first, size, ACCESS, UNUSED | MAP_FIXED, -1, 0);
        return no_memory(call, size);
    }
    return 0;
}

API aclError aclrtUnmapMem(void *virPtr)
{
    BEGIN(&OF_ACL);
    struct block block;
    TRY(release(call, "virPtr", "aclrtMapMem", virPtr));
    if (block_at(virPtr, &block))
        mmap(block.address, block.size, ACCESS, UNUSED | MAP_FIXED, -1, 0);
    return 0;
}
