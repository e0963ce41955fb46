#ifndef NORMGRAD_INFINIOP_HANDLE_H
#define NORMGRAD_INFINIOP_HANDLE_H

#include "../infinicore.h"

typedef struct InfiniopHandle *infiniopHandle_t;

#ifdef __cplusplus
extern "C" {
#endif

infiniStatus_t infiniopCreateHandle(infiniopHandle_t *handle_ptr);
infiniStatus_t infiniopDestroyHandle(infiniopHandle_t handle);

#ifdef __cplusplus
}
#endif

#endif
