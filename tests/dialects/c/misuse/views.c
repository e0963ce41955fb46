// Tensors: views outside their memory, sizes and numbers that are none.
#include "misuse.h"

static struct call it;

static int with_input(aclTensor *input)
{
    struct call changed = it;
    changed.input = input;
    return phase_1(&changed);
}

static aclTensor *view(const int64_t *shape, uint64_t axes, const int64_t *strides, int64_t offset,
                       void *data)
{
    return aclCreateTensor(shape, axes, ACL_FLOAT, strides, offset, ACL_FORMAT_ND, shape, axes,
                           data);
}

int main(void)
{
    start();
    it = good_call();
    float host[8] = {0};
    char *data = it.data[1];
    const int64_t wide[] = {16, 4, 2}, far[] = {8, INT64_MAX / 2, 1}, back[] = {8, 4, -1};
    const int64_t large[] = {1, 2, 5}, huge[] = {INT64_MAX, INT64_MAX, INT64_MAX};
    const int64_t negative[] = {1, -2, 4}, many[2000] = {1};

    SAY("fits", with_input(view(SHAPE, 3, NULL, 0, data)));
    SAY("strides past the end", with_input(view(SHAPE, 3, wide, 0, data)));
    SAY("strides far past the end", with_input(view(SHAPE, 3, far, 0, data)));
    SAY("offset past the end", with_input(view(SHAPE, 3, NULL, 1, data)));
    SAY_MADE("negative offset", view(SHAPE, 3, NULL, -1, data + 4));
    SAY("data in the middle", with_input(view(SHAPE, 3, NULL, 0, data + 4)));
    SAY_MADE("negative stride", view(SHAPE, 3, back, 3, data));
    SAY("offset beyond counting", with_input(view(SHAPE, 3, NULL, INT64_MAX, data)));
    SAY("offset that wraps around", with_input(view(SHAPE, 3, NULL, 1ll << 62, data)));
    SAY("memory of the host", with_input(view(SHAPE, 3, NULL, 0, host)));
    struct call unset = it;
    unset.input = view(SHAPE, 3, NULL, 0, NULL);
    SAY("no memory, in phase 1", phase_1(&unset));
    SAY("and in phase 2", phase_2(&unset, block(unset.size)));
    void *larger = block(2 * BYTES);
    struct call changed = it;
    changed.grad_out = view(large, 3, NULL, 0, larger);
    changed.grad_input = view(large, 3, NULL, 0, larger);
    changed.input = view(large, 3, NULL, 0, data);
    SAY("larger than its block", phase_1(&changed));
    changed.grad_out = changed.input = changed.grad_input = view(huge, 3, NULL, 0, data);
    changed.grad_weight = changed.grad_bias = changed.weight = NULL;
    const bool first[] = {true, false, false};
    changed.mask = aclCreateBoolArray(first, 3);
    SAY("more elements than there are", phase_1(&changed));
    int64_t sizes[1000];
    for (int i = 0; i < 1000; ++i)
        sizes[i] = INT64_MAX;
    changed.grad_out = changed.input = changed.grad_input = view(sizes, 1000, NULL, 0, data);
    SAY("more elements than can be written", phase_1(&changed));

    SAY_MADE("negative size", view(negative, 3, NULL, 0, data));
    SAY_MADE("no sizes", view(NULL, 3, NULL, 0, data));
    SAY_MADE("absurd rank", view(SHAPE, UINT64_MAX, NULL, 0, data));
    SAY_MADE("rank that was negative", view(SHAPE, (uint64_t)-3, NULL, 0, data));
    SAY("rank above 8", with_input(view(many, 9, NULL, 0, data)));
    SAY_MADE("rank 1000", view(many, 1000, NULL, 0, data));
    SAY_MADE("no dtype",
             aclCreateTensor(SHAPE, 3, (aclDataType)99, NULL, 0, ACL_FORMAT_ND, SHAPE, 3, data));
    SAY_MADE("no format",
             aclCreateTensor(SHAPE, 3, ACL_FLOAT, NULL, 0, (aclFormat)77, SHAPE, 3, data));
    SAY_MADE("absurd storage", aclCreateTensor(SHAPE, 3, ACL_FLOAT, NULL, 0, ACL_FORMAT_ND, SHAPE,
                                               UINT64_MAX, data));
    SAY_MADE("rank 0", view(NULL, 0, NULL, 0, data));
    SAY_MADE("mask from null", aclCreateBoolArray(NULL, 3));
    SAY_MADE("absurd mask", aclCreateBoolArray((const bool *)host, UINT64_MAX));
    SAY_MADE("empty mask", aclCreateBoolArray(NULL, 0));

    changed = it;
    const int64_t once[] = {0, 4, 1};
    const int64_t two_samples[] = {2, 2, 2};
    changed.grad_out = view(two_samples, 3, NULL, 0, it.data[0]);
    changed.input = view(two_samples, 3, NULL, 0, it.data[1]);
    changed.grad_input = view(two_samples, 3, once, 0, it.data[3]);
    SAY("output elements twice", phase_1(&changed));
    printf("size of no dtype %zu | 0 |\n", aclDataTypeSize((aclDataType)99));
    return 0;
}
