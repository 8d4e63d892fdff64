/* Correct, with an option of each kind. Its description shows what it received. */
#include "tests/plugins/reference.h"

#include <stdio.h>
#include <stdlib.h>

static const struct gemm_option options[] = {
    {"block", "1..256", "64", "rows of a block"},
    {"layout", "rows|columns", "rows", "how it reads A"},
    {"tune", "FILE", "", "a file of measured times"},
    {0},
};

struct context {
    int block, layout;
    char tune[64];
};

static void *create(const struct gemm_setup *setup, char *why, size_t size) {
    const struct gemm_value *tune = &setup->option[2];
    struct context *context = malloc(sizeof *context);
    if (!context) return NULL;
    context->block = (int)setup->option[0].number;
    context->layout = (int)setup->option[1].number;
    snprintf(context->tune, sizeof context->tune, "%s", tune->text);
    if (tune->text[0] != '?') return context;
    snprintf(why, size, "it cannot read tune=%s", tune->text);
    free(context);
    return NULL;
}

static enum gemm_status gemm(void *context, const struct gemm_call *call) {
    (void)context;
    return reference_gemm(call);
}

static void describe(void *opaque, char *text, size_t size) {
    const struct context *context = opaque;
    snprintf(text, size, "block %d, layout %d, tune '%s'", context->block, context->layout, context->tune);
}

static const struct gemm_backend backend = {.name = "with-options",
                                            REFERENCE_SLOTS,
                                            .gemm = gemm,
                                            .create = create,
                                            .destroy = free,
                                            .options = options,
                                            .describe = describe};
GEMM_PLUGIN(backend);
