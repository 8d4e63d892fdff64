/* What the tests of the GPU share: test_gpu_gemm.c, test_gpu_ops.c and test_gpu_training.c. Each test is
   skipped, saying so, where no GPU is usable. */
#ifndef TESSERA_TESTS_GPU_H
#define TESSERA_TESTS_GPU_H

#include "tests/support.h"

enum { GPU_BACKENDS = 6 };
extern const char *const gpu_backends[GPU_BACKENDS];

/* Skips the test without a GPU. */
void gpu_needed(void);
void gpu_open(struct compute *compute, const char *backend, const struct compute_options *options);

#endif
