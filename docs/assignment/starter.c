/* What the students get: it compiles and is right in the forward pass, C = A B. Your task: TN and NT, then
   the speed. kernels/gemm.h is the contract, docs/your-own-gemm.md a tutorial.

     gcc -std=gnu11 -O3 -march=native -shared -fPIC -I. starter.c -o starter.so
     ./train devices --backend ./starter.so --verify */
#include "kernels/gemm.h"

static enum gemm_status gemm(void *context, const struct gemm_call *call) {
    const float *a = call->a, *b = call->b;
    float *c = call->c;
    (void)context;
    for (size_t i = 0; i < call->m; i++)
        for (size_t j = 0; j < call->n; j++) {
            float sum = 0;
            for (size_t p = 0; p < call->k; p++) sum += a[i * call->lda + p] * b[p * call->ldb + j];
            const float old = call->beta == 0 ? 0 : (float)call->beta * c[i * call->ldc + j];
            c[i * call->ldc + j] = (float)call->alpha * sum + old; /* beta == 0 never reads C */
        }
    return GEMM_OK;
}

static bool supports(enum gemm_dtype dtype, enum gemm_op op) {
    return dtype == GEMM_F32 && op == GEMM_NN;
}

static const struct gemm_backend backend = {.name = "starter",
                                            .summary = "three loops, forward only",
                                            .device = GEMM_ON_HOST,
                                            .supports = supports,
                                            .gemm = gemm};
GEMM_PLUGIN(backend);
