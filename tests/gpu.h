/* Shared by tests/test_gpu_*.c. Without a usable GPU each test is skipped, with the reason. */
#ifndef TESSERA_TESTS_GPU_H
#define TESSERA_TESTS_GPU_H

#include "tests/support.h"

enum { GPU_BACKENDS = 6 };
extern const char *const gpu_backends[GPU_BACKENDS];

/* Skips the test without a GPU. */
void gpu_needed(void);
/* Skips the test on GPUs other than those of compute capability 9.0, where cuda-tuned with tensor=always has
   a kernel for a large float32 product. Tests of its other kernels for tensor cores then require them. */
void gpu_tensor_needed(void);
void gpu_open(struct compute *compute, const char *backend, const struct compute_options *options);

struct bench; /* tests/training_bench.h */

/* A training with backend cuda-tuned and this engine, which must be possible. */
void gpu_open_engine(struct bench *bench, const char *engine, const char *settings);

#endif
