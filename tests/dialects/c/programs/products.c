// The products that the environment and the command line name, one after the other.
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>

#include "acl/acl.h"

int main(int argc, char **argv)
{
    printf("%d ", aclInit(NULL));
    printf("%s\n", aclGetRecentErrMsg());
    for (int i = 1; i < argc; ++i) {
        setenv("NORMGRAD_ACL_PRODUCT", argv[i], 1); // read at aclInit
        aclFinalize();
        printf("%d ", aclInit(NULL));
        printf("%s\n", aclrtGetSocName());
    }
    return 0;
}
