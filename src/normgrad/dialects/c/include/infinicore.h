#include <stddef.h>
#include <stdint.h>

typedef infiniStatus_t infiniopStatus_t;

#define INFINI_DEVICE_TYPE_COUNT 11

// This is normgrad's stand-in, which has a text for each error.
#define NORMGRAD_CAPI 1

const char *normgradGetRecentErrMsg(void);
