// `freed KIND`: reads of what was freed, one that the program makes itself ("own"), one of an operator's
// ("operand"), and "none".
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "infiniop.h"
#include "infinirt.h"

int main(int argc, char **argv)
{
    const char *kind = argc > 1 ? argv[1] : "none";
    const size_t shape[] = {2, 3, 4}, channels[] = {3};
    infiniopHandle_t handle;
    infiniopTensorDescriptor_t each[8];
    infiniopBatchNormBackwardDescriptor_t operator;
    float *data[8];
    void *block, *workspace;
    size_t size;
    int status = infinirtMalloc(&block, 96) || infiniopCreateHandle(&handle);
    for (int i = 0; i < 8; ++i) {
        int is_data = i == 0 || i == 3 || i == 4;
        status |=
            infiniopCreateTensorDescriptor(&each[i], is_data ? 3 : 1, is_data ? shape : channels,
                                           NULL, INFINI_DTYPE_F32) != 0;
        data[i] = calloc(24, sizeof *data[i]);
        for (int k = 0; k < 24 && data[i]; ++k)
            data[i][k] = (float)k;
    }
    status |=
        infiniopCreateBatchNormBackwardDescriptor(handle, &operator, each[0], each[1], each[2],
                                                  each[3], each[4], each[5], each[6], each[7]) != 0;
    status |= infiniopGetBatchNormBackwardWorkspaceSize(operator, &size) ||
              infinirtMalloc(&workspace, size);
    if (!strcmp(kind, "operand"))
        free(data[3]);
    status |= infiniopBatchNormBackward(operator, workspace, size, data[0], data[1], data[2],
                                        data[3], data[4], data[5], data[6], data[7], NULL) != 0;
    infinirtFree(block);
    if (!strcmp(kind, "own"))
        status |= ((volatile float *)block)[3] == 0;
    for (int i = 0; i < 8; ++i) {
        if (i != 3 || strcmp(kind, "operand"))
            free(data[i]);
        infiniopDestroyTensorDescriptor(each[i]);
    }
    infinirtFree(workspace);
    infiniopDestroyBatchNormBackwardDescriptor(operator);
    infiniopDestroyHandle(handle);
    printf("%d\n", status);
    return 0;
}
