/* Wrong: claims to fuse bias and activation, but omits the activation. */
#include "tests/plugins/reference.h"

static bool fuses_forward(void *context, const struct gemm_call *call) {
    (void)context;
    return call->epilogue && !call->epilogue->pre;
}

static enum gemm_status wrong_gemm(void *context, const struct gemm_call *call) {
    (void)context;
    reference_gemm(call);
    for (size_t i = 0; call->epilogue && i < call->m; i++)
        for (size_t j = 0; j < call->n; j++)
            reference_set_c(call, i, j,
                            reference_get_c(call, i, j) +
                                reference_get(call->dtype, call->epilogue->bias, j));
    return GEMM_OK;
}

static const struct gemm_backend backend = {
    .name = "skips-activation", REFERENCE_SLOTS, .gemm = wrong_gemm, .fuses = fuses_forward};
GEMM_PLUGIN(backend);
