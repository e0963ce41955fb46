#include "infiniop/handle.h"
#include "infiniop/ops/batch_norm_backward.h"
#include "infiniop/tensor_descriptor.h"

