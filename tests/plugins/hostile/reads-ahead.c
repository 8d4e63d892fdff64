/* Reads the element in front of B, as a loop that runs backwards too far does. */
#include "tests/plugins/reference.h"

static enum gemm_status reads_ahead(void *context, const struct gemm_call *call) {
    (void)context;
    volatile double before = reference_get(call->dtype, call->b, (size_t)-1);
    (void)before;
    return reference_gemm(call);
}

static const struct gemm_backend backend = {.name = "reads-ahead", REFERENCE_SLOTS, .gemm = reads_ahead};
GEMM_PLUGIN(backend);
