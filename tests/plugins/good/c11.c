/* A complete float32 plug-in in strict C11 with kernels/gemm.h alone. */
#include "kernels/gemm.h"

static bool supports(enum gemm_dtype dtype, enum gemm_op op) {
    return dtype == GEMM_F32 && op != GEMM_TT;
}

static enum gemm_status gemm(void *context, const struct gemm_call *call) {
    const bool ta = gemm_transposes_a(call->op), tb = gemm_transposes_b(call->op);
    const float *a = call->a, *b = call->b;
    (void)context;
    for (size_t i = 0; i < call->m; i++)
        for (size_t j = 0; j < call->n; j++) {
            float *c = (float *)call->c + i * call->ldc + j, sum = 0;
            for (size_t p = 0; p < call->k; p++)
                sum += a[ta ? p * call->lda + i : i * call->lda + p] *
                       b[tb ? j * call->ldb + p : p * call->ldb + j];
            *c = (float)call->alpha * sum + (call->beta == 0 ? 0 : (float)call->beta * *c);
        }
    return GEMM_OK;
}

static const struct gemm_backend backend = {.name = "c11",
                                            .summary = "three loops in C11",
                                            .device = GEMM_ON_HOST,
                                            .supports = supports,
                                            .gemm = gemm};
GEMM_PLUGIN(backend);
