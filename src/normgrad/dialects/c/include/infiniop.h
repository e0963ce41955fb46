#ifndef NORMGRAD_INFINIOP_H
#define NORMGRAD_INFINIOP_H

#include "infiniop/handle.h"
#include "infiniop/ops/batch_norm_backward.h"
#include "infiniop/tensor_descriptor.h"
#include "normgrad_absent.h"

#ifdef __cplusplus
extern "C" {
#endif

NORMGRAD_ABSENT(infiniStatus_t, infiniopDeepseekMoeWithDevicePtrs)

#ifdef __cplusplus
}
#endif

#endif
