// The libraries by dlopen, closed and opened again: `plugins LIBINFINIOP LIBINFINIRT`, linked to
// neither.
#include <dlfcn.h>
#include <stdio.h>

#include "infiniop.h"
#include "infinirt.h"

int main(int argc, char **argv)
{
    if (argc != 3)
        return 2;
    for (int round = 0; round < 3; ++round) {
        void *op = dlopen(argv[1], RTLD_NOW | RTLD_LOCAL);
        void *rt = dlopen(argv[2], RTLD_LAZY | RTLD_LOCAL);
        if (!op || !rt) {
            printf("%s\n", dlerror());
            return 1;
        }
        infiniStatus_t (*create)(infiniopHandle_t *), (*destroy)(infiniopHandle_t);
        infiniStatus_t (*allocate)(void **, size_t), (*release)(void *);
        *(void **)&create = dlsym(op, "infiniopCreateHandle");
        *(void **)&destroy = dlsym(op, "infiniopDestroyHandle");
        *(void **)&allocate = dlsym(rt, "infinirtMalloc");
        *(void **)&release = dlsym(rt, "infinirtFree");
        infiniopHandle_t handle;
        void *memory;
        printf("%d %d ", (int)create(&handle), (int)allocate(&memory, 100));
        printf("%d %d ", (int)release(memory), (int)destroy(handle));
        printf("%d\n", (int)destroy(handle));
        dlclose(rt);
        dlclose(op);
    }
    return 0;
}
