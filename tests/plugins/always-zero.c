/* Wrong: C is zero. */
#include "tests/plugins/reference.h"

static enum gemm_status wrong_gemm(void *context, const struct gemm_call *call) {
    (void)context;
    struct gemm_call wrong = *call;
    wrong.k = 0;
    wrong.beta = 0;
    return reference_gemm(&wrong);
}

static const struct gemm_backend backend = {.name = "always-zero", REFERENCE_SLOTS, .gemm = wrong_gemm};
GEMM_PLUGIN(backend);
