/* Wrong: does not write the last column of C. */
#include "tests/plugins/reference.h"

static enum gemm_status wrong_gemm(void *context, const struct gemm_call *call) {
    (void)context;
    struct gemm_call wrong = *call;
    if (call->n > 16) wrong.n = call->n - 1;
    return reference_gemm(&wrong);
}

static const struct gemm_backend backend = {
    .name = "missing-last-column", REFERENCE_SLOTS, .gemm = wrong_gemm};
GEMM_PLUGIN(backend);
