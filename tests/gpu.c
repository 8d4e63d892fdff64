#include "tests/gpu.h"

#include <stdlib.h>

const char *const gpu_backends[GPU_BACKENDS] = {"cuda-naive", "cuda-coalesced", "cuda-shmem",
                                                "cuda-order", "cuda-tuned",     "cublas"};

void gpu_needed(void) {
    const struct gemm_backend *backend;
    if (registry_find("cublas", &backend) == STATUS_OK) return;
    print_message("skipped: no GPU: %s\n", status_message());
    skip();
}

void gpu_open(struct compute *compute, const char *name, const struct compute_options *options) {
    const struct gemm_backend *backend;
    gpu_needed();
    assert_status(registry_find(name, &backend), STATUS_OK);
    assert_status(compute_open(compute, backend, options), STATUS_OK);
}
