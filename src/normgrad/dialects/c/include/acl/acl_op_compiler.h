#ifndef NORMGRAD_ACL_ACL_OP_COMPILER_H
#define NORMGRAD_ACL_ACL_OP_COMPILER_H

#include "acl_base.h"
#include "acl_op.h"
#include "../normgrad_absent.h"

typedef struct aclGraphDumpOption aclGraphDumpOption;

typedef enum aclopCompileType {
    ACL_COMPILE_SYS, ACL_COMPILE_UNREGISTERED
} aclopCompileType;

typedef enum aclCompileOpt {
    ACL_PRECISION_MODE, ACL_AICORE_NUM, ACL_AUTO_TUNE_MODE, ACL_OP_SELECT_IMPL_MODE,
    ACL_OPTYPELIST_FOR_IMPLMODE, ACL_OP_DEBUG_LEVEL, ACL_DEBUG_DIR, ACL_OP_COMPILER_CACHE_MODE,
    ACL_OP_COMPILER_CACHE_DIR, ACL_OP_PERFORMANCE_MODE, ACL_OP_JIT_COMPILE, ACL_OP_DETERMINISTIC,
    ACL_CUSTOMIZE_DTYPES, ACL_OP_PRECISION_MODE, ACL_ALLOW_HF32, ACL_PRECISION_MODE_V2,
    ACL_OP_DEBUG_OPTION
} aclCompileOpt;

typedef enum aclOpCompileFlag {
    ACL_OP_COMPILE_DEFAULT, ACL_OP_COMPILE_FUZZ
} aclOpCompileFlag;

#ifdef __cplusplus
extern "C" {
#endif

NORMGRAD_ABSENT(aclError, aclopCompile) NORMGRAD_ABSENT(aclError, aclopCompileAndExecute)
NORMGRAD_ABSENT(aclError, aclopCompileAndExecuteV2) NORMGRAD_ABSENT(aclError, aclSetCompileopt)
NORMGRAD_ABSENT(aclError, aclGetCompileopt) NORMGRAD_ABSENT(aclError, aclopSetCompileFlag)
NORMGRAD_ABSENT(aclError, aclGenGraphAndDumpForOp) NORMGRAD_ABSENT(aclError, aclDestroyGraphDumpOpt)
NORMGRAD_ABSENT_VALUE(size_t, aclGetCompileoptSize)
NORMGRAD_ABSENT_VALUE(aclGraphDumpOption *, aclCreateGraphDumpOpt)

#ifdef __cplusplus
}
#endif

#endif
