/* Wrong: one long accumulator that is truncated to float32 after every 16 of k, as tensor cores do. */
#include <math.h>

#include "tests/plugins/reference.h"

static float truncated(double value) {
    const float nearest = (float)value;
    return fabs((double)nearest) > fabs(value) ? nextafterf(nearest, 0) : nearest;
}

static enum gemm_status wrong_gemm(void *context, const struct gemm_call *call) {
    enum { AT_ONCE = 16 };
    (void)context;
    if (call->dtype != GEMM_F32) return reference_gemm(call);
    for (size_t i = 0; i < call->m; i++)
        for (size_t j = 0; j < call->n; j++) {
            float sum = 0;
            for (size_t p = 0; p < call->k; p += AT_ONCE) {
                const size_t end = p + AT_ONCE < call->k ? p + AT_ONCE : call->k;
                double part = (double)sum;
                for (size_t q = p; q < end; q++) part += reference_a(call, i, q) * reference_b(call, q, j);
                sum = truncated(part);
            }
            const double c = call->beta == 0 ? 0 : call->beta * reference_get_c(call, i, j);
            reference_set_c(call, i, j, call->alpha * (double)sum + c);
        }
    return GEMM_OK;
}

static const struct gemm_backend backend = {.name = "truncated-sum", REFERENCE_SLOTS, .gemm = wrong_gemm};
GEMM_PLUGIN(backend);
