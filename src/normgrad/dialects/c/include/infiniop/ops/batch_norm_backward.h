#include "../operator_descriptor.h"

typedef struct InfiniopDescriptor *infiniopBatchNormBackwardDescriptor_t;

infiniStatus_t infiniopCreateBatchNormBackwardDescriptor(infiniopHandle_t handle,
    infiniopBatchNormBackwardDescriptor_t *desc_ptr, infiniopTensorDescriptor_t grad_input,
    infiniopTensorDescriptor_t grad_weight, infiniopTensorDescriptor_t grad_bias,
    infiniopTensorDescriptor_t input, infiniopTensorDescriptor_t grad_output,
    infiniopTensorDescriptor_t weight, infiniopTensorDescriptor_t running_mean,
    infiniopTensorDescriptor_t running_var);
infiniStatus_t infiniopGetBatchNormBackwardWorkspaceSize(infiniopBatchNormBackwardDescriptor_t desc,
    size_t *size);
infiniStatus_t infiniopBatchNormBackward(infiniopBatchNormBackwardDescriptor_t desc, void
    *workspace, size_t workspace_size, void *grad_input, void *grad_weight, void *grad_bias, const
    void *input, const void *grad_output, const void *weight, const void *running_mean, const void
    *running_var, void *stream);
infiniStatus_t infiniopDestroyBatchNormBackwardDescriptor(infiniopBatchNormBackwardDescriptor_t
    desc);
