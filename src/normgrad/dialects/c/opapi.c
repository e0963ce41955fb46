// libopapi and the executors of libnnopbase: the operators' two phases. The build makes the exported
// functions of the operators from their contracts, in operators.h.
#include "core.h"

#include <acl/acl.h>
#include <aclnn/aclnn_base.h>

// A parameter of phase 1: 'T' a tensor, 'M' a mask, 'b' a bool, 'd' a double, 'i' an int64.
struct parameter {
    const char *name;
    char kind;
    bool is_output;
};
struct operator {
    const char *name;
    int count;
    struct parameter parameters[MOST_ARGUMENTS];
};
union value {
    const void *handle;
    bool boolean;
    double real;
    int64_t integer;
};

// What phase 1 makes: the call, with its tensors, whose handles tell whether they still live.
struct executor {
    struct object object;
    const struct operator *operator;
    struct job job;
    const void *handles[MOST_ARGUMENTS];
    bool is_repeatable, is_used;
};

const char *operator_of_executor(const void *executor)
{
    return ((const struct executor *)executor)->operator->name;
}

static void drop_executor(void *object)
{
    struct executor *executor = object;
    for (int i = 0; i < executor->job.count; ++i)
        leave((void *)executor->job.arguments[i].object);
    leave_plan(executor->job.plan);
    free(executor);
}

static char *first_element(const struct tensor *tensor)
{
    uint64_t bytes = (uint64_t)tensor->offset * (uint64_t)tensor->item_size;
    return (char *)((uint64_t)tensor->data + bytes); // without data it is none
}

// Look up a tensor's memory; a text, which may be written to ``problem``, says why it cannot be used.
static void find_memory(struct argument *argument, const struct tensor *tensor, char *problem)
{
    struct block block;
    argument->block = NULL;
    argument->problem = NULL;
    if (!tensor->data)
        return;
    bool is_known = block_at(tensor->data, &block);
    if (is_known && block.freed_by) {
        argument->problem = problem;
        snprintf(problem, PROBLEM_SIZE, "memory that %s has freed; allowed: not freed",
                 block.freed_by);
    } else if (!settings()->host_memory && !(is_known && block.is_device))
        argument->problem = "memory that is not from aclrtMalloc; allowed: device memory";
    else if (is_known) {
        argument->block = block.address;
        argument->block_size = (uint64_t)(end_of_block(&block) - block.address);
    }
}

static int phase_1(const struct call *call, const struct operator *operator,
                   const union value *values, uint64_t *workspaceSize, aclOpExecutor **executor)
{
    char problems[MOST_ARGUMENTS][PROBLEM_SIZE];
    NEED_PLACE(workspaceSize);
    NEED_PLACE(executor);
    struct executor *made = calloc(1, sizeof *made);
    if (!made)
        return fail(call, call->statuses->failure, "no memory");
    made->operator = operator;
    made->object.drop = drop_executor;
    struct job *job = &made->job;
    job->operator = operator->name;
    for (int i = 0; i < operator->count; ++i) {
        struct argument *argument = &job->arguments[i];
        const union value *value = &values[i];
        switch (operator->parameters[i].kind) {
        case 'b':
            *argument = (struct argument){.kind = IS_BOOL, .integer = value->boolean};
            break;
        case 'd':
            *argument = (struct argument){.kind = IS_REAL, .real = value->real};
            break;
        case 'i':
            *argument = (struct argument){.kind = IS_INTEGER, .integer = value->integer};
            break;
        default:
            *argument = argument_of(value->handle, problems[i]);
            if (argument->object)
                made->handles[i] = value->handle;
            if (argument->kind == TENSOR) {
                const struct tensor *tensor = argument->object;
                find_memory(argument, tensor, problems[i]);
                job->addresses[i] = first_element(tensor);
            }
        }
        ++job->count;
    }
    made->object.users = 1;
    int status = find_plan(call, job);
    if (status) {
        drop_executor(made);
        return status;
    }
    *workspaceSize = workspace_size(job->plan);
    return put_handle(call, executor, EXECUTOR, made);
}

// Check that a tensor's memory is still what it was in phase 1, or has come to be.
static int check_tensor(const struct call *call, struct executor *executor, int index)
{
    const char *name = executor->operator->parameters[index].name;
    const struct tensor *tensor = executor->job.arguments[index].object;
    struct block block;
    enum kind kind;
    int64_t low = 0, high = 0;
    span_of(executor->job.plan, index, &low, &high);
    if (!peek(executor->handles[index], &kind))
        return refuse(call, "%s: it was destroyed since phase 1; allowed: what stays until phase 2",
                      name);
    if (high == low)
        return 0;
    if (!tensor->data)
        return refuse(call, "%s: no memory; allowed: a tensor with data", name);
    if (block_at(tensor->data, &block) && block.freed_by)
        return refuse(
            call, "%s: its memory was freed by %s since phase 1; allowed: what stays until phase 2",
            name, block.freed_by);
    return 0;
}

static int check_workspace(const struct call *call, const void *workspace, uint64_t needed)
{
    struct block block;
    TRY(living_block(call, "workspace", workspace, &block));
    if (!settings()->host_memory && !(block.size && block.is_device))
        return refuse(call,
                      "workspace: memory that is not from aclrtMalloc; allowed: device memory");
    if (!block.size)
        return 0;
    uint64_t rest = (uint64_t)(end_of_block(&block) - (const char *)workspace);
    if (rest < needed)
        return refuse(call, "workspace: %zu bytes; allowed: %zu", (size_t)rest, (size_t)needed);
    return 0;
}

static int phase_2(const struct call *call, const struct operator *operator, void *workspace,
                   uint64_t workspaceSize, aclOpExecutor *handle, aclrtStream stream)
{
    struct executor *executor;
    if (!handle)
        return refuse_null(call, "executor", "what phase 1 returned");
    enum kind kind = NOTHING;
    executor = peek(handle, &kind);
    if (kind != EXECUTOR)
        return refuse(call, "executor: %s; allowed: a new one, from phase 1",
                      executor ? name_of(kind) : problem_of(handle));
    TRY(need_device(call, call->statuses->failure));
    uint64_t needed = workspace_size(executor->job.plan);
    if (!workspace && needed)
        return fail(call, call->statuses->null, "workspace: null; allowed: %zu bytes",
                    (size_t)needed);
    if (executor->operator != operator)
        return refuse(call, "executor: of %s; allowed: one of %s", executor->operator->name,
                      operator->name);
    if (workspaceSize < needed)
        return refuse(call, "workspaceSize: %zu; allowed: %zu or more, phase 1's size",
                      (size_t)workspaceSize, (size_t)needed);
    if (needed)
        TRY(check_workspace(call, workspace, needed));
    for (int i = 0; i < operator->count; ++i)
        if (uses_argument(executor->job.plan, i))
            TRY(check_tensor(call, executor, i));
    struct stream *on = &default_stream;
    void *found = stream ? peek(stream, &kind) : on;
    if (stream && (!found || kind != STREAM))
        return fail(call, call->statuses->failure, "stream: %s; allowed: a stream, or null",
                    found ? name_of(kind) : problem_of(stream));
    on = found;
    struct job job = executor->job;
    job.workspace = workspace;
    hold(executor);
    bool is_first = !__atomic_exchange_n(&executor->is_used, true, __ATOMIC_ACQ_REL);
    int status = 0;
    if (!executor->is_repeatable) {
        if (is_first)
            end_handle(call, handle);
        else
            status = refuse(call, "executor: used already, by %s; allowed: a new one, from phase 1",
                            call->function);
    }
    if (!status)
        status = run_job(call, on, &job);
    leave(executor);
    return status;
}

API aclnnStatus aclnnInit(const char *configPath)
{
    (void)configPath;
    BEGIN(&OF_ACLNN);
    return begin_aclnn(call);
}

API aclnnStatus aclnnFinalize(void) { return end_aclnn(); }

// Executors

static int need_executor(const struct call *call, aclOpExecutor *handle, struct executor **executor)
{
    if (!handle)
        return fail(call, ACLNN_ERR_INNER_NULLPTR, "executor: null; allowed: an aclOpExecutor");
    return need(call, "executor", EXECUTOR, handle, executor);
}

API aclnnStatus aclSetAclOpExecutorRepeatable(aclOpExecutor *executor)
{
    BEGIN(&OF_ACLNN);
    struct executor *it;
    TRY(need_executor(call, executor, &it));
    it->is_repeatable = true;
    return 0;
}

API aclnnStatus aclDestroyAclOpExecutor(aclOpExecutor *executor)
{
    BEGIN(&OF_ACLNN);
    struct executor *it;
    TRY(need_executor(call, executor, &it));
    return take(call, "executor", EXECUTOR, executor, &it);
}

enum counted { ALL, INPUTS, OUTPUTS };

// The index of the parameter that is the n-th of those that count, or -1; ``count`` is their number.
static int parameter_at(const struct operator *operator, enum counted counted, size_t n, int *count)
{
    int found = -1;
    *count = 0;
    for (int i = 0; i < operator->count; ++i) {
        const struct parameter *each = &operator->parameters[i];
        if (each->kind != 'T' || (counted == INPUTS && each->is_output) ||
            (counted == OUTPUTS && !each->is_output))
            continue;
        if ((size_t)(*count)++ == n)
            found = i;
    }
    return found;
}

static int set_address(const struct call *call, enum counted counted, aclOpExecutor *handle,
                       size_t index, aclTensor *tensor, void *addr)
{
    struct executor *executor;
    struct tensor *new;
    TRY(need_executor(call, handle, &executor));
    if (!tensor)
        return fail(call, ACLNN_ERR_INNER_NULLPTR, "tensor: null; allowed: an aclTensor");
    TRY(need(call, "tensor", TENSOR, tensor, &new));
    if (!executor->is_repeatable)
        return refuse(call, "executor: used once; allowed: after aclSetAclOpExecutorRepeatable");
    int count, at = parameter_at(executor->operator, counted, index, &count);
    if (at < 0)
        return refuse(call, "index: %zu; allowed: 0 to %d", index, count - 1);
    const char *name = executor->operator->parameters[at].name;
    struct argument *argument = &executor->job.arguments[at];
    const struct tensor *old = argument->object;
    if (argument->kind == IS_NULL)
        return refuse(call, "index: %zu, %s, null in phase 1; allowed: a tensor's", index, name);
    size_t bytes = (size_t)old->rank * sizeof *old->dims;
    if (new->rank != old->rank || new->data_type != old->data_type ||
        memcmp(new->dims, old->dims, bytes) || memcmp(new->strides, old->strides, bytes)) {
        char is[600], was[600];
        describe(is, sizeof is, TENSOR, new);
        describe(was, sizeof was, TENSOR, old);
        return refuse(call, "tensor: %s; allowed: %s, %s", is, name, was);
    }
    struct tensor moved = *new;
    moved.data = addr;
    char problem[PROBLEM_SIZE];
    struct argument memory = {.kind = TENSOR};
    find_memory(&memory, &moved, problem);
    if (memory.problem)
        return refuse(call, "addr: %s", memory.problem);
    int64_t low = 0, high = 0, size = new->item_size;
    char *first = first_element(&moved);
    bool is_used = span_of(executor->job.plan, at, &low, &high);
    if (is_used && memory.block &&
        (first + low < memory.block || first + high > memory.block + memory.block_size)) {
        int64_t start = (first - memory.block) / size;
        return refuse(call,
                      "addr: elements %ld to %ld of its storage; allowed: 0 to %ld, the %zu bytes "
                      "that there are",
                      (long)(start + low / size), (long)(start + high / size - 1),
                      (long)((int64_t)memory.block_size / size - 1), (size_t)memory.block_size);
    }
    new->data = addr;
    hold(new);
    leave((void *)argument->object);
    argument->object = new;
    argument->kind = TENSOR;
    argument->block = memory.block;
    argument->block_size = memory.block_size;
    executor->handles[at] = tensor;
    executor->job.addresses[at] = first;
    return 0;
}

#define SETTER(name, index, counted)                                                               \
    API aclnnStatus name(aclOpExecutor *executor, const size_t index, aclTensor *tensor,           \
                         void *addr)                                                               \
    {                                                                                              \
        BEGIN(&OF_ACLNN);                                                                          \
        return set_address(call, counted, executor, index, tensor, addr);                          \
    }
SETTER(aclSetTensorAddr, index, ALL)
SETTER(aclSetInputTensorAddr, irIndex, INPUTS)
SETTER(aclSetOutputTensorAddr, irIndex, OUTPUTS)
SETTER(AclSetInputTensorAddr, irIndex, INPUTS)
SETTER(AclSetOutputTensorAddr, irIndex, OUTPUTS)

// No operator here takes a list of tensors, so that there is no right index.
static int set_dynamic(const struct call *call, enum counted counted, aclOpExecutor *handle,
                       size_t index, aclTensorList *tensors)
{
    struct executor *executor;
    struct array *list;
    int count;
    TRY(need_executor(call, handle, &executor));
    if (!tensors)
        return fail(call, ACLNN_ERR_INNER_NULLPTR, "tensors: null; allowed: an aclTensorList");
    TRY(need(call, "tensors", TENSOR_LIST, tensors, &list));
    int at = parameter_at(executor->operator, counted, index, &count);
    if (at < 0)
        return refuse(call, "irIndex: %zu; allowed: 0 to %d", index, count - 1);
    return refuse(call,
                  "irIndex: %zu, %s, a tensor; allowed: a list of tensors, of which %s has none",
                  index, executor->operator->parameters[at].name, executor->operator->name);
}

#define DYNAMIC_SETTER(name, counted)                                                              \
    API aclnnStatus name(aclOpExecutor *executor, const size_t irIndex,                            \
                         const size_t relativeIndex, aclTensorList *tensors, void *addr)           \
    {                                                                                              \
        (void)relativeIndex, (void)addr;                                                           \
        BEGIN(&OF_ACLNN);                                                                          \
        return set_dynamic(call, counted, executor, irIndex, tensors);                             \
    }
DYNAMIC_SETTER(aclSetDynamicTensorAddr, ALL)
DYNAMIC_SETTER(aclSetDynamicInputTensorAddr, INPUTS)
DYNAMIC_SETTER(aclSetDynamicOutputTensorAddr, OUTPUTS)

#include "operators.h"
