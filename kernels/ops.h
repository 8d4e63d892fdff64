/* The element-wise contract: everything a training step needs beside GEMM, once per dtype and device.

   Matrices are row-major and dense, [rows][cols]; `void *` points to elements of the table's dtype in device
   memory. In the table for GEMM_BF16, activations and their gradients (x, pre, out, logits, grad of a layer) are bfloat16,
   parameters and all that belongs to them (bias, bias_grad, weights, grad and velocity of sgd) float32; arithmetic is float32,
   each stored result rounded once. Calls may be asynchronous and never fail by themselves: a device reports faults when it is
   synchronised. Results do not depend on the number of threads: every reduction has one fixed order. */
#ifndef TESSERA_KERNELS_OPS_H
#define TESSERA_KERNELS_OPS_H

#include <stdint.h>

#include "kernels/augment.h"
#include "kernels/gemm.h"

/* What passes over images accumulate, in device memory; all zero at the start. */
struct tally {
    double loss_sum;   /* of the cross-entropy of every image, in nats */
    uint64_t images;   /* seen */
    uint64_t correct;  /* classified right: the first largest logit is the label */
    uint64_t batches;  /* seen */
    uint64_t bad_step; /* 1 + the first batch whose loss was not finite; 0: none */
};

struct ops {
    /* x[r][:] = images[i][:] / 255 and y[r] = labels[i] with i = index[r]; index NULL: i = r.
       images [..][features], labels [..], index [rows], x [rows][features], y [rows]. */
    void (*gather)(void *context, size_t rows, size_t features, const uint8_t *images, const uint8_t *labels,
                   const uint32_t *index, void *x, uint8_t *y);

    /* pre += bias (a row), out = act(pre). `out` may be `pre` unless activation_needs_input. */
    void (*bias_activation)(void *context, size_t rows, size_t cols, enum activation activation,
                            const void *bias, void *pre, void *out);

    /* grad *= act'(pre) (computed from `out` where that is enough), then bias_grad[c] = sum_r grad[r][c]. */
    void (*bias_activation_backward)(void *context, size_t rows, size_t cols, enum activation activation,
                                     const void *pre, const void *out, void *grad, void *bias_grad);

    /* Softmax cross-entropy, shifted by the row maximum so that it cannot overflow. grad = (softmax - onehot)
       / rows, or NULL; `loss` receives the mean over the rows, or NULL. A label of `classes` or more makes
       the loss NaN. */
    void (*softmax_cross_entropy)(void *context, size_t rows, size_t classes, const void *logits,
                                  const uint8_t *labels, void *grad, double *loss, struct tally *tally);

    /* SGD as torch.optim.SGD: g += decay w; v = momentum v + g; w -= lr v. velocity NULL: w -= lr g.
       Nothing happens once guard->bad_step is set: the weights stay what they were before the bad step.
       `learning_rate` points to device memory, so that a captured step sees every epoch's own schedule. */
    void (*sgd)(void *context, size_t count, const double *learning_rate, double momentum,
                double weight_decay, const struct tally *guard, void *weights, const void *grad,
                void *velocity);

    /* rounded[i] = values[i], parameters made operands of a GEMM in the table's dtype. */
    void (*round)(void *context, size_t count, const void *values, void *rounded);

    /* deformed[i] = images[i] as kernels/augment.h says, for this epoch: the same pixels on every device and in every table.
       images [count][height][width], labels [count], deformed [count][to_height][to_width] of the plan; apart. */
    void (*augment)(void *context, const struct augment_plan *plan, uint32_t epoch, size_t count,
                    const uint8_t *images, const uint8_t *labels, uint8_t *deformed);
};

#endif
