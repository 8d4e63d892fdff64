/* A complete float32 plug-in in strict C11 with kernels/gemm.h alone. */
#include "kernels/gemm.h"

static bool supports(enum gemm_dtype dtype, enum gemm_op op) {
    return dtype == GEMM_F32 && op != GEMM_TT;
}

static enum gemm_status gemm(void *context, const struct gemm_call *call) {
    enum { COLUMNS = 16 }; /* whose sums are added side by side */
    const bool ta = gemm_transposes_a(call->op), tb = gemm_transposes_b(call->op);
    const size_t a_row = ta ? 1 : call->lda, a_p = ta ? call->lda : 1;
    const size_t b_p = tb ? 1 : call->ldb, b_col = tb ? call->ldb : 1;
    const float *a = call->a, *b = call->b;
    (void)context;
    for (size_t i = 0; i < call->m; i++)
        for (size_t j0 = 0; j0 < call->n; j0 += COLUMNS) {
            const size_t columns = call->n - j0 < COLUMNS ? call->n - j0 : COLUMNS;
            float sum[COLUMNS] = {0}, *c = (float *)call->c + i * call->ldc + j0;
            for (size_t p = 0; p < call->k; p++)
                for (size_t j = 0; j < columns; j++)
                    sum[j] += a[i * a_row + p * a_p] * b[p * b_p + (j0 + j) * b_col];
            for (size_t j = 0; j < columns; j++)
                c[j] = (float)call->alpha * sum[j] + (call->beta == 0 ? 0 : (float)call->beta * c[j]);
        }
    return GEMM_OK;
}

static const struct gemm_backend backend = {.name = "c11",
                                            .summary = "three loops in C11",
                                            .device = GEMM_ON_HOST,
                                            .supports = supports,
                                            .gemm = gemm};
GEMM_PLUGIN(backend);
