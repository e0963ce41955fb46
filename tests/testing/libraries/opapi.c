/* A libopapi that has one operator and hands it on to another library's; its executors are never
 * used up. */

#include <dlfcn.h>
#include <stdbool.h>
#include <stdint.h>

static void *function(const char *name) { return dlsym(dlopen(REAL, RTLD_NOW | RTLD_LOCAL), name); }

int32_t aclSetAclOpExecutorRepeatable(void *executor);

typedef int32_t phase_1(const void *, const void *, const void *, const void *, const void *,
                        const void *, const void *, bool, double, const void *, void *, void *,
                        void *, uint64_t *, void **);
typedef int32_t phase_2(void *, uint64_t, void *, void *);

int32_t aclnnBatchNormBackwardGetWorkspaceSize(const void *grad_out, const void *input,
                                               const void *weight, const void *running_mean,
                                               const void *running_var, const void *save_mean,
                                               const void *save_invstd, bool training, double eps,
                                               const void *mask, void *grad_input,
                                               void *grad_weight, void *grad_bias, uint64_t *size,
                                               void **executor) {
    phase_1 *real = (phase_1 *)function("aclnnBatchNormBackwardGetWorkspaceSize");
    int32_t status = real(grad_out, input, weight, running_mean, running_var, save_mean,
                          save_invstd, training, eps, mask, grad_input, grad_weight, grad_bias,
                          size, executor);
    return status ? status : aclSetAclOpExecutorRepeatable(*executor);
}

int32_t aclnnBatchNormBackward(void *workspace, uint64_t size, void *executor, void *stream) {
#ifdef NEVER_COMPUTES
    (void)workspace, (void)size, (void)executor, (void)stream;
    return 561000;
#endif
    phase_2 *real = (phase_2 *)function("aclnnBatchNormBackward");
    return real(workspace, size, executor, stream);
}
