#ifndef NORMGRAD_INFINIOP_OPERATOR_DESCRIPTOR_H
#define NORMGRAD_INFINIOP_OPERATOR_DESCRIPTOR_H

#include "handle.h"
#include "tensor_descriptor.h"

struct InfiniopDescriptor;

#ifdef __cplusplus
extern "C" {
#endif

infiniStatus_t infiniopGetDescriptorDeviceType(const struct InfiniopDescriptor *desc_ptr,
    infiniDevice_t *device_type);
infiniStatus_t infiniopGetDescriptorDeviceId(const struct InfiniopDescriptor *desc_ptr, int
    *device_id);

#ifdef __cplusplus
}
#endif

#endif
