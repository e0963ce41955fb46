/* A libcuda.so.1 without a GPU: it keeps what it is asked to launch, and runs nothing.

   It has what Triton calls to load kernels and normgrad to launch them, two devices, and contexts
   that belong to threads as CUDA's do. It is also PyTorch's library for CUDA, as far as that tells the
   current stream. tests/fake_cuda.py builds it against the cuda.h that comes with Triton. */

#include <cuda.h>
#include <elf.h>
#include <pthread.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

enum { DEVICES = 2, LAUNCHES = 4096, PARAMETERS = 256, CONTEXTS = 8 };

/* What cubins say: an attribute of a kernel, of four bytes with its value or with the size of one
   that follows, and the attribute that is the size of all parameters. */
enum { SIZED = 4, PARAMETERS_SIZE = 0x19 };
typedef struct {
  uint8_t format, attribute;
  uint16_t value;
} Info;

/* tests/fake_cuda.py has the same. */
typedef struct {
  uint32_t grid[3], block[3], shared, device, attributes, count;
  uint64_t stream, kernel, thread;
  int64_t values[PARAMETERS];
} FakeLaunch;

typedef struct {
  int device;
  const unsigned char *image;
} Module;

typedef struct {
  int device;
  uint32_t parameters;
} Function;

static _Thread_local int current = -1, below[CONTEXTS], depth; /* below the current context */
static _Thread_local uint64_t stream = 0x1000; /* of the first device; each further has one more */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static FakeLaunch launches[LAUNCHES];
static unsigned long launched;
static CUresult answer = CUDA_SUCCESS;
static unsigned long accepted; /* launches before the answer */

/* For tests. */

FakeLaunch *fake_launches(void) { return launches; }
unsigned long fake_launched(void) { return launched; }
void fake_forget(void) { launched = 0; }
void fake_answer(CUresult status, unsigned long after) {
  answer = status;
  accepted = launched + after;
}
int fake_current(void) { return current; }
void fake_use(int device) { current = device; }
void fake_use_stream(uint64_t number) { stream = number; }

int32_t aoti_torch_get_current_cuda_stream(int32_t device, void **found) {
  *found = (void *)(stream + (uint64_t)device);
  return 0;
}

/* Devices and contexts: a device's context is its number and 1. */

CUresult cuInit(unsigned int flags) { return flags ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS; }

CUresult cuDriverGetVersion(int *version) {
  *version = CUDA_VERSION;
  return CUDA_SUCCESS;
}

CUresult cuDeviceGetCount(int *count) {
  *count = DEVICES;
  return CUDA_SUCCESS;
}

CUresult cuDeviceGet(CUdevice *device, int index) {
  *device = index;
  return index < DEVICES ? CUDA_SUCCESS : CUDA_ERROR_INVALID_DEVICE;
}

CUresult cuDeviceGetAttribute(int *value, CUdevice_attribute attribute, CUdevice device) {
  (void)device;
  switch (attribute) {
  case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR: *value = 9; break;
  case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR: *value = 0; break;
  case CU_DEVICE_ATTRIBUTE_WARP_SIZE: *value = 32; break;
  case CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT: *value = 132; break;
  case CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN: *value = 227 << 10; break;
  default: *value = 1 << 16;
  }
  return CUDA_SUCCESS;
}

CUresult cuDevicePrimaryCtxRetain(CUcontext *context, CUdevice device) {
  *context = (CUcontext)(intptr_t)(device + 1);
  return CUDA_SUCCESS;
}

CUresult cuCtxGetCurrent(CUcontext *context) {
  *context = (CUcontext)(intptr_t)(current + 1);
  return CUDA_SUCCESS;
}

CUresult cuCtxSetCurrent(CUcontext context) {
  current = (int)(intptr_t)context - 1;
  return CUDA_SUCCESS;
}

CUresult cuCtxPushCurrent_v2(CUcontext context) {
  if (depth == CONTEXTS)
    return CUDA_ERROR_INVALID_VALUE;
  below[depth++] = current;
  return cuCtxSetCurrent(context);
}

CUresult cuCtxPopCurrent_v2(CUcontext *context) {
  if (depth == 0)
    return CUDA_ERROR_INVALID_CONTEXT;
  cuCtxGetCurrent(context);
  current = below[--depth];
  return CUDA_SUCCESS;
}

CUresult cuCtxGetDevice(CUdevice *device) {
  *device = current;
  return current < 0 ? CUDA_ERROR_INVALID_CONTEXT : CUDA_SUCCESS;
}

CUresult cuCtxGetLimit(size_t *value, CUlimit limit) {
  (void)limit;
  *value = 0;
  return CUDA_SUCCESS;
}

CUresult cuCtxSetLimit(CUlimit limit, size_t value) {
  (void)limit, (void)value;
  return CUDA_SUCCESS;
}

CUresult cuStreamIsCapturing(CUstream stream, CUstreamCaptureStatus *status) {
  (void)stream;
  *status = CU_STREAM_CAPTURE_STATUS_NONE;
  return CUDA_SUCCESS;
}

CUresult cuPointerGetAttribute(void *data, CUpointer_attribute attribute, CUdeviceptr pointer) {
  (void)attribute;
  *(CUdeviceptr *)data = pointer;
  return CUDA_SUCCESS;
}

CUresult cuGetErrorString(CUresult error, const char **words) {
  switch (error) {
  case CUDA_ERROR_INVALID_CONTEXT: *words = "invalid device context"; break;
  case CUDA_ERROR_INVALID_HANDLE: *words = "invalid resource handle"; break;
  case CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES: *words = "too many resources requested"; break;
  default: *words = "another error";
  }
  return CUDA_SUCCESS;
}

/* Modules and kernels */

CUresult cuModuleLoadData(CUmodule *module, const void *image) {
  Module *made = malloc(sizeof *made);
  if (current < 0 || made == NULL) {
    free(made);
    return CUDA_ERROR_INVALID_CONTEXT;
  }
  *made = (Module){current, image};
  *module = (CUmodule)made;
  return CUDA_SUCCESS;
}

CUresult cuModuleUnload(CUmodule module) {
  free(module);
  return CUDA_SUCCESS;
}

/* How many parameters of 64 bits the cubin says that a kernel has. */
static int parameters_of(const unsigned char *image, const char *name, uint32_t *count) {
  const Elf64_Ehdr *header = (const Elf64_Ehdr *)image;
  const Elf64_Shdr *sections = (const Elf64_Shdr *)(image + header->e_shoff);
  const char *names = (const char *)image + sections[header->e_shstrndx].sh_offset;
  static const char prefix[] = ".nv.info.";
  for (int i = 0; i < header->e_shnum; ++i) {
    const char *section = names + sections[i].sh_name;
    if (strncmp(section, prefix, sizeof prefix - 1) || strcmp(section + sizeof prefix - 1, name))
      continue;
    const unsigned char *at = image + sections[i].sh_offset, *end = at + sections[i].sh_size;
    while (at < end) {
      const Info *info = (const Info *)at;
      if (info->attribute == PARAMETERS_SIZE) {
        *count = info->value / sizeof(int64_t);
        return *count <= PARAMETERS;
      }
      at += sizeof *info + (info->format == SIZED ? info->value : 0);
    }
  }
  return 0;
}

CUresult cuModuleGetFunction(CUfunction *function, CUmodule module, const char *name) {
  const Module *from = (const Module *)module;
  Function *made = malloc(sizeof *made);
  if (made == NULL || !parameters_of(from->image, name, &made->parameters)) {
    free(made);
    return CUDA_ERROR_NOT_FOUND;
  }
  made->device = from->device;
  *function = (CUfunction)made;
  return CUDA_SUCCESS;
}

CUresult cuFuncGetAttribute(int *value, CUfunction_attribute attribute, CUfunction function) {
  (void)function;
  *value = attribute == CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK ? 1024 : 0;
  return CUDA_SUCCESS;
}

CUresult cuFuncSetAttribute(CUfunction function, CUfunction_attribute attribute, int value) {
  (void)function, (void)attribute, (void)value;
  return CUDA_SUCCESS;
}

CUresult cuFuncSetCacheConfig(CUfunction function, CUfunc_cache config) {
  (void)function, (void)config;
  return CUDA_SUCCESS;
}

CUresult cuLaunchKernelEx(const CUlaunchConfig *config, CUfunction function, void **parameters,
                          void **extra) {
  const Function *kernel = (const Function *)function;
  CUresult status = launched < accepted ? CUDA_SUCCESS : answer;
  if (extra != NULL)
    status = CUDA_ERROR_INVALID_VALUE;
  else if (current < 0)
    status = CUDA_ERROR_INVALID_CONTEXT;
  else if (current != kernel->device)
    status = CUDA_ERROR_INVALID_HANDLE;
  if (status != CUDA_SUCCESS)
    return status;
  pthread_mutex_lock(&lock);
  FakeLaunch *made = &launches[launched++ % LAUNCHES];
  made->grid[0] = config->gridDimX;
  made->grid[1] = config->gridDimY;
  made->grid[2] = config->gridDimZ;
  made->block[0] = config->blockDimX;
  made->block[1] = config->blockDimY;
  made->block[2] = config->blockDimZ;
  made->shared = config->sharedMemBytes;
  made->device = current;
  made->attributes = config->numAttrs;
  made->count = kernel->parameters;
  made->stream = (uint64_t)config->hStream;
  made->kernel = (uint64_t)function;
  made->thread = (uint64_t)pthread_self();
  for (uint32_t i = 0; i < kernel->parameters; ++i)
    made->values[i] = *(const int64_t *)parameters[i];
  pthread_mutex_unlock(&lock);
  return CUDA_SUCCESS;
}
