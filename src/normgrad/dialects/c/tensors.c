// libnnopbase: tensors, scalars, arrays and lists of them, as programs describe them.
#include "core.h"

#include <acl/acl.h>
#include <aclnn/aclnn_base.h>
#include <infiniop.h>

enum { MOST_AXES = 1024, MOST_VALUES = 1 << 20, ALIGNMENT = 32 };

// The names of types and formats in contracts, by one more than their numbers, and elements' sizes in
// bytes, 0 if they have none here: TYPES and FORMATS.
#include "types.h"

#define NAME_OF(table, index, field)                                                               \
    ((index) >= 0 && (size_t)(index) < sizeof(table) / sizeof *(table) ? (table)[index] field      \
                                                                       : NULL)

static const char *type_name(int type) { return NAME_OF(TYPES, type + 1, .name); }

static const char *format_name(int format) { return NAME_OF(FORMATS, format + 1, ); }

static size_t item_size(int type) { return type_name(type) ? TYPES[type + 1].size : 0; }

API size_t aclDataTypeSize(aclDataType dataType) { return item_size((int)dataType); }

// Descriptions, in Python's notation

static int describe_sizes(char *text, size_t size, int64_t rank, const int64_t *values)
{
    int length = snprintf(text, size, "(");
    for (int64_t i = 0; i < rank && length + 24 < (int)size; ++i)
        length +=
            snprintf(text + length, size - (size_t)length, i ? ", %ld" : "%ld", (long)values[i]);
    return length + snprintf(text + length, size - (size_t)length, rank == 1 ? ",)" : ")");
}

static int describe_tensor(char *text, size_t size, const struct tensor *tensor)
{
    char dims[200], strides[200];
    describe_sizes(dims, sizeof dims, tensor->rank, tensor->dims);
    describe_sizes(strides, sizeof strides, tensor->rank, tensor->strides);
    return snprintf(text, size, "aclTensor(%s, %s, dims %s, strides %s, offset %ld)",
                    type_name(tensor->data_type), format_name(tensor->format), dims, strides,
                    (long)tensor->offset);
}

int describe(char *text, size_t size, enum kind kind, const void *object)
{
    const char *name = strchr(name_of(kind), ' ') + 1;
    const struct tensor *tensor = object;
    const struct array *array = object;
    char dims[200], strides[200];
    if (kind == TENSOR)
        return describe_tensor(text, size, object);
    if (kind == INFINI_TENSOR) {
        describe_sizes(dims, sizeof dims, tensor->rank, tensor->dims);
        describe_sizes(strides, sizeof strides, tensor->rank, tensor->strides);
        return snprintf(text, size, "%s(%s, shape %s, strides %s)", name,
                        infini_type_name(tensor->data_type), dims, strides);
    }
    if (kind == EXECUTOR)
        return snprintf(text, size, "%s of %s", name, operator_of_executor(object));
    int length = snprintf(text, size, "%s", name);
    if (kind != BOOL_ARRAY)
        return length;
    for (uint64_t i = 0; i < array->count && length + 16 < (int)size; ++i)
        length += snprintf(text + length, size - (size_t)length, "%s%s", i ? ", " : "(",
                           array->values[i] ? "True" : "False");
    return length + snprintf(text + length, size - (size_t)length, array->count ? ")" : "()");
}

// Tensors

struct tensor *new_tensor(int64_t rank, const int64_t *dims, const int64_t *strides,
                          int64_t storage_rank, const int64_t *storage)
{
    size_t count = (size_t)(2 * rank + storage_rank);
    struct tensor *tensor = malloc(sizeof *tensor + count * sizeof *dims);
    if (!tensor)
        return NULL;
    int64_t *sizes = (int64_t *)(tensor + 1);
    *tensor = (struct tensor){.rank = rank,
                              .storage_rank = storage_rank,
                              .dims = sizes,
                              .strides = sizes + rank,
                              .storage = sizes + 2 * rank};
    if (rank)
        memcpy(tensor->dims, dims, (size_t)rank * sizeof *dims);
    if (rank && strides)
        memcpy(tensor->strides, strides, (size_t)rank * sizeof *dims);
    int64_t step = 1;
    for (int64_t i = rank; !strides && i-- > 0;) {
        tensor->strides[i] = step;
        step = (int64_t)((uint64_t)step * (uint64_t)(dims[i] > 1 ? dims[i] : 1));
    }
    if (storage_rank)
        memcpy(tensor->storage, storage, (size_t)storage_rank * sizeof *dims);
    return tensor;
}

static int check_count(const struct call *call, const char *name, const void *values,
                       uint64_t count, uint64_t most)
{
    if (count > most)
        return refuse(call, "%s: %zu of them; allowed: up to %zu", name, (size_t)count,
                      (size_t)most);
    if (count && !values)
        return refuse_null(call, name, "a pointer");
    return 0;
}

static int check_sizes(const struct call *call, const char *name, const int64_t *sizes,
                       uint64_t count)
{
    char text[400];
    TRY(check_count(call, name, sizes, count, MOST_AXES));
    for (uint64_t i = 0; i < count; ++i)
        if (sizes[i] < 0) {
            describe_sizes(text, sizeof text, (int64_t)count, sizes);
            return refuse(call, "%s: %s has a negative size; allowed: 0 or more", name, text);
        }
    return 0;
}

static int check_tensor(const struct call *call, const int64_t *dims, uint64_t rank, int type,
                        const int64_t *strides, int64_t offset, int format, const int64_t *storage,
                        uint64_t storage_rank, void *data)
{
    TRY(check_sizes(call, "viewDims", dims, rank));
    if (storage)
        TRY(check_sizes(call, "storageDims", storage, storage_rank));
    bool is_negative = false, has_overflow = false, is_empty = false;
    int64_t elements = 1;
    for (uint64_t i = 0; i < rank; ++i) {
        is_negative |= strides && strides[i] < 0;
        has_overflow |= __builtin_mul_overflow(elements, dims[i], &elements);
        is_empty |= dims[i] == 0;
    }
    char text[400];
    if (is_negative) {
        describe_sizes(text, sizeof text, (int64_t)rank, strides);
        text[strlen(text) - 1 - (rank == 1)] = 0;
        return refuse(call, "stride: %s; allowed: 0 or more", text + 1);
    }
    if (offset < 0)
        return refuse(call, "offset: %ld; allowed: 0 or more", (long)offset);
    if (!type_name(type))
        return refuse(call, "dataType: %d; allowed: an aclDataType", type);
    if (!format_name(format))
        return refuse(call, "format: %d; allowed: an aclFormat", format);
    if (has_overflow && !is_empty) {
        describe_sizes(text, sizeof text, (int64_t)rank, dims);
        note_device(call, "viewDims: %s; allowed: fewer elements than an int64 counts on devices",
                    text);
    }
    if ((size_t)data % ALIGNMENT)
        note_device(
            call,
            "tensorData: %zu bytes behind a multiple of %d; allowed: such a multiple on devices",
            (size_t)data % ALIGNMENT, ALIGNMENT);
    return 0;
}

static int describe_view(const struct call *call, const int64_t *dims, uint64_t rank, int type,
                         const int64_t *strides, int64_t offset, int format, const int64_t *storage,
                         uint64_t storage_rank, void *data, struct tensor **tensor)
{
    TRY(check_tensor(call, dims, rank, type, strides, offset, format, storage, storage_rank, data));
    *tensor = new_tensor((int64_t)rank, dims, strides, (int64_t)(storage ? storage_rank : rank),
                         storage ? storage : dims);
    if (!*tensor)
        return fail(call, call->statuses->failure, "no memory");
    (*tensor)->offset = offset;
    (*tensor)->data = data;
    (*tensor)->data_type = type;
    (*tensor)->item_size = (int64_t)item_size(type);
    (*tensor)->format = format;
    return 0;
}

API aclTensor *aclCreateTensor(const int64_t *viewDims, uint64_t viewDimsNum, aclDataType dataType,
                               const int64_t *stride, int64_t offset, aclFormat format,
                               const int64_t *storageDims, uint64_t storageDimsNum,
                               void *tensorData)
{
    BEGIN(&OF_ACLNN);
    struct tensor *tensor;
    if (describe_view(call, viewDims, viewDimsNum, (int)dataType, stride, offset, (int)format,
                      storageDims, storageDimsNum, tensorData, &tensor))
        return NULL;
    return handle_of(call, TENSOR, tensor, true);
}

API aclnnStatus aclInitTensor(aclTensor *tensor, const int64_t *viewDims, uint64_t viewDimsNum,
                              aclDataType dataType, const int64_t *stride, int64_t offset,
                              aclFormat format, const int64_t *storageDims, uint64_t storageDimsNum,
                              void *tensorDataAddr)
{
    BEGIN(&OF_ACLNN);
    struct tensor *it, *new;
    TRY(need(call, "tensor", TENSOR, tensor, &it));
    TRY(describe_view(call, viewDims, viewDimsNum, (int)dataType, stride, offset, (int)format,
                      storageDims, storageDimsNum, tensorDataAddr, &new));
    replace_object(tensor, new);
    return 0;
}

API aclnnStatus aclSetRawTensorAddr(aclTensor *tensor, void *addr)
{
    BEGIN(&OF_ACLNN);
    struct tensor *it;
    TRY(need(call, "tensor", TENSOR, tensor, &it));
    it->data = addr;
    return 0;
}

API aclnnStatus aclGetRawTensorAddr(const aclTensor *tensor, void **addr)
{
    BEGIN(&OF_ACLNN);
    struct tensor *it;
    TRY(need(call, "tensor", TENSOR, tensor, &it));
    NEED_PLACE(addr);
    *addr = it->data;
    return 0;
}

// Scalars, arrays and lists

static struct array *new_array(const void *values, uint64_t count, size_t size)
{
    struct array *array = malloc(sizeof *array + count * size);
    if (!array)
        return NULL;
    *array = (struct array){.count = count};
    if (count)
        memcpy(array->values, values, count * size);
    return array;
}

API aclScalar *aclCreateScalar(void *value, aclDataType dataType)
{
    BEGIN(&OF_ACLNN);
    size_t size = item_size((int)dataType);
    if (!value)
        return (void)refuse_null(call, "value", "a pointer"), NULL;
    if (!size)
        return (void)refuse(call, "dataType: %d; allowed: an aclDataType of numbers",
                            (int)dataType),
               NULL;
    return handle_of(call, SCALAR, new_array(value, size, 1), true);
}

static void *create_array(const struct call *call, enum kind kind, const void *values,
                          uint64_t count, size_t size)
{
    if (check_count(call, "value", values, count, MOST_VALUES))
        return NULL;
    return handle_of(call, kind, new_array(values, count, size), true);
}

static void *create_list(const struct call *call, enum kind kind, enum kind of, const void *values,
                         uint64_t count)
{
    char name[40];
    if (check_count(call, "value", values, count, MOST_VALUES))
        return NULL;
    for (uint64_t i = 0; i < count; ++i) {
        const void *handle = ((const void *const *)values)[i];
        void *object;
        snprintf(name, sizeof name, "value[%zu]", (size_t)i);
        if (handle && need(call, name, of, handle, &object)) // null stands for an absent one
            return NULL;
    }
    return handle_of(call, kind, new_array(values, count, sizeof(void *)), true);
}

API aclIntArray *aclCreateIntArray(const int64_t *value, uint64_t size)
{
    BEGIN(&OF_ACLNN);
    return create_array(call, INT_ARRAY, value, size, sizeof *value);
}

API aclFloatArray *aclCreateFloatArray(const float *value, uint64_t size)
{
    BEGIN(&OF_ACLNN);
    return create_array(call, FLOAT_ARRAY, value, size, sizeof *value);
}

API aclBoolArray *aclCreateBoolArray(const bool *value, uint64_t size)
{
    BEGIN(&OF_ACLNN);
    return create_array(call, BOOL_ARRAY, value, size, sizeof *value);
}

API aclTensorList *aclCreateTensorList(const aclTensor *const *value, uint64_t size)
{
    BEGIN(&OF_ACLNN);
    return create_list(call, TENSOR_LIST, TENSOR, value, size);
}

API aclScalarList *aclCreateScalarList(const aclScalar *const *value, uint64_t size)
{
    BEGIN(&OF_ACLNN);
    return create_list(call, SCALAR_LIST, SCALAR, value, size);
}

// End a handle; null has no effect. For a list its elements end too, even if one of them had ended.
static int destroy(const struct call *call, const char *name, enum kind kind, const void *handle)
{
    struct array *array;
    char element[40];
    int status = 0;
    if (!handle)
        return 0;
    TRY(take(call, name, kind, handle, &array));
    for (uint64_t i = 0; (kind == TENSOR_LIST || kind == SCALAR_LIST) && i < array->count; ++i) {
        const void *each = ((const void **)(void *)array->values)[i];
        void *object;
        snprintf(element, sizeof element, "%s[%zu]", name, (size_t)i);
        int one =
            each ? take(call, element, kind == TENSOR_LIST ? TENSOR : SCALAR, each, &object) : 0;
        status = status ? status : one;
    }
    return status;
}

#define DESTROY(type, name, kind)                                                                  \
    API aclnnStatus aclDestroy##type(const acl##type *name)                                        \
    {                                                                                              \
        BEGIN(&OF_ACLNN);                                                                          \
        return destroy(call, #name, kind, name);                                                   \
    }
DESTROY(Tensor, tensor, TENSOR)
DESTROY(Scalar, scalar, SCALAR)
DESTROY(IntArray, array, INT_ARRAY)
DESTROY(FloatArray, array, FLOAT_ARRAY)
DESTROY(BoolArray, array, BOOL_ARRAY)
DESTROY(TensorList, array, TENSOR_LIST)
DESTROY(ScalarList, array, SCALAR_LIST)

#define GET_SIZE(type, name, kind)                                                                 \
    API aclnnStatus aclGet##type##Size(const acl##type *name, uint64_t *size)                      \
    {                                                                                              \
        BEGIN(&OF_ACLNN);                                                                          \
        struct array *it;                                                                          \
        TRY(need(call, #name, kind, name, &it));                                                   \
        NEED_PLACE(size);                                                                          \
        *size = it->count;                                                                         \
        return 0;                                                                                  \
    }
GET_SIZE(IntArray, array, INT_ARRAY)
GET_SIZE(FloatArray, array, FLOAT_ARRAY)
GET_SIZE(BoolArray, array, BOOL_ARRAY)
GET_SIZE(TensorList, tensorList, TENSOR_LIST)
GET_SIZE(ScalarList, scalarList, SCALAR_LIST)

// The description of a tensor. The caller has to free the arrays.

#define GET_SIZES(function, rank_of, sizes_of, place, number)                                      \
    API aclnnStatus function(const aclTensor *tensor, int64_t **place, uint64_t *number)           \
    {                                                                                              \
        BEGIN(&OF_ACLNN);                                                                          \
        struct tensor *it;                                                                         \
        TRY(need(call, "tensor", TENSOR, tensor, &it));                                            \
        NEED_PLACE(place);                                                                         \
        NEED_PLACE(number);                                                                        \
        size_t size = (size_t)it->rank_of * sizeof **place;                                        \
        if (!(*place = malloc(size + 1)))                                                          \
            return fail(call, call->statuses->failure, "no memory");                               \
        memcpy(*place, it->sizes_of, size);                                                        \
        *number = (uint64_t)it->rank_of;                                                           \
        return 0;                                                                                  \
    }
GET_SIZES(aclGetViewShape, rank, dims, viewDims, viewDimsNum)
GET_SIZES(aclGetViewStrides, rank, strides, stridesValue, stridesNum)
GET_SIZES(aclGetStorageShape, storage_rank, storage, storageDims, storageDimsNum)

#define GET(function, type, field, place)                                                          \
    API aclnnStatus function(const aclTensor *tensor, type *place)                                 \
    {                                                                                              \
        BEGIN(&OF_ACLNN);                                                                          \
        struct tensor *it;                                                                         \
        TRY(need(call, "tensor", TENSOR, tensor, &it));                                            \
        NEED_PLACE(place);                                                                         \
        *place = (type)it->field;                                                                  \
        return 0;                                                                                  \
    }
GET(aclGetViewOffset, int64_t, offset, offset)
GET(aclGetDataType, aclDataType, data_type, dataType)
GET(aclGetFormat, aclFormat, format, format)
