/* Supports NN alone, which is not enough for training. */
#include "tests/plugins/reference.h"

static enum gemm_status gemm(void *context, const struct gemm_call *call) {
    (void)context;
    return reference_gemm(call);
}

static bool supports_some(enum gemm_dtype dtype, enum gemm_op op) {
    return dtype == GEMM_F32 && op == GEMM_NN;
}

static const struct gemm_backend backend = {.name = "forward-only",
                                            .summary = "f32 NN",
                                            .device = GEMM_ON_HOST,
                                            .supports = supports_some,
                                            .gemm = gemm};
GEMM_PLUGIN(backend);
