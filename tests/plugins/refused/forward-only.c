/* Has no weight gradient, TN. */
#include "tests/plugins/reference.h"

static enum gemm_status gemm(void *context, const struct gemm_call *call) {
    (void)context;
    return reference_gemm(call);
}

static bool supports_some(enum gemm_dtype dtype, enum gemm_op op) {
    return dtype == GEMM_F64 ? op != GEMM_TT : op != GEMM_TT && op != GEMM_TN;
}

static const struct gemm_backend backend = {.name = "forward-only",
                                            .summary = "f64, and f32 without TN",
                                            .device = GEMM_ON_HOST,
                                            .probe = reference_probe,
                                            .create = reference_create,
                                            .destroy = reference_destroy,
                                            .supports = supports_some,
                                            .gemm = gemm};
GEMM_PLUGIN(backend);
