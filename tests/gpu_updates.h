/* Weight gradients of cuda-tuned that update the weights themselves, against gradient and update apart. */
#ifndef TESSERA_TESTS_GPU_UPDATES_H
#define TESSERA_TESTS_GPU_UPDATES_H

#include "tests/gpu.h"

enum { GPU_SGD_RULES = 4, GPU_UPDATE_RULES = 6 }; /* the first ones are those of sgd */
extern const struct update gpu_update_rules[GPU_UPDATE_RULES];

/* The matrices of a call, in device memory. */
struct gpu_matrices {
    void *a, *b, *c, *array[3], *rounded; /* array: weights, moments */
    struct step_scalars *step;
    struct tally *guard;
};

enum gpu_values { GPU_REALS, GPU_INTEGERS, GPU_NOT_FINITE }; /* sums of the second are exact in any order */

struct gpu_matrices gpu_matrices_open(struct compute *compute, const struct gemm_call *call,
                                      enum gpu_values kind, uint64_t bad_step, uint32_t seed);
void gpu_matrices_close(struct compute *compute, struct gpu_matrices *all);

/* What an update works on, the same for gradient and update apart, and as it was. */
struct gpu_copies {
    struct gpu_matrices fused, apart, before;
};

struct gpu_copies gpu_copies_open(struct compute *compute, const struct gemm_call *shape,
                                  enum gpu_values kind, uint64_t bad_step, uint32_t seed);

/* After the update: that it has the bits of gradient and update apart, C unwritten, and that nothing changed
   after a bad step. Frees the copies. */
void gpu_copies_check(struct compute *compute, const struct gemm_call *shape, const struct update *rule,
                      uint64_t bad_step, struct gpu_copies *copies);

/* The rule, or the call, on these matrices. */
struct update gpu_rule_on(const struct gpu_matrices *all, enum gemm_dtype dtype, const struct update *rule);
struct gemm_call gpu_call_on(const struct gemm_call *call, const struct gpu_matrices *all);

/* A weight gradient. k 0: C has it. */
struct gemm_call gpu_shape_of(enum gemm_dtype dtype, size_t m, size_t n, size_t k);

void gpu_assert_same(struct compute *compute, const void *x, const void *y, size_t bytes, const char *what);

/* cuda-tuned, of 16 bits or float32: by six bf16 products, however small the product. */
void gpu_open_updates(struct compute *compute, enum gemm_dtype dtype);

#endif
