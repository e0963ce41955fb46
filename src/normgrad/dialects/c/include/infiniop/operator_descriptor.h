#include "handle.h"
#include "tensor_descriptor.h"

struct InfiniopDescriptor;

infiniStatus_t infiniopGetDescriptorDeviceType(const struct InfiniopDescriptor *desc_ptr,
    infiniDevice_t *device_type);
infiniStatus_t infiniopGetDescriptorDeviceId(const struct InfiniopDescriptor *desc_ptr, int
    *device_id);
