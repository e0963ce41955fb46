#include "acl_base.h"
#include "acl_rt.h"

typedef struct aclprofConfig aclprofConfig;
typedef struct aclprofStopConfig aclprofStopConfig;
typedef struct aclprofAicoreEvents aclprofAicoreEvents;
typedef struct aclprofSubscribeConfig aclprofSubscribeConfig;
typedef struct aclprofStepInfo aclprofStepInfo;

typedef enum aclprofAicoreMetrics {
    ACL_AICORE_ARITHMETIC_UTILIZATION = 0, ACL_AICORE_PIPE_UTILIZATION = 1,
    ACL_AICORE_MEMORY_BANDWIDTH = 2, ACL_AICORE_L0B_AND_WIDTH = 3,
    ACL_AICORE_RESOURCE_CONFLICT_RATIO = 4, ACL_AICORE_MEMORY_UB = 5, ACL_AICORE_L2_CACHE = 6,
    ACL_AICORE_PIPE_EXECUTE_UTILIZATION = 7, ACL_AICORE_MEMORY_ACCESS = 8, ACL_AICORE_NONE = 0xFF
} aclprofAicoreMetrics;

typedef enum aclprofStepTag {
    ACL_STEP_START = 0, ACL_STEP_END = 1
} aclprofStepTag;

typedef enum aclprofConfigType {
    ACL_PROF_ARGS_MIN = 0, ACL_PROF_STORAGE_LIMIT, ACL_PROF_AIV_METRICS,
    ACL_PROF_SYS_HARDWARE_MEM_FREQ, ACL_PROF_LLC_MODE, ACL_PROF_SYS_IO_FREQ,
    ACL_PROF_SYS_INTERCONNECTION_FREQ, ACL_PROF_DVPP_FREQ, ACL_PROF_HOST_SYS,
    ACL_PROF_HOST_SYS_USAGE, ACL_PROF_HOST_SYS_USAGE_FREQ, ACL_PROF_ARGS_MAX
} aclprofConfigType;
