/* kernels/gemm.h alone, in strict C11: the whole of a plug-in, in float32 and float64. */
#include "kernels/gemm.h"

static bool probe(char *why, size_t size) {
    (void)why;
    (void)size;
    return true;
}

static void *create(const struct gemm_options *options, char *why, size_t size) {
    static int context;
    (void)options;
    (void)why;
    (void)size;
    return &context;
}

static void destroy(void *context) {
    (void)context;
}

static bool supports(enum gemm_dtype dtype, enum gemm_op op) {
    return dtype != GEMM_BF16 && op != GEMM_TT;
}

static enum gemm_status gemm(void *context, const struct gemm_call *call) {
    const bool ta = gemm_transposes_a(call->op), tb = gemm_transposes_b(call->op),
               single = call->dtype == GEMM_F32;
    (void)context;
    for (size_t i = 0; i < call->m; i++)
        for (size_t j = 0; j < call->n; j++) {
            const size_t to = i * call->ldc + j;
            double sum = 0;
            for (size_t p = 0; p < call->k; p++) {
                const size_t x = ta ? p * call->lda + i : i * call->lda + p,
                             y = tb ? j * call->ldb + p : p * call->ldb + j;
                sum += single ? (double)((const float *)call->a)[x] * (double)((const float *)call->b)[y]
                              : ((const double *)call->a)[x] * ((const double *)call->b)[y];
            }
            sum *= call->alpha;
            if (call->beta != 0)
                sum += call->beta * (single ? (double)((float *)call->c)[to] : ((double *)call->c)[to]);
            if (single) {
                ((float *)call->c)[to] = (float)sum;
            } else {
                ((double *)call->c)[to] = sum;
            }
        }
    return GEMM_OK;
}

static const struct gemm_backend backend = {.name = "c11",
                                            .summary = "three loops in C11",
                                            .device = GEMM_ON_HOST,
                                            .probe = probe,
                                            .create = create,
                                            .destroy = destroy,
                                            .supports = supports,
                                            .gemm = gemm};
GEMM_PLUGIN(backend);
