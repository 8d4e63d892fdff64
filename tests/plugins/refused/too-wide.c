/* Correct on the case list, but fails for wider products: its workspace cannot grow. */
#include "tests/plugins/reference.h"

static enum gemm_status wrong_gemm(void *context, const struct gemm_call *call) {
    (void)context;
    return call->n > 1000 ? GEMM_FAILED : reference_gemm(call);
}

static const char *what_failed(void *context) {
    (void)context;
    return "no memory for the workspace";
}

static const struct gemm_backend backend = {
    .name = "too-wide", REFERENCE_SLOTS, .gemm = wrong_gemm, .error = what_failed};
GEMM_PLUGIN(backend);
