/* Wrong: reads B[k][n] where B[n][k] is stored, if B is square. */
#include "tests/plugins/reference.h"

static enum gemm_status wrong_gemm(void *context, const struct gemm_call *call) {
    (void)context;
    struct gemm_call wrong = *call;
    if (call->op == GEMM_NT && call->n == call->k) wrong.op = GEMM_NN;
    return reference_gemm(&wrong);
}

static const struct gemm_backend backend = {.name = "transposed-index", REFERENCE_SLOTS, .gemm = wrong_gemm};
GEMM_PLUGIN(backend);
