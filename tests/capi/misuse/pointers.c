// Pointers to the host's memory that are wrong: what is read, what is written, texts, copies.
#define _GNU_SOURCE
#include "misuse.h"
#include "pages.h"

int main(void)
{
    setvbuf(stdout, NULL, _IOLBF, 0);
    char *text = pages();
    SAY("config made up", aclInit(BAD));
    munmap(text + page, page);
    memset(text, 'x', page);
    SAY("config without an end", aclInit(text));
    text = pages() + page - 5;
    strcpy(text, "/nowhere/acl.json");
    SAY("config on two pages", aclInit(text));
    MUST(aclInit(NULL));
    MUST(aclrtSetDevice(0));

    struct call it = good_call();
    void *data = it.data[1];
    SAY_MADE("sizes made up",
             aclCreateTensor(BAD, 3, ACL_FLOAT, NULL, 0, ACL_FORMAT_ND, SHAPE, 3, data));
    SAY_MADE("strides made up",
             aclCreateTensor(SHAPE, 3, ACL_FLOAT, BAD, 0, ACL_FORMAT_ND, SHAPE, 3, data));
    SAY_MADE("storage made up",
             aclCreateTensor(SHAPE, 3, ACL_FLOAT, NULL, 0, ACL_FORMAT_ND, BAD, 3, data));
    int64_t *last = (int64_t *)(pages_with_a_hole() + page) - 2;
    last[0] = last[1] = 1;
    SAY_MADE("sizes up to a hole",
             aclCreateTensor(last, 2, ACL_FLOAT, NULL, 0, ACL_FORMAT_ND, last, 2, data));
    SAY_MADE("sizes into a hole",
             aclCreateTensor(last, 3, ACL_FLOAT, NULL, 0, ACL_FORMAT_ND, SHAPE, 3, data));
    SAY_MADE("no sizes made up",
             aclCreateTensor(BAD, 0, ACL_FLOAT, NULL, 0, ACL_FORMAT_ND, BAD, 0, data));
    SAY_MADE("mask made up", aclCreateBoolArray(BAD, 3));

    SAY("malloc to made up", aclrtMalloc(BAD, 8, ACL_MEM_MALLOC_HUGE_FIRST));
    SAY("host malloc to read-only",
        aclrtMallocHost((void **)(pages_that_allow(PROT_READ) + page), 8));
    SAY("malloc to the top of all addresses",
        aclrtMalloc((void **)UINTPTR_MAX, 8, ACL_MEM_MALLOC_HUGE_FIRST));
    size_t free_bytes = 0;
    SAY("memory info, one made up", aclrtGetMemInfo(ACL_HBM_MEM, &free_bytes, BAD));
    printf("nothing is written %d | 0 |\n", free_bytes == 0);
    SAY("device to made up", aclrtGetDevice(BAD));
    SAY("stream to made up", aclrtCreateStream(BAD));
    SAY("event to made up", aclrtCreateEvent(BAD));
    SAY("context to made up", aclrtCreateContext(BAD, 0));
    int64_t *dims = NULL;
    SAY("shape, number made up", aclGetViewShape(it.input, &dims, BAD));
    SAY("strides made up", aclGetViewStrides(it.input, BAD, &it.size));
    SAY("data type to made up", aclGetDataType(it.input, BAD));
    struct call changed = it;
    SAY("workspace size to made up",
        aclnnBatchNormBackwardGetWorkspaceSize(
            it.grad_out, it.input, it.weight, NULL, NULL, NULL, NULL, true, 1e-5, it.mask,
            it.grad_input, it.grad_weight, it.grad_bias, BAD, &changed.executor));
    SAY("executor to made up",
        aclnnBatchNormBackwardGetWorkspaceSize(
            it.grad_out, it.input, it.weight, NULL, NULL, NULL, NULL, true, 1e-5, it.mask,
            it.grad_input, it.grad_weight, it.grad_bias, &changed.size, BAD));

    void *target = block(all);
    MUST(aclrtMemset(target, all, 1, all));
    SAY("from made up", aclrtMemcpy(data, BYTES, BAD, BYTES, ACL_MEMCPY_HOST_TO_DEVICE));
    SAY("to made up", aclrtMemcpy(BAD, BYTES, data, BYTES, ACL_MEMCPY_DEVICE_TO_HOST));
    SAY("host to host, made up", aclrtMemcpy(BAD, BYTES, BAD, BYTES, ACL_MEMCPY_HOST_TO_HOST));
    SAY("asynchronous, made up",
        aclrtMemcpyAsync(data, BYTES, BAD, BYTES, ACL_MEMCPY_HOST_TO_DEVICE, NULL));
    SAY("from a hole",
        aclrtMemcpy(target, all, pages_with_a_hole(), all, ACL_MEMCPY_HOST_TO_DEVICE));
    SAY("to a hole",
        aclrtMemcpy(pages_with_a_hole(), all, target, all, ACL_MEMCPY_DEVICE_TO_HOST));
    SAY("from what cannot be read",
        aclrtMemcpy(target, all, pages_that_allow(PROT_NONE), all, ACL_MEMCPY_HOST_TO_DEVICE));
    char *read_only = pages_that_allow(PROT_READ);
    SAY("to read-only", aclrtMemcpy(read_only, all, target, all, ACL_MEMCPY_DEVICE_TO_HOST));
    SAY("from past the end of a file",
        aclrtMemcpy(target, all, pages_of_a_short_file(), all, ACL_MEMCPY_HOST_TO_DEVICE));
    char *odd = pages_with_a_hole() + page - 5;
    SAY("to the last byte before a hole and one more",
        aclrtMemcpy(odd, 6, target, 6, ACL_MEMCPY_DEVICE_TO_HOST));
    printf("nothing is copied %d | 0 |\n", read_only[0] == 0 && odd[0] == 0);
    SAY("more than there are addresses",
        aclrtMemcpy(pages(), SIZE_MAX, pages(), SIZE_MAX, ACL_MEMCPY_HOST_TO_HOST));

    // And what is right.
    SAY("to the last byte before a hole",
        aclrtMemcpy(odd, 5, target, 5, ACL_MEMCPY_DEVICE_TO_HOST));
    SAY("from read-only", aclrtMemcpy(target, all, read_only, all, ACL_MEMCPY_HOST_TO_DEVICE));
    char *first = pages_with_a_hole();
    MUST(aclrtMemcpy(first, page, target, page, ACL_MEMCPY_DEVICE_TO_HOST));
    printf("copied %d | 0 |\n", odd[0] == 1 && odd[4] == 1 && first[page - 1] == 0);
    return 0;
}
