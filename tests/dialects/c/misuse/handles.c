// Handles of tensors and masks: null, made up, destroyed, of another kind.
#include "misuse.h"

int main(void)
{
    start();
    struct call it = good_call();
    MUST(phase_1(&it));
    int on_the_stack = 0;

#define WITH(name, field, value)                                                                   \
    do {                                                                                           \
        struct call changed = it;                                                                  \
        changed.field = (value);                                                                   \
        SAY(name, phase_1(&changed));                                                              \
    } while (0)

    WITH("tensor null", grad_out, NULL);
    WITH("tensor made up", grad_out, (aclTensor *)(uintptr_t)0xdeadbeef);
    WITH("tensor on the stack", input, (aclTensor *)&on_the_stack);
    WITH("tensor is its data", input, (aclTensor *)it.data[1]);
    WITH("tensor is a mask", weight, (aclTensor *)it.mask);
    WITH("tensor is an executor", weight, (aclTensor *)it.executor);
    WITH("mask null", mask, NULL);
    WITH("mask made up", mask, (aclBoolArray *)(uintptr_t)1);
    WITH("mask is a tensor", mask, (aclBoolArray *)it.input);
    WITH("output made up", grad_bias, (aclTensor *)(uintptr_t)0x7fff00001000);

    aclTensor *gone = over(it.data[0]);
    SAY("destroy tensor", aclDestroyTensor(gone));
    SAY("destroy tensor twice", aclDestroyTensor(gone));
    WITH("tensor destroyed", grad_out, gone);
    SAY("destroy null tensor", aclDestroyTensor(NULL));
    SAY("destroy made up tensor", aclDestroyTensor((aclTensor *)(uintptr_t)8));
    SAY("destroy a mask as a tensor", aclDestroyTensor((aclTensor *)it.mask));

    const bool three[] = {true, true, true};
    aclBoolArray *mask = aclCreateBoolArray(three, 3);
    SAY("destroy mask", aclDestroyBoolArray(mask));
    SAY("destroy mask twice", aclDestroyBoolArray(mask));
    WITH("mask destroyed", mask, mask);
    SAY("destroy null mask", aclDestroyBoolArray(NULL));

    int64_t *dims = NULL;
    uint64_t count = 0;
    SAY("shape of a destroyed tensor", aclGetViewShape(gone, &dims, &count));
    SAY("shape to null", aclGetViewShape(it.input, NULL, &count));
    SAY("shape", aclGetViewShape(it.input, &dims, &count));
    printf("shape is %ld %ld %ld of %lu | 0 |\n", (long)dims[0], (long)dims[1], (long)dims[2],
           (unsigned long)count);
    free(dims);
    SAY("data type of null", aclGetDataType(NULL, NULL));
    SAY("format to null", aclGetFormat(it.input, NULL));

    // Destroyed, or its memory freed, between the phases.
    MUST(phase_1(&it));
    void *workspace = it.size ? block(it.size) : NULL;
    MUST(aclDestroyTensor(it.weight));
    SAY("tensor destroyed before phase 2", phase_2(&it, workspace));
    return 0;
}
