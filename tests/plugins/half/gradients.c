/* A plug-in in half precision; the option `kind` makes it wrong. Each of its products is right; kind `halved`
   halves the weight gradient of an earlier call, from the 101st call on. */
#include <stdlib.h>

#include "tests/plugins/reference.h"

struct context {
    bool halves;
    long calls;
    struct gemm_call gradient; /* the last one of a layer with 16 inputs */
};

static bool supports_half(enum gemm_dtype dtype, enum gemm_op op) {
    return dtype == GEMM_F16 && op != GEMM_TT;
}

static enum gemm_status gemm(void *opaque, const struct gemm_call *call) {
    struct context *context = opaque;
    const struct gemm_call *earlier = &context->gradient;
    if (++context->calls > 100 && context->halves && call->op == GEMM_TN && call->m == 42)
        for (size_t i = 0; i < earlier->m; i++)
            for (size_t j = 0; j < earlier->n; j++)
                reference_set_c(earlier, i, j, reference_get_c(earlier, i, j) / 2);
    if (call->op == GEMM_TN && call->m == 16) context->gradient = *call;
    return reference_gemm(call);
}

static void *create(const struct gemm_setup *setup, char *why, size_t size) {
    (void)why;
    (void)size;
    struct context *context = calloc(1, sizeof *context);
    if (context) context->halves = setup->option[0].number == 1;
    return context;
}

static const struct gemm_option options[] = {{"kind", "none|halved", "none", "of mistake"}, {0}};
static const struct gemm_backend backend = {.name = "gradients",
                                            .summary = "a plug-in of the tests",
                                            .device = GEMM_ON_HOST,
                                            .supports = supports_half,
                                            .gemm = gemm,
                                            .create = create,
                                            .destroy = free,
                                            .options = options};
GEMM_PLUGIN(backend);
