/* A correct GEMM in a few lines, so that each wrong plug-in of this folder consists of its mistake alone. All
   sums are double; nothing is fast. */
#ifndef TESSERA_TESTS_PLUGINS_REFERENCE_H
#define TESSERA_TESTS_PLUGINS_REFERENCE_H

#include <stdlib.h>

#include "kernels/bf16.h"
#include "kernels/f16.h"
#include "kernels/gemm.h"

static inline double reference_get(enum gemm_dtype dtype, const void *values, size_t at) {
    if (dtype == GEMM_F32) return (double)((const float *)values)[at];
    if (dtype == GEMM_F64) return ((const double *)values)[at];
    const uint16_t bits = ((const uint16_t *)values)[at];
    return (double)(dtype == GEMM_F16 ? f16_to_float(bits) : bf16_to_float(bits));
}

static inline void reference_set(enum gemm_dtype dtype, void *values, size_t at, double value) {
    if (dtype == GEMM_F32) {
        ((float *)values)[at] = (float)value;
    } else if (dtype == GEMM_F64) {
        ((double *)values)[at] = value;
    } else {
        ((uint16_t *)values)[at] =
            dtype == GEMM_F16 ? f16_from_float((float)value) : bf16_from_float((float)value);
    }
}

static inline double reference_a(const struct gemm_call *call, size_t i, size_t p) {
    return reference_get(call->dtype, call->a,
                         gemm_transposes_a(call->op) ? p * call->lda + i : i * call->lda + p);
}

static inline double reference_b(const struct gemm_call *call, size_t p, size_t j) {
    return reference_get(call->dtype, call->b,
                         gemm_transposes_b(call->op) ? j * call->ldb + p : p * call->ldb + j);
}

static inline enum gemm_dtype reference_c_dtype(const struct gemm_call *call) {
    return call->c_f32 ? GEMM_F32 : call->dtype;
}

static inline double reference_get_c(const struct gemm_call *call, size_t i, size_t j) {
    return reference_get(reference_c_dtype(call), call->c, i * call->ldc + j);
}

static inline void reference_set_c(const struct gemm_call *call, size_t i, size_t j, double value) {
    reference_set(reference_c_dtype(call), call->c, i * call->ldc + j, value);
}

/* alpha times the sum of the terms p0 to p1 of element i, j. */
static inline double reference_sum(const struct gemm_call *call, size_t i, size_t j, size_t p0, size_t p1) {
    double sum = 0;
    for (size_t p = p0; p < p1; p++) sum += reference_a(call, i, p) * reference_b(call, p, j);
    return call->alpha * sum;
}

/* The operand as it is, for reference_product. */
static inline double reference_exact(double operand) {
    return operand;
}

/* The product of operands that go through `rounded`, with sums of several columns at once: each verification
   makes thousands of products. */
static inline __attribute__((always_inline)) enum gemm_status reference_product(const struct gemm_call *call,
                                                                                double (*rounded)(double)) {
    enum { COLUMNS = 16 };
    double(*const b)[COLUMNS] = calloc(call->k + 1, sizeof *b); /* columns j0 .. of op(B), then zeros */
    if (!b) return GEMM_FAILED;
    for (size_t j0 = 0; j0 < call->n; j0 += COLUMNS) {
        const size_t columns = call->n - j0 < COLUMNS ? call->n - j0 : COLUMNS;
        for (size_t p = 0; p < call->k; p++)
            for (size_t j = 0; j < COLUMNS; j++)
                b[p][j] = j < columns ? rounded(reference_b(call, p, j0 + j)) : 0;
        for (size_t i = 0; i < call->m; i++) {
            double sum[COLUMNS] = {0};
            for (size_t p = 0; p < call->k; p++) {
                const double a = rounded(reference_a(call, i, p));
                for (size_t j = 0; j < COLUMNS; j++) sum[j] += a * b[p][j];
            }
            for (size_t j = 0; j < columns; j++) {
                const double c = call->beta == 0 ? 0 : call->beta * reference_get_c(call, i, j0 + j);
                reference_set_c(call, i, j0 + j, call->alpha * sum[j] + c);
            }
        }
    }
    free(b);
    return GEMM_OK;
}

__attribute__((noinline, unused)) static enum gemm_status reference_gemm(const struct gemm_call *call) {
    return reference_product(call, reference_exact);
}

/* One dtype suffices to show a mistake and is quicker to verify. */
static inline bool reference_supports(enum gemm_dtype dtype, enum gemm_op op) {
    return dtype == GEMM_F32 && op != GEMM_TT;
}

/* The slots that most plug-ins share. */
#define REFERENCE_SLOTS \
    .summary = "a plug-in of the tests", .device = GEMM_ON_HOST, .supports = reference_supports

#endif
