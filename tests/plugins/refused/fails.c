/* Claims to support every call, but fails for k > 16. */
#include "tests/plugins/reference.h"

static enum gemm_status wrong_gemm(void *context, const struct gemm_call *call) {
    (void)context;
    return call->k > 16 ? GEMM_FAILED : reference_gemm(call);
}

static const char *what_failed(void *context) {
    (void)context;
    return "the tile is too small";
}

static const struct gemm_backend backend = {
    .name = "fails", REFERENCE_SLOTS, .gemm = wrong_gemm, .error = what_failed};
GEMM_PLUGIN(backend);
