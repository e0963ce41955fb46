#ifndef NORMGRAD_ACL_ACL_OP_H
#define NORMGRAD_ACL_ACL_OP_H

#include "acl_base.h"
#include "acl_rt.h"
#include "../normgrad_absent.h"

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

#ifdef __cplusplus
extern "C" {
#endif

NORMGRAD_ABSENT(aclError, aclopSetModelDir) NORMGRAD_ABSENT(aclError, aclopLoad)
NORMGRAD_ABSENT(aclError, aclopSetAttrBool) NORMGRAD_ABSENT(aclError, aclopSetAttrInt)
NORMGRAD_ABSENT(aclError, aclopSetAttrFloat) NORMGRAD_ABSENT(aclError, aclopSetAttrString)
NORMGRAD_ABSENT(aclError, aclopSetAttrDataType) NORMGRAD_ABSENT(aclError, aclopSetAttrListDataType)
NORMGRAD_ABSENT(aclError, aclopSetAttrListBool) NORMGRAD_ABSENT(aclError, aclopSetAttrListInt)
NORMGRAD_ABSENT(aclError, aclopSetAttrListFloat) NORMGRAD_ABSENT(aclError, aclopSetAttrListString)
NORMGRAD_ABSENT(aclError, aclopSetAttrListListInt) NORMGRAD_ABSENT(aclError, aclopExecute)
NORMGRAD_ABSENT(aclError, aclopExecuteV2) NORMGRAD_ABSENT(aclError, aclopCreateHandle)
NORMGRAD_ABSENT(aclError, aclopExecWithHandle) NORMGRAD_ABSENT(aclError, aclopCast)
NORMGRAD_ABSENT(aclError, aclopCreateHandleForCast) NORMGRAD_ABSENT(aclError, aclopCreateKernel)
NORMGRAD_ABSENT(aclError, aclopRegisterCompileFunc)
NORMGRAD_ABSENT(aclError, aclopUnregisterCompileFunc) NORMGRAD_ABSENT(aclError, aclopSetKernelArgs)
NORMGRAD_ABSENT(aclError, aclopSetKernelWorkspaceSizes) NORMGRAD_ABSENT(aclError, aclopUpdateParams)
NORMGRAD_ABSENT(aclError, aclopSetMaxOpQueueNum) NORMGRAD_ABSENT(aclError, aclopInferShape)
NORMGRAD_ABSENT(aclError, aclopStartDumpArgs) NORMGRAD_ABSENT(aclError, aclopStopDumpArgs)
NORMGRAD_ABSENT_VALUE(aclopAttr *, aclopCreateAttr) NORMGRAD_ABSENT_VOID(aclopDestroyAttr)
NORMGRAD_ABSENT_VOID(aclopDestroyHandle)

#ifdef __cplusplus
}
#endif

#endif
