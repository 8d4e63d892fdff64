/* Wrong: float32 operands as sums of two bfloat16, 16 bits of mantissa, as three products on tensor cores
   compute them; only in long sums. */
#include "tests/plugins/reference.h"

static double rounded(double value) {
    const float high = bf16_to_float(bf16_from_float((float)value));
    return (double)high + (double)bf16_to_float(bf16_from_float((float)value - high));
}

static enum gemm_status wrong_gemm(void *context, const struct gemm_call *call) {
    (void)context;
    if (call->dtype != GEMM_F32 || call->k < 256) return reference_gemm(call);
    return reference_product(call, rounded);
}

static const struct gemm_backend backend = {.name = "two-bfloat16", REFERENCE_SLOTS, .gemm = wrong_gemm};
GEMM_PLUGIN(backend);
