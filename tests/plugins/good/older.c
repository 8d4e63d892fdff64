/* Correct, and built against a header whose table ended with `gemm`: the program must not read the slots
   behind it. Its name is that of a built-in backend. */
#include "tests/plugins/reference.h"

static enum gemm_status gemm(void *context, const struct gemm_call *call) {
    (void)context;
    return reference_gemm(call);
}

static const struct gemm_backend backend = {.name = "serial",
                                            REFERENCE_SLOTS,
                                            .gemm = gemm,
                                            .create = (void *(*)(const struct gemm_setup *, char *, size_t))1,
                                            .describe = (void (*)(void *, char *, size_t))1};
extern const struct gemm_plugin gemm_plugin;
const struct gemm_plugin gemm_plugin = {GEMM_ABI, offsetof(struct gemm_backend, create), &backend};
