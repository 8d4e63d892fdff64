/* Has a backend, but no GEMM_PLUGIN. */
#include "tests/plugins/reference.h"

static enum gemm_status gemm(void *context, const struct gemm_call *call) {
    (void)context;
    return reference_gemm(call);
}

extern const struct gemm_backend forgotten;
const struct gemm_backend forgotten = {.name = "no-symbol", REFERENCE_SLOTS, .gemm = gemm};
