/* Is this GEMM right? One list of cases for every backend, each checked against the oracle. */
#ifndef TESSERA_BACKEND_VERIFY_H
#define TESSERA_BACKEND_VERIFY_H

#include "src/backend/compute.h"

/* Reals of A and B: in [-1, 1), or with what kernels tend to get wrong. */
enum verify_values {
    VERIFY_ORDINARY,
    VERIFY_ZEROS,    /* every other row of A and column of B is 0, the first ones among them */
    VERIFY_LARGE,    /* A times 2^40, B times 2^20; fp16: 2^9, 2^8, so that some elements of C overflow */
    VERIFY_SMALL,    /* both times 2^-40; fp16: 2^-7 */
    VERIFY_TINY,     /* so small that elements of C are subnormal; bfloat16: ordinary; fp16: those of A */
    VERIFY_SPECIAL,  /* an infinity in A, a NaN in B */
    VERIFY_POSITIVE, /* in [0, 1]: errors of one direction add up */
    VERIFY_VALUES
};

/* One call to check. Inputs are drawn from `seed`: small integers, whose products and sums are exact in every
   dtype and order (compared for equality), or signed reals (compared within the bound of oracle.h). */
struct verify_case {
    enum gemm_dtype dtype;
    bool c_f32; /* as in struct gemm_call */
    enum gemm_op op;
    size_t m, n, k;
    size_t pad; /* leading dimensions are the columns plus this; the padding of A and B holds NaN */
    double alpha, beta;
    bool integers;
    bool epilogue; /* bias and `activation`; skipped if the backend does not fuse them */
    bool backward; /* the backward epilogue of `activation`; skipped likewise */
    enum activation activation;
    bool as_update; /* as in struct gemm_call */
    bool keeps_pre; /* the epilogue also stores the input of the activation */
    bool twice;     /* again on the same buffers with other inputs: detects a cached result */
    enum verify_values values;
    uint64_t seed;
};

/* Runs one case: fresh inputs, C full of NaN when beta is 0, guard bands around and between the rows of C;
   everything that the call only reads must stay as it was, and so must the state of the thread and the
   process (surroundings.h). STATUS_VERIFY_FAILED names the case and the worst element, or the error of the
   backend. A case that the backend does not support is skipped (*skipped, if not NULL). progress.h has
   the case in words. */
enum status verify_gemm(struct compute *compute, const struct verify_case *test, bool *skipped);

/* The same on up to VERIFY_TOGETHER backends of one precision, up to the first failure: the inputs are drawn
   and the oracle is computed once for all of them. `skipped`: one for each backend.
   STATUS_USAGE if the precisions differ. */
enum { VERIFY_TOGETHER = 8 };
enum status verify_gemm_together(struct compute *const *computes, size_t count,
                                 const struct verify_case *test, bool *skipped);

/* The list: {NN, TN, NT} x {f32, f64, bf16, bf16 to f32, fp16, fp16 to f32} x beta {0, 1, 0.5} x
   {integers, reals}, over sizes 1, 15-17, 31-33, odd shapes, k = 0, the layer shapes of the configs with full
   and partial batches, dense and padded leading dimensions. 16 bits: part of the sizes. Then the epilogues,
   with every activation, and every kind of values on the odd shapes and those of the configs. */
size_t verify_case_count(void);
struct verify_case verify_case_at(size_t index);

/* The same small call 2,000 times, after some to start with: it must leave neither threads nor, on the host,
   memory behind. */
enum status verify_steady(struct compute *compute);

/* Batches of products, if the backend has the slot gemm_batch: each matrix of C is exact, or within the bound
   of the oracle, with strides larger than a matrix and with one A or B for all. The bytes between the
   matrices must stay as they were. Adds to the counts. */
enum status verify_batches(struct compute *compute, size_t *checked, size_t *skipped);

/* Runs the whole list, verify_batches and verify_steady, up to the first failure; counts the cases that ran
   and that were skipped. */
enum status verify_backend(struct compute *compute, size_t *checked, size_t *skipped);

/* `count` cases that are not in the list: shapes, leading dimensions, alphas, betas and values are drawn from
   the system's random numbers. A side is at most 2,000, a product at most 2^20 multiply-adds. Adds to the
   counts. */
enum status verify_secret(struct compute *compute, size_t count, size_t *checked, size_t *skipped);

/* STATUS_UNAVAILABLE if the backend lacks NN, TN or NT in this dtype: a training needs all three. */
enum status verify_training_ops(const struct compute *compute, enum gemm_dtype dtype);

#endif
