// For calls that have to succeed: a program that fails in one says so and ends.
#ifndef MUST_H
#define MUST_H

#include <stdio.h>
#include <stdlib.h>

#include "acl/acl.h"

#define MUST(call)                                                                                 \
    do {                                                                                           \
        int status_ = (call);                                                                      \
        if (status_) {                                                                             \
            printf("%s = %d: %s\n", #call, status_, aclGetRecentErrMsg());                         \
            exit(1);                                                                               \
        }                                                                                          \
    } while (0)

#endif
