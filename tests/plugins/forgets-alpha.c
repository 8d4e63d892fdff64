/* Wrong: uses 1 for alpha. */
#include "tests/plugins/reference.h"

static enum gemm_status wrong_gemm(void *context, const struct gemm_call *call) {
    (void)context;
    struct gemm_call wrong = *call;
    wrong.alpha = 1;
    return reference_gemm(&wrong);
}

static const struct gemm_backend backend = {.name = "forgets-alpha", REFERENCE_SLOTS, .gemm = wrong_gemm};
GEMM_PLUGIN(backend);
