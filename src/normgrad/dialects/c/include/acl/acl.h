#ifndef NORMGRAD_ACL_ACL_H
#define NORMGRAD_ACL_ACL_H

#include "acl_base.h"
#include "acl_rt.h"
#include "acl_op.h"
#include "acl_mdl.h"
#include "../normgrad_absent.h"

#ifdef __cplusplus
extern "C" {
#endif

aclError aclInit(const char *configPath);
aclError aclFinalize(void);
const char *aclGetRecentErrMsg(void);
aclError aclrtGetVersion(int32_t *majorVersion, int32_t *minorVersion, int32_t *patchVersion);

NORMGRAD_ABSENT(aclError, aclFinalizeReference) NORMGRAD_ABSENT(aclError, aclsysGetCANNVersion)

#ifdef __cplusplus
}
#endif

#endif
