// Outputs that share memory with other arguments: found by phase 2, before anything is written.
// (This one does reach the compiled code.)
#include "misuse.h"

int main(void)
{
    start();
    struct call it = good_call();
    MUST(phase_1(&it));
    void *workspace = block(it.size);
    float before[8], after[8];

#define SHARING(name, field, value)                                                                \
    do {                                                                                           \
        struct call changed = it;                                                                  \
        changed.field = (value);                                                                   \
        MUST(phase_1(&changed));                                                                   \
        SAY(name, phase_2(&changed, workspace));                                                   \
    } while (0)

    MUST(aclrtMemcpy(before, BYTES, it.data[2], BYTES, ACL_MEMCPY_DEVICE_TO_HOST));
    SHARING("a gradient over the weight", grad_weight, vector_over(it.data[2]));
    SHARING("two outputs in one place", grad_bias, vector_over(it.data[4]));
    SHARING("outputs that overlap in part", grad_bias, vector_over((char *)it.data[4] + 4));
    SHARING("a gradient in the input", grad_weight, vector_over(it.data[1]));
    SHARING("a gradient in the workspace", grad_weight, vector_over((char *)workspace + 64));
    MUST(aclrtMemcpy(after, BYTES, it.data[2], BYTES, ACL_MEMCPY_DEVICE_TO_HOST));
    int same = 1;
    for (int i = 0; i < BYTES; ++i)
        same &= ((char *)before)[i] == ((char *)after)[i];
    printf("the weight is as it was %d | 0 |\n", same);

    // What is no mistake: memory that is not used may be any.
    float host[8];
    const bool parameters[] = {false, true, true};
    struct call unused = it;
    unused.grad_input = over(host);
    unused.mask = aclCreateBoolArray(parameters, 3);
    SAY("a masked-off output of the host's, phase 1", phase_1(&unused));
    SAY("and phase 2", phase_2(&unused, workspace));
    const int64_t empty[] = {0, 2, 4};
    unused = it;
    unused.grad_out = unused.input = unused.grad_input =
        aclCreateTensor(empty, 3, ACL_FLOAT, NULL, 0, ACL_FORMAT_ND, empty, 3, host);
    SAY("no elements, over memory of the host's, phase 1", phase_1(&unused));
    SAY("and phase 2", phase_2(&unused, NULL));
    SHARING("grad_input over grad_out", grad_input, over(it.data[0]));
    return 0;
}
