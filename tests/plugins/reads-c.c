/* Wrong: computes C *= beta for beta = 0 too, so that NaN in C stays NaN. */
#include "tests/plugins/reference.h"

static enum gemm_status wrong_gemm(void *context, const struct gemm_call *call) {
    (void)context;
    for (size_t i = 0; i < call->m; i++)
        for (size_t j = 0; j < call->n; j++)
            reference_set_c(call, i, j,
                            call->beta * reference_get_c(call, i, j) + reference_sum(call, i, j, 0, call->k));
    return GEMM_OK;
}

static const struct gemm_backend backend = {.name = "reads-c", REFERENCE_SLOTS, .gemm = wrong_gemm};
GEMM_PLUGIN(backend);
