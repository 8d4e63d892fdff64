/* Ends the program while it is loaded. */
#include "tests/plugins/reference.h"

#include <stdlib.h>

__attribute__((constructor)) static void attack(void) {
    exit(0);
}

static enum gemm_status right_gemm(void *context, const struct gemm_call *call) {
    (void)context;
    return reference_gemm(call);
}

static const struct gemm_backend backend = {.name = "exit-constructor", REFERENCE_SLOTS, .gemm = right_gemm};
GEMM_PLUGIN(backend);
