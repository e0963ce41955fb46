#include "acl_base.h"
#include "acl_rt.h"

typedef struct aclopHandle aclopHandle;
typedef struct aclopAttr aclopAttr;
typedef struct aclopKernelDesc aclopKernelDesc;
typedef void (*aclDataDeallocator)(void *data, size_t length);

typedef aclError (*aclopCompileFunc)(int numInputs, const aclTensorDesc *const inputDesc[], int
    numOutputs, const aclTensorDesc *const outputDesc[], const aclopAttr *opAttr, aclopKernelDesc
    *aclopKernelDesc);

typedef enum aclopEngineType {
    ACL_ENGINE_SYS, ACL_ENGINE_AICORE, ACL_ENGINE_VECTOR
} aclopEngineType;
