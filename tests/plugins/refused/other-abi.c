/* Built against a later header. */
#include "tests/plugins/reference.h"

static enum gemm_status gemm(void *context, const struct gemm_call *call) {
    (void)context;
    return reference_gemm(call);
}

static const struct gemm_backend backend = {.name = "other-abi", REFERENCE_SLOTS, .gemm = gemm};
extern const struct gemm_plugin gemm_plugin;
const struct gemm_plugin gemm_plugin = {GEMM_ABI + 1, sizeof backend, &backend};
