/* Wrong: rounds float32 operands to the 10 bits of mantissa of TF32, but only in long sums, where a bound
   that grows with k would accept it. */
#include "tests/plugins/reference.h"

static float to_tf32(double value) {
    float single = (float)value;
    uint32_t bits;
    memcpy(&bits, &single, sizeof bits);
    bits = (bits + 0x1000u) & ~0x1FFFu;
    memcpy(&single, &bits, sizeof bits);
    return single;
}

static enum gemm_status wrong_gemm(void *context, const struct gemm_call *call) {
    (void)context;
    if (call->dtype != GEMM_F32 || call->k < 256) return reference_gemm(call);
    for (size_t i = 0; i < call->m; i++)
        for (size_t j = 0; j < call->n; j++) {
            double sum = 0;
            for (size_t p = 0; p < call->k; p++)
                sum += (double)to_tf32(reference_a(call, i, p)) * (double)to_tf32(reference_b(call, p, j));
            const double c = call->beta == 0 ? 0 : call->beta * reference_get_c(call, i, j);
            reference_set_c(call, i, j, call->alpha * sum + c);
        }
    return GEMM_OK;
}

static const struct gemm_backend backend = {.name = "tf32-as-f32", REFERENCE_SLOTS, .gemm = wrong_gemm};
GEMM_PLUGIN(backend);
