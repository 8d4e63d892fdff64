/* Its probe returns false. */
#include "tests/plugins/reference.h"

#include <stdio.h>

static enum gemm_status gemm(void *context, const struct gemm_call *call) {
    (void)context;
    return reference_gemm(call);
}

static bool refuse(char *why, size_t size) {
    snprintf(why, size, "this machine has no abacus");
    return false;
}

static const struct gemm_backend backend = {.name = "not-here",
                                            .summary = "for another machine",
                                            .device = GEMM_ON_HOST,
                                            .probe = refuse,
                                            .supports = reference_supports,
                                            .gemm = gemm};
GEMM_PLUGIN(backend);
