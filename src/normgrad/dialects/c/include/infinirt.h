#include "infinicore.h"

typedef void *infinirtStream_t;
typedef void *infinirtEvent_t;

typedef enum infinirtMemcpyKind_t {
    INFINIRT_MEMCPY_H2H = 0, INFINIRT_MEMCPY_H2D, INFINIRT_MEMCPY_D2H, INFINIRT_MEMCPY_D2D
} infinirtMemcpyKind_t;

typedef enum infinirtEventStatus_t {
    INFINIRT_EVENT_COMPLETE = 0, INFINIRT_EVENT_NOT_READY
} infinirtEventStatus_t;

enum {
    INFINIRT_EVENT_DISABLE_TIMING = 1, INFINIRT_EVENT_BLOCKING_SYNC
};

#define INFINIRT_EVENT_DEFAULT 0u
typedef void *infinirtGraph_t;
typedef void *infinirtGraphNode_t;
typedef void *infinirtGraphExec_t;

infiniStatus_t infinirtInit(void);
infiniStatus_t infinirtGetAllDeviceCount(int *count_array);
infiniStatus_t infinirtGetDeviceCount(infiniDevice_t device, int *count);
infiniStatus_t infinirtSetDevice(infiniDevice_t device, int device_id);
infiniStatus_t infinirtGetDevice(infiniDevice_t *device_ptr, int *device_id_ptr);
infiniStatus_t infinirtGetMemInfo(infiniDevice_t device, int device_id, size_t *free_bytes, size_t
    *total_bytes);
infiniStatus_t infinirtDeviceSynchronize(void);
infiniStatus_t infinirtStreamCreate(infinirtStream_t *stream_ptr);
infiniStatus_t infinirtStreamDestroy(infinirtStream_t stream);
infiniStatus_t infinirtStreamSynchronize(infinirtStream_t stream);
infiniStatus_t infinirtStreamWaitEvent(infinirtStream_t stream, infinirtEvent_t event);
infiniStatus_t infinirtEventCreate(infinirtEvent_t *event_ptr);
infiniStatus_t infinirtEventCreateWithFlags(infinirtEvent_t *event_ptr, uint32_t flags);
infiniStatus_t infinirtEventQuery(infinirtEvent_t event, infinirtEventStatus_t *status_ptr);
infiniStatus_t infinirtEventRecord(infinirtEvent_t event, infinirtStream_t stream);
infiniStatus_t infinirtEventSynchronize(infinirtEvent_t event);
infiniStatus_t infinirtEventDestroy(infinirtEvent_t event);
infiniStatus_t infinirtEventElapsedTime(float *ms_ptr, infinirtEvent_t start, infinirtEvent_t end);
infiniStatus_t infinirtMalloc(void **p_ptr, size_t size);
infiniStatus_t infinirtMallocHost(void **p_ptr, size_t size);
infiniStatus_t infinirtMallocAsync(void **p_ptr, size_t size, infinirtStream_t stream);
infiniStatus_t infinirtFree(void *ptr);
infiniStatus_t infinirtFreeHost(void *ptr);
infiniStatus_t infinirtFreeAsync(void *ptr, infinirtStream_t stream);
infiniStatus_t infinirtMemcpy(void *dst, const void *src, size_t size, infinirtMemcpyKind_t kind);
infiniStatus_t infinirtMemcpyAsync(void *dst, const void *src, size_t size, infinirtMemcpyKind_t
    kind, infinirtStream_t stream);
infiniStatus_t infinirtMemset(void *ptr, int value, size_t count);
infiniStatus_t infinirtMemsetAsync(void *ptr, int value, size_t count, infinirtStream_t stream);
