/* Wrong: truncates a bfloat16 C instead of rounding it to nearest. */
#include "tests/plugins/reference.h"

static enum gemm_status wrong_gemm(void *context, const struct gemm_call *call) {
    (void)context;
    reference_gemm(call);
    if (reference_c_dtype(call) != GEMM_BF16) return GEMM_OK;
    for (size_t i = 0; i < call->m; i++)
        for (size_t j = 0; j < call->n; j++) {
            const float sum = (float)reference_sum(call, i, j, 0, call->k);
            uint32_t bits;
            memcpy(&bits, &sum, sizeof bits);
            ((uint16_t *)call->c)[i * call->ldc + j] = (uint16_t)(bits >> 16);
        }
    return GEMM_OK;
}

static bool supports_bfloat16(enum gemm_dtype dtype, enum gemm_op op) {
    return (dtype == GEMM_F32 || dtype == GEMM_BF16) && op != GEMM_TT;
}

static const struct gemm_backend backend = {.name = "truncates-bfloat16",
                                            .summary = "a plug-in of the tests",
                                            .device = GEMM_ON_HOST,
                                            .supports = supports_bfloat16,
                                            .gemm = wrong_gemm};
GEMM_PLUGIN(backend);
