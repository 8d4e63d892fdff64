/* Has no `gemm`. */
#include "tests/plugins/reference.h"

static const struct gemm_backend backend = {.name = "empty-slot", REFERENCE_SLOTS};
GEMM_PLUGIN(backend);
