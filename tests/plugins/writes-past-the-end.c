/* Wrong: writes one element behind the last row. */
#include "tests/plugins/reference.h"

static enum gemm_status wrong_gemm(void *context, const struct gemm_call *call) {
    (void)context;
    reference_set_c(call, call->m - 1, call->n, 0);
    return reference_gemm(call);
}

static const struct gemm_backend backend = {
    .name = "writes-past-the-end", REFERENCE_SLOTS, .gemm = wrong_gemm};
GEMM_PLUGIN(backend);
