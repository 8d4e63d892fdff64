/* Its device is the GPU: it must not be called on a machine without one. */
#include "tests/plugins/reference.h"

static enum gemm_status gemm(void *context, const struct gemm_call *call) {
    (void)context;
    return reference_gemm(call);
}

static const struct gemm_backend backend = {.name = "on-cuda",
                                            .summary = "for a GPU",
                                            .device = GEMM_ON_CUDA,
                                            .supports = reference_supports,
                                            .gemm = gemm};
GEMM_PLUGIN(backend);
