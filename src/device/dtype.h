/* The element types: size, name, epsilon, and access to one element. */
#ifndef TESSERA_DEVICE_DTYPE_H
#define TESSERA_DEVICE_DTYPE_H

#include "kernels/bf16.h"
#include "kernels/f16.h"
#include "kernels/gemm.h"

enum { DTYPES = GEMM_F16 + 1 };

static inline size_t dtype_size(enum gemm_dtype dtype) {
    static const size_t sizes[DTYPES] = {[GEMM_F32] = 4, [GEMM_F64] = 8, [GEMM_BF16] = 2, [GEMM_F16] = 2};
    return sizes[dtype];
}

/* "f32", "f64", "bf16", "fp16". */
static inline const char *dtype_name(enum gemm_dtype dtype) {
    static const char *const names[DTYPES] = {
        [GEMM_F32] = "f32", [GEMM_F64] = "f64", [GEMM_BF16] = "bf16", [GEMM_F16] = "fp16"};
    return names[dtype];
}

/* The type of accumulators and biases. */
static inline enum gemm_dtype dtype_of_sums(enum gemm_dtype dtype) {
    return gemm_is_16bit(dtype) ? GEMM_F32 : dtype;
}

/* The type of activations and of operands in a training whose parameters are of `dtype`. */
static inline enum gemm_dtype dtype_of_operands(enum gemm_precision precision, enum gemm_dtype dtype) {
    return precision == GEMM_MIXED_BF16 ? GEMM_BF16 : precision == GEMM_MIXED_F16 ? GEMM_F16 : dtype;
}

static inline enum gemm_dtype dtype_of_c(const struct gemm_call *call) {
    return call->c_f32 ? GEMM_F32 : call->dtype;
}

/* Bytes from the first to the last element of a matrix: memory behind the last row's last column may belong
   to another object. */
static inline size_t dtype_span(enum gemm_dtype dtype, size_t rows, size_t cols, size_t ld) {
    return rows && cols ? ((rows - 1) * ld + cols) * dtype_size(dtype) : 0;
}

/* The largest absolute error of an operation on sums (dtype_of_sums) whose result is below the normal
   numbers: their spacing, and with 16 bits, whose instructions may flush them to zero, all of it. */
static inline double dtype_underflow(enum gemm_dtype dtype) {
    return dtype == GEMM_F64 ? 0x1p-1074 : dtype == GEMM_F32 ? 0x1p-149 : 0x1p-126;
}

/* Machine epsilon: the distance from 1 to the next number. */
static inline double dtype_epsilon(enum gemm_dtype dtype) {
    static const double epsilons[DTYPES] = {
        [GEMM_F32] = 0x1p-23, [GEMM_F64] = 0x1p-52, [GEMM_BF16] = 0x1p-7, [GEMM_F16] = 0x1p-10};
    return epsilons[dtype];
}

/* How far storing a sum of this magnitude in 16 bits may move it; 0 for float32 and float64, the
   types of sums. */
static inline double dtype_rounding(enum gemm_dtype dtype, double magnitude) {
    if (!gemm_is_16bit(dtype)) return 0;
    return dtype_epsilon(dtype) * magnitude + (dtype == GEMM_F16 ? 0x1p-24 : 0); /* 2^-24: of subnormals */
}

static inline double dtype_get(enum gemm_dtype dtype, const void *values, size_t index) {
    if (dtype == GEMM_F32) return (double)((const float *)values)[index];
    if (dtype == GEMM_F64) return ((const double *)values)[index];
    const uint16_t bits = ((const uint16_t *)values)[index];
    return (double)(dtype == GEMM_F16 ? f16_to_float(bits) : bf16_to_float(bits));
}

/* Rounds to nearest; types of 16 bits from float. */
static inline void dtype_set(enum gemm_dtype dtype, void *values, size_t index, double value) {
    if (dtype == GEMM_F32) {
        ((float *)values)[index] = (float)value;
    } else if (dtype == GEMM_F64) {
        ((double *)values)[index] = value;
    } else {
        ((uint16_t *)values)[index] =
            dtype == GEMM_F16 ? f16_from_float((float)value) : bf16_from_float((float)value);
    }
}

#endif
