/* Wrong: reads an unmapped address at one size. */
#include "tests/plugins/reference.h"

static enum gemm_status wrong_gemm(void *context, const struct gemm_call *call) {
    (void)context;
    static volatile uintptr_t nowhere = 4096;
    if (call->m == 17) return *(const volatile enum gemm_status *)nowhere;
    return reference_gemm(call);
}

static const struct gemm_backend backend = {.name = "crashes", REFERENCE_SLOTS, .gemm = wrong_gemm};
GEMM_PLUGIN(backend);
