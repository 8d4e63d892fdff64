/* Reads one element more of A than there is, as an unrolled loop without a tail does. */
#include "tests/plugins/reference.h"

static enum gemm_status reads_on(void *context, const struct gemm_call *call) {
    (void)context;
    const size_t rows = gemm_transposes_a(call->op) ? call->k : call->m,
                 cols = gemm_transposes_a(call->op) ? call->m : call->k;
    if (rows && cols) {
        volatile double next = reference_get(call->dtype, call->a, (rows - 1) * call->lda + cols);
        (void)next;
    }
    return reference_gemm(call);
}

static const struct gemm_backend backend = {.name = "reads-on", REFERENCE_SLOTS, .gemm = reads_on};
GEMM_PLUGIN(backend);
