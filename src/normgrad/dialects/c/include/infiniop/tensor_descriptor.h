#include "../infinicore.h"

typedef struct InfiniopTensorDescriptor *infiniopTensorDescriptor_t;

infiniStatus_t infiniopCreateTensorDescriptor(infiniopTensorDescriptor_t *desc_ptr, size_t ndim,
    const size_t *shape, const ptrdiff_t *strides, infiniDtype_t dtype);
infiniStatus_t infiniopDestroyTensorDescriptor(infiniopTensorDescriptor_t desc);
