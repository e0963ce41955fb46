#ifndef NORMGRAD_ACL_ACL_MDL_H
#define NORMGRAD_ACL_ACL_MDL_H

#include "acl_base.h"
#include "acl_rt.h"
#include "../normgrad_absent.h"

typedef struct aclmdlIODims { char name[128]; size_t dimCount; int64_t dims[128]; } aclmdlIODims;
typedef struct aclmdlDataset aclmdlDataset;
typedef struct aclmdlDesc aclmdlDesc;
typedef struct aclmdlConfigHandle aclmdlConfigHandle;
typedef struct aclmdlExecConfigHandle aclmdlExecConfigHandle;
typedef void *aclmdlRI;

typedef enum aclmdlRICaptureMode {
    ACL_MODEL_RI_CAPTURE_MODE_GLOBAL = 0, ACL_MODEL_RI_CAPTURE_MODE_THREAD_LOCAL,
    ACL_MODEL_RI_CAPTURE_MODE_RELAXED
} aclmdlRICaptureMode;

typedef enum aclmdlRICaptureStatus {
    ACL_MODEL_RI_CAPTURE_STATUS_NONE = 0, ACL_MODEL_RI_CAPTURE_STATUS_ACTIVE,
    ACL_MODEL_RI_CAPTURE_STATUS_INVALIDATED
} aclmdlRICaptureStatus;

#ifdef __cplusplus
extern "C" {
#endif

NORMGRAD_ABSENT_VALUE(aclmdlDesc *, aclmdlCreateDesc) NORMGRAD_ABSENT(aclError, aclmdlDestroyDesc)
NORMGRAD_ABSENT(aclError, aclmdlGetDesc) NORMGRAD_ABSENT(aclError, aclmdlGetDescFromFile)
NORMGRAD_ABSENT(aclError, aclmdlGetDescFromMem)
NORMGRAD_ABSENT(aclError, aclmdlDestroyExecConfigHandle)
NORMGRAD_ABSENT(aclError, aclmdlDestroyDataset) NORMGRAD_ABSENT(aclError, aclmdlAddDatasetBuffer)
NORMGRAD_ABSENT(aclError, aclmdlSetDatasetTensorDesc) NORMGRAD_ABSENT(aclError, aclmdlLoadFromFile)
NORMGRAD_ABSENT(aclError, aclmdlLoadFromMem) NORMGRAD_ABSENT(aclError, aclmdlLoadFromFileWithMem)
NORMGRAD_ABSENT(aclError, aclmdlLoadFromMemWithMem) NORMGRAD_ABSENT(aclError, aclmdlExecute)
NORMGRAD_ABSENT(aclError, aclmdlExecuteV2) NORMGRAD_ABSENT(aclError, aclmdlRIExecuteAsync)
NORMGRAD_ABSENT(aclError, aclmdlUnload) NORMGRAD_ABSENT(aclError, aclmdlRIDestroy)
NORMGRAD_ABSENT(aclError, aclmdlExecuteAsyncV2) NORMGRAD_ABSENT(aclError, aclmdlExecuteAsync)
NORMGRAD_ABSENT(aclError, aclmdlQuerySize) NORMGRAD_ABSENT(aclError, aclmdlQueryExeOMDesc)
NORMGRAD_ABSENT(aclError, aclmdlQuerySizeFromMem)
NORMGRAD_ABSENT(aclError, aclmdlSetDynamicBatchSize)
NORMGRAD_ABSENT(aclError, aclmdlSetDynamicHWSize)
NORMGRAD_ABSENT(aclError, aclmdlSetInputDynamicDims) NORMGRAD_ABSENT(aclError, aclmdlGetInputDims)
NORMGRAD_ABSENT(aclError, aclmdlGetInputDimsV2) NORMGRAD_ABSENT(aclError, aclmdlGetInputDimsRange)
NORMGRAD_ABSENT(aclError, aclmdlGetOutputDims) NORMGRAD_ABSENT(aclError, aclmdlGetCurOutputDims)
NORMGRAD_ABSENT(aclError, aclmdlGetInputIndexByName)
NORMGRAD_ABSENT(aclError, aclmdlGetOutputIndexByName)
NORMGRAD_ABSENT(aclError, aclmdlGetDynamicBatch) NORMGRAD_ABSENT(aclError, aclmdlGetDynamicHW)
NORMGRAD_ABSENT(aclError, aclmdlGetInputDynamicGearCount)
NORMGRAD_ABSENT(aclError, aclmdlGetInputDynamicDims)
NORMGRAD_ABSENT(aclError, aclmdlCreateAndGetOpDesc) NORMGRAD_ABSENT(aclError, aclmdlInitDump)
NORMGRAD_ABSENT(aclError, aclmdlSetDump) NORMGRAD_ABSENT(aclError, aclmdlFinalizeDump)
NORMGRAD_ABSENT(aclError, aclmdlLoadWithConfig) NORMGRAD_ABSENT(aclError, aclmdlDestroyConfigHandle)
NORMGRAD_ABSENT(aclError, aclmdlSetConfigOpt) NORMGRAD_ABSENT(aclError, aclmdlSetExecConfigOpt)
NORMGRAD_ABSENT(aclError, aclRecoverAllHcclTasks) NORMGRAD_ABSENT(aclError, aclmdlRICaptureBegin)
NORMGRAD_ABSENT(aclError, aclmdlRICaptureGetInfo) NORMGRAD_ABSENT(aclError, aclmdlRICaptureEnd)
NORMGRAD_ABSENT(aclError, aclmdlRIDebugPrint) NORMGRAD_ABSENT(aclError, aclmdlRICaptureTaskGrpBegin)
NORMGRAD_ABSENT(aclError, aclmdlRICaptureTaskGrpEnd)
NORMGRAD_ABSENT(aclError, aclmdlRICaptureTaskUpdateBegin)
NORMGRAD_ABSENT(aclError, aclmdlRICaptureTaskUpdateEnd)
NORMGRAD_ABSENT(aclError, aclmdlRIDebugJsonPrint) NORMGRAD_ABSENT_VALUE(size_t, aclmdlGetNumInputs)
NORMGRAD_ABSENT_VALUE(size_t, aclmdlGetNumOutputs)
NORMGRAD_ABSENT_VALUE(size_t, aclmdlGetInputSizeByIndex)
NORMGRAD_ABSENT_VALUE(size_t, aclmdlGetOutputSizeByIndex)
NORMGRAD_ABSENT_VALUE(size_t, aclmdlGetDatasetNumBuffers)
NORMGRAD_ABSENT_VALUE(aclmdlExecConfigHandle *, aclmdlCreateExecConfigHandle)
NORMGRAD_ABSENT_VALUE(aclmdlDataset *, aclmdlCreateDataset)
NORMGRAD_ABSENT_VALUE(aclTensorDesc *, aclmdlGetDatasetTensorDesc)
NORMGRAD_ABSENT_VALUE(aclDataBuffer *, aclmdlGetDatasetBuffer)
NORMGRAD_ABSENT_VALUE(const char *, aclmdlGetOpAttr)
NORMGRAD_ABSENT_VALUE(const char *, aclmdlGetInputNameByIndex)
NORMGRAD_ABSENT_VALUE(const char *, aclmdlGetOutputNameByIndex)
NORMGRAD_ABSENT_VALUE(const char *, aclmdlGetTensorRealName)
NORMGRAD_ABSENT_VALUE(aclFormat, aclmdlGetInputFormat)
NORMGRAD_ABSENT_VALUE(aclFormat, aclmdlGetOutputFormat)
NORMGRAD_ABSENT_VALUE(aclDataType, aclmdlGetInputDataType)
NORMGRAD_ABSENT_VALUE(aclDataType, aclmdlGetOutputDataType)
NORMGRAD_ABSENT_VALUE(aclmdlConfigHandle *, aclmdlCreateConfigHandle)

#ifdef __cplusplus
}
#endif

#endif
