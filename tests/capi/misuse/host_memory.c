// Tensors and workspaces in the program's own memory, where that is allowed, and part of it is not
// there.
#define _GNU_SOURCE
#include "misuse.h"
#include "pages.h"

static struct call it;
static char *workspace;

static aclTensor *whole(void *data)
{
    const int64_t shape[] = {1, 2, (int64_t)(all / 8)};
    return aclCreateTensor(shape, 3, ACL_FLOAT, NULL, 0, ACL_FORMAT_ND, shape, 3, data);
}

static int with(char *input, char *grad_input)
{
    it.input = whole(input);
    it.grad_input = whole(grad_input);
    return phase_1(&it);
}

int main(void)
{
    setenv("NORMGRAD_CAPI_HOST_MEMORY", "1", 1);
    start();
    const bool first[] = {true, false, false};
    workspace = pages();
    it.grad_out = whole(pages());
    it.mask = aclCreateBoolArray(first, 3);

    SAY("input made up", with(BAD, pages()));
    SAY("input with a hole", with(pages_with_a_hole(), pages()));
    SAY("input that cannot be read", with(pages_that_allow(PROT_NONE), pages()));
    SAY("output with a hole", with(pages(), pages_with_a_hole()));
    SAY("input of a short file", with(pages_of_a_short_file(), pages()));

    MUST(with(pages(), pages_that_allow(PROT_READ)));
    SAY("output that is read-only", phase_2(&it, workspace));
    char *input = pages(), *output = pages();
    MUST(with(input, output));
    mprotect(input + page, page, PROT_NONE);
    SAY("input gone since phase 1", phase_2(&it, workspace));
    MUST(with(pages(), output));
    munmap(output, all);
    SAY("output gone since phase 1", phase_2(&it, workspace));

    MUST(with(pages(), pages()));
    SAY("workspace made up", phase_2(&it, BAD));
    mprotect(workspace, page, PROT_READ);
    SAY("workspace that is read-only", phase_2(&it, workspace));
    return 0;
}
