// What the libraries know of each other.
#ifndef NORMGRAD_RUNTIME_H
#define NORMGRAD_RUNTIME_H

#include "core.h"

// acl.c
struct stream *stream_of_acl(const struct call *call, void *handle); // null after a failure
int need_device(const struct call *call, int status);
int begin_aclnn(const struct call *call);
int end_aclnn(void);
// opapi.c and infiniop.c
const char *operator_of_executor(const void *executor);
const char *infini_type_name(int data_type);
// objects.c: give a handle another object
void replace_object(const void *handle, void *object);

#endif
