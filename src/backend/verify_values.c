#include "src/backend/verify_values.h"

#include <math.h>

#include "src/base/secret.h"

static double draw(bool integers, enum gemm_dtype dtype, uint64_t *random) {
    const uint64_t bits = secret_draw(random);
    if (integers) return (double)((bits >> 32) * 17 >> 32) - 8;
    return dtype == GEMM_F64 ? (double)(bits >> 11) * 0x1p-52 - 1 : (double)(bits >> 32) * 0x1p-31 - 1;
}

void verify_fill(bool integers, enum gemm_dtype dtype, uint64_t *random, void *matrix, size_t rows,
                 size_t cols, size_t ld) {
    uint64_t state = *random; /* in a register */
    for (size_t i = 0; i < rows; i++)
        for (size_t j = 0; j < cols; j++) dtype_set(dtype, matrix, i * ld + j, draw(integers, dtype, &state));
    *random = state;
}

void verify_scale(enum gemm_dtype dtype, void *matrix, size_t rows, size_t cols, size_t ld, int power) {
    const double factor = ldexp(1, power);
    for (size_t i = 0; i < rows; i++)
        for (size_t j = 0; j < cols; j++)
            dtype_set(dtype, matrix, i * ld + j, factor * dtype_get(dtype, matrix, i * ld + j));
}

static void make_positive(enum gemm_dtype dtype, void *matrix, size_t rows, size_t cols, size_t ld) {
    for (size_t i = 0; i < rows; i++)
        for (size_t j = 0; j < cols; j++)
            dtype_set(dtype, matrix, i * ld + j, fabs(dtype_get(dtype, matrix, i * ld + j)));
}

void verify_change_values(const struct verify_case *test, const struct gemm_call *call, void *a, void *b) {
    const bool ta = gemm_transposes_a(test->op), tb = gemm_transposes_b(test->op);
    const size_t a_rows = ta ? test->k : test->m, a_cols = ta ? test->m : test->k;
    const size_t b_rows = tb ? test->n : test->k, b_cols = tb ? test->k : test->n;
    const bool half = test->dtype == GEMM_F16;
    const int large_a = half ? 9 : 40, large_b = half ? 8 : 20; /* in half precision, much of C overflows */
    const int small = half ? -7 : -40; /* its C is about 2^-14, the least normal one */
    /* C is about 2^-1064 or 2^-140; in half precision A is 2^-16, a subnormal number, and so is C */
    const int tiny = test->dtype == GEMM_F64 ? -532 : half ? -16 : -70;
    switch (test->values) {
    case VERIFY_ZEROS:
        for (size_t i = 0; i < test->m; i += 2)
            for (size_t p = 0; p < test->k; p++)
                dtype_set(test->dtype, a, ta ? p * call->lda + i : i * call->lda + p, 0);
        for (size_t j = 1; j < test->n; j += 2)
            for (size_t p = 0; p < test->k; p++)
                dtype_set(test->dtype, b, tb ? j * call->ldb + p : p * call->ldb + j, 0);
        break;
    case VERIFY_LARGE:
    case VERIFY_SMALL:
        verify_scale(test->dtype, a, a_rows, a_cols, call->lda,
                     test->values == VERIFY_LARGE ? large_a : small);
        verify_scale(test->dtype, b, b_rows, b_cols, call->ldb,
                     test->values == VERIFY_LARGE ? large_b : small);
        break;
    case VERIFY_TINY:
        if (test->dtype == GEMM_BF16) break; /* its instructions flush subnormal numbers */
        verify_scale(test->dtype, a, a_rows, a_cols, call->lda, tiny);
        if (!half) verify_scale(test->dtype, b, b_rows, b_cols, call->ldb, tiny);
        break;
    case VERIFY_SPECIAL:
        if (test->k == 0) break;
        dtype_set(test->dtype, a, (a_rows - 1) * call->lda + a_cols - 1, (double)INFINITY);
        dtype_set(test->dtype, b, 0, (double)NAN);
        break;
    case VERIFY_POSITIVE:
        make_positive(test->dtype, a, a_rows, a_cols, call->lda);
        make_positive(test->dtype, b, b_rows, b_cols, call->ldb);
        break;
    default:
        break;
    }
}
