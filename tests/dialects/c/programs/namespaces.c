// The library in a namespace of its own: `namespaces LIBRARY`.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>

int main(int argc, char **argv)
{
    void *library = argc > 1 ? dlmopen(LM_ID_NEWLM, argv[1], RTLD_NOW) : NULL;
    int (*init)(const char *);
    const char *(*message)(void);
    if (!library)
        return 1;
    *(void **)&init = dlsym(library, "aclInit");
    *(void **)&message = dlsym(library, "aclGetRecentErrMsg");
    int status = init(NULL);
    printf("%d %s\n", status, message());
    return 0;
}
