// The functions of the vendors' that are absent: each says so when it is called. The build collects
// them from the headers into absent.h, which also has the names of aclnn's operators.
#include "core.h"

#include "absent.h"

static int absent(const char *function, volatile int *reported)
{
    char *text = last_message();
    bool is_aclnn = !strncmp(function, "aclnn", 5), is_infini = !strncmp(function, "infiniop", 8);
    snprintf(text, MESSAGE_SIZE, "normgrad has no %s; it has: %s", function,
             is_aclnn    ? ACLNN_OPERATORS
             : is_infini ? "infiniopBatchNormBackward"
                         : "what `normgrad capi functions` lists");
    if (!__atomic_exchange_n(reported, 1, __ATOMIC_RELAXED))
        fprintf(stderr, "%s\n", text);
    fail_at_end();
    if (is_aclnn)
        return strstr(function, "GetWorkspaceSize") ? ACLNN_ERR_INNER_FIND_KERNEL_ERROR
                                                    : ACLNN_ERR_RUNTIME_ERROR;
    return !strncmp(function, "infini", 6) ? (int)INFINI_STATUS_NOT_IMPLEMENTED
           : *function == 'H'              ? (int)HCCL_E_NOT_SUPPORT
                                           : ACL_ERROR_API_NOT_SUPPORT;
}

#undef NORMGRAD_ABSENT
#undef NORMGRAD_ABSENT_VALUE
#undef NORMGRAD_ABSENT_VOID
#define DEFINE(type, name, result)                                                                 \
    API type name(void)                                                                            \
    {                                                                                              \
        static volatile int reported;                                                              \
        int status = absent(__func__, &reported);                                                  \
        (void)status;                                                                              \
        return result;                                                                             \
    }
#define NORMGRAD_ABSENT(type, name) DEFINE(type, name, (type)status)
#define NORMGRAD_ABSENT_VALUE(type, name) DEFINE(type, name, (type)0)
#define NORMGRAD_ABSENT_VOID(name) DEFINE(void, name, )
ABSENT_FUNCTIONS
