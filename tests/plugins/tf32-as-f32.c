/* Wrong: rounds float32 operands to the 10 bits of mantissa of TF32, but only in long sums, where a bound
   that grows with k would accept it. */
#include "tests/plugins/reference.h"

static double to_tf32(double value) {
    float single = (float)value;
    uint32_t bits;
    memcpy(&bits, &single, sizeof bits);
    bits = (bits + 0x1000u) & ~0x1FFFu;
    memcpy(&single, &bits, sizeof bits);
    return (double)single;
}

static enum gemm_status wrong_gemm(void *context, const struct gemm_call *call) {
    (void)context;
    if (call->dtype != GEMM_F32 || call->k < 256) return reference_gemm(call);
    return reference_product(call, to_tf32);
}

static const struct gemm_backend backend = {.name = "tf32-as-f32", REFERENCE_SLOTS, .gemm = wrong_gemm};
GEMM_PLUGIN(backend);
