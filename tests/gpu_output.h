/* The output layer of a training step in one kernel: a layer of cuda-tuned against sums in double. */
#ifndef TESSERA_TESTS_GPU_OUTPUT_H
#define TESSERA_TESTS_GPU_OUTPUT_H

#include "tests/gpu.h"
#include "kernels/ops.h"
#include "tests/values.h"

struct output_shape {
    enum gemm_dtype dtype; /* of operands: GEMM_BF16, GEMM_F16 or GEMM_F32 */
    size_t rows, units, classes;
    enum activation activation;
    double smoothing, alpha;          /* alpha: of the input gradient */
    bool bad_label, early, uncounted; /* early: b_complete is set; uncounted: without the loss, too */
    bool apart, pre;         /* apart: the derivative does not read X; pre: logits are stored twice */
    enum activation forward; /* of the logits */
    bool bad_weight;         /* bad_value is one of the weights, else of the biases */
    double bad_value;        /* 0: none */
};

/* Operands on the host. In 16 bits, X and W are small multiples of powers of 2, so that logits are exact. */
enum { OUTPUT_MOST_ROWS = 17001 };
struct output_operands {
    struct values x, w, bias, read;
    uint8_t labels[OUTPUT_MOST_ROWS];
};

enum { X_GRAD, BELOW_GRAD, W_GRAD, BIAS_GRAD, LOSS, LOGITS, GRAD, OUTPUT_RESULTS }; /* tally: apart */

struct output_outcome {
    struct values result[OUTPUT_RESULTS];
    struct tally tally;
};

struct output_operands output_operands_of(const struct output_shape *shape);
void output_operands_close(struct output_operands *all);

/* Bytes of a result. */
size_t output_bytes(const struct output_shape *shape, int result);

/* Runs the layer; results are poisoned before. False: the backend does not take it. */
bool output_run(struct compute *compute, const struct output_shape *shape,
                const struct output_operands *operands, struct output_outcome *outcome);
void output_outcome_close(struct output_outcome *outcome);

/* Compares all results with those of the formulas. */
void output_check(const struct output_shape *shape, const struct output_operands *all,
                  const struct output_outcome *outcome);

#endif
