/* infiniop's BatchNormBackward, written from its contract and from nothing else; and with one of
 * the defects below, if it is defined. */

#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

enum { OK = 0, INTERNAL = 1, BAD_PARAM = 3, BAD_DTYPE = 10, BAD_SHAPE = 11, BAD_STRIDES = 12, SMALL = 13 };
enum { F16 = 12, F32 = 13, BF16 = 19 };
enum { HANDLE = 0x4841, TENSOR, OPERATOR };
enum { GRAD_INPUT, GRAD_WEIGHT, GRAD_BIAS, INPUT, GRAD_OUTPUT, WEIGHT, MEAN, VARIANCE, TENSORS };

static const int is_data[TENSORS] = {1, 0, 0, 1, 1, 0, 0, 0};

/* What a handle points to. Never freed, so that one that was destroyed can be told. */
typedef struct {
    int kind, alive, dtype;
    size_t rank, shape[8];
    ptrdiff_t strides[8];
} Tensor;

typedef struct {
    int kind, alive, dtype;
    size_t n, c, l;
    ptrdiff_t strides[TENSORS];
} Operator;

static int lives(const void *object, int kind) {
    return object && ((const int *)object)[0] == kind && ((const int *)object)[1];
}

static int end(void *object, int kind) {
    if (!lives(object, kind)) return BAD_PARAM;
    ((int *)object)[1] = 0;
    return OK;
}

int infiniopCreateHandle(void **handle) {
#ifdef NEVER_BEGINS
    return INTERNAL;
#endif
    if (!handle) return BAD_PARAM;
    int *made = calloc(2, sizeof *made);
    made[0] = HANDLE;
    made[1] = 1;
    *handle = made;
    return OK;
}

int infiniopDestroyHandle(void *handle) { return end(handle, HANDLE); }

int infiniopCreateTensorDescriptor(void **desc, size_t rank, const size_t *shape,
                                   const ptrdiff_t *strides, int dtype) {
    if (!desc || rank > 8 || (rank && !shape)) return BAD_PARAM;
    Tensor *made = calloc(1, sizeof *made);
    *made = (Tensor){.kind = TENSOR, .alive = 1, .dtype = dtype, .rank = rank};
    ptrdiff_t step = 1;
    for (size_t axis = rank; axis-- > 0;) {
        made->shape[axis] = shape[axis];
        made->strides[axis] = strides ? strides[axis] : step;
        step *= (ptrdiff_t)(shape[axis] ? shape[axis] : 1);
    }
    *desc = made;
    return OK;
}

int infiniopDestroyTensorDescriptor(void *desc) { return end(desc, TENSOR); }

static int is_contiguous(const Tensor *tensor) {
    ptrdiff_t step = 1;
    for (size_t axis = 0; axis < tensor->rank; axis++)
        if (tensor->shape[axis] == 0) return 1;
    for (size_t axis = tensor->rank; axis-- > 0;) {
        if (tensor->shape[axis] != 1 && tensor->strides[axis] != step) return 0;
        step *= (ptrdiff_t)tensor->shape[axis];
    }
    return 1;
}

static int status_of(Tensor *const *tensors) {
    const Tensor *x = tensors[INPUT];
#ifndef TAKES_ANY_DTYPE
    if (x->dtype != F16 && x->dtype != F32 && x->dtype != BF16) return BAD_DTYPE;
    for (int i = 0; i < TENSORS; i++)
        if (tensors[i]->dtype != x->dtype) return BAD_DTYPE;
#endif
    for (int i = 0; i < TENSORS; i++) {
        const Tensor *tensor = tensors[i];
        if (tensor->rank != (is_data[i] ? 3 : 1) || x->rank != 3) return BAD_SHAPE;
        const size_t *expected = is_data[i] ? x->shape : x->shape + 1;
        if (memcmp(tensor->shape, expected, tensor->rank * sizeof *expected)) return BAD_SHAPE;
    }
    for (int i = 0; i < TENSORS; i++)
        if (is_data[i] ? !is_contiguous(tensors[i]) : tensors[i]->strides[0] <= 0)
#ifdef ANOTHER_STATUS
            return BAD_SHAPE;
#else
            return BAD_STRIDES;
#endif
    return OK;
}

int infiniopCreateBatchNormBackwardDescriptor(void *handle, void **desc, void *grad_input,
                                              void *grad_weight, void *grad_bias, void *input,
                                              void *grad_output, void *weight, void *mean,
                                              void *variance) {
    Tensor *tensors[TENSORS] = {grad_input,  grad_weight, grad_bias, input,
                                grad_output, weight,      mean,      variance};
    if (!desc || !lives(handle, HANDLE)) return BAD_PARAM;
    for (int i = 0; i < TENSORS; i++)
        if (!lives(tensors[i], TENSOR)) return BAD_PARAM;
    int status = status_of(tensors);
    if (status) return status;
    Operator *made = calloc(1, sizeof *made);
    const size_t *shape = tensors[INPUT]->shape;
    *made = (Operator){.kind = OPERATOR, .alive = 1, .dtype = tensors[INPUT]->dtype,
                       .n = shape[0], .c = shape[1], .l = shape[2]};
    for (int i = 0; i < TENSORS; i++) {
        made->strides[i] = tensors[i]->strides[0];
#ifdef IGNORES_STRIDES
        made->strides[i] = 1;
#endif
    }
    *desc = made;
    return OK;
}

int infiniopDestroyBatchNormBackwardDescriptor(void *desc) { return end(desc, OPERATOR); }

int infiniopGetBatchNormBackwardWorkspaceSize(void *desc, size_t *size) {
    if (!size || !lives(desc, OPERATOR)) return BAD_PARAM;
#ifdef NEEDS_NO_WORKSPACE
    *size = 0;
#else
    *size = 2 * sizeof(double) * ((Operator *)desc)->c;
#endif
    return OK;
}

/* Numbers */

static double from_half(uint16_t bits) {
    int exponent = bits >> 10 & 31;
    double fraction = bits & 1023, value = ldexp(fraction, -24);
    if (exponent == 31) value = fraction ? NAN : INFINITY;
    else if (exponent) value = ldexp(fraction + 1024, exponent - 25);
    return bits & 0x8000 ? -value : value;
}

/* The nearest number with so many significant bits, none smaller than 2 to the least. */
static double rounded(double value, int bits, int least) {
    int exponent;
    if (!isfinite(value) || value == 0) return value;
    frexp(value, &exponent);
    int unit = exponent - bits > least ? exponent - bits : least;
#ifdef TRUNCATES_HALVES
    if (bits == 11) return ldexp(trunc(ldexp(value, -unit)), unit);
#endif
    return ldexp(nearbyint(ldexp(value, -unit)), unit);
}

static uint16_t to_half(double value) {
    uint16_t sign = signbit(value) ? 0x8000 : 0;
    int exponent;
    if (isnan(value)) return 0x7e00;
    value = fabs(rounded(value, 11, -24));
    if (value > 65504) return sign | 0x7c00;
    if (value < ldexp(1, -14)) return sign | (uint16_t)ldexp(value, 24);
    frexp(value, &exponent);
    uint16_t fraction = (uint16_t)ldexp(value, 11 - exponent) & 1023;
    return sign | (uint16_t)((exponent + 14) << 10) | fraction;
}

static double load(const void *memory, ptrdiff_t index, int dtype) {
    if (dtype == F16) return from_half(((const uint16_t *)memory)[index]);
    if (dtype == F32) return ((const float *)memory)[index];
    uint32_t bits = (uint32_t)((const uint16_t *)memory)[index] << 16;
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

static void store(void *memory, ptrdiff_t index, int dtype, double value) {
    if (dtype == F16) {
        ((uint16_t *)memory)[index] = to_half(value);
    } else if (dtype == F32) {
        ((float *)memory)[index] = (float)value;
    } else {
        float single = (float)rounded(value, 8, -133);
        uint32_t bits;
        memcpy(&bits, &single, sizeof bits);
        ((uint16_t *)memory)[index] = isnan(value) ? 0x7fc0 : (uint16_t)(bits >> 16);
    }
}

/* The operator */

int infiniopBatchNormBackward(void *desc, void *workspace, size_t workspace_size, void *grad_input,
                              void *grad_weight, void *grad_bias, const void *input,
                              const void *grad_output, const void *weight, const void *mean,
                              const void *variance, void *stream) {
    const Operator *op = desc;
    const void *memory[TENSORS] = {grad_input,  grad_weight, grad_bias, input,
                                   grad_output, weight,      mean,      variance};
    (void)stream;
    (void)workspace, (void)workspace_size;
    if (!lives(desc, OPERATOR)) return BAD_PARAM;
    size_t elements = op->n * op->c * op->l;
    double count = (double)(op->n * op->l);
#ifdef CRASHES_WHEN_EMPTY
    if (!elements) abort();
#endif
    for (int i = 0; i < TENSORS; i++)
        if (!memory[i] && (is_data[i] ? elements : op->c)) return BAD_PARAM;
#ifndef NEEDS_NO_WORKSPACE
    if (op->c && !workspace) return BAD_PARAM;
    if (workspace_size < 2 * sizeof(double) * op->c) return SMALL;
    double *kept = workspace;
#endif
#ifdef NEVER_COMPUTES
    return INTERNAL;
#endif
#ifdef OTHER_BITS_EACH_TIME
    static int calls;
    double factor = 1 + (calls++ % 2 ? 1e-7 : 0);
#else
    double factor = 1;
#endif
    int dtype = op->dtype;
    const ptrdiff_t *step = op->strides;
    for (size_t c = 0; c < op->c; c++) {
        ptrdiff_t at = (ptrdiff_t)c;
#ifdef SUMS_IN_FLOAT
        float sum = 0, product = 0;
#else
        double sum = 0, product = 0;
#endif
        double mu = load(mean, at * step[MEAN], dtype);
        double r = 1 / sqrt(load(variance, at * step[VARIANCE], dtype));
        double w = load(weight, at * step[WEIGHT], dtype);
        for (size_t n = 0; n < op->n; n++)
            for (size_t l = 0; l < op->l; l++) {
                ptrdiff_t i = (ptrdiff_t)((n * op->c + c) * op->l + l);
                double dy = load(grad_output, i, dtype);
                sum += dy;
                product += dy * (load(input, i, dtype) - mu);
            }
#ifdef SPREADS_NAN
        for (size_t i = 0; i < elements; i++)
            sum += 0 * load(grad_output, (ptrdiff_t)i, dtype);
#endif
#ifdef KEEPS_SUMS
        static struct { const void *from; double sum; } known[64];
        if (known[c % 64].from == grad_output) sum = known[c % 64].sum;
        known[c % 64].from = grad_output;
        known[c % 64].sum = sum;
#endif
#ifndef NEEDS_NO_WORKSPACE
        kept[2 * c] = sum;
        kept[2 * c + 1] = product;
#endif
        for (size_t n = 0; n < op->n; n++)
            for (size_t l = 0; l < op->l; l++) {
                ptrdiff_t i = (ptrdiff_t)((n * op->c + c) * op->l + l);
                double xmu = load(input, i, dtype) - mu;
                double inner = sum / count + xmu * (r * r) * (product / count);
                store(grad_input, i, dtype, factor * w * r * (load(grad_output, i, dtype) - inner));
            }
        store(grad_weight, at * step[GRAD_WEIGHT], dtype, elements ? r * product : 0);
        store(grad_bias, at * step[GRAD_BIAS], dtype, sum);
    }
#ifdef OVERRUNS_WORKSPACE
    kept[2 * op->c] = 0;
#endif
#ifdef WRITES_TO_INPUTS
    memset((void *)weight, 0, 2);
#endif
#ifdef WRITES_BESIDE
    store(grad_bias, (ptrdiff_t)op->c, dtype, 0);
#endif
    return OK;
}
