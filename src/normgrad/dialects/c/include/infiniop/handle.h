#include "../infinicore.h"

typedef struct InfiniopHandle *infiniopHandle_t;

infiniStatus_t infiniopCreateHandle(infiniopHandle_t *handle_ptr);
infiniStatus_t infiniopDestroyHandle(infiniopHandle_t handle);
