/* Wrong: one element of a large C is NaN. */
#include "tests/plugins/reference.h"

#include <math.h>

static enum gemm_status wrong_gemm(void *context, const struct gemm_call *call) {
    (void)context;
    reference_gemm(call);
    if (call->m * call->n > 1000) reference_set_c(call, call->m / 2, call->n / 2, (double)NAN);
    return GEMM_OK;
}

static const struct gemm_backend backend = {.name = "nan-output", REFERENCE_SLOTS, .gemm = wrong_gemm};
GEMM_PLUGIN(backend);
