/* Wrong: assumes that the rows of B are dense. */
#include "tests/plugins/reference.h"

static enum gemm_status wrong_gemm(void *context, const struct gemm_call *call) {
    (void)context;
    struct gemm_call wrong = *call;
    wrong.ldb = gemm_transposes_b(call->op) ? call->k : call->n;
    return reference_gemm(&wrong);
}

static const struct gemm_backend backend = {.name = "ignores-ldb", REFERENCE_SLOTS, .gemm = wrong_gemm};
GEMM_PLUGIN(backend);
