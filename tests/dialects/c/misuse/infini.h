// What InfiniCore's programs share: a line for each call, and an end where one has to succeed.
#ifndef INFINI_MISUSE_H
#define INFINI_MISUSE_H

#include <stdio.h>
#include <stdlib.h>

#include "infiniop.h"
#include "infinirt.h"

#define SAY(name, call) printf("%s | %d |\n", name, (int)(call))

#define MUST(call)                                                                                 \
    do {                                                                                           \
        int status_ = (int)(call);                                                                 \
        if (status_) {                                                                             \
            printf("%s = %d\n", #call, status_);                                                   \
            exit(1);                                                                               \
        }                                                                                          \
    } while (0)

#endif
