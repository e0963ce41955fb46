#ifndef NORMGRAD_ACL_ACL_TDT_H
#define NORMGRAD_ACL_ACL_TDT_H

#include "acl_base.h"
#include "../normgrad_absent.h"

typedef struct acltdtDataItem acltdtDataItem;
typedef struct acltdtDataset acltdtDataset;
typedef struct acltdtChannelHandle acltdtChannelHandle;

#ifdef __cplusplus
extern "C" {
#endif

NORMGRAD_ABSENT_VALUE(aclDataType, acltdtGetDataTypeFromItem)
NORMGRAD_ABSENT_VALUE(void *, acltdtGetDataAddrFromItem)
NORMGRAD_ABSENT_VALUE(size_t, acltdtGetDataSizeFromItem)
NORMGRAD_ABSENT_VALUE(size_t, acltdtGetDimNumFromItem)
NORMGRAD_ABSENT_VALUE(size_t, acltdtGetDatasetSize) NORMGRAD_ABSENT(aclError, acltdtGetDimsFromItem)
NORMGRAD_ABSENT(aclError, acltdtDestroyDataItem) NORMGRAD_ABSENT(aclError, acltdtDestroyDataset)
NORMGRAD_ABSENT(aclError, acltdtAddDataItem) NORMGRAD_ABSENT(aclError, acltdtStopChannel)
NORMGRAD_ABSENT(aclError, acltdtDestroyChannel) NORMGRAD_ABSENT(aclError, acltdtCleanChannel)
NORMGRAD_ABSENT(aclError, acltdtSendTensor) NORMGRAD_ABSENT(aclError, acltdtReceiveTensor)
NORMGRAD_ABSENT(aclError, acltdtQueryChannelSize)
NORMGRAD_ABSENT_VALUE(acltdtDataItem *, acltdtCreateDataItem)
NORMGRAD_ABSENT_VALUE(acltdtDataItem *, acltdtGetDataItem)
NORMGRAD_ABSENT_VALUE(acltdtDataset *, acltdtCreateDataset)
NORMGRAD_ABSENT_VALUE(const char *, acltdtGetDatasetName)
NORMGRAD_ABSENT_VALUE(acltdtChannelHandle *, acltdtCreateChannel)
NORMGRAD_ABSENT_VALUE(acltdtChannelHandle *, acltdtCreateChannelWithCapacity)

#ifdef __cplusplus
}
#endif

#endif
