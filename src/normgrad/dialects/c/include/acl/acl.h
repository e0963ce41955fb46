#include "acl_base.h"
#include "acl_rt.h"
#include "acl_op.h"
#include "acl_mdl.h"

aclError aclInit(const char *configPath);
aclError aclFinalize(void);
const char *aclGetRecentErrMsg(void);
aclError aclrtGetVersion(int32_t *majorVersion, int32_t *minorVersion, int32_t *patchVersion);
